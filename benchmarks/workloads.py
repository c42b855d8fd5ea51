"""What is trained, and the plain PyTorch loop it is measured against.

W1  the 4-layer CNN (878,538 parameters), 20 clients x 500 samples shaped like CIFAR-10, batch 10, 1 epoch
W2  MLP 784-128-128-10, 36 clients x 128 samples shaped like MNIST, batch 64, 5 epochs; 64 validation samples each
W3  the same MLP, 20 clients x 500 samples, batch 10, 1 epoch
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from fairlead.clients import Pool, engine
from fairlead.core import Federation, Layout, Named, Sgd, Split, Task, Tie, Training
from fairlead.core.task import SplitName
from fairlead.models import build

CLASSES = 10
LR = 0.01


@dataclass(frozen=True)
class Workload:
    """A model, clients and the local budget."""

    name: str
    model: str
    shape: tuple[int, ...]
    clients: int
    samples: int
    batch_size: int
    epochs: int
    held_out: int = 100  # validation and test samples per client, each
    make: Callable[[], nn.Module] | None = None

    @cached_property
    def module(self) -> nn.Module:
        return self.make() if self.make else build(self.model, self.shape, CLASSES, seed=0)

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.module)

    @cached_property
    def params(self) -> Tensor:
        return self.layout.read(self.module)

    @cached_property
    def federation(self) -> Federation:
        sizes = (self.samples, self.held_out, self.held_out)
        train, validation, test = (self._split(n, seed) for seed, n in enumerate(sizes))
        return Federation(train, validation, test, tuple(map(str, range(CLASSES))))

    def _split(self, samples: int, seed: int) -> Split:
        draw = torch.Generator().manual_seed(seed)
        n = self.clients * samples
        x, y = torch.randn(n, *self.shape, generator=draw), torch.randint(CLASSES, (n,), generator=draw)
        return Split(x, y, torch.arange(self.clients + 1) * samples)

    @property
    def training(self) -> Training:
        return Training(lr=LR, epochs=self.epochs, batch_size=self.batch_size)

    @property
    def sgd(self) -> Sgd:
        return self.training.sgd(round=1)

    @property
    def work(self) -> int:
        """Samples that gradients are taken of in a round."""
        return self.clients * self.samples * self.epochs

    @cached_property
    def flops(self) -> float:
        """Floating-point operations of one sample's gradient, in matrix products and convolutions."""
        x, y = self.federation.train.x[: self.batch_size], self.federation.train.y[: self.batch_size]
        with FlopCounterMode(display=False) as counter:
            torch.autograd.grad(cross_entropy(self.module(x), y), list(self.module.parameters()))
        return float(counter.get_total_flops()) / self.batch_size

    @cached_property
    def forward_flops(self) -> float:
        """Floating-point operations of looking at one sample, of the same kind."""
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            self.module(self.federation.train.x[: self.batch_size])
        return float(counter.get_total_flops()) / self.batch_size

    def start(self, name: str) -> Pool:
        """An engine's workers, ready."""
        return engine(name).start(self.module, self.layout, self.federation, self.training, seed=0)


WORKLOADS = {
    "w1": Workload("w1", "cnn", (3, 32, 32), clients=20, samples=500, batch_size=10, epochs=1),
    "w2": Workload("w2", "mlp", (1, 28, 28), clients=36, samples=128, batch_size=64, epochs=5, held_out=64),
    "w3": Workload("w3", "mlp", (1, 28, 28), clients=20, samples=500, batch_size=10, epochs=1),
}


def quick(w: Workload) -> Workload:
    """A workload of the same kind that takes a second."""
    return Workload(w.name, w.model, w.shape, min(w.clients, 8), min(w.samples, 60), w.batch_size, w.epochs, 20)


def reference(w: Workload, module: nn.Module | None = None) -> Callable[[], object]:
    """Local training as one would write it: clients one after another, tensors sliced, `torch.optim.SGD`."""
    model = copy.deepcopy(module or w.module)
    first = copy.deepcopy(model.state_dict())
    loss = nn.CrossEntropyLoss()

    def train() -> list[dict[str, Tensor]]:
        models = []
        for k in range(w.clients):
            model.load_state_dict(first)
            model.train()
            optimiser = torch.optim.SGD(model.parameters(), lr=LR)
            x, y = w.federation.train.client(k)
            for _ in range(w.epochs):
                order = torch.randperm(len(x))
                for i in range(0, len(x), w.batch_size):
                    batch = order[i : i + w.batch_size]
                    optimiser.zero_grad()
                    loss(model(x[batch]), y[batch]).backward()
                    optimiser.step()
            models.append({n: t.clone() for n, t in model.state_dict().items()})
        return models

    return train


def reference_evaluation(w: Workload) -> Callable[[], object]:
    """Loss and accuracy of a model per client on validation and test samples, one client after another."""
    model = copy.deepcopy(w.module)
    states = [copy.deepcopy(model.state_dict()) for _ in range(w.clients)]

    def evaluate() -> list[tuple[float, float]]:
        found = []
        model.eval()
        with torch.no_grad():
            for k in range(w.clients):
                model.load_state_dict(states[k])
                for split in (w.federation.validation, w.federation.test):
                    x, y = split.client(k)
                    out = model(x)
                    found.append((float(cross_entropy(out, y)), float((out.argmax(1) == y).float().mean())))
        return found

    return evaluate


def published_order(w: Workload) -> nn.Module:
    """The CNN with ReLU before pooling, as published code has it; the library's gives the same values."""
    layers = list(copy.deepcopy(w.module).children())
    for i, layer in enumerate(layers[:-1]):
        if isinstance(layer, nn.MaxPool2d) and isinstance(layers[i + 1], nn.ReLU):
            layers[i], layers[i + 1] = layers[i + 1], layers[i]
    return nn.Sequential(*layers)


def descent(
    pool: Pool,
    w: Workload,
    passes: Sequence[dict[str, Any]] = ({},),
    looks: Sequence[SplitName] = (),
    tied: Literal["w", "other"] | None = None,
) -> Callable[[], object]:
    """Local SGD of every client by an engine, and nothing else; `passes` are the keywords of each `descend`.

    `looks` are splits that models are evaluated on before: the client's own first, then others. `tied`, the last pass
    starts from the client's own model and is drawn to the one that all have in common, or to another.
    """
    rows = {"w": w.params}
    if looks or tied:
        rows |= {"own": w.params.repeat(w.clients, 1), "other": w.params.repeat(w.clients, 1)}

    def work(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        for i, split in enumerate(looks):
            task.loss(message["other" if i else "own"], split)
        u = message["w"]
        *before, last = passes
        for keywords in before:
            u = task.descend(u, **keywords)
        start, terms = (message["own"], [Tie(message[tied], 1.0)]) if tied else (u, [])
        return {}, {"w": task.descend(start, *terms, **last)}

    return lambda: pool.map(work, torch.arange(w.clients), 1, {}, rows)
