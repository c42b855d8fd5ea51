"""Dropout whose mask is a function of (key, position), so that every engine drops the same units.

PyTorch's own dropout draws from one generator per process: two worker threads would take from it in whatever order
they run. Here the mask is a hash of the client's key for this step and the unit's position in the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

_WORD = 0xFFFFFFFF


def hash_uniform(key: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) from a key, or from each of many (C, 1); multiply-and-shift mixing of 32-bit words."""
    x = (torch.arange(count, device=key.device) * 0x9E3779B1 + key) & _WORD
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = ((x ^ (x >> shift)) * factor) & _WORD
    return ((x ^ (x >> 15)) & 0xFFFFFF).to(torch.get_default_dtype()) / 2**24


class KeyedDropout(nn.Module):
    """Drops single units, or with `channels` whole feature maps, by `key`; the identity when evaluating."""

    key: Tensor

    def __init__(self, p: float, salt: int, channels: bool) -> None:
        super().__init__()
        self.p, self.salt, self.channels = p, salt, channels
        self.register_buffer("key", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Scale what is kept by 1/(1 - p), as `nn.Dropout` does.

        With keys (C, 1), the samples are those of C clients one after another, and a unit's position is in its own.
        """
        if not self.training or self.p == 0:
            return x
        shape = torch.Size((*x.shape[:2], *(1 for _ in x.shape[2:]))) if self.channels else x.shape
        keep = hash_uniform(self.key + self.salt * 0x85EBCA6B, shape.numel() // self.key.numel())
        return x * (keep.view(shape) >= self.p) / (1 - self.p)


def replace_dropout(module: nn.Module) -> list[KeyedDropout]:
    """Replace every dropout layer in place by one that draws from a key; returns these, in the module's order."""
    found: list[KeyedDropout] = []

    def with_keys(layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            return None
        found.append(KeyedDropout(layer.p, len(found), channels=not isinstance(layer, nn.Dropout)))
        return found[-1].train(layer.training)

    replace_layers(module, with_keys)
    return found


def replace_layers(module: nn.Module, other: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Put `other(layer)` in place of every layer for which it is not None; returns the module, or what replaces it.

    A layer that occurs in several places is asked for in each of them.
    """
    for parent in list(module.modules()):
        for name, layer in list(parent._modules.items()):
            twin = None if layer is None else other(layer)
            if twin is not None:
                setattr(parent, name, twin)
    return other(module) or module
