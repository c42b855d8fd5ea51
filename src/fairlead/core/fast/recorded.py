"""Linear layers whose calls are recorded, so that their gradients need not be written down.

Most parameters are linear layers' weights. The gradient of one is the product gᵀx of its inputs x and the gradient g at
its outputs. Such a product can add its result to the weight, or to the weight's momentum, right away: memory is written
once in place of three times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class LinearCall(NamedTuple):
    """One call of a linear layer: of one client, or of a stack of clients with a leading axis."""

    weight: Tensor  # (out, in) or (C, out, in)
    x: Tensor  # (..., in) or (C, B, in)
    y: Tensor  # (..., out) or (C, B, out)
    version: int  # of x at the time of the call

    def add(self, to: Tensor, g: Tensor, scale: float, *, keep: bool = True) -> None:
        """Add so many times the weight's gradient to a tensor of its shape, in place; g is the gradient at the outputs.

        Without `keep`, the gradient takes the place of what the tensor had.
        """
        if self.x._version != self.version:  # autograd would have refused too
            raise RuntimeError("the inputs of a linear layer were changed in place after it had used them; copy them")
        if to.ndim == 3:
            to.baddbmm_(g.mT, self.x, beta=int(keep), alpha=scale)
        else:
            to.addmm_(g.flatten(0, -2).T, self.x.flatten(0, -2), beta=int(keep), alpha=scale)


class CallRecorder:
    """Keeps the calls of linear layers while it records, if their weights learn.

    Autograd does not see these weights in such calls; everything else it sees as usual.
    """

    def __init__(self) -> None:
        self._calls: list[LinearCall] | None = None

    @contextmanager
    def recording(self, calls: list[LinearCall]) -> Iterator[None]:
        """Calls within this block are added to the list."""
        self._calls = calls
        try:
            yield
        finally:
            self._calls = None

    def wants(self, weight: Tensor) -> bool:
        """Whether to record a call with this weight."""
        return self._calls is not None and weight.requires_grad and torch.is_grad_enabled()

    def record(self, weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Keep the call; returns the outputs to go on with, a copy, because the next layer may work in place."""
        assert self._calls is not None
        if x.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr():
            x = x.clone()  # another layer's weight, which may step first
        y = y if y.requires_grad else y.requires_grad_()
        self._calls.append(LinearCall(weight, x, y, x._version))
        return y.clone()


class RecordedLinear(nn.Linear):
    """`nn.Linear` on another one's parameters, which tells a recorder of its calls."""

    def __init__(self, layer: nn.Linear, recorder: CallRecorder) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight, self.bias, self.recorder = layer.weight, layer.bias, recorder
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.Linear`."""
        if not self.recorder.wants(self.weight):
            return super().forward(x)
        return self.recorder.record(self.weight, x, linear(x, self.weight.detach(), self.bias))


class StackedLinear(nn.Module):
    """`nn.Linear` with a weight and a bias per client."""

    weight: Tensor  # (C, out, in)
    bias: Tensor | None  # (C, out)

    def __init__(self, recorder: CallRecorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.clear()

    def clear(self) -> None:
        """Hold no client's weights."""
        self.weight = torch.empty(0)
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        """Samples of all clients in, (C * B, ..., in), and out, (C * B, ..., out)."""
        mine = x.reshape(len(self.weight), -1, x.shape[-1])
        recorded = self.recorder.wants(self.weight)
        out = self.product(mine, self.weight.detach() if recorded else self.weight)
        if recorded:
            out = self.recorder.record(self.weight, mine, out)
        return out.view(*x.shape[:-1], out.shape[-1])

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Each client's samples times its own weight, plus its bias, (C, B, in) -> (C, B, out)."""
        return torch.bmm(x, weight.mT) if self.bias is None else torch.baddbmm(self.bias[:, None], x, weight.mT)


class TensorGradient(NamedTuple):
    """The gradient of one tensor: what autograd found, and the recorded calls that had the tensor as weight."""

    found: Tensor | None
    calls: list[tuple[LinearCall, Tensor]]  # with the gradient at their outputs


class RecordedGradient(NamedTuple):
    """Each row's gradient, tensor by tensor, part of it not yet multiplied out."""

    tensors: list[TensorGradient]
    views: Callable[[Tensor], list[Tensor]]  # rows (C, D) -> the places of these tensors in them

    @torch.no_grad()
    def add(self, rows: Tensor, scale: float) -> None:
        """Add so many times the gradient to the rows (C, D), in place."""
        self._put(rows, scale, keep=True)

    @torch.no_grad()
    def write(self, rows: Tensor) -> None:
        """Put the gradient in place of what the rows have in its columns."""
        self._put(rows, 1, keep=False)

    def _put(self, rows: Tensor, scale: float, *, keep: bool) -> None:
        for tensor, place in zip(self.tensors, self.views(rows), strict=True):
            kept = keep  # whether the place holds something to add to
            if tensor.found is not None:
                if kept:
                    place.add_(tensor.found, alpha=scale)
                else:
                    place.copy_(tensor.found)
                kept = True
            for call, g in tensor.calls:
                call.add(place, g, scale, keep=kept)
                kept = True
            if not kept:
                place.zero_()


def differentiate(
    value: Tensor, leaves: list[Tensor], calls: list[LinearCall], views: Callable[[Tensor], list[Tensor]]
) -> RecordedGradient:
    """The gradient of a value in the leaves, by autograd and, where calls were recorded, by their products."""
    found = torch.autograd.grad(value, leaves + [call.y for call in calls], allow_unused=True)
    of_weight: dict[int, list[tuple[LinearCall, Tensor]]] = {id(leaf): [] for leaf in leaves}
    for call, g in zip(calls, found[len(leaves) :], strict=True):
        if g is not None:
            of_weight[id(call.weight)].append((call, g))
    tensors = [TensorGradient(g, of_weight[id(leaf)]) for leaf, g in zip(leaves, found, strict=False)]
    return RecordedGradient(tensors, views)
