"""A data set before it is divided: samples, labels, and columns that can say who owns a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fairlead.core.errors import InputError, require
from fairlead.core.targets import TargetKind
from fairlead.data.columns import Column

PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Table:
    """What a source knows of the table it was read from."""

    columns: tuple[Column, ...]  # all of them, in the order of the file
    labels: tuple[str, ...]  # the columns to predict
    owner: str | None  # the column that says whose row it is
    rows: NDArray[np.int64]  # (n,) each sample's row in the file, or in the files one after another, counted from 0
    notes: tuple[str, ...] = ()  # sentences for the user


@dataclass(frozen=True, eq=False)
class Source:
    """A data set as one block of samples.

    Images stay bytes (uint8) until they are used: CIFAR-10 is then a quarter of its size as numbers, and only the
    samples a scenario takes become float32.
    """

    name: str
    raw: Tensor  # (n, C, H, W) uint8 pixels; float32 or int64 (tokens) of any shape (n, ...); float64 codes of a table
    y: Tensor  # (n,) int64 classes, (n,) float quantities, (n, L) float labels of 0 and 1, or (n, 2) time and event
    classes: tuple[str, ...]  # their names; empty for a quantity or a time
    parts: NDArray[np.str_]  # (n,) the published part each sample comes from: train, validation or test
    columns: dict[str, NDArray[np.generic]] = field(default_factory=dict)  # further columns, to split by
    table: Table | None = None  # a table's rows are coded cells, which a scenario prepares by its train rows

    def __len__(self) -> int:
        return len(self.y)

    @property
    def x(self) -> Tensor:
        """All samples as they are used, pixels as float32 scaled to [0, 1]; a new copy if they are stored as bytes."""
        return self.raw.float().div_(255) if self.pixels else self.raw

    @property
    def kind(self) -> TargetKind:
        """What a sample's target is."""
        if self.y.dim() == 2:
            return "labels" if self.classes else "survival"
        return "class" if self.classes else "quantity"

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
    event: Tensor | None = None,
) -> Source:
    """Use your own tensors: x (n, ...) with y (n,), classes that count from 0 or, as floats, quantities.

    y (n, L) of 0 and 1 are several labels each. With `event`, (n,) of 0 and 1, y are the times at which it came, or
    until which it had not. uint8 images (n, C, H, W) are treated as pixels, other whole numbers as tokens, which stay
    int64; anything else is taken as it is, in float32.

    >>> from_tensors(torch.zeros(3, 2), torch.tensor([0, 1, 0])).classes
    ('0', '1')
    """
    x, y = _samples(name, x.detach().cpu()), y.detach().cpu()
    require(
        y.dim() in (1, 2) and len(y) == len(x) > 0, f"{name}: {len(x)} samples in x, but y has shape {tuple(y.shape)}"
    )
    y, names = _targets(name, y, classes) if event is None else (_times(name, y, event.detach().cpu()), ())
    table = {key: np.asarray(values) for key, values in (columns or {}).items()}
    for key, values in table.items():
        require(values.shape == (len(y),), f"{name}: column '{key}' has shape {values.shape}, expected ({len(y)},)")
    origin = np.full(len(y), "train") if parts is None else np.asarray(parts, dtype=str)
    known = origin.shape == (len(y),) and bool(np.isin(origin, PARTS).all())
    require(known, f"{name}: parts must say {', '.join(PARTS)} for each sample")
    return Source(name, x, y, names, origin, table)


def _samples(name: str, x: Tensor) -> Tensor:
    """Checked samples: pixels as bytes, tokens as int64, all else as float32."""
    require(x.dim() >= 2, f"{name}: x must have shape (n, features) or (n, C, H, W), got {tuple(x.shape)}")
    if x.dtype == torch.uint8 and x.dim() == 4:
        return x
    integers = not (x.is_floating_point() or x.is_complex() or x.dtype in (torch.bool, torch.uint8))
    if integers:
        return x.long()
    x = x.float()
    finite = x.flatten(1).isfinite().all(1)
    if not bool(finite.all()):
        row = int(finite.int().argmin())
        raise InputError(f"{name}: sample {row} has a value that is NaN or infinite in float32; drop or fill it")
    return x


def _targets(name: str, y: Tensor, classes: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Checked targets, and the names of the classes."""
    if y.dim() == 2:
        y = y.float()
        require(bool(((y == 0) | (y == 1)).all()), f"{name}: y (n, labels) must hold 0 and 1 alone")
        names = tuple(classes) if classes is not None else tuple(str(c) for c in range(y.shape[1]))
        require(len(names) == y.shape[1], f"{name}: {len(names)} names for {y.shape[1]} labels")
        return y, names
    if y.is_floating_point():
        require(bool(y.isfinite().all()), f"{name}: a quantity in y is NaN or infinite; drop or mend such samples")
        require(classes is None, f"{name}: y holds fractions, so it is a quantity and has no classes; pass y.long()")
        return y.double(), ()
    require(not y.is_complex() and y.dtype != torch.bool, f"{name}: y must hold whole numbers, got {y.dtype}")
    names = tuple(classes) if classes is not None else tuple(str(c) for c in range(int(y.max()) + 1))
    low, high = int(y.min()), int(y.max())
    require(low >= 0, f"{name}: labels count from 0, got {low}")
    require(high < len(names), f"{name}: label {high} has no name among the {len(names)} classes")
    return y.long(), names


def _times(name: str, y: Tensor, event: Tensor) -> Tensor:
    """Times and events side by side, (n, 2)."""
    require(y.dim() == 1 and event.shape == y.shape, f"{name}: y and event must be (n,), got {tuple(event.shape)}")
    both = torch.stack([y.double(), event.double()], 1)
    require(bool(both.isfinite().all()) and bool((both[:, 0] >= 0).all()), f"{name}: times must be finite, 0 or above")
    require(bool(((both[:, 1] == 0) | (both[:, 1] == 1)).all()), f"{name}: event must hold 0 and 1 alone")
    require(bool(both[:, 1].any()), f"{name}: the event came in no sample; there is nothing to learn")
    return both
