"""One page for everybody: the verdict, each client's own line, the pictures, and what every number is.

The page is a single file that loads nothing: its charts are drawings inside it, so it opens on a computer without a
network and prints as it stands.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from fairlead.report.read import Summary, read_records, read_summary
from fairlead.report.tables import HEADINGS, NONE, caption, facts, headline, others, percent, rows, surely, verdict

STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5a646e; --line: #d9dee3; --paper: #fff; --band: #f5f7f9;
  --worse: #fdeee2; --worse-ink: #a34700; --better-ink: #005b8f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #a2acb6; --line: #3a424a; --paper: #15191d;
  --band: #1d2227; --worse: #3d2716; --worse-ink: #ffab6b; --better-ink: #6cc0f2; }
  [fill="#0072b2"] { fill: #4ba9e6; } [stroke="#0072b2"] { stroke: #4ba9e6; }
  [fill="#d55e00"] { fill: #ff8c42; } [stroke="#d55e00"] { stroke: #ff8c42; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 66rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; } h2 { font-size: 1.2rem; margin: 3rem 0 .6rem; }
p, ul, dl { max-width: 48rem; } .soft { color: var(--soft); margin: .5rem 0 0; }
.verdict { margin: 1.6rem 0; padding: 1rem 1.3rem; max-width: none; font-size: 1.25rem; line-height: 1.45;
  background: var(--band); border-left: 5px solid var(--better-ink); }
.verdict.harm { border-color: var(--worse-ink); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; }
.wide > table { width: 100%; } th, td { padding: .32rem .55rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; white-space: normal; border-bottom: 1.5px solid var(--soft); }
td { border-bottom: 1px solid var(--line); } .facts tr > :nth-last-child(n + 3) { text-align: left; }
.facts td { vertical-align: top; } .facts td:not(:nth-child(4)) { white-space: normal; }
th:first-child, td:first-child { text-align: left; padding-left: .3rem; }
tr.alone td { border-bottom: 1.5px solid var(--soft); } details .worse td { background: var(--worse); }
.say .worse td:last-child { color: var(--worse-ink); } .say .better td:last-child { color: var(--better-ink); }
.say .sure td:last-child { font-weight: 650; }
details { border-bottom: 1px solid var(--line); padding: .5rem 0; } summary { cursor: pointer; }
summary b { margin-right: .5rem; } details .wide { margin: .7rem 0 1rem; }
figure { margin: 1rem 0 2rem; overflow-x: auto; } figure svg { display: block; width: 100%; min-width: 40rem;
  height: auto; }
dt { font-weight: 600; margin-top: .7rem; } dd { margin: 0; } .pair td:nth-child(2) { text-align: left; }
.side { display: flex; flex-wrap: wrap; gap: 1rem 3.5rem; align-items: flex-start; } .side table { min-width: 14rem; }
@media print { @page { margin: 14mm; } :root { color-scheme: light; --ink: #000; --soft: #444; --line: #bbb;
  --paper: #fff; --band: #f5f7f9; --worse: #fdeee2; --worse-ink: #a34700; --better-ink: #005b8f; }
  html { font-size: 11px; } body { padding: 0; max-width: none; font-size: 1rem; } h2 { break-after: avoid; }
  .wide, figure { overflow: visible; } figure { break-inside: avoid; } figure svg { min-width: 0; max-height: 240mm; }
  tr { break-inside: avoid; } * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
UNFOLD = "addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(d => d.open = true))"

READING = """<dl>
<dt>Alone</dt><dd>{control}: the same model and the same training budget, on the client's own data only.</dd>
<dt>Accuracy</dt><dd>The share of a client's own test samples that its model gets right. The table shows the mean over
clients; ± is the standard deviation over seeds.</dd>
<dt>R-Acc</dt><dd>Relative gain: (accuracy − accuracy alone) / accuracy alone for each client, then the mean over
clients. Zero means no gain on average.</dd>
<dt>PTR</dt><dd>Positive transfer ratio: the share of clients whose accuracy is above their accuracy alone. 100% means
that everybody gained.</dd>
<dt>Lowest 5%, top 5%, std</dt><dd>Mean accuracy of the twentieth of clients (rounded up) that fare worst and of the
twentieth that fare best, and the standard deviation over clients. A good mean can hide a bad low end.</dd>
<dt>Worse off</dt><dd>Clients whose accuracy, averaged over seeds, is below their accuracy alone. A client is surely
better or worse off when the interval of its difference excludes zero (helped or hurt in the pictures); otherwise the
data cannot tell (perhaps in the tables, unclear in the pictures). Of many intervals a few exclude zero by chance.</dd>
<dt>MB, seconds, samples/s</dt><dd>Bytes sent to and from the server in one run, over all clients (1 MB is a million
bytes), and the time and speed of training on the machine that ran it.</dd>
<dt>Choosing from this table</dt><dd>Rounds are never chosen on test samples. A method chosen because it tops this table
is: expect a little less from it on new data.</dd>
</dl>"""


def write_page(folder: Path) -> Path:
    """Write the folder's `report.html`, `figures/differences.png` and `figures/curves.png`; return the page's path.

    Raises `RunError` when the summary or a run's records are missing or damaged.
    """
    from fairlead.report import figures

    folder = Path(folder)
    summary = read_summary(folder)
    records = read_records(folder, summary)
    charts = {"curves": figures.curves(records, summary)}
    if others(summary):
        charts = {"differences": figures.client_differences(summary), "scatter": figures.scatter(summary)} | charts
    (folder / "figures").mkdir(exist_ok=True)
    for name in charts.keys() & {"differences", "curves"}:
        figures.save_png(charts[name], folder / "figures" / f"{name}.png")
    drawings = [_drawing(name, chart, figures.INK) for name, chart in charts.items()]
    path = folder / "report.html"
    path.write_text(_page(summary, drawings), encoding="utf-8")
    return path


def _page(summary: Summary, drawings: list[str]) -> str:
    scenario, control, entries = str(summary["scenario"].get("name", "comparison")), summary["control"], others(summary)
    counts = {"client": len(summary["methods"][control]["clients"]), "method": len(summary["methods"])}
    counts["seed"] = len(summary["settings"]["seeds"])
    about = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items())
    level, opened = summary["settings"].get("level"), " open" if len(entries) <= 2 else ""
    harm = "" if any(not entry["worse"] for entry in entries.values()) else " harm"
    sections = [
        f"<h1>Who is better off together? {escape(scenario)}</h1>",
        f"<p class='soft'>{about}, compared with training alone</p>",
        f"<p class='verdict{harm}'>{escape(headline(summary))}</p>",
        f"<h2>The methods</h2>{_verdicts(summary)}<p class='soft'>{escape(caption(summary))}</p>",
        "<h2>Client by client</h2>" if entries else "",
        *(_clients(name, entry, level, opened) for name, entry in entries.items()),
        "<h2>In pictures</h2>",
        *drawings,
        f"<h2>How to read this</h2>{READING.format(control=escape(control))}",
        f"<h2>What each number is</h2>{_facts(summary)}",
        "<h2>What was run</h2><div class='side'>",
        *(_pairs(summary, key) for key in ("scenario", "settings", "versions")),
        f"</div><script>{UNFOLD}</script></body></html>",
    ]
    head = "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
    head += f"<title>{escape(scenario)}: who is better off together?</title><style>{STYLE}</style>"
    return "\n".join([f"<!doctype html>\n<html lang='en'><head>{head}</head><body>", *sections, ""])


def _table(head: Iterable[str], body: Iterable[str], kind: str = "") -> str:
    heads = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in head)
    table = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f"<div class='wide'><table class='{kind}'>{table}</table></div>"


def _line(cells: Iterable[Any], kind: str = "") -> str:
    """A table row; signs before digits become true minus signs."""
    texts = [escape(re.sub(r"(?<!\S)-(?=\d)", "−", str(cell))) for cell in cells]
    return f"<tr class='{kind}'>{''.join(f'<td>{text}</td>' for text in texts)}</tr>"


def _verdicts(summary: Summary) -> str:
    body = []
    for i, (name, *cells, last) in enumerate(rows(summary)):
        count = last if i == 0 else "nobody" if last.startswith("0/") else last.replace("/", " of ")
        kind = "alone" if i == 0 else "better sure" if count == "nobody" else "worse sure"
        body.append(_line([name, *cells, count], kind))
    return _table((heading.full for heading in HEADINGS), body, "say")


def _clients(name: str, entry: dict[str, Any], level: float | None, opened: str) -> str:
    lost = {str(each) for each in entry["worse"]}
    body = []
    for client in entry["clients"]:
        gain = percent(client["difference"], "+")
        how = "worse" if str(client["id"]) in lost else "better" if (client["difference"] or 0) > 0 else "same"
        sure = "sure" if surely(client) else ""
        said = f"{'▼' if how == 'worse' else '▲'} {how} off, {'surely' if sure else 'perhaps'}"
        said = "not known" if gain == NONE else "= as alone" if how == "same" else said
        low, high = client.get("interval") or (None, None)
        span = NONE if low is None else f"{percent(low, '+')} to {percent(high, '+')}"
        shares = percent(client["local_accuracy"]), percent(client["accuracy"]), gain
        cells = [client.get("name", client["id"]), client["n_train"], client["n_test"], *shares, span, said]
        body.append(_line(cells, f"{how} {sure}"))
    interval = "Interval, points" if level is None else f"{100 * level:g}% interval, points"
    shares_head = ("Alone, %", "Together, %", "Difference, points")
    head = ("Client", "Train samples", "Test samples", *shares_head, interval, "Verdict")
    told = f"<summary><b>{escape(name)}</b> {escape(verdict(entry, 6))}</summary>"
    return f"<details{opened}>{told}{_table(head, body, 'say')}</details>"


def _facts(summary: Summary) -> str:
    head = ("Method", "Model", "Chosen round", "By seed", "Averaged over", "Accuracy, %", "Over samples, %")
    body = []
    for name, entry in summary["methods"].items():
        model, rule, average = facts(entry)
        numbers = ", ".join(map(str, entry["round"]["rounds"]))
        shares = percent(entry["accuracy"]), percent(entry["accuracy_samples"])
        body.append(_line([name, model, rule, numbers, average, *shares]))
    return _table(head, body, "facts")


def _pairs(summary: Summary, key: str) -> str:
    def text(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    body = "".join(_line([name, text(value)]) for name, value in summary[key].items())
    head = f"<thead><tr><th scope='col' colspan='2'>{key.capitalize()}</th></tr></thead>"
    return f"<table class='pair'>{head}<tbody>{body}</tbody></table>"


def _drawing(name: str, chart: Any, ink: str) -> str:
    """The chart as an SVG that takes the page's text colour and shares no identifier with the others."""
    out = io.StringIO()
    chart.save(out, format="svg")
    drawing = re.sub(r'<rect [^>]*fill="white"/>', "", out.getvalue(), count=1).replace(ink, "currentColor")
    drawing = re.sub(r'(id="|url\(#)(?=[a-z])', rf"\g<1>{name}-", drawing)
    width = re.findall(r' width="(\d+)', drawing)[0]
    return f"<figure style='max-width: {width}px'>{drawing}</figure>"
