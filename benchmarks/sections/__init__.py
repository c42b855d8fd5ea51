"""What is measured, section by section; each gives rows for the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.pieces import pieces
from benchmarks.sections.rounds import evaluation, methods
from benchmarks.sections.rows import Options, Row
from benchmarks.sections.servers import server
from benchmarks.sections.setup import partitioning, startup
from benchmarks.sections.sizes import growth, many, memory
from benchmarks.sections.training import training


def inside(options: Options) -> Iterator[Row]:
    """Single decisions inside the library, each against what it replaced."""
    for name, (before, after) in pieces().items():
        more: dict[str, float | str | None] = {"before, ms": 1000 * min(before.cpu), "after, ms": 1000 * min(after.cpu)}
        yield Row("pieces", name, min(after.cpu), min(before.cpu) / min(after.cpu), "what it replaced", more)


SECTIONS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "w1": lambda o: training("w1", o),
    "w2": lambda o: training("w2", o),
    "w3": lambda o: training("w3", o),
    "rounds-w1": lambda o: methods("w1", o),
    "rounds-w2": lambda o: methods("w2", o),
    "evaluation": lambda o: (row for name in ("w1", "w2") for row in evaluation(name, o)),
    "server": server,
    "startup": startup,
    "partition": partitioning,
    "memory": memory,
    "many": many,
    "growth": growth,
    "pieces": inside,
}
