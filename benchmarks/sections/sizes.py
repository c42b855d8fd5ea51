"""How memory and time grow: with engines, clients and parameters."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.measure import interleaved, peak_bytes
from benchmarks.sections.rows import Options, Row, alone
from benchmarks.workloads import CLASSES, WORKLOADS, Workload, descent, reference
from fairlead.clients import ENGINES, InProcess, choose, engine
from fairlead.core import Plan
from fairlead.methods import METHODS
from fairlead.rounds import federate
from fairlead.runs.statefiles import StateFiles


def memory(options: Options) -> Iterator[Row]:
    """Peak memory of local training on W1 above what was there before, in units of the cohort's models."""
    for name in ENGINES:
        extra, models, seconds = in_a_process(f"memory_of({name!r}, {options.quick})")
        more: dict[str, float | str | None] = {"megabytes": extra / 2**20, "memory/models": extra / models}
        yield Row("memory", f"w1 {name}", seconds, models / max(extra, 1), "the cohort's models", more)


def memory_of(engine: str, small: bool) -> tuple[int, int, float]:
    """Bytes above the level before, bytes of the cohort's models, seconds."""
    w = Options(quick=small).workload("w1")
    w = replace(w, samples=min(w.samples, 50))  # samples change time, not memory
    _ = w.federation
    with w.start(engine) as pool:
        began = time.perf_counter()
        extra = peak_bytes(descent(pool, w))
        return extra or 0, w.clients * w.layout.size * 4, time.perf_counter() - began


COHORT = 100  # clients that take part in a round of a large federation


def many(options: Options) -> Iterator[Row]:
    """Rounds of 100 among more and more clients, their personal models on disk; then 100,000 of a small model, scored.

    Ratios are to the same round among the fewest clients: 1 is a cost that does not grow with who sits it out.
    """
    sizes = (200, 1_000) if options.quick else (1_000, 10_000)
    first = None
    for clients in sizes:
        seconds, extra, kept = in_a_process(f"many_of({clients})")
        first = first or seconds
        more: dict[str, float | str | None] = {"megabytes": extra / 2**20, "memory/models": extra / kept}
        yield Row("many", f"{clients:,} clients, MLP", seconds, first / seconds, "fewest clients", more)
    clients = 2_000 if options.quick else 100_000
    seconds, extra, kept = in_a_process(f"many_of({clients}, small=True)")
    more = {"megabytes": extra / 2**20}
    yield Row("many", f"{clients:,} clients, small, scored", seconds, 1.0, "10 rounds and all scores", more)


def many_of(clients: int, small: bool = False) -> tuple[float, int, int]:
    """Seconds of a round (of ten and scoring everybody, if `small`), peak bytes above the data, bytes of a cohort."""
    w = replace(WORKLOADS["w2"], clients=clients, samples=4, held_out=1, epochs=1)
    w = replace(w, shape=(20,), make=lambda: nn.Linear(20, CLASSES)) if small else w
    _ = w.federation
    rounds = 10
    with tempfile.TemporaryDirectory() as folder:
        happening = federate(
            METHODS["ditto"](),
            InProcess(
                w.federation,
                w.training,
                engine("threads+vectorised"),
                store=lambda n, state: StateFiles(n, state, Path(folder)),
            ),
            w.module,
            Plan(rounds=rounds if small else 10**6, participation=COHORT, evaluate_every=10**6),
        )
        seconds: list[float] = []
        began = time.perf_counter()
        extra = peak_bytes(lambda: seconds.extend(next(happening)[0].seconds for _ in range(rounds)))
        whole = time.perf_counter() - began
        happening.close()
    return whole if small else float(np.median(seconds)), extra or 0, COHORT * w.layout.size * 4


def in_a_process(call: str) -> list[float]:
    """What a function of this module returns, in a process of its own: memory that others gave back would hide its."""
    code = f"from benchmarks.sections.sizes import *; print(*{call})"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return [float(x) for x in found.split()]


def growth(options: Options) -> Iterator[Row]:
    """How a round's cost grows with the number of clients and with the number of parameters."""
    base = replace(WORKLOADS["w2"], held_out=1)
    counts = (8, 16, 32) if options.quick else (10, 30, 100, 300, 1000)
    widths = (16, 64, 256) if options.quick else (16, 64, 256, 1024)
    for clients in counts:
        yield grown("clients", clients, replace(base, clients=clients), options)
    for width in widths:
        make = wide(width)
        size = sum(p.numel() for p in make().parameters())
        yield grown("parameters", size, replace(base, clients=20, make=make), options)


def grown(axis: str, value: int, w: Workload, options: Options) -> Row:
    best = choose(w.module, w.federation, w.training, w.clients)
    with w.start(best.name) as pool:
        cases = {"reference": alone(reference(w)), "auto": descent(pool, w)}
        timings = interleaved(cases, min(options.repeats, 3))
    t, ref = timings["auto"], timings["reference"]
    facts: dict[str, float | str | None] = {"axis": axis, "value": value, "reference seconds": ref.seconds}
    facts |= {"per core": t.per_core(ref), "cores": t.busy}
    return Row("growth", f"{value:,} {axis}", t.seconds, t.times_as_fast_as(ref), "reference", facts)


def wide(width: int) -> Callable[[], nn.Module]:
    """The MLP with so many units in both hidden layers."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, CLASSES),
        )

    return make
