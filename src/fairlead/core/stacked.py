"""Many clients' models at once, without `torch.func.vmap`: for networks of plain layers, whose calls it would dominate.

The clients' samples are laid one after another, (C * B, ...). A layer that treats samples one by one runs as it is;
only layers with parameters need a version of their own, and dropout its keys. Where any other layer occurs, or a
forward function that is not known here, there is no such module, and vmap does the work.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fairlead.core.cut import Cut
from fairlead.core.dropout import KeyedDropout

# Exact types: a subclass may compute something else.
CONTAINERS = {nn.Sequential, Cut}
SAMPLE_BY_SAMPLE = {
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Softplus,
    nn.Sigmoid,
    nn.Tanh,
    KeyedDropout,
}


class _Product(torch.autograd.Function):
    """x Wᵀ + b for every client; the gradient of W comes out in W's own order, where bmm's would be transposed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, into: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.into = into
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)

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


class StackedLinear(nn.Module):
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
        into, self.into = self.into, None  # a loss may call twice, and its second gradient must not overwrite the first
        out: Tensor = _Product.apply(mine, self.weight, self.bias, into)  # type: ignore[no-untyped-call]
        return out.view(*x.shape[:-1], out.shape[-1])


def stacked(module: nn.Module) -> nn.Module | None:
    """A copy of the module for many clients' samples, its weights still to be set; None where a layer forbids it."""
    if not all(map(_known, module.modules())) or shares(module):
        return None
    twin = copy.deepcopy(module).train()
    if type(twin) is nn.Linear:
        return StackedLinear()
    for parent in list(twin.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, StackedLinear())
    return twin


def _known(m: nn.Module) -> bool:
    if watched(m):
        return False
    if type(m) is nn.Linear:
        return True
    plain = type(m) in CONTAINERS | SAMPLE_BY_SAMPLE or (type(m) is nn.Flatten and m.start_dim == 1)
    return plain and not m._parameters and (not m._buffers or isinstance(m, KeyedDropout))


def watched(m: nn.Module) -> bool:
    """Whether a hook sees what passes through the layer, or changes it."""
    return bool(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks)


def shares(module: nn.Module) -> bool:
    """Whether a layer or a tensor occurs twice: each place would get weights of its own."""
    layers, tensors = (list(f(remove_duplicate=False)) for f in (module.named_modules, module.named_parameters))
    return len(layers) != len(list(module.modules())) or len(tensors) != len(list(module.parameters()))
