"""Local training by every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks.measure import Timing, gemm_rate, interleaved
from benchmarks.sections.rows import Options, Row, alone
from benchmarks.workloads import Workload, descent, published_order, reference
from fairlead.clients import ENGINES, choose
from fairlead.core.fast.machine import cores


def training(name: str, options: Options) -> Iterator[Row]:
    """Local training by every engine, and by the one that `auto` picks."""
    w = options.workload(name)
    rate = gemm_rate(cores())
    with ExitStack() as stack:
        cases: dict[str, Callable[[], object]] = {"reference": alone(reference(w))}
        if w.model == "cnn":
            cases["reference, ReLU then pooling"] = alone(reference(w, published_order(w)))
        for engine in ENGINES:
            cases[engine] = descent(stack.enter_context(w.start(engine)), w)
        # Short rounds take more turns, to see some without interference.
        timings = interleaved(cases, options.repeats * (1 if w.model == "cnn" or options.quick else 5))
    rate = max(rate, gemm_rate(cores()))  # whichever moment was the quieter
    auto = choose(w.module, w.federation, w.training, w.clients).name
    for case, t in timings.items():
        more = training_facts(t, timings["reference"], w, rate)
        yield Row(name, case, t.seconds, t.times_as_fast_as(timings["reference"]), "reference", more)
    t = timings[auto]
    more = training_facts(t, timings["reference"], w, rate) | {"picked": auto}
    yield Row(name, f"auto = {auto}", t.seconds, t.times_as_fast_as(timings["reference"]), "reference", more)


def training_facts(t: Timing, ref: Timing, w: Workload, rate: float) -> dict[str, float | str | None]:
    """Samples a second, the share of the machine's matrix-product rate, and what one core does."""
    speed = w.work / t.seconds
    return {
        "samples/s": speed,
        "of GEMM": speed * w.flops / rate,
        "best turn": t.best_against(ref),
        "per core": t.per_core(ref),
        "cores": t.busy,
    }
