"""Ways in which clients see the same world differently: what is done to a client's images after the split."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Shift = Callable[[Tensor, float], Tensor]


def none(images: Tensor, amount: float) -> Tensor:
    """Leave the samples as they are."""
    return images


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn images (n, C, H, W) counter-clockwise about their centre, by nearest neighbour; corners fill with zero.

    Every pixel of the result takes the pixel its own centre came from, as in Pillow and torchvision, so that no new
    grey values appear and any dtype works.

    >>> rotate(torch.tensor([[[[1, 2], [3, 4]]]]), 90).tolist()
    [[[[2, 4], [1, 3]]]]
    """
    if degrees % 360 == 0:
        return images
    height, width = images.shape[-2:]
    # Rounded, so that a quarter turn is exact and no pixel centre lands just beyond the border.
    cos, sin = round(math.cos(math.radians(degrees)), 15), round(math.sin(math.radians(degrees)), 15)
    down = np.arange(height)[:, None] + 0.5 - height / 2
    right = np.arange(width)[None, :] + 0.5 - width / 2
    column = np.floor(cos * right - sin * down + width / 2).astype(np.int64)
    row = np.floor(sin * right + cos * down + height / 2).astype(np.int64)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    origin = np.where(inside, row * width + column, 0).ravel()
    # numpy takes small pieces in one thread; torch would wake and wait for all of them, for every client.
    turned = images.flatten(-2).numpy().take(origin, axis=-1)
    turned[..., ~inside.ravel()] = 0
    return torch.from_numpy(turned).view(images.shape)


SHIFTS: dict[str, Shift] = {"none": none, "rotation": rotate}
