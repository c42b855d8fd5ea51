"""Single decisions inside the library, each against what it replaced; by processor time of one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from benchmarks.measure import Timing, interleaved
from benchmarks.workloads import WORKLOADS, Workload
from fairlead.core import Batch, BatchLoss, Cohort, FastNetwork, Named, Plus, Task
from fairlead.core.fast.machine import large_empty, recycling, threads
from fairlead.core.task import EVALUATION_BLOCK
from fairlead.methods import METHODS
from fairlead.servers import mean

TURNS = 15


def pieces() -> dict[str, tuple[Timing, Timing]]:
    """Name -> timing before and after."""
    cnn = replace(WORKLOADS["w1"], clients=2, samples=100)
    cases = {
        "channels last, CNN step": channels_last(cnn),
        "products add to the weights, CNN epoch": products(replace(cnn, clients=1)),
        "products add to the weights, W3 epoch": products(replace(WORKLOADS["w3"], clients=10, samples=100)),
        "products add to the velocity, CNN epoch": products(replace(cnn, clients=1), momentum=0.9),
        "products add to the velocity, W3 epoch": products(replace(WORKLOADS["w3"], clients=10, samples=100), 0.9),
        "batches of 10 or of 40, CNN": larger_batches(cnn, 4),
        "stacked layers or vmap, W2 step": stacked_layers(replace(WORKLOADS["w2"], clients=18)),
        "stacked layers or vmap, W3 step": stacked_layers(replace(WORKLOADS["w3"], clients=10, samples=50)),
        "index_select or indexing, W2 batch": selection(WORKLOADS["w2"]),
        "head alone, W2 round": head_alone(replace(WORKLOADS["w2"], clients=18)),
        "head alone, CNN epoch": head_alone(replace(cnn, clients=1)),
        "evaluation in blocks, CNN": blocks(replace(cnn, clients=1, samples=1024)),
        "huge pages or small ones, 20 CNNs": fresh_rows(replace(cnn, clients=20)),
        "memory of the step before, four of FedU's for 20 CNNs": four_steps(replace(cnn, clients=20)),
    }
    found = {}
    with threads(1), torch.no_grad():
        for name, (before, after) in cases.items():
            timings = interleaved({"before": before, "after": after}, TURNS)
            found[name] = timings["before"], timings["after"]
    return found


Case = Callable[[], object]


def channels_last(w: Workload) -> tuple[Case, Case]:
    """The same images in both orders, through a plain module."""
    x, y = w.federation.train.x[: w.batch_size], w.federation.train.y[: w.batch_size]
    other = x.contiguous(memory_format=torch.channels_last)
    leaves = list(w.module.parameters())

    def step(images: torch.Tensor) -> object:
        with torch.enable_grad():
            return torch.autograd.grad(cross_entropy(w.module(images), y), leaves)

    return lambda: step(x), lambda: step(other)


def larger_batches(w: Workload, times: int) -> tuple[Case, Case]:
    """Gradients of the same samples by the batch, and by batches that many times as large: what those could save."""
    n = times * w.batch_size
    x, y = w.federation.train.x[:n].contiguous(memory_format=torch.channels_last), w.federation.train.y[:n]
    leaves = list(w.module.parameters())

    def gradients(size: int) -> object:
        pairs = zip(torch.split(x, size), torch.split(y, size), strict=True)
        with torch.enable_grad():
            return [torch.autograd.grad(cross_entropy(w.module(a), b), leaves) for a, b in pairs]

    return lambda: gradients(w.batch_size), lambda: gradients(n)


def products(w: Workload, momentum: float = 0.0) -> tuple[Case, Case]:
    """A local epoch whose steps write their gradient down, and the library's own."""
    task = Task(FastNetwork(w.module, w.layout), w.federation, list(range(w.clients)), w.training, round=1, seed=0)

    def by_gradient() -> object:
        u = w.params.repeat(w.clients, 1)
        out, velocity = torch.zeros_like(u), torch.zeros_like(u)
        for batch in task.batches():
            g = task.grad(u, batch, out=out)
            u.sub_(velocity.mul_(momentum).add_(g) if momentum else g, alpha=task.sgd.lr)
        return u

    return by_gradient, lambda: task.descend(w.params, how=task.sgd.but(momentum=momentum))


def stacked_layers(w: Workload) -> tuple[Case, Case]:
    """A gradient of every client, with a loss that only vmap can take, and with the usual one."""
    ids = list(range(w.clients))
    task = Task(FastNetwork(w.module, w.layout), w.federation, ids, w.training, round=1, seed=0)
    batch, rows = next(iter(task.batches())), w.params.repeat(w.clients, 1)
    out = torch.zeros_like(rows)

    def loss(module: torch.nn.Module, one: Batch, given: Named) -> torch.Tensor:
        return one.mean(cross_entropy(module(one.x), one.y, reduction="none"))

    return lambda: task.grad(rows, batch, loss=BatchLoss(loss), out=out), lambda: task.grad(rows, batch, out=out)


def head_alone(w: Workload) -> tuple[Case, Case]:
    """The local epochs of a head, where a term of zeros forbids to keep what the other layers give, and without it."""
    task = Task(FastNetwork(w.module, w.layout), w.federation, list(range(w.clients)), w.training, round=1, seed=0)
    rows, head = w.params.repeat(w.clients, 1), w.layout.head
    nothing = torch.zeros_like(rows)
    return lambda: task.descend(rows, Plus(nothing), only=head), lambda: task.descend(rows, only=head)


def blocks(w: Workload) -> tuple[Case, Case]:
    """One client's samples through the network, without gradients."""
    network, x = FastNetwork(w.module, w.layout), w.federation.train.x[None]
    pieces = torch.split(x, EVALUATION_BLOCK, dim=1)
    return lambda: network.outputs(w.params, x), lambda: [network.outputs(w.params, piece) for piece in pieces]


def fresh_rows(w: Workload) -> tuple[Case, Case]:
    """All clients' models, written to memory that was not used before."""
    rows = w.params.repeat(w.clients, 1)
    return lambda: torch.empty_like(rows).copy_(rows), lambda: large_empty(rows, *rows.shape).copy_(rows)


def four_steps(w: Workload) -> tuple[Case, Case]:
    """FedU's server steps one after another, without and with the memory that the step before has left."""
    server, rows = METHODS["fedu"]().server(mean()), w.params.repeat(w.clients, 1)
    state, _ = server.init({"theta": w.params}, {}, w.clients)
    cohort = Cohort(torch.arange(w.clients), torch.full((w.clients,), 1 / w.clients), w.clients, 1, 0)

    def steps() -> None:
        for _ in range(4):
            server.update(state, {"theta": rows}, cohort)

    def again() -> None:
        with recycling():
            steps()

    return steps, again


def selection(w: Workload) -> tuple[Case, Case]:
    """The samples of one step."""
    x = w.federation.train.x
    index = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: w.clients // 2 * w.batch_size]
    return lambda: x[index], lambda: x.index_select(0, index)
