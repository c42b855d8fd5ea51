"""`python -m benchmarks.on_ray`: rounds of W2 by Ray's processes and by this process's threads, in turn.

Needs `fairlead[ray]`. Both train, aggregate and keep the same states. Beside the seconds on the clock stand those of
all cores together, which say more where other programs use them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.workloads import WORKLOADS
from fairlead.clients import Clients, InProcess, Sharded, engine
from fairlead.core import Plan
from fairlead.methods import METHODS
from fairlead.rounds import federate

ROUNDS, WARM = 40, 2
METHODS_TRIED = ("fedavg", "ditto", "fedora")


def main() -> None:
    """Print seconds a round and their ratio, by method."""
    w = WORKLOADS["w2"]
    here = InProcess(w.federation, w.training, engine("threads+vectorised"))
    there = Sharded(w.federation, w.training)
    print(f"W2: {w.clients} clients, {w.layout.size:,} parameters; median seconds a round of {ROUNDS}, in turn")
    for name in METHODS_TRIED:
        runs = [_rounds(name, clients) for clients in (here, there)]
        clock: list[list[float]] = [[], []]
        work: list[list[float]] = [[], []]
        for i in range(ROUNDS + WARM):
            for turn, run in enumerate(runs):
                pids = [os.getpid(), *there.pids()]
                began, before = time.perf_counter(), _cpu(pids)
                next(run)
                if i >= WARM:
                    clock[turn].append(time.perf_counter() - began)
                    work[turn].append(_cpu(pids) - before)
        for unit, seconds in (("on the clock", clock), ("of all cores", work)):
            threads, ray = (statistics.median(s) for s in seconds)
            told = f"threads+vectorised {threads:.3f}  ray {ray:.3f}  ray is {threads / ray:.2f} times as fast"
            print(f"{name:8} seconds {unit}: {told}", flush=True)
    there.close()
    here.close()


def _rounds(name: str, clients: Clients) -> Iterator[Any]:
    w = WORKLOADS["w2"]
    plan = Plan(rounds=ROUNDS + WARM + 1, evaluate_every=10_000)
    return iter(federate(METHODS[name](), clients, w.module, plan))


def _cpu(pids: list[int]) -> float:
    """Seconds that these processes have computed so far, on Linux."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
