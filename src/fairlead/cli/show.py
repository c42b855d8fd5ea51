"""Data, verdicts and checks on the terminal."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from fairlead.cli.command import console
from fairlead.comparison.recheck import Rechecked
from fairlead.data import Survey
from fairlead.report import can_predict, data_notes, opening_lines, verdict_lines, verdict_table, write_page
from fairlead.runs.summary import read_summary

MOST_COLUMNS = 24  # lines of a table that `compare` shows; `data` shows all


def show(folder: Path, noted: bool = False) -> None:
    """The verdict on the terminal, and the page beside it; `noted` says that notes on a table were shown before."""
    summary = read_summary(folder)
    page = write_page(folder)
    known = data_notes(summary) if noted and summary["data"].get("columns") else []
    for line in opening_lines(summary):
        if line not in known:
            console.print(escape(line), highlight=False)
    console.print(verdict_table(summary))
    for line in verdict_lines(summary):
        console.print(escape(line), highlight=False)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)
    if can_predict(summary):
        owner = shlex.quote(summary["findings"]["owners"][0])
        use = f"Use a model: fairlead predict {shlex.quote(str(folder))} --owner {owner} new.csv"
        console.print(escape(use), highlight=False, soft_wrap=True)


def show_data(found: Survey) -> None:
    """Owners, columns and warnings on the terminal."""
    console.print(escape(about_data(found)), highlight=False)
    owners = Table("owner", "rows", "what they hold")
    for owner in found.owners:
        mix = [f"{name}: {count:,}" for name, count in owner.get("classes", {}).items() if count]
        if "events" in owner:
            events = f"{owner['events']:,} {'event' if owner['events'] == 1 else 'events'}"
            mix = [f"{events}, median time {four_digits(owner['median_time'])}"]
        mix = mix or [f"mean {four_digits(owner['mean'])}, deviation {four_digits(owner['sd'])}"]
        owners.add_row(escape(owner["name"]), f"{owner['rows']:,}", escape(", ".join(mix)))
    console.print(owners)
    if found.columns:
        show_columns(found)
    show_notes(found)


def show_briefly(found: Survey) -> None:
    """The data before training: what is done with each column, or counts of it if there are many, and what is odd."""
    console.print(escape(about_data(found)), highlight=False)
    if len(found.column_groups()) > MOST_COLUMNS:
        counts = Counter((c["role"], c["done"].partition(";")[0]) for c in found.columns)
        told = ", ".join(f"{n} {role} ({done})" for (role, done), n in counts.most_common())
        console.print(escape(f"Columns: {told}. `fairlead data` shows each."), highlight=False)
    elif found.columns:
        show_columns(found)
    show_notes(found)


def four_digits(x: float) -> str:
    """A number with four digits, or all before the decimal point.

    >>> four_digits(113427.4), four_digits(5.40912)
    ('113,427', '5.409')
    """
    return f"{x:,.0f}" if abs(x) >= 9999.5 else f"{x:.4g}"


def about_data(found: Survey) -> str:
    """The data in one line."""
    sizes = [owner["rows"] for owner in found.owners]
    who = "one owner"
    if len(sizes) > 1:
        rows = (
            f"{min(sizes):,} to {max(sizes):,} rows"
            if min(sizes) < max(sizes)
            else f"{sizes[0]:,} {'row' if sizes[0] == 1 else 'rows'} each"
        )
        who = f"{len(sizes)} owners with {rows}"
    return f"{found.name}: {found.rows:,} rows, {who}; to predict: {found.target}"


def show_columns(found: Survey) -> None:
    """What each column is, and what is done with it."""
    columns = Table("column", "is", "empty", "what is done", "why")
    for name, column in found.column_groups():
        columns.add_row(*map(escape, (name, column["role"], str(column["missing"]), column["done"], column["why"])))
    console.print(columns)


def show_notes(found: Survey) -> None:
    """What looks wrong, a line each."""
    for sentence in found.notes:
        console.print(escape(f"Note: {sentence}."), highlight=False)


def show_check(found: Rechecked) -> None:
    """Whether the scores are those of the page, owner by owner; a difference ends the command with code 1."""
    for one in found.scores:
        told = "equal" if one.equal else f"NOT EQUAL: {one.now} from the raw file"
        console.print(escape(f"{one.method}, {one.owner}: {one.metric} {one.before}: {told}"), highlight=False)
    equal = sum(one.equal for one in found.scores)
    console.print(f"{equal} of {len(found.scores)} scores equal those of summary.json in every bit.", highlight=False)
    console.print(f"Models used alone differ from the engine's outputs by {found.apart:.1e} at most.", highlight=False)
    if equal < len(found.scores):
        raise typer.Exit(1)
