"""A reproduction on a console that the caller owns: progress with time left, then the table and the claims."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from fairlead.reproduce import STUDIES, Reproduction, study
from fairlead.reproduce.table import terminal

LINE_SECONDS = 10.0  # between progress lines where there is no terminal


def listing() -> Table:
    """Every name, what it is and where it was published."""
    table = Table("name", "what it is", "published as", title="Published tables and figures")
    for name in STUDIES:
        one = study(name, "full")
        table.add_row(name, one.title, one.source)
    return table


def show(console: Console, result: Reproduction) -> None:
    """The tables, what became of the claims, and where the files are."""
    for part in terminal(result.study, result.numbers, result.verdicts, result.budget, result.seeds):
        console.print(part)
    console.print(f"Written: {result.folder}", highlight=False, soft_wrap=True)


class Watch:
    """Progress over all cells of a table: a bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = Progress(*columns, console=console, transient=True)
        self._console = console
        self._task: Any = None
        self._began = self._said = time.monotonic()
        self._first: float | None = None

    def __enter__(self) -> Watch:
        if self._console.is_terminal:
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0, left="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, done: float, total: float, what: str) -> None:
        """Take note of work done; what was found done already does not count for the speed."""
        now = time.monotonic()
        if self._first is None or now - self._began < 0.5:
            self._first, self._began = done, now if self._first is None else self._began
        left = (now - self._began) / max(done - self._first, 1e-9) * (total - done) if done > self._first else None
        said = "" if left is None else f"{minutes(left)} left"
        if self._console.is_terminal:
            self._bar.update(self._task, description=what, completed=done, total=total, left=said)
        elif now - self._said > LINE_SECONDS:
            self._said = now
            self._console.print(f"{what}: {done / total:.0%} done, {said}", highlight=False)


def minutes(seconds: float) -> str:
    """A time in words.

    >>> minutes(42), minutes(600), minutes(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
