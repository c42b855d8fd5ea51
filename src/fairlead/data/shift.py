"""Ways in which clients see the same world differently: what is done to a client's images after the split."""

from __future__ import annotations

import math
from collections.abc import Callable

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
    down = torch.arange(height, dtype=torch.float64)[:, None] + 0.5 - height / 2
    right = torch.arange(width, dtype=torch.float64)[None, :] + 0.5 - width / 2
    column = (cos * right - sin * down + width / 2).floor().long()
    row = (sin * right + cos * down + height / 2).floor().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = torch.where(inside, row * width + column, 0).flatten()
    turned = images.flatten(-2).index_select(-1, source).view(images.shape)
    return turned.masked_fill_(~inside, 0)


SHIFTS: dict[str, Shift] = {"none": none, "rotation": rotate}
