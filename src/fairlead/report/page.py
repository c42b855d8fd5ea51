"""One page for everybody: the recommendation, then who, how much and how sure, and what every number is.

The page is a single file that loads nothing: its charts are drawings inside it, so it opens on a computer without a
network and prints as it stands. Without JavaScript it is the same page, only its tables do not sort and filter.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any, Literal

from fairlead.metrics import TRAINING
from fairlead.report import parts
from fairlead.report.interval import Axis, axis_of, drawn, legend
from fairlead.report.read import read_records
from fairlead.report.tables import (
    GROUPS,
    NONE,
    action,
    bar,
    basis,
    caption,
    data_notes,
    decision_lines,
    facts,
    headings,
    headline,
    lowest,
    marks,
    measure,
    newcomers,
    published,
    quantity,
    rows,
    told_counts,
    ways,
)
from fairlead.runs.summary import Summary, Way, read_summary

FEW = 20  # up to so many owners are named and drawn one by one

READING = """<dl>
<dt>The bar</dt><dd>The best that an owner can do alone, chosen on validation rows. Every gain and every verdict on
this page compares with it.</dd>
<dt>Better, worse</dt><dd>The interval of the owner's gain excludes zero. Both models answered for the same test rows;
the interval covers the luck of the test rows and of training, and holds for all owners of a method at once.</dd>
<dt>No difference found</dt><dd>The interval includes zero, and a difference that matters would have been found.</dd>
<dt>Too few rows to tell</dt><dd>The interval includes zero, and even a large difference could have been missed.</dd>
<dt>PTR</dt><dd>Positive transfer ratio: the share of owners whose score is above the bar, however little; in brackets
what chance alone would give if nothing differed.</dd>{relative}
<dt>MB, seconds</dt><dd>Bytes sent to and from the server in one run, over all clients (1 MB is a million bytes), and
the time of training on the machine that ran it.</dd>
<dt>Recommendation</dt><dd>It is corrected over owners and methods together, so it may be less sure than the verdicts on
one method.</dd>
</dl>"""
RELATIVE = """
<dt>R-Acc</dt><dd>Relative gain: (score − score alone) / score alone for each owner, then the mean over owners.</dd>"""


def write_page(folder: Path) -> Path:
    """Write the folder's `report.html`, `figures/differences.png` and `figures/curves.png`; return the page's path.

    Raises `RunError` when the summary or a run's records are missing or damaged.
    """
    from fairlead.report import figures

    folder = Path(folder)
    summary = read_summary(folder)
    records = read_records(folder, summary)
    (folder / "figures").mkdir(exist_ok=True)
    figures.save_png(figures.curves(records, summary), folder / "figures" / "curves.png")
    methods = [way["name"] for way in ways(summary, "method")]
    charts = {"curves": [figures.curves(records, summary, name) for name in methods or [summary["control"]]]}
    if methods:
        figures.save_png(figures.client_differences(summary), folder / "figures" / "differences.png")
    if methods and len(summary["findings"]["owners"]) > FEW:
        gains = [figures.client_differences(summary, name) for name in methods]
        charts = {"gains": gains, "scatter": [figures.scatter(summary, name) for name in methods]} | charts
    drawings = {
        name: "".join(_drawing(f"{name}{i}", chart, figures.INK) for i, chart in enumerate(each))
        for name, each in charts.items()
    }
    path = folder / "report.html"
    path.write_text(_page(summary, drawings), encoding="utf-8")
    return path


def _page(summary: Summary, drawings: dict[str, str]) -> str:
    scenario = str(summary["scenario"].get("name", "comparison"))
    scenario = str(summary["scenario"].get("data", scenario)) if scenario == "custom" else scenario
    advice = summary["findings"]["recommendation"]
    tone = "" if advice is None else "join" if advice["federation"]["method"] else "harm" * bool(_harmed(summary))
    sections = [
        f"<h1>Who is better off together? {escape(scenario)}</h1>",
        f"<p class='soft'>{escape(_about(summary))}</p>",
        f"<p class='verdict {tone}'>{escape(headline(summary))}</p>",
        f"<p>{escape(basis(summary))}</p>",
        _who(summary),
        "<h2>How much</h2>",
        _ways(summary),
        *(f"<p class='soft'>{escape(text)}</p>" for text in [*marks(summary), *newcomers(summary), caption(summary)]),
        _decided(summary),
        _owners(summary, drawings),
        _sure(summary),
        _training(summary, drawings["curves"]),
        "".join(["<h2>The data</h2>", *(f"<p>{escape(text)}</p>" for text in data_notes(summary))])
        if data_notes(summary)
        else "",
        f"<h2>How to read this</h2>{READING.format(relative=RELATIVE if published(summary) else '')}",
        f"<h2>What each number is</h2>{_facts(summary)}",
        "<h2>What was run</h2><div class='side'>",
        *(_pairs(summary, key) for key in ("scenario", "settings", "versions")),
        f"</div><script>{parts.SCRIPT}</script></body></html>",
    ]
    head = "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
    head += f"<title>{escape(scenario)}: who is better off together?</title><style>{parts.STYLE}</style>"
    return "\n".join([f"<!doctype html>\n<html lang='en'><head>{head}</head><body>", *sections, ""])


def _about(summary: Summary) -> str:
    numbers = {"owner": len(summary["findings"]["owners"]), "method": len(ways(summary, "method"))}
    numbers["seed" if published(summary) else "fold"] = len(summary["settings"]["seeds"])
    return ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in numbers.items())


def _harmed(summary: Summary) -> bool:
    return any(v["verdict"] == "worse" for way in ways(summary, "method") for v in way["verdicts"])


def _who(summary: Summary) -> str:
    """What each owner should do; for many owners first how many should do what."""
    advice = summary["findings"]["recommendation"]
    if advice is None:
        return ""
    owners = advice["owners"]
    body = [parts.line([one["owner"], action(one), one["why"]], owner=one["owner"]) for one in owners]
    table = parts.table(("Owner", "Recommendation", "Why"), body, "words who")
    if len(owners) <= FEW:
        return f"<h2>Who</h2>{table}"
    numbers = Counter(map(action, owners)).most_common()
    few = parts.table(("Recommendation", "Owners"), [parts.line([what, n]) for what, n in numbers], "narrow")
    return f"<h2>Who</h2>{few}<details><summary>Owner by owner</summary>{parts.FILTER}{table}</details>"


def _ways(summary: Summary) -> str:
    """The verdict table, its rows in groups."""
    found, named = rows(summary), len(summary["findings"]["owners"]) <= FEW
    heads = headings(summary)
    at = heads.index("Lowest owner")
    least = {way["name"]: lowest(summary, way) for way in ways(summary)}
    groups = []
    for kind, title in GROUPS.items():
        body = []
        for row in (row for row in found if row.kind == kind):
            cells: list[Any] = list(row.cells)
            if named and least[row.name]:
                cells[at] = f"{cells[at]} {least[row.name]}"
            body.append(parts.line(cells, "bar" if row.bar else ""))
        if body:
            top = f"<tr class='group'><th scope='rowgroup' colspan='{len(heads)}'>{title}</th></tr>"
            groups.append(f"<tbody>{top}{''.join(body)}</tbody>")
    return parts.table(heads, groups, bodies=True)


def _decided(summary: Summary) -> str:
    """What owners deploy where that is decided after training, with the weights that explain it."""
    told = []
    for name, entry in summary["methods"].items():
        found = entry.get("decisions")
        if not found:
            continue
        voices, m = found[0]["voices"], measure(summary)
        body = []
        for k, client in enumerate(found[0]["clients"]):
            mine = [one["clients"][k] for one in found]
            deployed = ", ".join(
                f"{what}{f' {n}x' if len(mine) > 1 else ''}" for what, n in Counter(c["deploys"] for c in mine).items()
            )
            weights = [f"{sum(c['weights'][voice] for c in mine) / len(mine):.2f}" for voice in voices]
            chance = f"{100 * sum(c['worse'] for c in mine) / len(mine):.0f}%"
            gain = m.gain(sum(c["gain"] for c in mine) / len(mine))
            body.append(parts.line([client["name"], deployed, *weights, gain, chance], owner=client["name"]))
        head = [
            "Owner",
            "Deploys",
            *(f"Weight of {voice}" for voice in voices),
            f"Expected gain{m.unit}",
            "Chance of being worse off",
        ]
        told.append(f"<details><summary><b>{escape(name)}</b></summary>{parts.table(head, body)}</details>")
    lines = "".join(f"<p>{escape(text)}</p>" for text in decision_lines(summary))
    return f"<h2>What owners deploy</h2>{lines}{''.join(told)}" if told else ""


def _owners(summary: Summary, drawings: dict[str, str]) -> str:
    """Each owner with each way to train: the gain with its interval, and the verdict."""
    judged = [way for way in ways(summary, "method", "pooled", "alone") if way["verdicts"]]
    if not judged:
        return ""
    few = len(summary["findings"]["owners"]) <= FEW
    axis, methods = axis_of(summary), len(ways(summary, "method"))
    told = []
    for way in judged:
        opened = " open" if few and way["kind"] == "method" and methods <= 3 else ""
        name = f"<b>{escape(way['title'])}</b> {escape(told_counts(way))}"
        told.append(f"<details{opened}><summary>{name}</summary>{_verdicts(summary, way, axis)}</details>")
    pictures = [
        f"<h3>{title}</h3><p class='soft'>{said}</p><div class='panels'>{drawings[key]}</div>"
        for key, title, said in (
            (
                "gains",
                "All owners, sorted by gain",
                "Left of the dashed line the owner is worse off than with the bar.",
            ),
            ("scatter", "The bar and the method", "A mark for each owner."),
        )
        if key in drawings
    ]
    return "".join(["<h2>Owner by owner</h2>", legend(), *pictures, "" if few else parts.FILTER, *told])


def _verdicts(summary: Summary, way: Way, axis: Axis) -> str:
    m, alone = measure(summary), bar(summary)["scores"]
    entry = summary["methods"].get(way["name"]) or summary["methods"][summary["control"]]
    found = {v["owner"]: v for v in way["verdicts"]}
    body = []
    for k, owner in enumerate(summary["findings"]["owners"]):
        v, client = found.get(owner), entry["clients"][k]
        sizes = [client["n_train"], client["n_test"]]
        if v is None or v["gain"] is None:
            said, why = (v["verdict"], v["why"]) if v else ("not judged", "No test rows.")
            shares = m.score(alone[k]), m.score(way["scores"][k])
            body.append(parts.line([owner, said, NONE, NONE, *shares, why, *sizes], owner=owner))
            continue
        span = " to ".join(NONE if v[end] is None else m.gain(v[end]) for end in ("lower", "upper"))
        drawing = drawn(axis, v, f"{m.gain(v['gain'])} ({span}), {v['verdict']}, {owner}")
        cells = [v["verdict"], m.gain(v["gain"]), parts.Html(f"{drawing}<small>{escape(parts.minus(span))}</small>")]
        cells += [m.score(v["control_score"]), m.score(v["method_score"]), v["why"], *sizes]
        body.append(parts.line([owner, *cells], v["verdict"].split()[0], owner))
    level = f"{100 * summary['settings'].get('level', 0.95):g}% interval"
    head = ["Owner", "Verdict", f"Gain{m.unit}", level, "Bar", way["name"], "Why", "Train rows", "Test rows"]
    return parts.table(head, body, "owners")


def _sure(summary: Summary) -> str:
    """What the verdicts cover, and what makes them less sure."""
    found, level = summary["findings"], summary["settings"].get("level", 0.95)
    said = [f"All intervals of one way to train hold together with a chance of {100 * level:g}%."]
    if found["training"]:
        luck = TRAINING.get(found["training"], found["training"])
        said.append(f"They cover the luck of the test rows and {luck}.")
    for way in ways(summary, "method"):
        if way["ptr"]:
            low, high, share = (f"{100 * way['ptr'][key]:.0f}" for key in ("low", "high", "share"))
            said.append(f"{way['name']} is above the bar for {share}% of owners; chance alone gives {low} to {high}%.")
    said += [f"{way['name']}: {note}." for way in ways(summary) for note in way["notes"] if "step size" not in note]
    return "<h2>How sure</h2><ul>" + "".join(f"<li>{escape(text)}</li>" for text in said) + "</ul>"


def _training(summary: Summary, curves: str) -> str:
    """How training went, and what each method tried and chose."""
    own = not published(summary)
    said = "Validation loss by round, mean over owners" if own else "Mean test score by round, never used to choose"
    text = f"<h2>Training</h2><p class='soft'>{said}; dots: the rounds that were chosen.</p>"
    text += f"<div class='panels'>{curves}</div>"
    body = []
    for name, entry in summary["methods"].items():
        for fold, one in zip(summary["settings"]["seeds"], entry.get("search", []), strict=False):
            tried = ", ".join(f"{lr}: {quantity(loss)}" for lr, loss in one["tried"].items())
            yes = "yes" if one["improving"] else "no"
            body.append(parts.line([name, fold, tried, f"{one['lr']:.3g}", one["round"], quantity(one["loss"]), yes]))
    if body:
        head = ("Method", "Fold", "Step sizes tried: validation loss", "Step size", "Rounds", "Loss", "Still improving")
        text += f"<details><summary>What each method tried and chose</summary>{parts.table(head, body)}</details>"
    return text


def _facts(summary: Summary) -> str:
    m = measure(summary)
    by = "By seed" if published(summary) else "By fold"
    head = ("Method", "Model", "Chosen round", by, "Averaged over", m.heading, "Over samples")
    body = []
    for name, entry in summary["methods"].items():
        model, rule, average = facts(entry)
        numbers = ", ".join(map(str, entry["round"]["rounds"]))
        shares = m.score(entry["accuracy"]), m.score(entry["accuracy_samples"])
        body.append(parts.line([name, model, rule, numbers, average, *shares]))
    return parts.table(head, body, "words")


def _pairs(summary: Summary, key: Literal["scenario", "settings", "versions"]) -> str:
    def text(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    body: Iterable[str] = (parts.line([name, text(value)]) for name, value in summary[key].items())
    head = f"<thead><tr><th scope='col' colspan='2'>{key.capitalize()}</th></tr></thead>"
    return f"<table class='pair'>{head}<tbody>{''.join(body)}</tbody></table>"


def _drawing(name: str, chart: Any, ink: str) -> str:
    """The chart as an SVG that takes the page's text colour and shares no identifier with the others."""
    out = io.StringIO()
    chart.save(out, format="svg")
    drawing = re.sub(r'<rect [^>]*fill="white"/>', "", out.getvalue(), count=1).replace(ink, "currentColor")
    drawing = re.sub(r'(id="|url\(#)(?=[a-z])', rf"\g<1>{name}-", drawing)
    width = re.findall(r' width="(\d+)', drawing)[0]
    return f"<figure style='max-width: {width}px'>{drawing}</figure>"
