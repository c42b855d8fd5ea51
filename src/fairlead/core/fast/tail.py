"""The last layers as a network of their own, if what the layers below give can be computed once."""

from __future__ import annotations

from itertools import islice

from torch import Tensor, nn

from fairlead.core.dropout import KeyedDropout
from fairlead.core.fast.stacked import CONTAINERS, LINEAR, SAMPLE_BY_SAMPLE, has_hooks, has_shared_tensors
from fairlead.core.gradient import Output
from fairlead.core.layout import Layout, Part

# Layers that give a sample the same numbers in training and evaluation, whatever else is in its batch.
UNCHANGING = (SAMPLE_BY_SAMPLE | LINEAR | {nn.Sequential, nn.Flatten, nn.GroupNorm, nn.LayerNorm}) - {KeyedDropout}
UNCHANGING |= {nn.Conv1d, nn.Conv2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d}


def tail_of(module: nn.Module, layout: Layout, part: Part) -> tuple[nn.Module, Output] | None:
    """The part as a module of its own, and what gives it its inputs.

    None where the part is not the module's last layers, or where a layer below, or a tensor used twice, forbids to keep
    what the layers below gave.
    """
    layers = list(module.named_children()) if type(module) in CONTAINERS else []
    owners = {name.partition(".")[0] for name in part.names}
    first = next((i for i, (name, _) in enumerate(layers) if name in owners), 0)
    below, above = layers[:first], layers[first:]
    rest = layout.part(*(name for name, _ in above))
    exact = (rest.names, rest.size) == (part.names, part.size)
    if not below or not exact or has_shared_tensors(module) or not all(_unchanging(layer) for _, layer in below):
        return None

    def inputs(module: nn.Module, x: Tensor) -> Tensor:
        for layer in islice(module.children(), first):
            x = layer(x)
        return x

    return nn.Sequential(*(layer for _, layer in above)), inputs


def _unchanging(layer: nn.Module) -> bool:
    return all(type(m) in UNCHANGING and not has_hooks(m) for m in layer.modules())
