"""Linear layers that can keep what passes through them: a step on their weights then needs no gradient written down.

Most parameters are linear layers' weights. The gradient of one, gᵀx from the inputs x and the gradient g at the
outputs, is a product that can add its result to the weight right away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


@dataclass(frozen=True)
class Heard:
    """One call of a linear layer: of one client, or of a stack with a leading axis."""

    weight: Tensor  # (out, in) or (C, out, in)
    x: Tensor  # (..., in) or (C, B, in)
    y: Tensor  # (..., out) or (C, B, out)

    def descend(self, g: Tensor, lr: float) -> None:
        """A step on the weight, in place, from the gradient at the outputs."""
        if self.weight.ndim == 3:
            self.weight.baddbmm_(g.mT, self.x, alpha=-lr)
        else:
            self.weight.addmm_(g.flatten(0, -2).T, self.x.flatten(0, -2), alpha=-lr)


class Listener(nn.Module):
    """A layer with a weight, which autograd does not get to see in calls that are kept."""

    weight: Tensor
    heard: list[Heard] | None = None  # where calls are kept; None to keep none

    def listens(self) -> bool:
        """Whether the next call is to be kept: where its weight learns, and something learns from this call."""
        return self.heard is not None and self.weight.requires_grad and torch.is_grad_enabled()

    def keep(self, x: Tensor, y: Tensor) -> Tensor:
        """The outputs, for others to go on with; a copy, for the next layer may work in place."""
        assert self.heard is not None
        y = y if y.requires_grad else y.requires_grad_()
        self.heard.append(Heard(self.weight, x, y))
        return y.clone()


class HeardLinear(nn.Linear, Listener):
    """`nn.Linear`, which can be listened to."""

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.Linear`."""
        if not self.listens():
            return super().forward(x)
        return self.keep(x, linear(x, self.weight.detach(), self.bias))


class _Product(torch.autograd.Function):
    """x Wᵀ + b for every client; the gradient of W comes out in W's own order, where bmm's would be transposed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, into: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.into = into
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (g,) = gradients
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        return (
            torch.bmm(g, weight) if for_x else None,
            torch.bmm(g.mT, x, out=ctx.into) if for_weight else None,
            g.sum(1) if for_bias else None,
            None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


class StackedLinear(Listener):
    """`nn.Linear` with a weight and a bias per client."""

    weight: Tensor  # (C, out, in)
    bias: Tensor | None  # (C, out)
    into: Tensor | None  # (C, out, in) where the next call's gradient of the weight goes; None for a tensor of its own

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        """Hold nobody's weights."""
        self.weight = torch.empty(0)
        self.bias = self.into = None

    def forward(self, x: Tensor) -> Tensor:
        """Samples of all clients in, (C * B, ..., in), and out, (C * B, ..., out)."""
        mine = x.reshape(len(self.weight), -1, x.shape[-1])
        if self.listens():
            out = self.keep(mine, _product(mine, self.weight.detach(), self.bias))
        else:
            into, self.into = self.into, None  # a loss may call twice; its second gradient must not overwrite the first
            out = _Product.apply(mine, self.weight, self.bias, into)  # type: ignore[no-untyped-call]
        return out.view(*x.shape[:-1], out.shape[-1])


@contextmanager
def listening(layers: Iterable[Listener]) -> Iterator[list[Heard]]:
    """The calls of these layers meanwhile, as far as their weights learn; autograd then leaves these weights out."""
    heard: list[Heard] = []
    for layer in layers:
        layer.heard = heard
    try:
        yield heard
    finally:
        for layer in layers:
            layer.heard = None
