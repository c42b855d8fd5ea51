"""A line of the table, and how thorough a run is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.workloads import WORKLOADS, Workload, quick
from fairlead.core.fast.machine import threads


@dataclass(frozen=True)
class Row:
    """One line of the table. `ratio` is what is compared with the record: higher is better."""

    section: str
    name: str
    seconds: float
    ratio: float
    of: str  # what the ratio is a ratio to
    more: dict[str, float | str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """How thorough to be."""

    repeats: int = 5
    quick: bool = False
    large: bool = False

    def workload(self, name: str) -> Workload:
        return quick(WORKLOADS[name]) if self.quick else WORKLOADS[name]


def alone(case: Callable[[], object]) -> Callable[[], object]:
    """With one intra-op thread."""

    def run() -> object:
        with threads(1):
            return case()

    return run
