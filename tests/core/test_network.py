"""Every way to a gradient gives the same numbers as the reference: plain autograd, one client at a time."""

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fairlead.core import (
    Batch,
    BatchLoss,
    BodyAndHead,
    FastNetwork,
    Federation,
    Layout,
    MeanLoss,
    Named,
    Part,
    PlainNetwork,
    Split,
    Task,
    Tie,
    Training,
)
from fairlead.core.dropout import replace_dropout
from fairlead.core.fast.stacked import can_stack
from fairlead.core.loss import LossFunction
from fairlead.core.types import Target

SIZES = (9, 5, 7)


class ByView(nn.Module):
    """Insists on the usual memory order, as many published networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 2, 3), nn.Linear(2 * 3 * 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.max_pool2d(self.conv(x), 2)
        out: torch.Tensor = self.head(pooled.view(len(x), -1))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 6),
        nn.Tanh(),
        nn.Dropout(0.3),
        nn.Linear(6, 5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 3),
    )


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 3 * 3, 3))


def in_place() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))


def federation() -> Federation:
    n, generator = sum(SIZES), torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 1, 8, 8, generator=generator), torch.randint(3, (n,), generator=generator)
    data = Split(x, y, torch.tensor([0, *SIZES]).cumsum(0))
    return Federation(data, data, data, ("a", "b", "c"))


def task_of(module: nn.Module, ids: list[int], data: Federation) -> Task:
    how = Training(lr=0.1, epochs=2, batch_size=4, momentum=0.5)
    return Task(FastNetwork(module, Layout(module)), data, ids, how, round=1, seed=0)


def usual(module: nn.Module, batch: Batch, given: Named) -> torch.Tensor:
    return nn.functional.cross_entropy(module(batch.x), batch.y, reduction="none")


def plainly(
    module: nn.Module,
    u: torch.Tensor,
    batch: Batch,
    only: Part | None = None,
    values: LossFunction = usual,
    given: Named | None = None,
) -> torch.Tensor:
    """The gradient by the reference, on a module of its own."""
    return PlainNetwork(module, Layout(module)).gradient(u, batch, MeanLoss(values, given), only).values


@pytest.mark.parametrize(
    "build",
    [mlp, lambda: BodyAndHead(mlp()), lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), cnn, ByView, in_place],
    ids=["mlp", "cut", "logistic", "cnn", "view", "in place"],
)
@pytest.mark.parametrize("part", [None, "head", "body"])
def test_clients_side_by_side_train_as_they_do_alone(build: Callable[..., Any] | type[Any], part: str | None) -> None:
    torch.manual_seed(0)
    module, data = build(), federation()
    layout = Layout(module)
    only = None if part is None else getattr(layout, part)
    rows = layout.read(module)
    alone = torch.cat([task_of(module, [k], data).descend(rows, only=only) for k in range(3)])
    together = task_of(module, [0, 1, 2], data).descend(rows, only=only)
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-5)


def test_a_loss_may_call_the_model_twice() -> None:
    """As consistency and contrastive losses do; the gradients of both calls count, in a stack too."""

    def values(module: nn.Module, batch: Batch, given: Named) -> torch.Tensor:
        value: torch.Tensor = (module(batch.x) - module(0.5 * batch.x)).square().sum(1)
        return value

    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    layout = Layout(module)
    network, rows = FastNetwork(module, layout), torch.randn(3, layout.size)
    batch = Batch(torch.randn(3, 6, 5), torch.zeros(3, 6, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    together = torch.zeros_like(rows)
    network.gradient(rows, batch, MeanLoss(values)).write(together)
    torch.testing.assert_close(together, plainly(module, rows, batch, None, values))


@pytest.mark.parametrize("build", [cnn, ByView, in_place])
def test_one_client_follows_plain_pytorch(build: Callable[..., Any] | type[Any]) -> None:
    torch.manual_seed(0)
    module, data = build(), federation()
    layout = Layout(module)
    task = task_of(module, [1], data)
    found = task.descend(layout.read(module), how=task.sgd.but(momentum=0.0))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for batch in task.batches():
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(batch.x[0]), batch.y[0]).backward()
        optimiser.step()
    torch.testing.assert_close(found, layout.read(module), atol=1e-6, rtol=1e-5)


def flat(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *layers)


def shared() -> nn.Module:
    same = nn.Linear(64, 64)
    return flat(same, nn.Tanh(), same, nn.Linear(64, 3))


def hooked() -> nn.Module:
    module = flat(nn.Linear(64, 6), nn.Linear(6, 3))
    module[1].register_forward_hook(lambda layer, inputs, output: output * 2)
    return module


class Twice(nn.Module):
    """Uses a layer's weight as a layer and by itself, and works on its outputs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.head = nn.Linear(64, 6, bias=False), nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.code(x.flatten(1)).relu_()
        out: torch.Tensor = self.head(z @ self.code.weight).mul_(2)
        return out


class Applied(nn.Module):
    """Applies a layer to another one's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.head = nn.Linear(64, 3), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        out: torch.Tensor = self.code(x) + x @ self.head(self.code.weight).T
        return out


SHORTER: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "cut": lambda: BodyAndHead(mlp()),
    "a lone layer": lambda: nn.Sequential(nn.Linear(8, 4), nn.Flatten(), nn.Linear(32, 3, bias=False)),
    "many a sample": lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3)),  # image rows
    "view": ByView,
    "in place": in_place,
    "shared": shared,
    "hooked": hooked,
    "twice": Twice,
    "applied": Applied,
    "normalised": lambda: flat(nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 3)),
}


@pytest.mark.parametrize("part", [None, "head", "body", "weights"])
@pytest.mark.parametrize(
    ("name", "ids"),
    [(name, [1]) for name in SHORTER]
    + [(name, [0, 1, 2]) for name in ("mlp", "cut", "a lone layer", "many a sample", "in place")],
)
def test_a_step_without_the_gradient_written_down(name: str, part: str | None, ids: list[int]) -> None:
    torch.manual_seed(0)
    module, data = SHORTER[name](), federation()
    layout = Layout(module)
    task, rows = task_of(module, ids, data), layout.read(module) + 0.1 * torch.randn(len(ids), layout.size)
    parts = {None: None, "head": layout.head, "body": layout.body}
    weights = layout.part(*(n for n in layout.parameter_names if n.endswith("weight")))
    only = weights if part == "weights" else parts[part]
    moved = rows if only is None else rows[:, only.columns]
    for terms in ([], [Tie(torch.randn_like(rows), 0.7)]):
        for how in (task.sgd.but(momentum=0.0), task.sgd.but(momentum=0.5, weight_decay=0.1)):
            gradient = partial(plainly, module, only=only)
            expected = task.descend(rows, *terms, gradient=gradient, only=only, how=how)
            shorter = task.descend(rows, *terms, only=only, how=how)
            torch.testing.assert_close(shorter, expected, atol=1e-6, rtol=1e-5)
            assert not torch.equal(shorter if only is None else shorter[:, only.columns], moved)
    batch, u = next(task.batches()), rows.clone()
    dirty = torch.full_like(rows, torch.nan)  # what was there before must not matter
    columns = slice(0, layout.trainable) if only is None else layout.part(*only.names).columns
    found = task.grad(u, batch, only=only, out=dirty)[:, columns]
    torch.testing.assert_close(found, plainly(module, rows, batch, only)[:, columns], atol=1e-6, rtol=1e-5)


def test_inputs_changed_behind_a_layers_back_are_refused() -> None:
    class Careless(nn.Linear):
        def __init__(self) -> None:
            super().__init__(64, 3)
            self.first = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.flatten(1).clone()
            return super().forward(self.first(x) + x.mul_(2))

    module, data = Careless(), federation()
    task, rows = task_of(module, [0], data), Layout(module).read(module)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        plainly(module, rows, next(task.batches()))
    with pytest.raises(RuntimeError, match="changed in place after it had used them"):
        task.descend(rows, how=task.sgd.but(momentum=0.0))


@pytest.mark.parametrize("ids", [[1], [0, 1, 2]], ids=["alone", "stacked"])
def test_a_loss_of_its_own_goes_the_shorter_way_too(ids: list[int]) -> None:
    """Features and answers, a call without gradients as for a target, and one that is thrown away."""
    torch.manual_seed(0)
    module, data = BodyAndHead(mlp()), federation()

    def values(module: nn.Module, batch: Batch, given: Named) -> torch.Tensor:
        assert isinstance(module, BodyAndHead)
        z = module.body(batch.x)
        with torch.no_grad():
            target = module(0.5 * batch.x)
        module(batch.x)
        apart: torch.Tensor = (z - batch.by_label(given["centres"])).square().sum(1)
        value: torch.Tensor = apart + (module.head(z) - target).square().sum(1)
        return value

    layout = Layout(module)
    task = task_of(module, ids, data)
    rows, centres = layout.read(module) + 0.1 * torch.randn(len(ids), layout.size), torch.randn(len(ids), 3, 5)
    how, more = task.sgd.but(momentum=0.0, lr=0.01), {"centres": centres}
    expected = task.descend(rows, gradient=lambda u, batch: plainly(module, u, batch, None, values, more), how=how)
    found = task.descend(rows, loss=MeanLoss(values, more), how=how)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert not torch.equal(found, rows)


def test_a_loss_that_is_no_mean_may_ask_autograd_itself() -> None:
    """A gradient penalty, say: weights must stay in autograd's view."""

    def penalised(module: nn.Module, batch: Batch, given: Named) -> torch.Tensor:
        value = usual(module, batch, given).mean()
        return value + sum(
            g.square().sum() for g in torch.autograd.grad(value, list(module.parameters()), create_graph=True)
        )

    torch.manual_seed(0)
    module, data = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Tanh(), nn.Linear(3, 3)), federation()
    task, rows = task_of(module, [1], data), Layout(module).read(module)
    batch = next(task.batches())
    found = task.grad(rows, batch, loss=BatchLoss(penalised))
    own = Layout(module).write(rows[0], copy.deepcopy(module))
    value = penalised(own, Batch(batch.x[0], batch.y[0], batch.key[0], None), {})
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(own.parameters()))])
    torch.testing.assert_close(found[0], expected)


def test_trying_another_memory_order_leaves_running_statistics_alone() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    layout, data = Layout(module), federation()
    task = task_of(module, [0], data)
    rows = layout.read(module)
    batch = next(task.batches())
    task.grad(rows, batch)  # training mode moves the statistics, once
    module(batch.x[0])
    torch.testing.assert_close(rows, layout.read(module), atol=1e-6, rtol=1e-5)


def test_a_sick_client_stays_by_itself_in_a_stack() -> None:
    torch.manual_seed(0)
    module, data = mlp(), federation()
    rows = Layout(module).read(module)
    healthy = task_of(module, [0, 1, 2], data).descend(rows)
    data.train.x[: SIZES[0]] = torch.nan
    after = task_of(module, [0, 1, 2], data).descend(rows)
    assert after[0].isnan().any()
    assert torch.equal(after[1:], healthy[1:])


def test_layers_that_mix_samples_or_are_shared_are_not_stacked() -> None:
    layer = nn.Linear(4, 4)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    hooked = nn.Sequential(nn.Linear(4, 4))
    hooked[0].register_forward_hook(lambda m, a, out: out * 2)
    for module in (
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        nn.Sequential(layer, layer),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 4)),
        tied,
        hooked,
        cnn(),
        ByView(),
    ):
        assert not can_stack(module)
    module = mlp()
    replace_dropout(module)
    assert can_stack(module)


def chained(head: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, head)
    )


@pytest.mark.parametrize("part", [None, "5", "1"])
@pytest.mark.parametrize("kind", ["class", "balanced", "quantity", "labels", "survival"])
def test_a_chain_differentiated_by_hand_has_the_bits_of_autograd(kind: str, part: str | None) -> None:
    generator = torch.Generator().manual_seed(0)
    module = chained(1 if kind in ("quantity", "survival") else 3)
    sizes = torch.tensor([0, *SIZES]).cumsum(0)
    x = torch.randn(int(sizes[-1]), 1, 8, 8, generator=generator)
    target = {
        "quantity": torch.randn(len(x), generator=generator),
        "labels": torch.randint(2, (len(x), 3), generator=generator).float(),
        "survival": torch.rand(len(x), 2, generator=generator).mul(2).floor_().add_(0.5),
    }.get(kind, torch.arange(len(x)) % 3)
    split = Split(x, target, sizes)
    classes = () if kind in ("quantity", "survival") else ("a", "b", "c")
    data = Federation(split, split, split, classes, target=Target(survival=kind == "survival"))
    assert data.target_kind == {"balanced": "class"}.get(kind, kind)
    training = Training(lr=0.1, batch_size=4, momentum=0.9, balance=kind == "balanced")
    layout = Layout(module)
    only = None if part is None else layout.part(part)
    task = Task(FastNetwork(module, layout), data, [0, 1, 2], training, round=1, seed=0)

    def values(module: nn.Module, batch: Batch, given: Named) -> torch.Tensor:
        return task.losses_of(module(batch.x), batch, given)

    by_autograd = MeanLoss(values, task.given, compares=kind == "survival")
    rows = layout.read(module).expand(3, -1)
    by_hand, reference = (task.descend(rows, Tie(rows, 0.1), only=only, loss=loss) for loss in (None, by_autograd))
    assert torch.equal(by_hand, reference)
    assert not torch.equal(by_hand, rows)


def test_the_first_gradient_by_vmap_leaves_the_process_as_it_was() -> None:
    program = (
        "import os, random, sys, warnings\n"
        "import torch\n"
        "from fairlead.core import Layout\n"
        "from fairlead.core.batches import Batch\n"
        "from fairlead.core.fast.vmapped import LATE, Vmapped\n"
        "from fairlead.core.loss import MeanLoss\n"
        "module = torch.nn.Linear(3, 2)\n"
        "x, key = torch.ones(4, 5, 3), torch.zeros(4, dtype=torch.int64)\n"
        "loss = MeanLoss(lambda m, b, g: m(b.x).square().mean(1))\n"
        "def now(): return dict(os.environ), list(warnings.filters), random.getstate()\n"
        "before = now()\n"
        "assert LATE not in sys.modules\n"
        "batch = Batch(x, torch.zeros(4, 5, dtype=torch.int64), key, None)\n"
        "Vmapped(module, Layout(module), []).gradient(torch.ones(4, 8), batch, loss, ('weight', 'bias'))\n"
        "assert LATE in sys.modules\n"
        "assert now() == before\n"
    )
    plain = {n: v for n, v in os.environ.items() if not n.startswith("TORCH")}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, env=plain)
    assert ended.returncode == 0, ended.stderr
