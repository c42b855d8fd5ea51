"""What a network does for a task: `core.reference` is the plain one, `core.fast` the fast one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from fairlead.core.batches import Batch
from fairlead.core.layout import Layout, Part
from fairlead.core.loss import BatchLoss

# The module under the client's parameters, its samples (B, ...) -> (B, ...), each from its own sample alone.
Output = Callable[[nn.Module, Tensor], Tensor]
Columns = slice | Tensor


class Gradient(Protocol):
    """Each row's gradient on its own client's batch, (C, D)."""

    def add(self, rows: Tensor, scale: float) -> None:
        """Add so many times the gradient to the rows, in place."""

    def write(self, rows: Tensor) -> None:
        """Put the gradient in place of what the rows have in its columns."""


class Rows(NamedTuple):
    """A gradient, or another part of a step, as plain rows."""

    values: Tensor  # (C, D)
    columns: Columns  # those that move
    active: Tensor | float = 1.0  # (C, 1) 0 for clients that have no batch and stay where they are

    def add(self, rows: Tensor, scale: float) -> None:
        """Add so many times these rows to others, in place."""
        mine = self.values[..., self.columns]
        mine = mine if isinstance(self.active, float) else mine * self.active
        if isinstance(self.columns, slice):
            rows[..., self.columns].add_(mine, alpha=scale)
        else:
            rows[..., self.columns] += scale * mine

    def write(self, rows: Tensor) -> None:
        """Put these rows in place of others."""
        rows[..., self.columns] = self.values[..., self.columns] * self.active


class Network(Protocol):
    """A module that can be evaluated and differentiated at any rows, each a client's parameters."""

    layout: Layout
    has_dropout: bool  # then batches need keys to draw from
    has_batch_norm: bool  # then a batch needs two samples, to have a spread
    same_for_all: bool  # whether equal rows are equal models for every client

    def gradient(self, rows: Tensor, batch: Batch, loss: BatchLoss, only: Part | None = None) -> Gradient:
        """Each row's gradient on its own client's batch, in the trainable tensors of `only`.

        Where the module has running statistics, those in the rows move as in training.
        """

    def outputs(self, rows: Tensor, x: Tensor, f: Output | None = None) -> Tensor:
        """What the module, or `f` of it, makes of each client's samples, evaluating, (C, B, ...) -> (C, B, ...)."""

    def tail(self, part: Part) -> tuple[Network, Output] | None:
        """A part of the last layers as a network of its own, and what gives it its inputs; None if it must stay."""

    def release(self) -> None:
        """Forget rows that were kept for the next step."""


def plain_output(module: nn.Module, x: Tensor) -> Tensor:
    """The module's own outputs."""
    out: Tensor = module(x)
    return out
