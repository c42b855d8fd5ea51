"""How far a training is, while it runs."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fairlead.cli.command import console
from fairlead.cli.show import show_briefly
from fairlead.data import Survey

LINE_SECONDS = 10.0  # between progress lines where there is no terminal


class watch:
    """Progress with time left: a bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: Any = None
        self._key: tuple[str, int] | None = None
        self._began = self._said = time.monotonic()
        self._first = 0

    def __enter__(self) -> watch:
        if console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if console.is_terminal:
            self._bar.stop()

    def data(self, found: Survey) -> None:
        """Show a table before training."""
        if found.columns:
            show_briefly(found)

    def __call__(self, method: str, seed: int, round: int, rounds: int) -> None:
        """Show how far a run is."""
        now = time.monotonic()
        if self._key != (method, seed):
            self._key, self._began, self._first = (method, seed), now, round
            if console.is_terminal:
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._task = self._bar.add_task(f"{method}, seed {seed}", total=rounds)
        if console.is_terminal:
            self._bar.update(self._task, completed=round)
        elif now - self._said > LINE_SECONDS:
            self._said = now
            left = (now - self._began) / max(round - self._first, 1) * (rounds - round)
            console.print(f"{method}, seed {seed}: round {round} of {rounds}, {left:.0f} s left", highlight=False)
