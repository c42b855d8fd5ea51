"""Linear layers and ReLUs of many clients, differentiated by hand.

Autograd's bookkeeping takes longer than the products of a small network. With inputs h⁰, layers z = h Wᵀ + b and ReLUs
h = max(z, 0), the gradient g at an output gives g W at the layer's inputs, g [h > 0] before a ReLU, and gᵀh and Σ g for
W and b: the products that autograd makes, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from fairlead.core.fast.recorded import LinearCall, StackedLinear, TensorGradient

Slope = Callable[[Tensor], Tensor]  # outputs (C * B, out) -> the gradient of the clients' losses there


class Chain:
    """The layers of a stack, one after another."""

    def __init__(self, layers: list[nn.Module], *, flattens: bool) -> None:
        self._layers = layers
        self.flattens = flattens  # whether samples may have any shape

    @torch.no_grad()
    def gradient(self, x: Tensor, leaves: Sequence[Tensor], slope: Slope) -> list[TensorGradient]:
        """The gradient in each of the leaves, which are the layers' own tensors; x is (C, B, ...)."""
        h = x.flatten(2)
        passed = [h]
        for layer in self._layers:
            h = layer.product(h, layer.weight) if isinstance(layer, StackedLinear) else h.relu()
            passed.append(h)
        found: dict[int, TensorGradient] = {}
        g = slope(h.flatten(0, 1)).view_as(h)
        learning = {id(leaf) for leaf in leaves}
        for i in reversed(range(len(self._layers))):
            layer, before = self._layers[i], passed[i]
            if isinstance(layer, StackedLinear):
                call = LinearCall(layer.weight, before, passed[i + 1], before._version)
                found[id(layer.weight)] = TensorGradient(None, [(call, g)])
                if layer.bias is not None and id(layer.bias) in learning:
                    found[id(layer.bias)] = TensorGradient(g.sum(1), [])
                if learning <= found.keys():
                    break
                g = torch.bmm(g, layer.weight)
            else:
                g = torch.ops.aten.threshold_backward.default(g, passed[i + 1], 0)
        return [found[id(leaf)] for leaf in leaves]


def chain_of(module: nn.Module) -> Chain | None:
    """The layers of a stack as a chain; None where one of them is of another kind.

    `nn.Flatten` may only come first, where it changes nothing but the samples' shape.
    """
    layers = [layer for layer in _leaves(module) if type(layer) is not nn.Identity]
    flattens = bool(layers) and type(layers[0]) is nn.Flatten
    layers = layers[flattens:]
    known = all(type(layer) in (StackedLinear, nn.ReLU) for layer in layers)
    return Chain(layers, flattens=flattens) if known and layers else None


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The layers that have none inside, in the order in which a container calls them."""
    children = list(module.children())
    if not children:
        yield module
    for child in children:
        yield from _leaves(child)
