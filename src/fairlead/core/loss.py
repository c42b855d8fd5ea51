"""What a gradient is taken of: a function of one client's batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from fairlead.core.batches import Batch
from fairlead.core.types import Named

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
    and class it looks up with `batch.by_label`.
    """

    def value(self, module: nn.Module, batch: Batch, given: Named) -> Tensor:
        """The mean over the client's samples, ()."""
        return batch.mean(self.function(module, batch, given))
