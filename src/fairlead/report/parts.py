"""What the page is made of: its style, its few lines of JavaScript, and table rows with every text escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5a646e; --line: #d9dee3; --paper: #fff; --band: #f5f7f9;
  --better: #0072b2; --worse: #c05000; --same: #6e6e6e; --few: #8a6d00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #a2acb6; --line: #3a424a; --paper: #15191d;
  --band: #1d2227; --better: #5bb2ea; --worse: #ff9a52; --same: #a5a5a5; --few: #d6b74a; }
  [fill="#0072b2"] { fill: #5bb2ea; } [stroke="#0072b2"] { stroke: #5bb2ea; }
  [fill="#d55e00"] { fill: #ff9a52; } [stroke="#d55e00"] { stroke: #ff9a52; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 70rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 0; } p, ul, dl { max-width: 52rem; }
.soft { color: var(--soft); margin: .4rem 0; }
.verdict { margin: 1.4rem 0; padding: 1rem 1.3rem; max-width: none; font-size: 1.25rem; line-height: 1.45;
  background: var(--band); border-left: 5px solid var(--same); }
.verdict.join { border-color: var(--better); } .verdict.harm { border-color: var(--worse); }
.wide { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; }
.wide > table { min-width: 100%; } .wide > table.narrow { min-width: 0; }
th, td { padding: .32rem .55rem; text-align: right; white-space: nowrap; overflow-wrap: normal; }
th { font-weight: 600; vertical-align: bottom; white-space: normal; border-bottom: 1.5px solid var(--soft); }
td { border-bottom: 1px solid var(--line); } tr.bar td { font-weight: 650; }
tr.group th { text-align: left; border-bottom: 1px solid var(--line); color: var(--soft); padding-top: .8rem; }
.wide :is(th, td):first-child { text-align: left; padding-left: .3rem; position: sticky; left: 0;
  background: var(--paper); } .pair :is(th, td) { text-align: left; } small { color: var(--soft); }
.words th, .words td, .owners :is(th, td):is(:nth-child(2), :nth-child(4), :nth-child(7)) { text-align: left; }
.words td { white-space: normal; vertical-align: top; min-width: 5rem; } .words td:nth-child(3) { min-width: 14rem; }
.owners td:nth-child(7) { white-space: normal; min-width: 16rem; }
th[aria-sort] { cursor: pointer; } th[aria-sort]:hover, th[aria-sort]:focus { text-decoration: underline; }
th[aria-sort=ascending]::after { content: " ▲"; } th[aria-sort=descending]::after { content: " ▼"; }
.better { --mark: var(--better); } .worse { --mark: var(--worse); } .no { --mark: var(--same); }
.too { --mark: var(--few); } .owners tr:is(.better, .worse) td:nth-child(2) { font-weight: 650; }
.owners td:nth-child(2) { color: var(--mark); }
.span { display: block; width: 11rem; height: 1rem; overflow: visible; }
.span line { stroke: var(--mark); stroke-width: 2; } .span .zero { stroke: currentColor; stroke-width: 1;
  stroke-dasharray: 2 2; opacity: .6; } .span path { fill: var(--mark); stroke: var(--mark); stroke-width: 1.5; }
.too path { fill: var(--paper); } .key { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; padding: 0; margin: .6rem 0;
  list-style: none; } .key svg { display: inline; width: 1rem; height: 1rem; vertical-align: -.15rem; }
.filter { display: none; margin: .8rem 0; } .live .filter { display: block; }
.filter input { font: inherit; padding: .3rem .6rem; width: 100%; max-width: 20rem; color: inherit;
  background: var(--band); border: 1px solid var(--line); border-radius: 4px; }
details { border-bottom: 1px solid var(--line); padding: .5rem 0; } summary { cursor: pointer; }
summary b { margin-right: .5rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: 1rem; }
figure { margin: .6rem 0; } figure svg { display: block; width: 100%; height: auto; }
dt { font-weight: 600; margin-top: .7rem; } dd { margin: 0; }
.side { display: flex; flex-wrap: wrap; gap: 1.5rem 2.5rem; align-items: flex-start; } .pair { max-width: 100%; }
.pair td { white-space: normal; } .pair td:nth-child(2) { overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { padding: 1.2rem .9rem 3rem; } h1 { font-size: 1.35rem; }
  .verdict { font-size: 1.1rem; padding: .8rem 1rem; } .who thead { display: none; }
  .who tr { display: block; border-bottom: 1px solid var(--line); padding: .4rem 0; }
  .who tr[hidden] { display: none; } .who td { display: block; border: 0; padding: .1rem .3rem; }
  .who td:first-child { font-weight: 650; } .owners td:nth-child(2) { white-space: normal; min-width: 6rem; }
  .owners th, .owners td { padding: .3rem; } .span { width: 8rem; } }
@media print { body { padding: 0; max-width: none; font-size: 12px; } .wide { overflow: visible; }
  .filter { display: none; }
  thead { display: table-header-group; } tr, figure { break-inside: avoid; } h2, h3 { break-after: avoid; } }
"""

# Sort by a click on a heading, filter by the owner's name, and unfold everything for print.
SCRIPT = """
const all = (what, where = document) => [...where.querySelectorAll(what)];
document.body.classList.add('live');
addEventListener('beforeprint', () => all('details').forEach(d => d.open = true));
const number = text => {
  const n = parseFloat(text.replace('−', '-').replaceAll(',', ''));
  return isNaN(n) ? null : n;
};
const compare = (a, b) => { const x = number(a), y = number(b);
  return x !== null && y !== null ? x - y : x !== null ? -1 : y !== null ? 1 : a.localeCompare(b); };
all('.wide > table').forEach(table => all('thead th', table).forEach((head, i) => {
  head.ariaSort = 'none'; head.tabIndex = 0;
  const sort = () => {
    const down = head.ariaSort === 'ascending';
    all('thead th', table).forEach(other => other.ariaSort = 'none');
    head.ariaSort = down ? 'descending' : 'ascending';
    [...table.tBodies].forEach(body => all('tr:not(.group)', body)
      .sort((a, b) => compare(a.cells[i].textContent, b.cells[i].textContent) * (down ? -1 : 1))
      .forEach(row => body.append(row)));
  };
  head.addEventListener('click', sort);
  head.addEventListener('keydown', event => { if (event.key === 'Enter') sort(); });
}));
all('.filter input').forEach((box, i, boxes) => box.addEventListener('input', () => {
  const wanted = box.value.toLowerCase();
  boxes.forEach(other => other.value = box.value);
  all('tr[data-owner]').forEach(row => row.hidden = !row.dataset.owner.toLowerCase().includes(wanted));
}));
"""
FILTER = (
    "<label class='filter'><input type='search' placeholder='Filter by owner' aria-label='Filter by owner'></label>"
)


class Html(str):
    """Text that is HTML already; any other is escaped."""


def minus(text: str) -> str:
    """Signs before digits become true minus signs."""
    return re.sub(r"(?<!\S)-(?=\d)", "−", text)


def line(cells: Iterable[Any], kind: str = "", owner: str | None = None) -> str:
    """A table row. `owner` is what the filter looks at."""
    texts = [c if isinstance(c, Html) else escape(minus(str(c))) for c in cells]
    named = f" data-owner='{escape(str(owner))}'" if owner is not None else ""
    return f"<tr class='{kind}'{named}>{''.join(f'<td>{text}</td>' for text in texts)}</tr>"


def table(head: Iterable[str], body: Iterable[str], kind: str = "", bodies: bool = False) -> str:
    """A table of rows, or of whole groups of rows."""
    heads = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in head)
    inside = "".join(body) if bodies else f"<tbody>{''.join(body)}</tbody>"
    return f"<div class='wide'><table class='{kind}'><thead><tr>{heads}</tr></thead>{inside}</table></div>"
