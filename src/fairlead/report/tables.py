"""The verdict in text: a table, the recommendation, and what the numbers are.

Pure functions of a summary. A score that lies between 0 and 1 is shown in percent and its gains in percentage points,
both with one decimal; any other in its own unit. The words for verdicts and actions are those of `fairlead.metrics`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, get_args

from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.data.survey import BY_CHANCE, COPIES
from fairlead.metrics import METRICS
from fairlead.metrics.advice import told_owner
from fairlead.metrics.verdict import Verdict, digits
from fairlead.runs.summary import Decided, Decisions, Entry, Summary, Way

NONE = "–"
WIDTH = 100  # columns of a terminal
BAR, IMPROVING = " *", " †"
VERDICTS: tuple[str, ...] = get_args(Verdict)
GROUPS = {"alone": "Alone", "method": "Together", "pooled": "All rows in one place"}
SHORT = {"alone": "alone:", "method": "together:", "pooled": "in one place:"}
MODELS = {"personal": "each owner's personal model", "global": "the global model"}
RULES = {
    "validation": "the round with the best validation accuracy",
    "loss": "the number of rounds with the lowest validation loss",
    "last": "the last round",
}
AVERAGES = {"clients": "owners, each counting the same", "samples": "samples, each counting the same"}
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", NONE: "--"}
LATEX |= {"†": r"\dag{}"} | {mark: f"\\{mark}" for mark in "&%$#_{}"}


class Measure(NamedTuple):
    """How the metric that verdicts are about is written."""

    title: str
    points: bool  # in percent, differences in percentage points
    higher: bool  # is better

    @property
    def unit(self) -> str:
        """What a difference is told in, after a comma."""
        return ", points" if self.points else ""

    @property
    def worst(self) -> str:
        """Where the owner stands that is served worst."""
        return "lowest" if self.higher else "highest"

    @property
    def heading(self) -> str:
        """The title with its unit, and what a reader may not expect."""
        return f"{self.title}{', %' if self.points else ''}{'' if self.higher else ' (lower is better)'}"

    def score(self, value: float | None) -> str:
        """A value of the metric."""
        return percent(value) if self.points else quantity(value)

    def gain(self, value: float | None) -> str:
        """A difference, positive where it is better."""
        return percent(value, "+") if self.points else quantity(value, "+")


class Row(NamedTuple):
    """A line of the verdict table."""

    name: str
    kind: str  # alone, method or pooled
    bar: bool
    cells: list[str]  # under `headings`, the way's name with its marks first


def measure(summary: Summary) -> Measure:
    """The metric that the verdicts are about."""
    name = summary["findings"]["metric"]
    if name in METRICS:
        return measure_of(name)
    judged = [v for way in summary["findings"]["ways"] for v in way["verdicts"]]
    return Measure(name, judged[0]["unit"] == "points", judged[0]["higher"]) if judged else Measure(name, False, True)


def measure_of(name: str) -> Measure:
    """A metric of `fairlead.metrics`."""
    known = METRICS[name]
    return Measure(known.title, known.unit == "points", known.higher)


def percent(value: float | None, sign: str = "") -> str:
    """A share as a percentage with one decimal; `sign="+"` for differences.

    >>> percent(0.8125), percent(-0.0312, "+"), percent(None)
    ('81.2', '-3.1', '–')
    """
    if value is None or not math.isfinite(value):
        return NONE
    text = f"{100 * value:{sign}.1f}"
    return "0.0" if text in ("-0.0", "+0.0") else text


def quantity(value: float | None, sign: str = "") -> str:
    """A number in its own unit; a dash where there is none.

    >>> quantity(31.4159), quantity(16.0, "+"), quantity(None)
    ('31.4', '+16.0', '–')
    """
    return NONE if value is None or not math.isfinite(value) else digits(value, sign)


def amount(value: float | None) -> str:
    """A size, a time or a speed in at most six characters.

    >>> amount(0), amount(0.037), amount(12.34), amount(1234.5), amount(2_345_678)
    ('0', '0.04', '12.3', '1,234', '2,346k')
    """
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    if value >= 99_999.5:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def ways(summary: Summary, *kinds: str) -> list[Way]:
    """The ways to train of these kinds, or all: alone first, then the methods, then pooled."""
    return [way for kind in kinds or GROUPS for way in summary["findings"]["ways"] if way["kind"] == kind]


def bar(summary: Summary) -> Way:
    """The best way to train alone, which all others are judged against."""
    return next(way for way in ways(summary) if way["name"] == summary["findings"]["bar"])


def published(summary: Summary) -> bool:
    """Whether the training follows a published protocol; on own data it is searched for, in folds."""
    return "folds" not in summary["settings"]


def can_predict(summary: Summary) -> bool:
    """Whether every owner has a model for raw rows: of a table of the user's own."""
    return not published(summary) and bool(summary["data"].get("columns"))


def improving(way: Way) -> list[str]:
    """The notes that say that the way's training was cut short."""
    return [note for note in way["notes"] if note.startswith("still improving")]


def lowest(summary: Summary, way: Way) -> str | None:
    """The name of the owner that the way serves worst."""
    named = zip(summary["findings"]["owners"], way["scores"], strict=True)
    return next((told_owner(owner) for owner, score in named if score is not None and score == way["lowest"]), None)


def counts(way: Way) -> dict[str, int]:
    """The number of owners by verdict, all four words."""
    found = Counter(v["verdict"] for v in way["verdicts"])
    return {word: found[word] for word in VERDICTS}


def told_counts(way: Way) -> str:
    """The same in words: '3 better, 1 no difference found'."""
    return ", ".join(f"{n} {word}" for word, n in counts(way).items() if n) or "the bar"


def transfer(ptr: dict[str, float] | None) -> str:
    """PTR in percent, and in brackets what chance alone would give."""
    return f"{100 * ptr['share']:.0f} ({100 * ptr['expected']:.0f})" if ptr else NONE


Figures = Mapping[str, Any]  # a method's entry, or nothing


class Column(NamedTuple):
    """A column of the verdict table: a name that is short enough for a terminal, one in full, and its cell."""

    short: str
    full: str
    cell: Callable[[Way, Figures], str]  # of a way and its method's entry, {} where it has none


def columns(summary: Summary) -> list[Column]:
    """The columns of the verdict table."""
    m = measure(summary)

    def size(key: str) -> Callable[[Way, Figures], str]:
        return lambda way, e: NONE if e.get(key) is None else amount(e[key] / 1e6)

    def verdict(word: str) -> Callable[[Way, Figures], str]:
        return lambda way, e: str(counts(way)[word]) if way["verdicts"] else NONE

    def score(way: Way, e: Figures) -> str:
        # A method's entry leaves out newcomers and has the spread over seeds.
        spread = e.get("spread", {}).get("accuracy")
        return m.score(e.get("accuracy", way["score"])) + (f" ± {m.score(spread)}" if spread is not None else "")

    short = m.title.replace(" ", "\n", 1)
    short += " %" if m.points else "\n(lower\nis better)" if not m.higher else ""
    relative = [Column("R-Acc\n%", "R-Acc, %", lambda way, e: percent(e.get("r_accuracy") if e else None, "+"))]
    over_owners = [
        Column(f"{m.worst}\nowner", f"{m.worst.capitalize()} owner", lambda way, e: m.score(way["lowest"])),
        *(
            Column(short, word.capitalize(), verdict(word))
            for word, short in zip(VERDICTS, ("better", "worse", "no\ndiff.", "too\nfew"), strict=True)
        ),
        Column("PTR %\n(chance)", "PTR, % (chance)", lambda way, e: transfer(way["ptr"])),
    ]
    if len(summary["findings"]["owners"]) == 1:
        over_owners = [
            Column("verdict", "Verdict", lambda w, e: w["verdicts"][0]["verdict"] if w["verdicts"] else NONE)
        ]
    return [
        Column(short, m.heading[:1].upper() + m.heading[1:], score),
        Column("gain", f"Gain over the bar{m.unit}", lambda way, e: m.gain(way["gain"])),
        *(relative if published(summary) else []),
        *over_owners,
        Column("MB\nup", "MB up", size("bytes_up")),
        Column("MB\ndown", "MB down", size("bytes_down")),
        Column("passes", "Passes over the rows", lambda way, e: amount(e.get("passes"))),
        Column("train\ns", "Training, s", lambda way, e: amount(e.get("train_seconds"))),
    ]


def headings(summary: Summary) -> list[str]:
    """The names of the columns in full, the way's first."""
    return ["Way to train", *(column.full for column in columns(summary))]


def rows(summary: Summary, shown: list[Column] | None = None) -> list[Row]:
    """The verdict table, one row per way to train, in the order of `GROUPS`."""
    shown = shown or columns(summary)
    found = []
    for way in ways(summary):
        entry: Figures = summary["methods"].get(way["name"], {})
        is_bar = way["name"] == summary["findings"]["bar"]
        entry = {**entry, "r_accuracy": None} if is_bar else entry
        name = way["name"] + BAR * is_bar + IMPROVING * bool(improving(way))
        found.append(Row(way["name"], way["kind"], is_bar, [name, *(column.cell(way, entry) for column in shown)]))
    return found


def verdict_table(summary: Summary) -> Table:
    """One row per way to train, for a terminal of 100 columns; a narrower one folds the way's name."""
    shown = _fitting(summary)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for i, short in enumerate(["way", *(column.short for column in shown)]):
        table.add_column(short, justify="right" if i else "left", no_wrap=bool(i), overflow="fold")
    worse = next((i for i, column in enumerate(shown, 1) if column.short in ("worse", "verdict")), 0)
    for kind, group in groupby(rows(summary, shown), lambda row: row.kind):
        table.add_row(Text(SHORT[kind], style="italic"))
        for row in group:
            table.add_row(*_bold_if_worse(row.cells, worse))
    return table


def _fitting(summary: Summary) -> list[Column]:
    """The columns for a terminal; R-Acc is left out where it would not fit."""
    shown = [column for column in columns(summary) if column.short != "passes"]  # a line below the table has them
    if _width(shown, rows(summary, shown)) <= WIDTH:
        return shown
    return [column for column in shown if not column.short.startswith("R-Acc")]


def _bold_if_worse(row: list[str], worse: int) -> list[Text]:
    """A row's cells; the one that tells who is worse off stands out if somebody is."""
    cells, told = [Text(cell) for cell in row], row[worse]
    if told == "worse" or (told.isdigit() and told != "0"):
        cells[worse].stylize("bold")
    return cells


def _width(shown: list[Column], found: list[Row]) -> int:
    heads = [0, *(max(map(len, column.short.split("\n"))) for column in shown)]
    widths = [max(heads[i], *(len(row.cells[i]) for row in found)) for i in range(len(heads))]
    return sum(widths) + 2 * (len(widths) - 1)  # rich puts two spaces between columns


def opening_lines(summary: Summary) -> list[str]:
    """What to know before the table: what is odd about the data, what verdicts are about, and what the bar is."""
    return [*data_notes(summary), *nobody_else(summary), basis(summary)]


def nobody_else(summary: Summary) -> list[str]:
    """A sentence where there is one owner."""
    if len(summary["findings"]["owners"]) > 1:
        return []
    return ["There is one owner, and nobody to train with: methods differ from training alone in how they train only."]


def data_notes(summary: Summary) -> list[str]:
    """The notes on the data in one line, where there are any."""
    notes = [note.rstrip(".") for note in summary.get("data", {}).get("notes", [])]
    return [f"Data: {'; '.join(notes)}."] if notes else []


def basis(summary: Summary) -> str:
    """What the verdicts are about and what they compare with."""
    found = summary["findings"]
    return f"Verdicts are about {found['why_metric']}; the bar is {bar(summary)['title']}, {found['why_bar']}."


def verdict_lines(summary: Summary, most: int = 12) -> list[str]:
    """What stands below the table: the marks, the notes, the recommendation, and what the numbers are.

    Up to `most` owners have a line of their own; more are counted by action.
    """
    said = [*marks(summary), *newcomers(summary), caption(summary), *mean_gains(summary), *enough_rows(summary)]
    said += [*copies(summary), *luck(summary)]
    said += [*more_tested(summary), *work(summary)]
    return [*said, *decision_lines(summary), *advice_lines(summary, most)]


def marks(summary: Summary) -> list[str]:
    """What the marks in the table and the names of its rows mean."""
    named = [f"{w['name']}: {w['title']}" for w in ways(summary) if w["title"] not in (w["name"], f"the {w['name']}")]
    said = ["; ".join(["*: the bar", *named]) + "."]
    short = {
        note: [w["name"] for w in ways(summary) if note in w["notes"]] for w in ways(summary) for note in improving(w)
    }
    said += [f"†: {', '.join(who)} {'was' if len(who) == 1 else 'were'} {note}." for note, who in short.items()]
    remarks: dict[str, list[str]] = {}
    for way in ways(summary):
        for note in way["notes"]:
            if any(words in note for words in REMARKS):
                remarks.setdefault(note, []).append(way["name"])
    return said + [f"{', '.join(who)}: {note}." for note, who in remarks.items()]


# Notes that the terminal says too: what would change how the numbers are read.
REMARKS = ("differential privacy", "on purpose", "were left out")


def newcomers(summary: Summary) -> list[str]:
    """A sentence on the clients held out of training, where there are any."""
    m = measure(summary)
    told = [f"{n} {m.score(e['unseen']['accuracy'])}" for n, e in summary["methods"].items() if e.get("unseen")]
    return [f"Newcomers, held out of training, mean {m.heading}: {', '.join(told)}."] if told else []


def decision_lines(summary: Summary) -> list[str]:
    """What was decided after training, a few sentences for each guard and stack."""
    said = []
    for name, entry in summary["methods"].items():
        if not entry.get("decisions"):
            continue
        way = next(way for way in ways(summary) if way["name"] == name)
        told, worse = len(way["verdicts"]), counts(way)["worse"]
        said.append(
            f"{name}: {told_decisions(summary, entry['decisions'])} {told_voices(summary, name)} "
            f"Not significantly worse than the bar: {told - worse} of {told} owners."
        )
    return said


def told_decisions(summary: Summary, decisions: Sequence[Decisions]) -> str:
    """Who deploys what, and the chance of being worse off that goes with it."""
    every, times = [client for one in decisions for client in one["clients"]], len(decisions)
    deployed = Counter(client["deploys"] for client in every)
    home, others = deployed.pop("local", 0), ", ".join(f"{n} {what}" for what, n in deployed.most_common())
    over = f" in {times} {'seeds' if published(summary) else 'folds'}" if times > 1 else ""
    text = f"of {len(every)} decisions{over} {home} are for the owner's own model"
    text += _at_home(every, times) + (f" and for others: {others}." if others else ".")
    sure, declined = decisions[0]["sure"], [client["declined"]["worse"] for client in every if "declined" in client]
    if sure is None:
        return text
    if declined:
        low, high = f"{min(declined):.0%}", f"{max(declined):.0%}"
        between = low if low == high else f"{low} to {high}"
        text += f" Their chance of being worse off with another: {between}."
    if not others:
        return text
    expected, bound = sum(client["worse"] for client in every) / times, (1 - sure) * (len(every) - home) / times
    return f"{text} Expected worse off than alone: {expected:.1f} owners, at most {bound:.1f} at sure = {sure:g}."


def _at_home(every: list[Decided], times: int) -> str:
    """The owners that keep their own model, where they are few."""
    names = Counter(client["name"] for client in every if client["deploys"] == "local")
    told = ", ".join(f"{name} {n}x" if times > 1 else name for name, n in names.items())
    return f" ({told})" if 0 < len(names) <= 6 else ""


def told_voices(summary: Summary, name: str) -> str:
    """The scores on test rows of what was decided between, had everybody deployed it, and of what was decided."""
    m, entry = measure(summary), summary["methods"][name]
    decisions = entry["decisions"]
    scores = {way["name"]: way["score"] for way in ways(summary)}
    if published(summary):  # the table's methods learned from train rows alone
        for voice in decisions[0]["voices"]:
            known = [x for one in decisions for x in one["test_scores"][voice] if x is not None]
            scores[voice] = sum(known) / len(known) if known else None
    means = ", ".join(f"{voice} {m.score(scores[voice])}" for voice in decisions[0]["voices"])
    what = f"{m.title[:1].upper()}{m.title[1:]}{' in %' if m.points else ''}"
    return f"{what} on test rows, had everybody deployed it: {means}; as decided: {m.score(entry['accuracy'])}."


def copies(summary: Summary) -> list[str]:
    """A sentence where a method may have learned at one owner the rows that it is tested on at another."""
    data = summary["data"]
    found = [note for note in data["notes"] if COPIES in note and not note.endswith(BY_CHANCE)]
    return [
        f"{note.split()[0]} of {data['rows']:,} rows are also another owner's: gains of training together may come "
        "from rows that were learned there and tested here. Leave each copy with one owner."
        for note in found
    ]


def luck(summary: Summary) -> list[str]:
    """A sentence where nothing in the runs tells how much luck there is in training."""
    if summary["findings"]["training"] != "assumed":
        return []
    return [
        "One run of each method: how much luck there is in training is not measured but assumed, and few verdicts can "
        "be sure. Several seeds measure it: --seeds 3."
    ]


def mean_gains(summary: Summary) -> list[str]:
    """A sentence on every method's gain over the bar, mean over the owners, with its interval."""
    m, advice = measure(summary), summary["findings"]["recommendation"] or {}
    told = [f"{name} {m.gain(one['gain'])} ({_ends(m, one)})" for name, one in advice.get("means", {}).items()]
    if not told:
        return []
    sure = f"{100 * advice['level']:.3g}%"
    return [f"The mean gain over the owners{m.unit}, with {sure} intervals that hold together: {', '.join(told)}."]


def _ends(m: Measure, one: dict[str, float | None]) -> str:
    lower, upper = ("no bound" if one[end] is None else m.gain(one[end]) for end in ("lower", "upper"))
    return f"{lower} to {upper}"


def enough_rows(summary: Summary) -> list[str]:
    """A sentence where means depend on owners with too few rows to tell: what the others gain."""
    m, told = measure(summary), []
    for way in ways(summary, "method"):
        known = [v for v in way["verdicts"] if v["gain"] is not None]
        sure = [v["gain"] for v in known if v["verdict"] != "too few rows to tell"]
        if 0 < len(sure) < len(known):
            told.append(f"{way['name']} {m.gain(sum(sure) / len(sure))} ({len(sure):,} of {len(known):,} owners)")
    if not told:
        return []
    return [f"The mean gain{m.unit}, without the owners that have too few rows to tell: {', '.join(told)}."]


def more_tested(summary: Summary) -> list[str]:
    """A sentence where testing every row once would tell what one test part could not."""
    who, methods = summary["scenario"], ways(summary, "method")
    fixed = who.get("pool", "all") != "all" or who.get("samples") is not None
    few = sum(counts(way)["too few rows to tell"] for way in methods)
    if published(summary) or fixed or summary["settings"]["folds"] > 1:
        return []
    if 2 * few <= sum(len(way["verdicts"]) for way in methods):
        return []
    tested = [client["n_test"] for client in summary["methods"][summary["control"]]["clients"]]
    span = f"{min(tested):,}" if min(tested) == max(tested) else f"{min(tested):,} to {max(tested):,}"
    return [
        f"Most owners have too few test rows ({span} of them), or one training is too few, to tell. --folds 5 tests "
        "every row of theirs once, measures the luck of training, and takes a few times as long."
    ]


def work(summary: Summary) -> list[str]:
    """A sentence on equal work: every method's passes, how far the control was followed, and who used more."""
    control = summary["control"]
    followed = [one["followed"] / one["round"] for one in summary["methods"][control].get("search", [])]
    used = {name: entry["passes"] for name, entry in summary["methods"].items() if entry["passes"] is not None}
    if not followed or control not in used:
        return []
    far = used[control] * sum(followed) / len(followed)
    told = ", ".join(f"{name} {passes:,.0f}" for name, passes in used.items())
    more = [name for name, passes in used.items() if passes > far]
    said = f"Passes over the rows: {told}. {control} was followed for {far:,.0f}"
    if not more:
        return [f"{said}; no method used more."]
    alone = {way["name"]: way for way in ways(summary)}[control]
    ended = "was still improving" if improving(alone) else "had stopped improving"
    return [f"{said} and {ended}; more were used by {', '.join(more)}."]


def headline(summary: Summary) -> str:
    """The recommendation for the federation."""
    advice = summary["findings"]["recommendation"]
    if advice is None:
        return f"Only {summary['control']} was run; there is nothing to compare it with."
    return str(advice["federation"]["why"])


def action(one: dict[str, Any]) -> str:
    """What an owner should do, in the words of `metrics.advice`."""
    return f"{one['action']} with {one['method']}" if one["method"] else str(one["action"])


def advice_lines(summary: Summary, most: int = 12) -> list[str]:
    """The recommendation: for each owner, or how many owners should do what, then for the federation."""
    advice = summary["findings"]["recommendation"]
    if advice is None:
        return [headline(summary)]
    owners = advice["owners"]
    told = [f"  {one['owner']}: {one['why']}" for one in owners]
    if len(owners) > most:
        told = [f"  {what}: {n} of {len(owners)} owners" for what, n in Counter(map(action, owners)).most_common()]
    return ["Recommendation:", *told, f"  the federation: {headline(summary)}"]


def facts(entry: Entry) -> tuple[str, str, str]:
    """What a method's numbers are: which model, which round, averaged over what."""
    model, rule, average = entry["model"], entry["round"]["rule"], entry["average"]
    return MODELS.get(model, model), RULES.get(rule, rule), AVERAGES.get(average, average)


def caption(summary: Summary) -> str:
    """One line on what the numbers are; a line per group of methods' facts when they differ."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, entry in summary["methods"].items():
        groups.setdefault(facts(entry), []).append(name)
    title, several = measure(summary).title, len(summary["findings"]["owners"]) > 1
    said = [
        f"test {title} of {model} at {rule}"
        + (f", averaged over {average}" if several else "")
        + (f" ({', '.join(names)})" if len(groups) > 1 else "")
        for (model, rule, average), names in groups.items()
    ]
    return f"The numbers: {'; '.join(said)}; {_over(summary)}."


def row_titles(summary: Summary) -> tuple[str, str]:
    """What an owner's numbers of train and test rows are: over folds, every row is tested once."""
    folds = len(summary["settings"]["seeds"]) > 1 and not published(summary)
    return ("Train rows, mean of folds", "Test rows, all folds") if folds else ("Train rows", "Test rows")


def _over(summary: Summary) -> str:
    seeds = len(summary["settings"]["seeds"])
    if published(summary):
        return f"mean over {seeds} seeds, ± their standard deviation" if seeds > 1 else "one seed"
    return f"every row tested once in {seeds} folds" if seeds > 1 else "one division into train and test rows"


def markdown_table(summary: Summary) -> str:
    """The verdict table in Markdown, followed by what its marks and numbers mean."""
    head = headings(summary)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *(row.cells for row in rows(summary))]
    escaped = [[cell.replace("|", "\\|").replace(BAR, " \\*") for cell in line] for line in lines]
    table = "\n".join("| " + " | ".join(line) + " |" for line in escaped)
    below = "\n\n".join([*marks(summary), basis(summary), caption(summary)])
    return f"{table}\n\n{below.replace('*', chr(92) + '*')}\n"


def latex_table(summary: Summary) -> str:
    """The verdict table as a LaTeX `tabular` for booktabs, what its marks and numbers mean in a comment above."""

    def line(cells: list[str]) -> str:
        texts = ["".join(LATEX.get(mark, mark) for mark in cell) for cell in cells]
        return (
            " & ".join(f"${text}$" if cell[:1] in "+-" else text for cell, text in zip(cells, texts, strict=True))
            + r" \\"
        )

    body, kind = [r"\toprule", line(headings(summary))], ""
    for row in rows(summary):
        body += [r"\midrule"] * (row.kind != kind) + [line(row.cells)]
        kind = row.kind
    opening = rf"\begin{{tabular}}{{l{'r' * (len(headings(summary)) - 1)}}}"
    above = [f"% {text}" for text in [*marks(summary), basis(summary), caption(summary)]]
    return "\n".join([*above, opening, *body, r"\bottomrule", r"\end{tabular}", ""])
