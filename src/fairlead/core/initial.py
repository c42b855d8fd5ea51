"""Further initial models where only one was given."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from fairlead.core.device import on_host
from fairlead.core.layout import Layout
from fairlead.core.seeds import stream

# Deviation of the noise that tells copies of a constant model apart.
NOISE = 0.01


def content_key(params: Tensor) -> int:
    """A seed made of the numbers themselves: other initial models, and so other runs, draw other numbers."""
    return zlib.crc32(on_host(params.detach()).contiguous().numpy().tobytes())


def initial_models(params: Tensor, layout: Layout, count: int) -> Tensor:
    """`count` initial models, (1, count, D): the one given, then fresh draws from each of its tensors' distribution.

    A draw puts the entries of every trainable tensor in a random order of their own. Entries that were drawn alike
    and independently, as the usual initialisations do, stay so, and constants (a bias of zeros, a scale of ones) stay
    what they are. A model of constants only gets a little noise instead, or all copies would be one.

    >>> from torch import nn
    >>> module = nn.Linear(2, 2)
    >>> layout = Layout(module)
    >>> initial_models(layout.read(module), layout, 3).shape
    torch.Size([1, 3, 6])
    """
    params, device = on_host(params), params.device
    models = params[0].repeat(count, 1)
    for j in range(1, count):
        rng = stream(content_key(params), "starts", j)
        for name in layout.parameter_names:
            slot = layout.slots[name]
            order = torch.from_numpy(rng.permutation(slot.stop - slot.start))
            models[j, slot.start : slot.stop] = params[0, slot.start + order]
        if torch.equal(models[j], params[0]):
            models[j, : layout.trainable] += NOISE * torch.from_numpy(rng.standard_normal(layout.trainable)).to(params)
    return models[None].to(device)
