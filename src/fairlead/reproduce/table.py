"""A study's numbers beside the paper's: on the terminal, in Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.reproduce.study import Budget, Claim, Column, Gain, Key, Side, Study, keys_of

NONE = "–"
WIDE = 4  # with more columns than this in a group, each shows "ours (paper)" in one
LATEX = {mark: f"\\{mark}" for mark in "&%$#_{}"} | {"±": r"$\pm$", NONE: "--", "×": r"$\times$", "²": r"$^2$"}
LATEX |= {"β": r"$\beta$", "ρ": r"$\rho$", "α": r"$\alpha$"}


@dataclass(frozen=True)
class Number:
    """One entry: the paper's number and ours, or why we have none."""

    published: float | None
    ours: tuple[float, ...] = ()
    why: str | None = None

    @property
    def mean(self) -> float | None:
        """Over seeds."""
        return statistics.fmean(self.ours) if self.ours else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; one seed has none."""
        return statistics.stdev(self.ours) if len(self.ours) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.mean is None or self.published is None else self.mean - self.published


Status = Literal["holds", "within the spread", "does not hold", "not run"]
# What may become of a claim, in the order of a table's columns.
STATUSES: tuple[Status, ...] = ("holds", "within the spread", "does not hold", "not run")


class Verdict(NamedTuple):
    """What became of a claim in our runs.

    It holds if every pair does, does not hold if some pair contradicts it, and is within the spread otherwise: some
    differences are no larger than one standard deviation over the seeds.
    """

    text: str
    status: Status
    held: int  # pairs in the claimed order, by more than the spread
    measured: int  # pairs of which both were run
    pairs: int
    against: list[str]  # the pairs that contradict it by more than the spread, in words
    within: list[str]  # the pairs that differ by less, in words
    margin: float | None  # the smallest difference in the claimed direction; negative where it fails


Numbers = Mapping[Key, Number]


def numbers_of(study: Study, ours: Mapping[Key, list[float] | str]) -> dict[Key, Number]:
    """The paper's numbers and ours, entry by entry."""
    found = {}
    for key, entry in study.entries.items():
        got = ours[key]
        found[key] = Number(entry.published, why=got) if isinstance(got, str) else Number(entry.published, tuple(got))
    return found


ROUNDING = 1e-6  # relative; accuracies are single-precision means, and equal ones may differ in their last bits


def judge(claim: Claim, numbers: Numbers) -> Verdict:
    """Whether the claimed ordering is found, seed by seed; pairs that were not run neither help nor hurt.

    The spread of a pair is the standard deviation over seeds of its difference. One seed has none: then the sign alone
    decides.
    """
    found: dict[Status, list[str]] = {status: [] for status in STATUSES}
    margins: list[float] = []
    for high, low in claim.pairs:
        pair = _differences(high, low, numbers)
        if pair is not None and pair.mean is not None:
            margins.append(pair.mean)
            rounding = ROUNDING * max(abs(_mean(s, numbers) or 0.0) for s in (high, low))
            found[_became(pair.mean, pair.std or 0.0, claim.slack, rounding)].append(
                _in_words(high, low, numbers, pair)
            )
    held, within, against = (found[status] for status in STATUSES[:3])
    # The worst that became of a pair is what became of the claim.
    status: Status = next((status for status in reversed(STATUSES) if found[status]), "not run")
    margin = min(margins, default=None)
    return Verdict(claim.text, status, len(held), len(margins), len(claim.pairs), against, within, margin)


def _became(difference: float, spread: float, slack: float, rounding: float) -> Status:
    """What became of one pair."""
    if difference > (-slack - rounding if slack else spread + rounding):
        return "holds"
    return "within the spread" if spread and difference >= -spread - slack else "does not hold"


def _values(side: Side, numbers: Numbers) -> tuple[float, ...]:
    """A side of a claim seed by seed; empty where it was not run."""
    if isinstance(side, float):
        return (side,)
    found = [numbers[k].ours if k in numbers else () for k in keys_of(side)]
    return tuple(a - b for a, b in zip(*found, strict=False)) if isinstance(side, Gain) else found[0]


def _mean(side: Side, numbers: Numbers) -> float | None:
    return Number(None, _values(side, numbers)).mean


def _differences(high: Side, low: Side, numbers: Numbers) -> Number | None:
    """The first less the second, seed by seed; None where one was not run."""
    sides = [_values(side, numbers) for side in (high, low)]
    if not all(sides):
        return None
    seeds = max(map(len, sides))
    a, b = (values * seeds if len(values) == 1 else values for values in sides)  # a plain number has one for all
    return Number(None, tuple(x - y for x, y in zip(a, b, strict=False)))


def _in_words(high: Side, low: Side, numbers: Numbers, difference: Number) -> str:
    """A pair that is not above the spread, in words; a column that both share is said once."""

    def told(side: Side) -> str:
        if isinstance(side, float):
            return f"{side:g}"
        name = f"{side.row} over {side.base}" if isinstance(side, Gain) else side[0]
        return f"{name} {_mean(side, numbers):.4g}"

    columns = list(dict.fromkeys(column for side in (high, low) for _, column in keys_of(side)))
    spread = f"; {difference.mean:+.2g} ± {difference.std:.2g}" if difference.std is not None else ""
    return f"{told(high)} against {told(low)} ({', '.join(columns)}{spread})"


def sentence(verdict: Verdict, most: int = 4) -> str:
    """What became of a claim, in one line."""
    if verdict.status == "not run":
        return f"not run: {verdict.text}."
    count = f"{verdict.held} of {verdict.measured}"
    count += f" ({verdict.pairs - verdict.measured} not run)" if verdict.measured < verdict.pairs else ""
    told = f"{verdict.status}: {verdict.text} [{count}]"
    for what, pairs in (("against it", verdict.against), ("within the spread", verdict.within)):
        if pairs:
            rest = len(pairs) - most
            told += f"; {what}: " + ", ".join(pairs[:most]) + (f" and {rest} more" if rest > 0 else "")
    return told + "."


class Block(NamedTuple):
    """One group of columns as text: a heading, column names and rows."""

    title: str
    head: list[str]
    rows: list[list[str]]


def blocks(study: Study, numbers: Numbers) -> list[Block]:
    """The table's groups of columns, each a table of its own."""
    found = []
    for group, columns in study.groups.items():
        rows = [row for row in study.rows if any((row, c.key) in numbers for c in columns)]
        wide = len(columns) > WIDE
        shapes = [(c, _is_printed(c, numbers), wide) for c in columns]
        head = [text for shape in shapes for text in _heads(*shape)]
        lines = [
            [text for shape in shapes for text in _cells(numbers.get((row, shape[0].key)), *shape)] for row in rows
        ]
        found.append(Block(group, ["", *head], [[row, *line] for row, line in zip(rows, lines, strict=True)]))
    return found + gains(study, numbers)


def _is_printed(column: Column, numbers: Numbers) -> bool:
    return any(n.published is not None for (_, key), n in numbers.items() if key == column.key)


def _heads(column: Column, printed: bool, wide: bool) -> list[str]:
    """A column's names; `printed` says whether the paper has numbers of it."""
    if not printed:
        return [column.title]
    return [f"{column.title}, ours (paper)"] if wide else [f"{column.title}, paper", "ours", "difference"]


def gains(study: Study, numbers: Numbers) -> list[Block]:
    """How much one row is above another, seed by seed: a gain's spread is smaller than that of the two rows."""
    columns = [c for c in study.columns if any((row, c.key) in numbers for row, _ in study.gains)]
    rows = []
    for row, base in study.gains:
        cells = [_gain(numbers.get((row, c.key)), numbers.get((base, c.key)), c) for c in columns]
        if set(cells) - {NONE}:
            rows.append([f"{row} over {base}", *cells])
    return [Block("Gains, seed by seed", ["", *(c.group or c.title for c in columns)], rows)] if rows else []


def _gain(row: Number | None, base: Number | None, column: Column) -> str:
    if row is None or base is None or not row.ours or not base.ours:
        return NONE
    gain = Number(None, tuple(a - b for a, b in zip(row.ours, base.ours, strict=True)))
    assert gain.mean is not None
    spread = "" if gain.std is None else f" ± {_text(gain.std, column.decimals)}"
    return _text(gain.mean, column.decimals, "+") + spread


def _cells(number: Number | None, column: Column, printed: bool, wide: bool) -> list[str]:
    if number is None:
        return [NONE] * len(_heads(column, printed, wide))
    places = column.decimals
    ours = "not run" if number.mean is None else _text(number.mean, places)
    if number.std is not None:
        ours += f" ± {_text(number.std, places)}"
    if not printed:
        return [ours]
    paper = NONE if number.published is None else _text(number.published, places)
    if wide:
        return [f"{ours} ({paper})"]
    return [paper, ours, NONE if number.difference is None else _text(number.difference, places, "+")]


def _text(value: float, places: int, sign: str = "") -> str:
    return f"{value:{sign},.{places}f}"


def reasons(numbers: Numbers) -> list[str]:
    """Why some entries were not run, each reason once."""
    return list(dict.fromkeys(f"not run: {n.why}" for n in numbers.values() if n.why))


def said(study: Study, budget: Budget, seeds: int) -> str:
    """One line on where the numbers come from."""
    spread = f"mean over {seeds} seeds ± their standard deviation" if seeds > 1 else "one seed, so no spread is known"
    idle = " A quick budget shows that everything runs; nothing is trained long enough to compare or judge."
    return f"Paper: {study.source}. Ours: budget {budget}, {spread}." + (
        idle if study.trained and budget == "quick" else ""
    )


def terminal(study: Study, numbers: Numbers, verdicts: list[Verdict], budget: Budget, seeds: int) -> list[Table | Text]:
    """The tables and what became of the claims, for a console."""
    shown: list[Table | Text] = []
    for block in blocks(study, numbers):
        table = Table(title=block.title or study.title, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for i, name in enumerate(block.head):
            table.add_column(name, justify="right" if i else "left")
        for row in block.rows:
            table.add_row(*(Text(cell) for cell in row))
        shown.append(table)
    styles = {"holds": "green", "within the spread": "yellow", "does not hold": "bold red", "not run": "dim"}
    shown += [Text(sentence(v), style=styles[v.status]) for v in verdicts]
    told = (*reasons(numbers), *study.notes, said(study, budget, seeds))
    return shown + [Text(line, style="dim") for line in told]


def markdown(study: Study, numbers: Numbers, verdicts: list[Verdict], budget: Budget, seeds: int) -> str:
    """The whole as a Markdown page."""
    parts = [f"# {study.title}", said(study, budget, seeds)]
    for block in blocks(study, numbers):
        lines = [block.head, ["---", *["---:"] * (len(block.head) - 1)], *block.rows]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        parts.append((f"## {block.title}\n\n" if block.title else "") + table)
    if verdicts:
        parts.append("## Claims\n\n" + "\n".join(f"- {sentence(v, most=8)}" for v in verdicts))
    rest = [*reasons(numbers), *study.notes]
    if rest:
        parts.append("## Notes\n\n" + "\n".join(f"- {line}" for line in rest))
    return "\n\n".join(parts) + "\n"


def latex(study: Study, numbers: Numbers, budget: Budget, seeds: int) -> str:
    """The tables as LaTeX `tabular`s for booktabs."""

    def line(cells: list[str]) -> str:
        return " & ".join("".join(LATEX.get(mark, mark) for mark in cell) for cell in cells) + r" \\"

    parts = [f"% {study.title}. {said(study, budget, seeds)}"]
    for block in blocks(study, numbers):
        rows = [line(row) for row in block.rows]
        opening = rf"\begin{{tabular}}{{l{'r' * (len(block.head) - 1)}}}"
        lines = [f"% {block.title}", opening, r"\toprule", line(block.head), r"\midrule", *rows, r"\bottomrule"]
        parts.append("\n".join([*lines, r"\end{tabular}"]))
    return "\n\n".join(parts) + "\n"


def plain(study: Study, numbers: Numbers, verdicts: list[Verdict], **facts: Any) -> dict[str, Any]:
    """Everything as plain values, for a JSON file."""
    titles = {c.key: c for c in study.columns}
    entries = [
        {
            "row": row,
            "column": column,
            "group": titles[column].group,
            "published": n.published,
            "ours": list(n.ours),
            "mean": n.mean,
            "std": n.std,
            "difference": n.difference,
            "not_run": n.why,
            "cell": study.entries[row, column].cell.key,
            "measure": study.entries[row, column].measure,
        }
        for (row, column), n in numbers.items()
    ]
    facts = {"name": study.name, "title": study.title, "source": study.source, **facts}
    return facts | {"entries": entries, "claims": [v._asdict() for v in verdicts], "notes": list(study.notes)}


def as_csv(page: Mapping[str, Any]) -> str:
    """The entries of `plain` as CSV, a line each."""
    names = ("row", "column", "published", "mean", "std", "difference", "not_run")
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(page["entries"])
    return text.getvalue()
