"""Linear layers that can keep what passes through them: a step on their weights then needs no gradient written down.

Most parameters are linear layers' weights. The gradient of one, gᵀx from the inputs x and the gradient g at the
outputs, is a product that can add its result to the weight, or to its velocity, right away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class Heard(NamedTuple):
    """One call of a linear layer: of one client, or of a stack with a leading axis."""

    weight: Tensor  # (out, in) or (C, out, in)
    x: Tensor  # (..., in) or (C, B, in)
    y: Tensor  # (..., out) or (C, B, out)
    version: int  # of x at the time of the call

    def add(self, to: Tensor, g: Tensor, scale: float, *, keep: bool = True) -> None:
        """So many times the weight's gradient, from that at the outputs, to a tensor of its shape, in place.

        Not to `keep` what the tensor had is to write the gradient over it.
        """
        if self.x._version != self.version:  # autograd would have refused too
            raise RuntimeError("the inputs of a linear layer were changed in place after it had used them; copy them")
        if to.ndim == 3:
            to.baddbmm_(g.mT, self.x, beta=int(keep), alpha=scale)
        else:
            to.addmm_(g.flatten(0, -2).T, self.x.flatten(0, -2), beta=int(keep), alpha=scale)


class Ear:
    """Keeps the calls of a network's linear layers while it listens, as far as their weights learn by them.

    Autograd leaves these weights out of such calls, and of such calls only.
    """

    def __init__(self) -> None:
        self._heard: list[Heard] | None = None

    @contextmanager
    def listening(self, heard: list[Heard]) -> Iterator[None]:
        """Calls meanwhile go to the list."""
        self._heard = heard
        try:
            yield
        finally:
            self._heard = None

    def wants(self, weight: Tensor) -> bool:
        """Whether to keep a call with this weight."""
        return self._heard is not None and weight.requires_grad and torch.is_grad_enabled()

    def keep(self, weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The outputs, for others to go on with; a copy, for the next layer may work in place."""
        assert self._heard is not None
        if x.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr():
            x = x.clone()  # another layer's weight, which may step first
        y = y if y.requires_grad else y.requires_grad_()
        self._heard.append(Heard(weight, x, y, x._version))
        return y.clone()


class HeardLinear(nn.Linear):
    """`nn.Linear`, with an ear that may listen."""

    ear: Ear

    @classmethod
    def replace(cls, module: nn.Module, ear: Ear) -> None:
        """Give all linear layers of the module this ear; whatever else they hold, hooks included, stays."""
        for m in module.modules():
            if type(m) in (nn.Linear, cls):
                m.__class__ = cls
                assert isinstance(m, cls)
                m.ear = ear

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.Linear`."""
        if not self.ear.wants(self.weight):
            return super().forward(x)
        return self.ear.keep(self.weight, x, linear(x, self.weight.detach(), self.bias))


class StackedLinear(nn.Module):
    """`nn.Linear` with a weight and a bias per client."""

    weight: Tensor  # (C, out, in)
    bias: Tensor | None  # (C, out)

    def __init__(self, ear: Ear) -> None:
        super().__init__()
        self.ear = ear
        self.clear()

    def clear(self) -> None:
        """Hold nobody's weights."""
        self.weight = torch.empty(0)
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        """Samples of all clients in, (C * B, ..., in), and out, (C * B, ..., out)."""
        mine = x.reshape(len(self.weight), -1, x.shape[-1])
        heard = self.ear.wants(self.weight)
        weight = (self.weight.detach() if heard else self.weight).mT
        out = torch.bmm(mine, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], mine, weight)
        if heard:
            out = self.ear.keep(self.weight, mine, out)
        return out.view(*x.shape[:-1], out.shape[-1])
