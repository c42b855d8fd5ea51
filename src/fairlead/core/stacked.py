"""Many clients' models at once, without `torch.func.vmap`: for networks of plain layers, whose calls it would dominate.

The clients' samples are laid one after another, (C * B, ...). A layer that treats samples one by one runs as it is;
only layers with parameters need a version of their own, and dropout its keys. Where any other layer occurs, or a
forward function that is not known here, there is no such module, and vmap does the work.
"""

from __future__ import annotations

import copy

from torch import nn

from fairlead.core.cut import Cut
from fairlead.core.dropout import KeyedDropout
from fairlead.core.linear import Ear, HeardLinear, StackedLinear

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
LINEAR = {nn.Linear, HeardLinear}
# Layers that give a sample the same numbers in training and evaluation, whatever else is in its batch.
SETTLED = (SAMPLE_BY_SAMPLE | LINEAR | {nn.Sequential, nn.Flatten, nn.GroupNorm, nn.LayerNorm}) - {KeyedDropout}
SETTLED |= {nn.Conv1d, nn.Conv2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d}


def stacked(module: nn.Module, ear: Ear) -> nn.Module | None:
    """A copy of the module for many clients' samples, its weights still to be set; None where a layer forbids it.

    The ear is that of its linear layers.
    """
    if not all(map(_known, module.modules())) or shares(module):
        return None
    twin = copy.deepcopy(module).train()
    if type(twin) in LINEAR:
        return StackedLinear(ear)
    for parent in list(twin.modules()):
        for name, child in parent.named_children():
            if type(child) in LINEAR:
                setattr(parent, name, StackedLinear(ear))
    return twin


def _known(m: nn.Module) -> bool:
    if watched(m):
        return False
    if type(m) in LINEAR:
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
