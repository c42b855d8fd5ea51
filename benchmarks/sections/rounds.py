"""Whole rounds of every method, without and with evaluation, and what they are measured against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import gemm_rate, interleaved
from benchmarks.sections.rows import Options, Row, alone
from benchmarks.workloads import Workload, descent, reference, reference_evaluation
from fairlead.clients import InProcess, choose
from fairlead.core import Batch, MeanLoss, Named, Plan, Task
from fairlead.core.fast.machine import cores
from fairlead.core.task import SplitName
from fairlead.methods import METHODS
from fairlead.rounds import federate

# The passes that a method makes of each client's data, as those of plain SGD.
PASSES: dict[str, Callable[[Workload], list[dict[str, Any]]]] = {
    "fedavg": lambda w: [{}],
    "fedrep": lambda w: [{"only": w.layout.head}, {"only": w.layout.body, "how": w.sgd.but(epochs=1)}],
    "ditto": lambda w: [{}, {}],
    "apfl": lambda w: [{}, {}],
    "fedala": lambda w: [
        {"only": w.layout.head, "how": w.sgd.but(epochs=1, steps=math.ceil(0.8 * w.samples / w.batch_size))},
        {},
    ],
    "fedpac": lambda w: [{"only": w.layout.head, "how": w.sgd.but(epochs=1)}, {"only": w.layout.body}],
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

# Whose last pass starts from a model of the client's own, with a tie in its objective: to the model that all have in
# common, or to one made for the client.
TIED: dict[str, Literal["w", "other"]] = {"ditto": "w", "fedora": "other", "fedamp": "other"}


def aligned(w: Workload) -> dict[str, Any]:
    """What FedPAC's last pass has in its objective: features are drawn to the prototypes of their class."""

    def values(module: nn.Module, batch: Batch, given: Named) -> Tensor:
        *body, head = module.children()
        z = batch.x
        for layer in body:
            z = layer(z)
        apart = (z - batch.by_label(given["prototypes"])).square().mean(1)
        return cross_entropy(head(z), batch.y, reduction="none") + apart

    classes, features = w.layout.slots[f"{w.layout.head_name}.weight"].shape
    return {"loss": MeanLoss(values, {"prototypes": w.params.new_zeros(1, classes, features)})}


# What else there is in the objective of a last pass.
OBJECTIVES = {"fedpac": aligned}


def yardsticks(method: str, w: Workload) -> dict[str, dict[str, Any]]:
    """What a round is measured against: passes of plain SGD, those of the method's objective, and its looks too."""
    *before, last = plain = PASSES[method](w)
    own = [*before, last | OBJECTIVES[method](w)] if method in OBJECTIVES else plain
    tied = TIED.get(method)
    return {
        "over plain SGD": {"passes": plain},
        "over own gradients": {"passes": own, "tied": tied},
        "over own passes": {"passes": own, "tied": tied, "looks": LOOKS.get(method, [])},
    }


def methods(name: str, options: Options) -> Iterator[Row]:
    """A whole round of every method: training, server and all between."""
    w = options.workload(name)
    rate = gemm_rate(cores())
    best = choose(w.module, w.federation, w.training, w.clients)
    rounds = 1_000_000
    first_search = 0.0
    measures: dict[tuple[str, str], str] = {}  # method, column -> case
    with ExitStack() as stack:
        pool = stack.enter_context(w.start(best.name))
        cases: dict[str, Callable[[], object]] = {"reference": alone(reference(w))}
        for method in PASSES:
            happening = federate(
                METHODS[method](),
                InProcess(w.federation, w.training, best),
                w.module,
                Plan(rounds=rounds, evaluate_every=rounds),
            )
            stack.callback(happening.close)
            next(happening)  # the first round pays for copies, and for the greetings where there are any
            if method == "fedala":
                first_search = next(happening)[0].seconds
            cases[method] = partial(next, happening)
            for column, how in yardsticks(method, w).items():
                # Methods with the same passes are measured against the same run of these.
                work = str({k: v for k, v in how.items() if v})
                measures[method, column] = work
                cases.setdefault(work, descent(pool, w, **how))
        for name_of_case in cases.keys() - PASSES.keys():
            cases[name_of_case]()  # as the methods had their first round, so what they are measured against
        timings = interleaved(cases, options.repeats, warm=0)
    ref = timings["reference"]
    for method in PASSES:
        t = timings[method]
        against = {column: timings[work] for (m, column), work in measures.items() if m == method}
        plain = against["over plain SGD"].seconds
        more: dict[str, float | str | None] = {
            **{column: 1 / t.times_as_fast_as(own) - 1 for column, own in against.items()},
            "looks at GEMM rate": looks_alone(w, LOOKS[method]) / rate / plain if method in LOOKS else None,
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
                METHODS[method](),
                InProcess(w.federation, w.training, best),
                w.module,
                Plan(rounds=10**6, evaluate_every=1),
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
