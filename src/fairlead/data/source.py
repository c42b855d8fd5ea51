"""A data set before it is divided: samples, labels, and whatever else can say who owns a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fairlead.core.errors import require

PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Source:
    """A data set as one block of samples.

    Images stay bytes (uint8) until they are used: CIFAR-10 is then a quarter of its size as numbers, and only the
    samples a scenario takes become float32.
    """

    name: str
    raw: Tensor  # (n, C, H, W) uint8 pixels, or float32 of any shape (n, ...)
    y: Tensor  # (n,) int64
    classes: tuple[str, ...]
    parts: NDArray[np.str_]  # (n,) the published part each sample comes from: train, validation or test
    columns: dict[str, NDArray[np.generic]] = field(default_factory=dict)  # further columns, to split by
    measured: bool = False  # features in units of any kind: scenarios bring them to [0, 1] by their train samples

    def __len__(self) -> int:
        return len(self.y)

    @property
    def x(self) -> Tensor:
        """All samples as float32, pixels scaled to [0, 1]; a new copy if they are stored as bytes."""
        return self.raw if self.raw.dtype == torch.float32 else self.raw.float().div_(255)

    @property
    def pixels(self) -> bool:
        """Whether the samples are images stored as bytes."""
        return self.raw.dtype == torch.uint8


def from_tensors(
    x: Tensor,
    y: Tensor,
    columns: Mapping[str, ArrayLike] | None = None,
    classes: Sequence[str] | None = None,
    *,
    name: str = "tensors",
    parts: ArrayLike | None = None,
) -> Source:
    """Use your own tensors: x (n, ...) with labels y (n,) counting from 0.

    uint8 images (n, C, H, W) are treated as pixels, anything else is taken as it is, in float32.

    >>> from_tensors(torch.zeros(3, 2), torch.tensor([0, 1, 0])).classes
    ('0', '1')
    """
    x, y = x.detach().cpu(), y.detach().cpu()
    require(x.dim() >= 2, f"{name}: x must have shape (n, features) or (n, C, H, W), got {tuple(x.shape)}")
    require(y.dim() == 1 and len(y) == len(x) > 0, f"{name}: {len(x)} samples in x, but y has shape {tuple(y.shape)}")
    whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    require(whole, f"{name}: y must hold whole numbers, got {y.dtype}")
    x = x if x.dtype == torch.uint8 and x.dim() == 4 else x.float()
    if x.dtype == torch.float32 and not bool(x.isfinite().all()):
        row = int((~x.flatten(1).isfinite().all(1)).nonzero()[0])
        require(False, f"{name}: sample {row} has a value that is NaN or infinite in float32; drop or fill it")
    names = tuple(classes) if classes is not None else tuple(str(c) for c in range(int(y.max()) + 1))
    low, high = int(y.min()), int(y.max())
    require(low >= 0, f"{name}: labels count from 0, got {low}")
    require(high < len(names), f"{name}: label {high} has no name among the {len(names)} classes")
    table = {key: np.asarray(values) for key, values in (columns or {}).items()}
    for key, values in table.items():
        require(values.shape == (len(y),), f"{name}: column '{key}' has shape {values.shape}, expected ({len(y)},)")
    origin = np.full(len(y), "train") if parts is None else np.asarray(parts, dtype=str)
    known = origin.shape == (len(y),) and bool(np.isin(origin, PARTS).all())
    require(known, f"{name}: parts must say {', '.join(PARTS)} for each sample")
    return Source(name, x, y.long(), names, origin, table)
