"""The page's section on the data: whose rows, what they hold, what is missing, and what differs between owners."""

from __future__ import annotations

from html import escape
from typing import Any, cast

from fairlead.metrics.advice import told_owner
from fairlead.report import parts
from fairlead.report.tables import NONE, quantity, row_titles
from fairlead.runs.summary import Summary

FEW_CLASSES = 6  # so many have a column each; more are one bar
OPEN = 12  # up to so many owners, the table is not folded up; as the list of recommendations


def data_section(summary: Summary) -> str:
    """What there is to know of the data, as far as the summary has it."""
    data = cast(dict[str, Any], summary["data"])
    notes = [text.rstrip(".") for text in [*differences(data.get("owners", [])), *data.get("notes", [])]]
    listed = "".join(f"<li>{escape(note[:1].upper() + note[1:])}.</li>" for note in notes)
    about = f"<p>{escape(_about(data))}</p>" if "target" in data else ""
    owners = _owners(summary, data)
    if len(summary["findings"]["owners"]) > OPEN:
        owners = f"<details><summary>Owner by owner</summary>{owners}</details>"
    columns = ""
    if data.get("columns"):
        body = [parts.line([c["name"], c["role"], c["missing"], c["done"], c["why"]]) for c in data["columns"]]
        table = parts.table(("Column", "Is", "Empty cells", "What is done", "Why"), body, "words", "columns")
        columns = f"<details><summary>What is done with each column</summary>{table}</details>"
    return f"{parts.heading('The data')}{about}{f'<ul>{listed}</ul>' if listed else ''}{owners}{columns}"


def _about(data: dict[str, Any]) -> str:
    return f"{data['rows']:,} rows; to predict: {data['target']}."


def differences(owners: list[dict[str, Any]]) -> list[str]:
    """What differs between owners, from the one extreme to the other, as sentences.

    >>> differences([{"name": "a", "rows": 40, "classes": {"no": 30, "yes": 10}},
    ...              {"name": "b", "rows": 20, "classes": {"no": 2, "yes": 18}}])
    ['Rows: from 20 (b) to 40 (a)', "Share of 'yes': from 25% (a) to 90% (b)"]
    """
    if len(owners) < 2:
        return []
    said = [_ends("Rows", [(one["rows"], one["name"]) for one in owners], lambda n: f"{n:,}")]
    for what, of in _measured(owners).items():
        percent = what.startswith(("Share", "Empty"))
        said.append(_ends(what, of, (lambda x: f"{100 * x:.0f}%") if percent else quantity))
    return [text for text in said if text]


def _measured(owners: list[dict[str, Any]]) -> dict[str, list[tuple[float, str]]]:
    """What is compared between owners: the class or the column that differs most, or the mean."""
    found: dict[str, list[tuple[float, str]]] = {}
    filled = [one for one in owners if one["rows"]]
    if not filled:
        return found
    shares, empty = _shares(filled, "classes"), _shares(filled, "missing")
    if shares:
        # Of two classes the second is usually the one that is looked for, and both differ by as much.
        most = list(shares)[1] if len(shares) == 2 else _most_different(shares)
        found[f"Share of '{most}'"] = shares[most]
    known = set.intersection(*(set(one) for one in filled))
    if "mean" in known:
        found["Mean"] = [(one["mean"], one["name"]) for one in filled]
    if "events" in known:
        found["Share of rows with the event"] = [(one["events"] / one["rows"], one["name"]) for one in filled]
    if empty:
        most = _most_different(empty)
        found[f"Empty cells of '{most}'"] = empty[most]
    return found


def _shares(owners: list[dict[str, Any]], counted: str) -> dict[str, list[tuple[float, str]]]:
    """Of each class or column, the share of every owner's rows that is counted."""
    names = {name: None for one in owners for name in one.get(counted, {})}
    return {c: [(one.get(counted, {}).get(c, 0) / one["rows"], one["name"]) for one in owners] for c in names}


def _most_different(shares: dict[str, list[tuple[float, str]]]) -> str:
    return max(shares, key=lambda name: max(shares[name])[0] - min(shares[name])[0])


def _ends(what: str, of: list[tuple[Any, str]], told: Any) -> str:
    """From the lowest to the highest, with the owners' names."""
    (low, first), (high, last) = min(of), max(of)
    ends = f"from {told(low)} ({told_owner(first)}) to {told(high)} ({told_owner(last)})"
    return f"{what}: {ends}" if told(low) != told(high) else ""


def _owners(summary: Summary, data: dict[str, Any]) -> str:
    """A row for each owner: sizes, what the target holds, empty cells."""
    clients = summary["methods"][summary["control"]]["clients"]
    about = {one["name"]: one for one in data.get("owners", [])}
    classes = list({name: None for one in about.values() for name in one.get("classes", {})})
    head = ["Owner", *row_titles(summary)]
    head += [f"Class {name}" for name in classes] if len(classes) <= FEW_CLASSES else ["Classes"] * bool(classes)
    known: set[str] = set().union(*about.values())
    head += [name for key, name in NUMBERS.items() if key in known] + ["Empty cells"] * ("missing" in known)
    body = []
    for k, owner in enumerate(summary["findings"]["owners"]):
        one = about.get(owner, {})
        cells = [owner, f"{clients[k]['n_train']:,}", f"{clients[k]['n_test']:,}", *_classes(one, classes)]
        known_numbers = [one.get(key) for key, name in NUMBERS.items() if name in head]
        cells += [f"{x:,}" if isinstance(x, int) else quantity(x) for x in known_numbers]  # a count, or a mean
        cells += [f"{sum(one['missing'].values()):,}" if "missing" in one else NONE] * ("Empty cells" in head)
        body.append(parts.line(cells, owner=owner, labels=["", *head[1:]]))
    return parts.table(head, body, "data stacked", "data")


def _classes(one: dict[str, Any], classes: list[str]) -> list[Any]:
    """An owner's classes: a cell each, or one for many."""
    counts = one.get("classes", {})
    if len(classes) > FEW_CLASSES:
        return [_mix(counts, classes)]
    return [_share(counts.get(name), sum(counts.values())) for name in classes]


NUMBERS = {"mean": "Mean", "sd": "Deviation", "events": "Events", "median_time": "Median time"}


def _share(count: int | None, of: int) -> str:
    return NONE if count is None else f"{count:,} ({100 * count / max(of, 1):.0f}%)"


def _mix(counts: dict[str, int], classes: list[str]) -> parts.Html:
    """The classes as one bar, each with its share."""
    total = max(sum(counts.values()), 1)
    spans = [
        f"<span style='flex:{n};--shade:var(--c{classes.index(name) % 8})' "
        f"title='{escape(name)}: {n:,} ({100 * n / total:.0f}%)'></span>"
        for name, n in counts.items()
        if n
    ]
    held = sum(n > 0 for n in counts.values())
    return parts.cell(parts.Html(f"{held} of {len(classes)}<div class='mix'>{''.join(spans)}</div>"), csv=str(held))
