"""One page for everybody: the recommendation, then who, how much and how sure, and what every number is.

The page is a single file that loads nothing. Its words and tables are HTML, so they are there without JavaScript, too;
its charts, its filters and the table of every verdict are made by `page.js` from numbers inside the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fairlead.core.files import write_text
from fairlead.data.files import stem_of
from fairlead.effort import STILL
from fairlead.metrics import METRICS, TRAINING
from fairlead.metrics.advice import told_owner
from fairlead.report import parts
from fairlead.report.about_data import data_section
from fairlead.report.charts import Curves, chart_data, curves_of
from fairlead.report.interval import Axis, axis_of, between, drawn, kind, legend, scale
from fairlead.report.one_owner import file_name, records_of, share_of
from fairlead.report.read import read_records
from fairlead.report.tables import (
    GROUPS,
    NONE,
    VERDICTS,
    Measure,
    Row,
    action,
    bar,
    basis,
    can_predict,
    caption,
    copies,
    counts,
    decision_lines,
    enough_rows,
    facts,
    headings,
    headline,
    lowest,
    luck,
    marks,
    mean_gains,
    measure,
    measure_of,
    more_tested,
    newcomers,
    nobody_else,
    published,
    quantity,
    rows,
    told_counts,
    ways,
    work,
)
from fairlead.runs.summary import Decided, Decisions, Summary, Way, read_summary

FEW = 40  # up to so many owners have a row each with every gain
NAMED = 12  # up to so many are told what to do without being asked; the terminal does the same

READING = """<dl>{metric}
<div><dt>The bar</dt><dd>The best that an owner can do alone, chosen on validation rows. Every gain and every verdict
on this page compares with it.</dd></div>
<div><dt>Better, worse</dt><dd>The interval of the owner's gain excludes zero. Both models answered for the same test
rows; the interval covers the luck of the test rows and of training, and holds for all owners of a method at
once.</dd></div>
<div><dt>No difference found</dt><dd>The interval includes zero, and a difference that matters would have been
found.</dd></div>
<div><dt>Too few rows to tell</dt><dd>The interval includes zero, and even a large difference could have been
missed.</dd></div>
{several}
{cost}
<div><dt>Recommendation</dt><dd>It is corrected over owners and methods together, so it may be less sure than the
verdicts on one method.</dd></div>
</dl>"""
# What the metric that verdicts are about is, for whoever meets it here first.
MEANINGS = {
    "accuracy": "The share of test rows whose class is predicted.",
    "balanced-accuracy": "The share of rows predicted rightly, for each class by itself, then the mean over classes.",
    "auroc": "Of two rows, one of each class: the chance that the model ranks them rightly. Guessing has 50%.",
    "auprc": "The area under the curve of precision against recall. Guessing has the share of the class.",
    "f1": "The harmonic mean of precision and recall for each class, then the mean over classes.",
    "log-loss": "Minus the logarithm of the probability that the model gave to what came, mean over test rows.",
    "brier": "The squared distance between the predicted probabilities and what came, mean over test rows.",
    "calibration": "How far the predicted probabilities lie from the shares that came, mean over test rows.",
    "label-accuracy": "The share of yes/no labels that are predicted, over all labels and test rows.",
    "label-log-loss": "The log loss of each yes/no label, mean over labels and test rows.",
    "rmse": "The root of the mean squared error, in the unit of what is predicted.",
    "mae": "The mean size of the error, in the unit of what is predicted.",
    "r2": "The share of the variance that is predicted. Saying the mean for every row has 0.",
    "c-index": "The chance that of two rows the one whose event comes first is ranked first. Guessing has 50%.",
}
COST = """<div><dt>MB, seconds</dt><dd>Bytes sent to and from the server in one run, over all owners (1 MB is a million
bytes), and the time of training on the machine that ran it.</dd></div>"""
TRANSFER = """<div><dt>PTR</dt><dd>Positive transfer ratio: the share of owners whose score is above the bar, however
little; in brackets what chance alone would give if nothing differed.</dd></div>"""
RELATIVE = """
<div><dt>R-Acc</dt><dd>Relative gain: (score − score alone) / score alone for each owner, then the mean over
owners.</dd></div>"""
NOSCRIPT = """<noscript><p class='soft'>Charts, filters and the table of every verdict need JavaScript; summary.json
holds the same numbers.</p></noscript>"""


def write_page(folder: Path, owner: str | None = None) -> Path:
    """Write the folder's `report.html`, `figures/differences.png` and `figures/curves.png`; return the page's path.

    With `owner`, write a page for this owner alone, `report-OWNER.html`, without the others' names and numbers. Raises
    `RunError` when the summary or a run's records are missing or damaged, `InputError` when there is no such owner.
    """
    folder = Path(folder)
    summary = read_summary(folder)
    if owner is not None:
        own = share_of(summary, owner)
        records = records_of(read_records(folder, summary), summary, owner)
        path = folder / file_name(owner)
        write_text(path, page_of(own, curves_of(records, own), owner))
        return path
    records = read_records(folder, summary)
    _write_figures(folder / "figures", summary, records)
    path = folder / "report.html"
    write_text(path, page_of(summary, curves_of(records, summary)))
    return path


def page_of_folder(folder: Path) -> str:
    """The page of a finished comparison as text; nothing is written."""
    summary = read_summary(folder)
    return page_of(summary, curves_of(read_records(folder, summary), summary))


def _write_figures(folder: Path, summary: Summary, records: Any) -> None:
    """The same as pictures, for slides and papers."""
    from fairlead.report import figures

    folder.mkdir(exist_ok=True)
    figures.save_png(figures.curves(records, summary), folder / "curves.png")
    if ways(summary, "method"):
        figures.save_png(figures.client_differences(summary), folder / "differences.png")


def page_of(summary: Summary, curves: Curves, owner: str | None = None) -> str:
    """The page as text; `owner` is the one it is for, where it is for one alone."""
    name = scenario_name(summary["scenario"])
    whose = "".join(f"<p>{text}</p>" for text in nobody_else(summary))
    if owner is not None:
        whose = f"<p>For {escape(told_owner(owner))}. The other owners' names and numbers are left out.</p>"
    sections = [
        _who(summary) if owner is None else "",
        parts.heading("How much"),
        _ways(summary),
        *(
            f"<p class='soft'>{escape(text)}</p>"
            for text in [
                *marks(summary),
                *mean_gains(summary),
                *enough_rows(summary),
                *newcomers(summary),
                caption(summary),
            ]
        ),
        _other_measures(summary),
        _costs(summary),
        _decided(summary),
        _sure(summary),
        _owners(summary),
        _training(summary),
        data_section(summary),
        _reading(summary),
        f"<details><summary>What each number is</summary>{_facts(summary)}</details>",
        f"{parts.heading('What was run')}<div class='side'>",
        pairs("Scenario", used(summary["scenario"])),
        pairs("Settings", summary["settings"]),
        pairs("Versions", summary["versions"]),
        "</div>",
    ]
    opening = [
        f"<p class='soft'>{escape(_about(summary, name, owner))}</p>",
        f"<h1 class='{_tone(summary)}'>{escape(headline(summary))}</h1>",
        _actions(summary),
        whose,
        f"<p>{escape(basis(summary))}</p>",
        parts.contents(sections),
        NOSCRIPT,
    ]
    title = f"{name}: who is better off together?"
    return parts.page(title, [*opening, *sections], chart_data(summary, curves))


def _reading(summary: Summary) -> str:
    """The words of the page."""
    name = summary["findings"]["metric"]
    title = measure(summary).title
    meaning = MEANINGS.get(name)
    metric = f"\n<div><dt>{escape(title[:1].upper() + title[1:])}</dt><dd>{meaning}</dd></div>" if meaning else ""
    several = TRANSFER if len(summary["findings"]["owners"]) > 1 else ""
    several += RELATIVE if published(summary) else ""
    return parts.heading("How to read this") + READING.format(
        metric=metric, several=several, cost=COST if _costs(summary) else ""
    )


# Settings that only one way to divide or to shift the data looks at.
ONLY = {"beta": "dirichlet", "classes_per_client": "pathological consecutive", "skew": "quantity", "angle": "rotation"}


def used(scenario: dict[str, Any]) -> dict[str, Any]:
    """The settings of a scenario that something looked at."""
    chosen = {scenario.get("split"), scenario.get("shift")}
    kept = {key: value for key, value in scenario.items() if key not in ONLY or chosen & set(ONLY[key].split())}
    return {key: value for key, value in kept.items() if key != "fractions" or not scenario.get("samples")}


def scenario_name(scenario: dict[str, Any]) -> str:
    """The scenario's name, or that of the user's own data."""
    name = str(scenario.get("name", "comparison"))
    return stem_of(Path(str(scenario.get("data", name)))) if name == "custom" else name


def _about(summary: Summary, name: str, owner: str | None) -> str:
    numbers = {} if owner is not None else {"owner": len(summary["findings"]["owners"])}
    numbers["method"] = len(ways(summary, "method"))
    runs = len(summary["settings"]["seeds"])
    if published(summary) or runs > 1:  # one fold is a single division into train and test rows
        numbers["seed" if published(summary) else "fold"] = runs
    whose = [] if owner is None else [f"for {owner}"]
    counted = [f"{count:,} {what}{'' if count == 1 else 's'}" for what, count in numbers.items()]
    return ", ".join([name, *whose, *counted])


def _tone(summary: Summary) -> str:
    """What the headline's colour says: somebody should join, or somebody was harmed."""
    advice = summary["findings"]["recommendation"]
    if advice is None:
        return ""
    harmed = any(v["verdict"] == "worse" for way in ways(summary, "method") for v in way["verdicts"])
    return "join" if advice["federation"]["method"] else "harm" * harmed


# The colour of what is advised is that of the verdict behind it.
TONES = {"join": "better", "stay alone": "worse", "makes no difference": "no", "cannot tell": "too"}


def _actions(summary: Summary) -> str:
    """How many owners should do what, for the first look."""
    advice = summary["findings"]["recommendation"]
    if advice is None:
        return ""
    owners = advice["owners"]
    told = []
    for (what, tone), n in Counter((action(one), TONES[one["action"]]) for one in owners).most_common():
        many = f"<b>{n:,}</b> of {len(owners):,}: " if len(owners) > 1 else ""
        told.append(f"<li class='{tone}'><span class='word'>{many}{escape(what)}</span></li>")
    return f"<ul class='actions' aria-label='Recommendations'>{''.join(told)}</ul>"


def _who(summary: Summary) -> str:
    """What each owner should do; for many owners first who should do what."""
    advice = summary["findings"]["recommendation"]
    if advice is None or len(advice["owners"]) < 2:
        return ""
    owners, title = advice["owners"], parts.heading("Who")
    body = [
        parts.line([one["owner"], parts.cell(action(one), TONES[one["action"]]), _reason(one)], owner=one["owner"])
        for one in owners
    ]
    table = parts.table(("Owner", "Recommendation", "Why"), body, "words who stacked", "recommendation")
    table += USE if can_predict(summary) else ""
    if len(owners) <= NAMED:
        return f"{title}{table}"
    few = []
    for what, n in Counter(map(action, owners)).most_common():
        named = [one["owner"] for one in owners if action(one) == what]
        first = ", ".join(named[:3]) + ", ..." * (n > 3)
        tone = TONES[next(one["action"] for one in owners if action(one) == what)]
        few.append(
            parts.line(
                [parts.cell(what, tone), parts.cell(f"{n:,} ({100 * n / len(owners):.0f}%)", value=str(n)), first]
            )
        )
    counted = parts.table(("Recommendation", "Owners", "For example"), few, "words actions-of", "recommendations")
    return f"{title}{counted}<details><summary>All {len(owners):,} owners, one by one</summary>{table}</details>"


USE = (
    "<p class='soft'>What an owner is told to use, or else the best that owners do alone, answers for new rows: "
    "<code>fairlead predict RUN --owner NAME new.csv</code>, where RUN is the folder of this page. "
    "<code>fairlead export RUN DIR --owner NAME</code> writes it as a folder of its own.</p>"
)


def _reason(one: dict[str, Any]) -> str:
    """Why, without the words that say what to do."""
    return str(one["why"]).partition(": ")[2]


COUNTED = {*(word.capitalize() for word in VERDICTS), "Verdict"}  # columns that the page shows as one


def _ways(summary: Summary) -> str:
    """The verdict table, its rows in groups; columns without a number are left out."""
    found, heads = rows(summary), headings(summary)
    shown = [i for i, head in enumerate(heads) if any(row.cells[i] != NONE for row in found)]
    kept = [i for i in shown if heads[i] not in COUNTED]
    after = sum(i <= 2 for i in kept)  # the way, its score and its gain come first
    names = [heads[i] for i in kept]
    names.insert(after, "Owners" if len(summary["findings"]["owners"]) > 1 else "Verdict")
    groups = []
    for group, title in GROUPS.items():
        body = [_way(summary, row, heads, kept, names) for row in found if row.kind == group]
        if body:
            top = f"<tr class='group'><th scope='rowgroup' colspan='{len(kept) + 1}'>{title}</th></tr>"
            groups.append(f"<tbody>{top}{''.join(body)}</tbody>")
    return parts.table(names, groups, "ways stacked", "ways", bodies=True)


def _way(summary: Summary, row: Row, heads: list[str], kept: list[int], names: list[str]) -> str:
    """A row of the verdict table; `names` are the heads of what is kept, and of the owners by verdict."""
    way = next(way for way in ways(summary) if way["name"] == row.name)
    least = lowest(summary, way) if len(summary["findings"]["owners"]) <= FEW else None
    told: dict[str, Any] = {heads[i]: row.cells[i] for i in kept}
    title = f"{measure(summary).worst.capitalize()} owner"
    if title in told and least is not None:
        text = told[title]
        told[title] = parts.cell(f"{text} ({least})", value=text, csv=text, label=title)
    cells = [told[name] if name in told else _tally(way, name) for name in names]
    return parts.line(cells, "bar" if row.bar else "", labels=["", *names[1:]])


def _tally(way: Way, label: str) -> parts.Html:
    """The owners by verdict in words, each with its colour and mark; of one owner the verdict."""
    several = label == "Owners"
    found = {word: n for word, n in counts(way).items() if n}
    words = [
        f"<span class='word {kind(word)}'>{f'{n:,} ' if several else ''}{word}</span>" for word, n in found.items()
    ]
    value = str(counts(way)["better"] - counts(way)["worse"]) if words else NONE
    return parts.cell(parts.Html(" ".join(words) or "the bar"), "tally", value=value, csv=told_counts(way), label=label)


def _other_measures(summary: Summary) -> str:
    """Every way to train by every other measure that fits the target; verdicts are not about these."""
    found = ways(summary)
    names = [
        name
        for name in METRICS
        if name != summary["findings"]["metric"] and any(way["others"].get(name) is not None for way in found)
    ]
    if not names:
        return ""
    used = [measure_of(name) for name in names]
    body = [
        parts.line([way["name"], *(m.score(way["others"].get(name)) for name, m in zip(names, used, strict=True))])
        for way in found
    ]
    table = parts.table(["Way to train", *(m.heading for m in used)], body, "", "measures")
    said = "Mean over owners; verdicts are not about these."
    return f"<details><summary>Other measures</summary><p class='soft'>{said}</p>{table}</details>"


def _decided(summary: Summary) -> str:
    """What owners deploy where that is decided after training, with the weights that explain it."""
    tables = [
        f"<details><summary><b>{escape(name)}</b></summary>{_deployed(found, measure(summary))}</details>"
        for name, entry in summary["methods"].items()
        if (found := entry.get("decisions"))
    ]
    lines = "".join(f"<p>{escape(text)}</p>" for text in decision_lines(summary))
    return f"{parts.heading('What owners deploy')}{lines}{''.join(tables)}" if tables else ""


def _deployed(found: list[Decisions], m: Measure) -> str:
    """A line for each owner: the mean of what was decided in each fold."""
    voices = found[0]["voices"]
    chances = ("Chance of being worse off", "The same of what was declined")
    weights = (f"Weight of {voice}" for voice in voices)
    head = ["Owner", "Deploys", "Listens to", *weights, f"Expected gain{m.unit}", *chances]
    by_owner = zip(*(one["clients"] for one in found), strict=True)
    return parts.table(head, [_deployed_line(mine, voices, m) for mine in by_owner], "", "deployed")


def _deployed_line(mine: Sequence[Decided], voices: list[str], m: Measure) -> str:
    chosen, owner = Counter(one["deploys"] for one in mine), mine[0]["name"]
    deployed = ", ".join(f"{what} {n}x" if len(mine) > 1 else what for what, n in chosen.items())
    weights = {voice: fmean(one["weights"][voice] for one in mine) for voice in voices}
    gain = m.gain(fmean(one["gain"] for one in mine))
    shown = (f"{weight:.2f}" for weight in weights.values())
    left = [one["worse"] for one in mine if "declined" not in one]
    stayed = [one["declined"]["worse"] for one in mine if "declined" in one]
    chances = [f"{100 * fmean(some):.0f}%" if some else "" for some in (left, stayed)]
    return parts.line([owner, deployed, listens(weights), *shown, gain, *chances], owner=owner)


def listens(weights: Mapping[str, float]) -> str:
    """Whom an owner listens to beside itself, by shares of its weights; a tenth is the least that is told.

    >>> listens({"local": 0.5, "fedavg": 0.02, "neighbours": 1.5}), listens({"local": 1.0, "fedavg": 0.0})
    ('neighbours 74%', 'nobody')
    """
    total = max(sum(weights.values()), 1e-12)
    shares = {voice: weight / total for voice, weight in weights.items() if voice != "local" and weight >= total / 10}
    told = [f"{voice} {100 * shares[voice]:.0f}%" for voice in sorted(shares, key=lambda v: -shares[v])]
    return ", ".join(told) or "nobody"


def _costs(summary: Summary) -> str:
    """The score against what it costs."""
    if not any(entry["bytes_up"] or entry["train_seconds"] for entry in summary["methods"].values()):
        return ""
    m = measure(summary)
    said = f"Further {'up' if m.higher else 'down'} and to the left is better: more for less."
    title = f"<h3>{escape(m.title[:1].upper() + m.title[1:])} and cost</h3>"
    return f"{title}<p class='soft'>{said}</p><div class='panels' data-chart='costs'></div>"


def _owners(summary: Summary) -> str:
    """Each owner with each way to train: the gain with its interval, and the verdict."""
    methods = ways(summary, "method")
    if not any(way["verdicts"] for way in methods):
        return ""
    many = len(summary["findings"]["owners"])
    overview = _matrix(summary, methods) if many <= FEW else _distribution(summary, methods)
    title = "Owner by owner" if many > 1 else "Method by method"
    table = "<details><summary>Every verdict with its reason</summary><div id='verdicts'></div></details>"
    return f"{parts.heading(title)}{legend()}<div data-controls></div>{overview}{table}"


def _matrix(summary: Summary, methods: list[Way]) -> str:
    """A row for each owner, a column for each method: the gain with its interval, on one scale."""
    m, axis = measure(summary), axis_of(summary)
    heads = ["Owner", f"Bar: {m.heading}"]
    for way in methods:
        name = escape(way["name"])
        heads.append(parts.Html(f"<th scope='col' data-way='{name}' data-csv='{name}'>{name}{scale(axis, m)}</th>"))
    found = {way["name"]: {v["owner"]: v for v in way["verdicts"]} for way in methods}
    body = []
    for owner, alone in zip(summary["findings"]["owners"], bar(summary)["scores"], strict=True):
        cells = [_judged(way["name"], found[way["name"]].get(owner), axis, m) for way in methods]
        first = parts.cell(m.score(alone), label=f"Bar, {m.heading}")
        body.append(parts.line([owner, first, *cells], owner=owner))
    said = f"Gain over the bar{m.unit}, with its interval; left of the dashed line the owner is worse off than alone. "
    said += "An arrow: the interval goes on beyond the scale."
    return f"<p class='soft'>{said}</p>{parts.table(heads, body, 'matrix stacked', 'gains')}"


def _judged(way: str, v: dict[str, Any] | None, axis: Axis, m: Measure) -> parts.Html:
    about = {"way": way, "label": way}
    if v is None or v["gain"] is None:
        return parts.cell(v["verdict"] if v else "no test rows", value=NONE, csv="", **about)
    numbers = f"<b class='gain'>{parts.html(m.gain(v['gain']))}</b> <small>({between(m, v)})</small>"
    inside = f"<span class='numbers'>{numbers}</span>{drawn(axis, v)}"
    value = f"{(100 if m.points else 1) * v['gain']:.6g}"
    said = f"{v['verdict']}: {v['why']}"
    return parts.cell(parts.Html(inside), kind(v["verdict"]), said, value=value, csv=value, **about)


DRAWN = 100  # up to so many owners have their interval drawn among the others; page.js does the same
SHARES = {"Lowest": 0.0, "10% of owners below": 0.1, "Half below": 0.5, "90% below": 0.9, "Highest": 1.0}


def _distribution(summary: Summary, methods: list[Way]) -> str:
    """How many owners have which verdict, how gains are distributed, and all of them sorted."""
    m, body = measure(summary), []
    for way in methods:
        gains = [v["gain"] for v in way["verdicts"] if v["gain"] is not None]
        told = [m.gain(float(np.quantile(gains, share))) if gains else NONE for share in SHARES.values()]
        name = parts.cell(way["name"], way=way["name"])
        body.append(parts.line([name, parts.cell(_stack(way), csv=""), *told], labels=["", "", *SHARES]))
    head = ["Method", "Owners by verdict", *(f"{name}{m.unit if name == 'Lowest' else ''}" for name in SHARES)]
    said = f"The gain over the bar{m.unit}: how many owners have which verdict, and how their gains are distributed."
    if len(summary["findings"]["owners"]) > DRAWN:
        said += " Intervals are drawn where they exclude zero, and of owners that you choose."
    table = parts.table(head, body, "spread stacked", "distribution")
    return f"<p class='soft'>{said}</p>{table}<div class='panels' data-chart='gains'></div>"


def _stack(way: Way) -> parts.Html:
    """The owners by verdict as one bar."""
    found = {word: n for word, n in counts(way).items() if n}
    wide = 0.08 * sum(found.values())  # a part that is narrower has no room for its number
    spans = [
        f"<span class='{kind(word)}' style='flex:{n}' title='{n:,} {word}'>{f'{n:,}' if n > wide else ''}</span>"
        for word, n in found.items()
    ]
    return parts.Html(f"<div class='stack'>{''.join(spans)}</div>")


def _sure(summary: Summary) -> str:
    """What the verdicts cover, and what makes them less sure."""
    found, level = summary["findings"], summary["settings"].get("level", 0.95)
    every = "All intervals of one way to train hold together" if len(found["owners"]) > 1 else "Each interval holds"
    said = [f"{every} with a chance of {100 * level:g}%."]
    if found["training"] and found["training"] != "assumed":  # a sentence below says what is assumed
        training = TRAINING.get(found["training"], found["training"])
        said.append(f"They cover the luck of the test rows and {training}.")
    elif found["training"]:
        said.append("They cover the luck of the test rows.")
    above = [
        f"{way['name']} {100 * way['ptr']['share']:.0f}% (chance alone: {_chance(way['ptr'])})"
        for way in ways(summary, "method")
        if way["ptr"] and len(found["owners"]) > 1
    ]
    said += [f"Owners whose score is above the bar, however little: {', '.join(above)}."] if above else []
    below = " ".join(marks(summary))  # what stands below the table
    notes = [(way["name"], note) for way in ways(summary) for note in way["notes"] if "step size" not in note]
    said += [f"{name}: {note}." for name, note in notes if note not in below]
    said += [*copies(summary), *luck(summary), *more_tested(summary), *work(summary)]
    return parts.heading("How sure") + "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in said) + "</ul>"


def _chance(ptr: dict[str, float]) -> str:
    return f"{100 * ptr['low']:.0f} to {100 * ptr['high']:.0f}%"


def _training(summary: Summary) -> str:
    """How training went, and what each method tried and chose."""
    own = not published(summary)
    said = "Validation loss by round" if own else "Test accuracy by round, which is drawn and never used to choose"
    runs = "fold" if own else "seed"
    text = parts.heading("Training")
    text += f"<p class='soft'>{said}. With one or two methods chosen above, a band shows the lowest to the highest "
    text += f"{runs}, and dots the rounds that were chosen"
    text += f"{'; with an owner chosen, its own curves are shown' * (len(summary['findings']['owners']) > 1)}.</p>"
    text += "<div class='panels' data-chart='curves'></div>"
    body = []
    for name, entry in summary["methods"].items():
        for fold, one in zip(summary["settings"]["seeds"], entry.get("search", []), strict=False):
            tried = ", ".join(f"{lr}: {quantity(loss)}" for lr, loss in one["tried"].items())
            yes = "yes" if one["improving"] else "no"
            body.append(parts.line([name, fold, tried, f"{one['lr']:.3g}", one["round"], quantity(one["loss"]), yes]))
    if body:
        head = ("Method", "Fold", "Step sizes tried: validation loss", "Step size", "Rounds", "Loss", "Still improving")
        table = parts.table(head, body, "", "search")
        rule = (
            f"A smaller step size that needs more rounds was taken only if its loss was lower by {STILL:.0%} or more."
        )
        text += (
            f"<details><summary>What each method tried and chose</summary><p class='soft'>{rule}</p>{table}</details>"
        )
    return text


def _facts(summary: Summary) -> str:
    m = measure(summary)
    by = "By seed" if published(summary) else "By fold"
    head = ["Method", "Model", "Chosen round", by, "Averaged over", m.heading, "Over samples"]
    body = []
    for name, entry in summary["methods"].items():
        model, rule, average = facts(entry)
        numbers = ", ".join(map(str, entry["round"]["rounds"]))
        shares = m.score(entry["accuracy"]), m.score(entry["accuracy_samples"])
        body.append(parts.line([name, model, rule, numbers, average, *shares], labels=["", *head[1:]]))
    return parts.table(head, body, "words stacked")


def pairs(title: str, values: dict[str, Any]) -> str:
    """Names and values, as a small table; what is empty is left out."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "; ".join(f"{name}: {text(x)}" for name, x in value.items())
        return ", ".join(map(text, value)) if isinstance(value, list) else str(value)

    known = {name: text(value) for name, value in values.items() if value not in (None, "", [], {})}
    body: Iterable[str] = (parts.line(pair) for pair in known.items())
    head = f"<thead><tr><th scope='col' colspan='2'>{escape(title)}</th></tr></thead>"
    return f"<table class='pair'>{head}<tbody>{''.join(body)}</tbody></table>"
