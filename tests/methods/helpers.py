"""Quadratic clients: client k's loss is |u - c_k|²/2 for every sample, so that a round has a closed form.

One step of size lr takes u to u + lr (c_k - u); K steps take it to c_k + (1 - lr)^K (u - c_k).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairlead.clients import InProcess, States, engine, first_state, wrapped
from fairlead.core import Federation, Layout, Method, Named, Plan, Server, Split, Task, Training
from fairlead.rounds import Snapshot, draw, federate

Row = Tensor | Sequence[float]
Rows = Tensor | Sequence[Sequence[float]]


class Point(nn.Module):
    """A model that is one vector and answers with it, whatever the sample."""

    def __init__(self, start: Row) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.as_tensor(start, dtype=torch.float32).clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.u.expand(x.shape[0], -1)


class Sum(nn.Module):
    """Two layers that are a vector each and answer with their sum; the second is the head."""

    def __init__(self, first: Row, second: Row) -> None:
        super().__init__()
        self.first, self.second = Point(first), Point(second)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.first(x) + self.second(x)
        return out


def half_square(out: Tensor, y: Tensor) -> Tensor:
    """|out - y|²/2, one per sample."""
    return 0.5 * (out - y).square().sum(-1)


def training(lr: float = 0.1, steps: int | None = 1, **more: Any) -> Training:
    """Plain SGD on the quadratic losses."""
    return Training(lr=lr, steps=steps, criterion=half_square, **more)


def quadratic(centres: Rows, sizes: Sequence[int] | None = None, inputs: Rows | None = None) -> Federation:
    """A client per row of `centres` (N, d), each with so many samples; validation and test targets are the same.

    `inputs` (N, p) are the samples' x, which `Point` ignores.
    """
    targets = torch.as_tensor(centres, dtype=torch.float32)
    n = len(targets)
    counts = torch.tensor([2] * n if sizes is None else list(sizes))
    x = torch.zeros(n, 1) if inputs is None else torch.as_tensor(inputs, dtype=torch.float32)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    split = Split(x.repeat_interleave(counts, 0), targets.repeat_interleave(counts, 0), starts)
    return Federation(split, split, split, ())


def blobs(sizes: Sequence[int] = (5, 9, 12)) -> Federation:
    """Three classes in six dimensions, seen from another side by each client, of unequal sizes."""
    g = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *sizes]).cumsum(0)
    y = torch.arange(int(starts[-1])) % 3
    x = torch.randn(len(y), 6, generator=g)
    x[torch.arange(len(y)), y] += 2
    for k in range(len(sizes)):
        x[starts[k] : starts[k + 1]] = x[starts[k] : starts[k + 1]].roll(k, 1)
    split = Split(x, y, starts)
    return Federation(split, split, split, ("a", "b", "c"))


def net() -> nn.Module:
    """6-5-4-3, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def suited(name: str, module: nn.Module) -> nn.Module:
    """The module, with a normalisation layer before its last one for the method that keeps these at home."""
    if name != "fedbn" or any(isinstance(m, nn.BatchNorm1d) for m in module.modules()):
        return module
    assert isinstance(module, nn.Sequential)
    *below, head = module
    assert isinstance(head, nn.Linear)
    return nn.Sequential(*below, nn.LayerNorm(head.in_features), head)


#: For `blobs` and `net`: clients run out of batches at different times, and momentum goes on.
CLASSES = Training(lr=0.1, epochs=2, batch_size=4, momentum=0.5)


def run(
    method: Method,
    federation: Federation,
    start: nn.Module | Row,
    *,
    rounds: int = 1,
    on: str = "loop",
    participation: float = 1.0,
    seed: int = 0,
    average: Server | None = None,
    how: Training | None = None,
) -> tuple[Tensor, Snapshot]:
    """Train `Point(start)`, or `start` itself; returns the models the clients deploy, (N, d), and the last snapshot."""
    how = training() if how is None else how
    module = start if isinstance(start, nn.Module) else Point(start)
    for _, snapshot in federate(  # noqa: B007
        method,
        InProcess(federation, how, engine(on)),
        module,
        Plan(rounds=rounds, participation=participation, seed=seed),
        average=average,
    ):
        pass
    return deployed(method, federation, wrapped(method, module, seed), snapshot, how, seed), snapshot


def deployed(
    method: Method, federation: Federation, module: nn.Module, snapshot: Snapshot, how: Training, seed: int = 0
) -> Tensor:
    """The models of `personal` on a snapshot, (N, d)."""

    def work(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        return {"model": method.personal(state, message, task)}, {}

    states = States(federation.clients, first_state(method, module))
    states.load({n.removeprefix("state."): x for n, x in snapshot.clients().items() if n.startswith("state.")})
    everyone = torch.arange(federation.clients)
    with engine("loop").start(module, Layout(module), federation, how, seed) as pool:
        rows, _ = pool.map(work, everyone, snapshot.round, states.get(everyone), snapshot.message)
    return rows["model"]


def cohorts(participation: float, clients: int, rounds: int, seed: int = 0) -> list[list[int]]:
    """Who takes part, round by round."""
    return [draw(participation, clients, seed, t).tolist() for t in range(1, rounds + 1)]
