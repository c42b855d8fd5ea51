"""The verdict in text: a table, a sentence per method, and what the numbers are.

Pure functions of a summary. Accuracies are shown in percent, differences in percentage points, both with one decimal.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.report.read import Summary

NONE = "–"
MODELS = {"personal": "each client's personal model", "global": "the global model"}
RULES = {"validation": "the round with the best validation accuracy", "last": "the last round"}
AVERAGES = {"clients": "clients, each counting the same", "samples": "samples, each counting the same"}
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", NONE: "--"}
LATEX |= {mark: f"\\{mark}" for mark in "&%$#_{}"}


class Heading(NamedTuple):
    """A column's name: short enough for a terminal of 100 columns, and in full."""

    short: str
    full: str


HEADINGS = (
    Heading("method", "Method"),
    Heading("accuracy\n%", "Accuracy, %"),
    Heading("R-Acc\n%", "R-Acc, %"),
    Heading("PTR\n%", "PTR, %"),
    Heading("lowest\n5%", "Lowest 5%"),
    Heading("top\n5%", "Top 5%"),
    Heading("client\nstd", "Std over clients"),
    Heading("MB\nup", "MB up"),
    Heading("MB\ndown", "MB down"),
    Heading("train\ns", "Training, s"),
    Heading("samples\n/s", "Samples/s"),
    Heading("worse\noff", "Worse off"),
)


def percent(value: float | None, sign: str = "") -> str:
    """A share as a percentage with one decimal; `sign="+"` for differences.

    >>> percent(0.8125), percent(-0.0312, "+"), percent(None)
    ('81.2', '-3.1', '–')
    """
    if value is None or not math.isfinite(value):
        return NONE
    text = f"{100 * value:{sign}.1f}"
    return "0.0" if text in ("-0.0", "+0.0") else text


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


def others(summary: Summary) -> dict[str, dict[str, Any]]:
    """Every method but the control."""
    return {name: entry for name, entry in summary["methods"].items() if name != summary["control"]}


def worse(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The clients worse off than alone: the sure ones first, then by how much they lose."""
    ids = {str(each) for each in entry["worse"]}
    found = [client for client in entry["clients"] if str(client["id"]) in ids]
    return sorted(found, key=lambda client: (not surely(client), client["difference"]))


def surely(client: dict[str, Any]) -> bool:
    """Whether the interval of the client's difference excludes zero."""
    low, high = client.get("interval") or (None, None)
    return low is not None and high is not None and (low > 0 or high < 0)


def rows(summary: Summary) -> list[list[str]]:
    """The verdict table's cells, one row per method, the control first."""
    control = summary["control"]
    entries = {control: summary["methods"][control]} | others(summary)
    return [_row(name, entry, name == control) for name, entry in entries.items()]


def _row(name: str, entry: dict[str, Any], alone: bool) -> list[str]:
    spread = entry["spread"].get("accuracy")
    return [
        name,
        percent(entry["accuracy"]) + (f" ± {percent(spread)}" if spread is not None else ""),
        NONE if alone else percent(entry["r_accuracy"], "+"),
        NONE if alone else percent(entry["ptr"]),
        *(percent(entry[key]) for key in ("low5", "top5", "std")),
        *(NONE if entry[key] is None else amount(entry[key] / 1e6) for key in ("bytes_up", "bytes_down")),
        amount(entry["train_seconds"]),
        amount(entry["samples_per_second"]),
        NONE if alone else f"{len(entry['worse'])}/{len(entry['clients'])}",
    ]


def verdict_table(summary: Summary) -> Table:
    """One row per method, for a terminal of 100 columns; a narrower one folds the method's name."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading.short, justify="right" if i else "left", no_wrap=bool(i), overflow="fold")
    for i, (name, *cells, last) in enumerate(rows(summary)):
        style = "" if i == 0 else "bold" if not last.startswith("0/") else "dim"
        table.add_row(Text(name), *cells, Text(last, style=style), end_section=i == 0)
    return table


def verdict_lines(summary: Summary, most: int = 12) -> list[str]:
    """A sentence per method on who is worse off than alone and by how much, then the caption.

    At most `most` clients are named per method, first those whose interval excludes zero ("surely").
    """
    sentences = [f"{name}: {verdict(entry, most)}." for name, entry in others(summary).items()]
    return [*sentences, *newcomers(summary), caption(summary)]


def newcomers(summary: Summary) -> list[str]:
    """A sentence on the clients held out of training, where there are any."""
    told = [f"{n} {percent(e['unseen']['accuracy'])}" for n, e in summary["methods"].items() if e.get("unseen")]
    return [f"Newcomers, held out of training, mean accuracy in %: {', '.join(told)}."] if told else []


def verdict(entry: dict[str, Any], most: int = 12) -> str:
    """Who is worse off than alone with this method, as a clause without its full stop."""
    losers = worse(entry)
    if not losers:
        return "nobody is worse off than alone"
    named, rest = losers[:most], losers[most:]
    told = {"surely": [each for each in named if surely(each)], "perhaps": [each for each in named if not surely(each)]}
    parts = [f"{how} {', '.join(map(_loss, group))}" for how, group in told.items() if group]
    if rest:
        most_lost = percent(max(-each["difference"] for each in rest))
        parts.append(f"{len(rest)} more, {sum(map(surely, rest))} of them surely, by at most {most_lost}")
    return f"{_count(entry)} worse off than alone, in points: {'; '.join(parts)}"


def _count(entry: dict[str, Any]) -> str:
    return f"{len(entry['worse'])} of {len(entry['clients'])} clients {'is' if len(entry['worse']) == 1 else 'are'}"


def _loss(client: dict[str, Any]) -> str:
    lost = percent(-client["difference"])
    return f"client {client.get('name', client['id'])} by {'less than 0.1' if lost == '0.0' else lost}"


def headline(summary: Summary) -> str:
    """The comparison in one or two sentences: does any method leave nobody worse off, and what is it worth?"""
    entries, control = others(summary), summary["methods"][summary["control"]]
    if not entries:
        return f"Only {summary['control']} was run; there is nothing to compare it with."
    safe = {name: entry for name, entry in entries.items() if not entry["worse"]}
    if safe:
        best = max(safe, key=lambda name: safe[name]["accuracy"] or 0.0)
        gain = f"{percent(control['accuracy'])}% alone to {percent(safe[best]['accuracy'])}%"
        if len(entries) == 1:
            return f"With {best} nobody is worse off than alone; mean accuracy goes from {gain}."
        leave, which = ("leaves", ",") if len(safe) == 1 else ("leave", ", the most accurate of them,")
        count = f"{len(safe)} of {len(entries)} methods {leave} nobody worse off than alone"
        return f"{count}. With {best}{which} mean accuracy goes from {gain}."
    least = min(entries, key=lambda name: (len(entries[name]["worse"]), -(entries[name]["accuracy"] or 0.0)))
    sure = sum(map(surely, worse(entries[least])))
    loss = f"{_count(entries[least])} worse off than alone, {sure} of them surely"
    if len(entries) == 1:
        return f"With {least}, {loss}."
    return f"Every method leaves somebody worse off than alone. The fewest are with {least}: {loss}."


def facts(entry: dict[str, Any]) -> tuple[str, str, str]:
    """What a method's numbers are: which model, which round, averaged over what."""
    model, rule, average = entry["model"], entry["round"]["rule"], entry["average"]
    return MODELS.get(model, model), RULES.get(rule, rule), AVERAGES.get(average, average)


def caption(summary: Summary) -> str:
    """One line on what the numbers are; a line per group of methods' facts when they differ."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, entry in summary["methods"].items():
        groups.setdefault(facts(entry), []).append(name)
    seeds = len(summary["settings"]["seeds"])
    over = f"mean over {seeds} seeds, ± their standard deviation" if seeds > 1 else "one seed"
    said = [
        f"test accuracy of {model} at {rule}, averaged over {average}"
        + (f" ({', '.join(names)})" if len(groups) > 1 else "")
        for (model, rule, average), names in groups.items()
    ]
    return f"The numbers: {'; '.join(said)}; {over}."


def markdown_table(summary: Summary) -> str:
    """The verdict table in Markdown, followed by its caption."""
    head = [heading.full for heading in HEADINGS]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows(summary)]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{table}\n\n{caption(summary)}\n"


def latex_table(summary: Summary) -> str:
    """The verdict table as a LaTeX `tabular` for booktabs, its caption in a comment above."""

    def line(cells: list[str]) -> str:
        texts = ["".join(LATEX.get(mark, mark) for mark in cell) for cell in cells]
        return (
            " & ".join(f"${text}$" if cell[:1] in "+-" else text for cell, text in zip(cells, texts, strict=True))
            + r" \\"
        )

    alone, *rest = [line(cells) for cells in rows(summary)]
    head = line([heading.full for heading in HEADINGS])
    body = [r"\toprule", head, r"\midrule", alone, *([r"\midrule", *rest] if rest else []), r"\bottomrule"]
    opening = rf"\begin{{tabular}}{{l{'r' * (len(HEADINGS) - 1)}}}"
    return "\n".join([f"% {caption(summary)}", opening, *body, r"\end{tabular}", ""])
