"""A gradient before it is written down: most of it never has to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairlead.core.linear import Heard


class Piece(NamedTuple):
    """The gradient of one tensor: what autograd found of it, and calls of a linear layer that had it as weight."""

    found: Tensor | None
    calls: list[tuple[Heard, Tensor]]  # with the gradient at their outputs


class Gradient(NamedTuple):
    """Each row's gradient on its own client's batch, tensor by tensor.

    Linear layers' weights have theirs as the factors of a product, which adds its result to wherever it belongs: rows,
    or their velocity.
    """

    pieces: list[Piece]
    views: Callable[[Tensor], list[Tensor]]  # rows (C, D) -> the pieces' places in them

    @torch.no_grad()
    def add(self, rows: Tensor, scale: float) -> None:
        """So many times the gradient to the rows (C, D), in place."""
        self._put(rows, scale, over=False)

    @torch.no_grad()
    def write(self, rows: Tensor) -> None:
        """The gradient in place of what the rows have in its columns."""
        self._put(rows, 1, over=True)

    def _put(self, rows: Tensor, scale: float, *, over: bool) -> None:
        for piece, place in zip(self.pieces, self.views(rows), strict=True):
            empty = over
            if piece.found is not None:
                if empty:
                    place.copy_(piece.found)
                else:
                    place.add_(piece.found, alpha=scale)
                empty = False
            for call, g in piece.calls:
                call.add(place, g, scale, keep=not empty)
                empty = False
            if empty:
                place.zero_()
