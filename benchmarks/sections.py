"""What is measured, section by section; each gives rows for the table."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Timing, gemm_rate, interleaved, peak_bytes
from benchmarks.pieces import pieces
from benchmarks.workloads import (
    CLASSES,
    WORKLOADS,
    Workload,
    descent,
    published_order,
    quick,
    reference,
    reference_evaluation,
)
from fairlead.core import Cohort, Named, Server, Task
from fairlead.core.machine import cores, recycling, threads
from fairlead.core.task import SplitName
from fairlead.data import partition
from fairlead.engines import ENGINES, choose, engine
from fairlead.federate import assemble, federate
from fairlead.methods import METHODS
from fairlead.methods.fedfomo import mixture
from fairlead.servers import confree, propagation
from fairlead.statefiles import StateFiles

PARAMETERS = 878_538  # of the CNN


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


def alone(case: Callable[[], object]) -> Callable[[], object]:
    """With one intra-op thread."""

    def run() -> object:
        with threads(1):
            return case()

    return run


# The passes of plain SGD that a method makes of each client's data: its own gradient work.
PASSES: dict[str, Callable[[Workload], list[dict[str, Any]]]] = {
    "fedavg": lambda w: [{}],
    "fedrep": lambda w: [{"only": w.layout.head}, {"only": w.layout.body, "epochs": 1}],
    "ditto": lambda w: [{}, {}],
    "apfl": lambda w: [{}, {}],
    "fedala": lambda w: [{"only": w.layout.head, "steps": math.ceil(0.8 * w.samples / w.batch_size)}, {}],
    "fedpac": lambda w: [{"only": w.layout.head, "epochs": 1}, {"only": w.layout.body}],
    "fedora": lambda w: [{}],
    "fedamp": lambda w: [{}],
    "fedu": lambda w: [{}],
    "fedfomo": lambda w: [{}],
}


# Evaluations that a method prescribes in each round, beside its gradients.
LOOKS: dict[str, list[SplitName]] = {
    "fedpac": ["train", "train"],  # class means of the features, before and after
    "fedora": ["validation"] * 2,
    "fedfomo": ["validation"] * 6,
}

TIED = {"ditto", "fedora", "fedamp"}  # whose last pass has a tie to another model in its objective


def methods(name: str, options: Options) -> Iterator[Row]:
    """A whole round of every method: training, server and all between."""
    w = options.workload(name)
    rate = gemm_rate(cores())
    best = choose(w.module, w.federation, w.training, w.clients)
    rounds = 1_000_000
    first_search = 0.0
    measures: dict[str, tuple[str, str]] = {}
    with ExitStack() as stack:
        pool = stack.enter_context(w.start(best.name))
        cases: dict[str, Callable[[], object]] = {"reference": alone(reference(w))}
        for method in PASSES:
            happening = federate(
                METHODS[method](),
                w.federation,
                w.module,
                w.training,
                rounds=rounds,
                engine=best,
                evaluate_every=rounds,
            )
            stack.callback(happening.close)
            next(happening)  # the first round pays for copies, and for the greetings where there are any
            if method == "fedala":
                first_search = next(happening)[0].seconds
            cases[method] = partial(next, happening)
            # Methods with the same passes are measured against the same run of these.
            passes, looks, tied = PASSES[method](w), LOOKS.get(method, []), method in TIED
            measures[method] = f"{passes} {[]} {False}", f"{passes} {looks} {tied}"
            cases.setdefault(measures[method][0], descent(pool, w, *passes))
            cases.setdefault(measures[method][1], descent(pool, w, *passes, looks=looks, tied=tied))
        for name_of_case in cases.keys() - PASSES.keys():
            cases[name_of_case]()  # as the methods had their first round, so what they are measured against
        timings = interleaved(cases, options.repeats, warm=0)
    ref = timings["reference"]
    for method in PASSES:
        gradients, with_more = measures[method]
        t, own, all_own = timings[method], timings[gradients], timings[with_more]
        more: dict[str, float | str | None] = {
            "over gradients": 1 / t.times_as_fast_as(own) - 1,
            "by processor time": 1 / t.per_core(own) - 1,
            "over own passes": 1 / t.times_as_fast_as(all_own) - 1,
            "looks at GEMM rate": looks_alone(w, LOOKS[method]) / rate / own.seconds if method in LOOKS else None,
            "per core": t.per_core(ref),
            "cores": t.busy,
        }
        yield Row(f"rounds {name}", method, t.seconds, t.times_as_fast_as(ref), "reference's local training", more)
    yield Row(f"rounds {name}", "fedala, first search", first_search, ref.seconds / first_search, "the same")


def looks_alone(w: Workload, looks: list[SplitName]) -> float:
    """Floating-point operations of the evaluations that a method prescribes, for all clients."""
    return w.forward_flops * sum(int(getattr(w.federation, split).sizes.sum()) for split in looks)


def evaluation(name: str, options: Options) -> Iterator[Row]:
    """Every client's own model on its validation and test samples; a whole round of every method with evaluation."""
    w = options.workload(name)
    best = choose(w.module, w.federation, w.training, w.clients)
    everyone, models = torch.arange(w.clients), {"w": w.params.repeat(w.clients, 1)}

    def evaluate(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        return task.evaluate(state["w"], "validation"), task.evaluate(state["w"], "test")

    with ExitStack() as stack:
        pool = stack.enter_context(w.start(best.name))
        train, test = reference(w), reference_evaluation(w)
        cases: dict[str, Callable[[], object]] = {
            "reference": alone(test),
            "evaluation alone": lambda: pool.map(evaluate, everyone, 1, models, {}),
            "reference round": alone(lambda: (train(), test())),
        }
        for method in PASSES:
            happening = federate(
                METHODS[method](), w.federation, w.module, w.training, rounds=10**6, engine=best, evaluate_every=1
            )
            stack.callback(happening.close)
            next(happening)  # as in `methods`
            cases[method] = partial(next, happening)
        timings = interleaved(cases, options.repeats)
    for case, against in ({"evaluation alone": "reference"} | dict.fromkeys(PASSES, "reference round")).items():
        t, ref = timings[case], timings[against]
        more: dict[str, float | str | None] = {"per core": t.per_core(ref), "cores": t.busy}
        label = case if case == "evaluation alone" else f"{case} round, evaluated"
        yield Row(f"evaluation {name}", label, t.seconds, t.times_as_fast_as(ref), "reference's of the same", more)


def server(options: Options) -> Iterator[Row]:
    """Server steps by themselves, on updates of the CNN's size; ratios to the same products at the GEMM rate.

    Twenty rows are too few for that rate, whatever multiplies them: `of torch.mm` compares with the bare products of
    these very matrices, in float32 on all cores.
    """
    d = PARAMETERS // (20 if options.quick else 1)
    single, double = gemm_rate(cores()), gemm_rate(cores(), torch.float64)
    for m in (20, 200, *((1000,) if options.large else ())):
        updates = torch.randn(m, d, generator=torch.Generator().manual_seed(0))
        # Shared direction plus noise: some pairs conflict, as in training.
        updates.mul_(2.0).add_(torch.randn(d, generator=torch.Generator().manual_seed(1)))
        ids = torch.arange(m)
        cohort = Cohort(ids, torch.full((m,), 1 / m), m, 1, 0)
        for name, stage, greetings, products, bare in steps(m, d, single, double):
            if m > 200 and not name.startswith("confree"):
                continue
            entry = "theta" if greetings is not None else "w"
            state, _ = stage.init({entry: torch.zeros(1, d)}, greetings or {}, m)

            def step(stage: Server = stage, state: Named = state, entry: str = entry) -> object:
                return stage.update(state, {entry: updates}, cohort)  # noqa: B023 - called within the loop

            extra = peak_bytes(step)
            repeats = 1 if m > 200 else options.repeats
            with recycling():  # as in rounds
                t = interleaved({"step": step}, repeats, warm=0)["step"]
            product = by_torch(partial(bare, updates), repeats)
            size = updates.numel() * updates.element_size()
            held = sum(x.untyped_storage().nbytes() for x in state.values()) if greetings is not None else 0
            more: dict[str, float | str | None] = {
                "cores": t.busy,
                "of torch.mm": product / t.seconds,
                # The updates, what the server keeps between rounds, and what the step needs at its worst.
                "memory/updates": None if extra is None else (size + held + extra) / size,
            }
            yield Row("server", f"{name}, {m} clients", t.seconds, products / t.seconds, "GEMM rate", more)
            del state
    yield fomo(20, 5, d, single, options)


def by_torch(product: Callable[[], object], repeats: int) -> float:
    """Seconds of a product on all cores; not in turn with what it is compared with, which its threads would disturb."""
    with threads(cores()):
        return interleaved({"product": product}, repeats)["product"].seconds


def fomo(m: int, sent: int, d: int, single: float, options: Options) -> Row:
    """FedFomo's mixing of the models a client was sent, for every client."""
    draw = torch.Generator().manual_seed(0)
    theta, w = torch.randn(m, d, generator=draw), torch.rand(m, sent, generator=draw)
    message = {"models": theta[None], "chosen": torch.randint(m, (m, sent), generator=draw)}

    def some(rows: Tensor) -> Tensor:
        return mixture(theta[rows[0] : rows[-1] + 1], message | {"chosen": message["chosen"][rows]}, w[rows])

    # As in a round, where every worker mixes for its share of the clients.
    with ThreadPoolExecutor(cores(), initializer=torch.set_num_threads, initargs=(1,)) as crew:

        def mix() -> object:
            return list(crew.map(some, torch.arange(m).chunk(cores())))

        extra = peak_bytes(mix)
        t = interleaved({"mix": mix}, options.repeats)["mix"]
    share = torch.rand(m, m, generator=draw)
    product = by_torch(lambda: share @ theta, options.repeats)
    size = theta.numel() * theta.element_size()
    more: dict[str, float | str | None] = {
        "cores": t.busy,
        "of torch.mm": product / t.seconds,
        "memory/updates": None if extra is None else (size + extra) / size,
    }
    products = 2 * m * m * d / single  # every model for every client, most with weight zero
    return Row("server", f"fedfomo's mixing, {m} clients", t.seconds, products / t.seconds, "GEMM rate", more)


Bare = Callable[[Tensor], object]


def steps(m: int, d: int, single: float, double: float) -> Iterator[tuple[str, Server, Named | None, float, Bare]]:
    """Name, stage, greetings (where it keeps models), the seconds of its products at the machine's rate, and these."""
    gram, mix = m * m * d / double * 2, 2 * m * m * d / single
    alike = torch.rand(m, m, generator=torch.Generator().manual_seed(2))
    yield "confree", confree(), None, gram, lambda x: x @ x.T
    greetings = {"alike": alike + alike.T}
    yield "propagation", propagation(lambda hello: hello["alike"]), greetings, mix, lambda x: alike @ x
    yield "fedamp", assemble(METHODS["fedamp"](), None), {}, gram + mix, lambda x: (x @ x.T, alike @ x)
    yield "fedu", assemble(METHODS["fedu"](), None), {}, mix, lambda x: alike @ x


def startup(options: Options) -> Iterator[Row]:
    """From the shell's point of view: the library's import and the first screen of help, against importing torch."""
    commands = {
        "import torch": ["-c", "import torch"],
        "import fairlead": ["-c", "import fairlead"],
        "fairlead --help": ["-m", "fairlead", "--help"],
    }
    cases = {
        name: (
            lambda arguments=arguments: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        )
        for name, arguments in commands.items()
    }
    timings = interleaved(cases, options.repeats)
    for name in list(commands)[1:]:
        t = timings[name]
        yield Row("start-up", name, t.seconds, t.times_as_fast_as(timings["import torch"]), "import torch")


def partitioning(options: Options) -> Iterator[Row]:
    """60,000 samples of ten classes to 1,000 clients, against a plain shuffle cut into as many sorted pieces."""
    n, clients = 60_000, 1_000
    labels = np.random.default_rng(0).integers(CLASSES, size=n)
    cases: dict[str, Callable[[], object]] = {
        "shuffle": lambda: [np.sort(p) for p in np.array_split(np.random.default_rng(0).permutation(n), clients)],
        "iid": lambda: partition.iid(n, clients, np.random.default_rng(0)),
        "dirichlet 0.1": lambda: partition.dirichlet(labels, clients, np.random.default_rng(0), beta=0.1),
        "pathological 2": lambda: partition.pathological(labels, clients, np.random.default_rng(0), k=2),
    }
    timings = interleaved(cases, options.repeats)
    for name in list(cases)[1:]:
        t = timings[name]
        yield Row("partition", name, t.seconds, t.times_as_fast_as(timings["shuffle"]), "plain shuffle")


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
            w.federation,
            w.module,
            w.training,
            rounds=rounds if small else 10**6,
            engine=engine("threads+vectorised"),
            participation=COHORT,
            evaluate_every=10**6,
            store=lambda n, state: StateFiles(n, state, Path(folder)),
        )
        seconds: list[float] = []
        began = time.perf_counter()
        extra = peak_bytes(lambda: seconds.extend(next(happening)[0].seconds for _ in range(rounds)))
        whole = time.perf_counter() - began
        happening.close()
    return whole if small else float(np.median(seconds)), extra or 0, COHORT * w.layout.size * 4


def in_a_process(call: str) -> list[float]:
    """What a function of this module returns, in a process of its own: memory that others gave back would hide its."""
    code = f"from benchmarks.sections import *; print(*{call})"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return [float(x) for x in found.split()]


def growth(options: Options) -> Iterator[Row]:
    """How a round's cost grows with the number of clients and with the number of parameters."""
    base = replace(WORKLOADS["w2"], samples=64, epochs=1, held_out=1)
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
