"""What a gradient is taken of: a function of one client's batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairlead.core.batches import Batch
from fairlead.core.targets import Criterion, absent, slope
from fairlead.core.types import Named

CLASS_WEIGHTS = "class weights"  # the name under which a loss is given what a sample of each class counts, (C, K)

# The module under the client's parameters, its batch, its rows of `given` -> a number, or one per sample.
LossFunction = Callable[[nn.Module, Batch, Named], Tensor]


class BatchLoss:
    """Any function of a client's batch: `function(module, batch, given)` gives one number.

    `given` are further rows the function needs, one per client, or one for everybody: (C, ...) outside, (...) inside.
    """

    def __init__(self, function: LossFunction, given: Named | None = None) -> None:
        self.function = function
        self.given = given or {}

    def given_to(self, k: int) -> Named:
        """The k-th client's own part of what is given."""
        return {name: rows[k if len(rows) > 1 else 0] for name, rows in self.given.items()}

    def value(self, module: nn.Module, batch: Batch, given: Named) -> Tensor:
        """The loss of one client, ()."""
        return self.function(module, batch, given)


class MeanLoss(BatchLoss):
    """A mean of one number per sample, which is faster: the samples of many clients can go through together.

    `function(module, batch, given)` gives these numbers, (B,), each from its own sample alone; what is given per client
    and class it looks up with `batch.by_label`. With `compares` a number may come from all samples of its client, whose
    places `batch.clients` tells.
    """

    def __init__(self, function: LossFunction, given: Named | None = None, *, compares: bool = False) -> None:
        super().__init__(function, given)
        self.compares = compares

    def value(self, module: nn.Module, batch: Batch, given: Named) -> Tensor:
        """The mean over the client's samples, ()."""
        return batch.mean(self.function(module, batch, given))


class SampleLosses(NamedTuple):
    """The run's loss of each sample, for use inside a loss function: `task.losses_of(outputs, batch, given)`, (B,).

    `given` must hold what `task.given` holds.
    """

    criterion: Criterion
    compares: bool  # a client's samples with each other, as survival times

    def __call__(self, out: Tensor, batch: Batch, given: Named) -> Tensor:
        """The losses of one client's batch, or of several clients' one after another."""
        if self.compares:
            out, y = (t.view(batch.clients, -1, t.shape[-1]) for t in (out, batch.y))
            y = y if batch.weight is None else absent(y, batch.weight.view(y.shape[:-1]) > 0)
            return self.criterion(out, y).flatten()
        values = self.criterion(out, batch.y)
        return values * batch.by_label(given[CLASS_WEIGHTS]) if CLASS_WEIGHTS in given else values

    def side_by_side(self, out: Tensor, y: Tensor, real: Tensor) -> Tensor:
        """The losses of many clients' samples, (C, n, ...) -> (C, n), without class weights; `real` are no padding."""
        if self.compares:
            # Client by client: pairs of all samples of all clients at once would not fit into memory.
            return torch.stack([self.criterion(*one) for one in zip(out, absent(y, real), strict=True)])
        return self.criterion(out.flatten(0, 1), y.flatten(0, 1)).view_as(real)

    def slope(self, out: Tensor, batch: Batch, given: Named, weight: Tensor) -> Tensor:
        """The gradient in the outputs of the sum of so many times each sample's loss; `weight` is (B,)."""
        if not self.compares:
            by_class = weight * batch.by_label(given[CLASS_WEIGHTS]) if CLASS_WEIGHTS in given else weight
            found = slope(self.criterion, out, batch.y, by_class)
            if found is not None:
                return found
        with torch.enable_grad():
            out = out.detach().requires_grad_()
            (g,) = torch.autograd.grad(self(out, batch, given), out, weight)
        return g

    def mean(self, given: Named) -> PlainLoss:
        """The mean over a batch: what is trained where a method does not say otherwise."""
        return PlainLoss(self, given)


class PlainLoss(MeanLoss):
    """The mean of the run's loss: it sees the module's outputs for the batch and nothing else of the module."""

    def __init__(self, losses: SampleLosses, given: Named) -> None:
        super().__init__(
            lambda module, batch, given: losses(module(batch.x), batch, given), given, compares=losses.compares
        )
        self.losses = losses
