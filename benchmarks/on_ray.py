"""`python -m benchmarks.on_ray`: rounds of W2 by Ray's processes and by this process's threads, in turn.

Needs `fairlead[ray]`. Both train, aggregate and keep the same states; the losses are compared as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.workloads import WORKLOADS
from fairlead.clients import Clients, InProcess, Sharded, engine
from fairlead.core import Plan
from fairlead.methods import METHODS
from fairlead.rounds import federate

ROUNDS, WARM = 12, 2
METHODS_TRIED = ("fedavg", "ditto", "fedora")


def main() -> None:
    """Print seconds a round and their ratio, by method."""
    w = WORKLOADS["w2"]
    here = InProcess(w.federation, w.training, engine("threads+vectorised"))
    there = Sharded(w.federation, w.training)
    print(f"W2: {w.clients} clients, {w.layout.size:,} parameters; median seconds a round of {ROUNDS}, in turn")
    for name in METHODS_TRIED:
        runs = [_rounds(name, clients) for clients in (here, there)]
        seconds: list[list[float]] = [[], []]
        for i in range(ROUNDS + WARM):
            for taken, run in zip(seconds, runs, strict=True):
                began = time.perf_counter()
                next(run)
                if i >= WARM:
                    taken.append(time.perf_counter() - began)
        threads, ray = (statistics.median(s) for s in seconds)
        print(f"{name:8} threads+vectorised {threads:.3f}  ray {ray:.3f}  ray is {threads / ray:.2f} times as fast")
    there.close()
    here.close()


def _rounds(name: str, clients: Clients) -> Iterator[Any]:
    w = WORKLOADS["w2"]
    plan = Plan(rounds=ROUNDS + WARM + 1, evaluate_every=10_000)
    return iter(federate(METHODS[name](), clients, w.module, plan))


if __name__ == "__main__":
    main()
