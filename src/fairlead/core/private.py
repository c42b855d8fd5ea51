"""Local training that hides single samples: DP-SGD (Abadi et al., CCS 2016).

A step takes each sample into its batch by a coin of its own (Poisson sampling, as the accounting assumes), shortens
every sample's gradient to `bound`, adds normal noise of deviation noise * bound to their sum, and divides by the size
that batches have on average. What a client then makes of its train samples it makes of such steps alone: a task of this
kind refuses to show samples, outputs, losses and plain gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from fairlead.core.batches import Batch, gather
from fairlead.core.descent import Term, Towards
from fairlead.core.errors import InputError, require
from fairlead.core.gradient import Network, Output, Rows
from fairlead.core.layout import Part
from fairlead.core.loss import BatchLoss, MeanLoss
from fairlead.core.seeds import stream
from fairlead.core.task import SplitName, Task
from fairlead.core.training import Sgd
from fairlead.core.types import Federation, Split


def privately(task: Task, bound: float, noise: float) -> Task:
    """The same task, whose steps hide single samples."""
    network = task._network
    require(not network.has_batch_norm, "dp-sgd: BatchNorm mixes the samples of a batch; use GroupNorm in the model")
    require(network.same_for_all, "dp-sgd: a part of the model is held from outside; put +dp-sgd last, after +lora")
    require(
        not task.training.balance,
        "dp-sgd: balance weighs a sample by how many others of its class there are, which has no noise; leave it out",
    )
    return PrivateTask(PrivateNetwork(network, bound, noise), task, task._federation)


@dataclass(frozen=True)
class PoissonBatch(Batch):
    """A batch of samples that came by chance; its keys are what the noise is drawn from."""

    usual: Tensor = field(default_factory=lambda: torch.ones(1, 1))  # (C, 1) how many samples come on average


class PrivateNetwork:
    """A network whose gradients are noisy means of shortened gradients of single samples."""

    same_for_all, has_batch_norm = True, False

    def __init__(self, network: Network, bound: float, noise: float) -> None:
        self.layout, self.has_dropout = network.layout, network.has_dropout
        self._network, self._bound, self._noise = network, bound, noise

    def gradient(self, rows: Tensor, batch: Batch, loss: BatchLoss, only: Part | None = None) -> Rows:
        """Each row's noisy mean on its own client's batch."""
        assert isinstance(batch, PoissonBatch)
        require(
            isinstance(loss, MeanLoss) and not loss.compares,
            "dp-sgd: the loss compares samples with each other; +dp-sgd hides single ones",
        )
        columns = slice(0, self.layout.trainable) if only is None else self.layout.part(*only.names).columns
        total = torch.zeros_like(rows)
        for k, row in enumerate(rows):
            for g in self._each(row, batch, k, loss, only):
                mine = g[:, columns]
                total[k, columns] = (mine * (self._bound / mine.norm(dim=1, keepdim=True).clamp(min=self._bound))).sum(
                    0
                )
            draw = torch.Generator().manual_seed(int(batch.key[k]))
            noise = torch.randn(total[k, columns].shape, generator=draw).to(total)
            total[k, columns] += self._noise * self._bound * noise
        return Rows(total / batch.usual, columns, 1.0 if batch.active is None else batch.active)

    def _each(self, row: Tensor, batch: Batch, k: int, loss: BatchLoss, only: Part | None) -> Iterator[Tensor]:
        """The gradients of the k-th client's samples, a row each, if it has any in the batch."""
        one = batch.client(k)
        real = slice(None) if one.weight is None else one.weight > 0
        x, y = one.x[real], one.y[real]
        if not len(y):
            return
        # Every sample as a client of its own, with the same model.
        keys = one.key + torch.arange(len(y), device=y.device)
        given = {n: g[None].expand(len(y), *g.shape) for n, g in loss.given_to(k).items()}
        g = row.new_zeros(len(y), len(row))
        models = row.expand(len(y), -1).clone()
        self._network.gradient(models, Batch(x[:, None], y[:, None], keys), MeanLoss(loss.function, given), only).write(
            g
        )
        yield g

    def outputs(self, rows: Tensor, x: Tensor, f: Output | None = None) -> Tensor:
        """What the module makes of samples."""
        return self._network.outputs(rows, x, f)

    def tail(self, part: Part) -> tuple[Network, Output] | None:
        """Nothing is computed ahead of time."""
        return None

    def release(self) -> None:
        """Forget rows that were kept for the next step."""
        self._network.release()


class PrivateTask(Task):
    """A task that gives noisy steps on the train samples, and nothing else of any sample."""

    def __init__(self, network: Network, like: Task, federation: Federation) -> None:
        super().__init__(
            network, federation, like.ids, like.training, round=like.round, seed=like.seed, secret=like.secret
        )
        self.work = like.work

    def descend(
        self,
        rows: Tensor,
        *terms: Term | Towards,
        only: Part | None = None,
        loss: BatchLoss | None = None,
        gradient: Callable[[Tensor, Batch], Tensor] | None = None,
        how: Sgd | None = None,
    ) -> Tensor:
        """As `Task.descend`, with noise; the accounting takes every call for itself."""
        if gradient is not None:
            self._refuse("gradients")
        how = how or self.sgd
        self.work.private.append(how)
        return super().descend(rows, *terms, only=only, loss=loss, how=how)

    def batches(self, how: Sgd | None = None) -> Iterator[Batch]:
        """Batches into which each sample comes by chance; other ones at every call."""
        call = len(self.work.private)
        return poisson(self._federation.train, self.ids, how or self.sgd, self.secret, self.round, call)

    def grad(
        self,
        rows: Tensor,
        batch: Batch,
        *,
        only: Part | None = None,
        loss: BatchLoss | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Refused."""
        self._refuse("gradients")

    def data(self, split: SplitName = "train") -> Iterator[tuple[Tensor, Tensor]]:
        """Refused."""
        self._refuse(f"{split} samples")

    def _padded(self, split: SplitName) -> tuple[Tensor, Tensor, Tensor]:
        self._refuse(f"{split} samples")

    def _of(self, network: Network, federation: Federation) -> Task:
        return PrivateTask(network, self, federation)

    @staticmethod
    def _refuse(what: str) -> NoReturn:
        raise InputError(
            f"dp-sgd: this method uses {what} themselves beside the steps of local training, which no noise covers; "
            "`fairlead methods dp-sgd` names the methods that it works with"
        )


def rate(how: Sgd, size: int) -> float:
    """The chance of each of a client's samples to be in a batch."""
    return min(1.0, how.batch_size / max(size, 1))


def steps(how: Sgd, size: int) -> int:
    """How many steps a client of that size takes in a call of `descend`."""
    return how.epochs * -(-size // how.batch_size) if how.batches is None else how.batches


def poisson(split: Split, ids: list[int], how: Sgd, secret: int, round: int, call: int) -> Iterator[Batch]:
    """The batches of all clients in `ids`, step by step; an empty one is a step too, of noise alone."""
    sizes = [int(split.sizes[k]) for k in ids]
    counts = [steps(how, size) for size in sizes]
    width, longest = max(sizes, default=0), max(counts, default=0)
    positions = np.full((longest, len(ids), max(width, 1)), -1)
    keys = np.zeros((longest, len(ids)), dtype=np.int64)
    for i, (k, size, count) in enumerate(zip(ids, sizes, counts, strict=True)):
        draw = stream(secret, "dp-sgd", round, k, call)
        chosen = draw.random((count, size)) < rate(how, size)
        order = np.argsort(~chosen, axis=1, kind="stable")  # those that were drawn come first
        positions[:count, i, :size] = np.where(np.take_along_axis(chosen, order, 1), order, -1)
        keys[:count, i] = draw.integers(2**62, size=count)
    usual = torch.tensor([[max(rate(how, size) * size, 1.0)] for size in sizes]).to(split.x)
    running = (torch.arange(longest)[:, None] < torch.tensor(counts))[..., None].to(usual)
    for t, batch in enumerate(gather(split, ids, torch.from_numpy(positions), torch.from_numpy(keys))):
        yield PoissonBatch(**vars(replace(batch, active=running[t])), usual=usual)
