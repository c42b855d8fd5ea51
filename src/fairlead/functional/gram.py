"""Two passes over the rows, whatever their length: the Gram matrix in, one combination of rows out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.errors import InputError, require

Array = NDArray[np.float64]
BLOCK = 1 << 21  # numbers in float64 at a time: sixteen megabytes, so neither pass copies the rows


def check_rows(caller: str, rows: Tensor) -> None:
    """Rows are a floating-point matrix with at least one row."""
    require(
        rows.ndim == 2 and rows.is_floating_point(),
        f"{caller}: updates must be a floating-point matrix (clients, parameters), got {rows.dtype} of shape "
        f"{tuple(rows.shape)}; stack one flat vector per client",
    )
    require(len(rows) > 0, f"{caller}: updates has no rows; give at least one client's update")


def check_finite(caller: str, squares: Array) -> None:
    """A row is finite if its squared norm is, so the Gram matrix has looked already."""
    bad = np.flatnonzero(~np.isfinite(squares))
    if len(bad):
        raise InputError(f"{caller}: row {bad[0]} of updates holds NaN or infinity; drop that client's update")


def gram(rows: Tensor) -> Array:
    """All inner products of the rows, (m, m), accumulated in float64.

    >>> gram(torch.tensor([[1.0, 2.0], [0.0, 3.0]])).tolist()
    [[5.0, 6.0], [6.0, 9.0]]
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for _, block in _blocks(rows):
        total.addmm_(block, block.T)
    return np.asarray(total.cpu().numpy())


def combine(coefficients: Array, rows: Tensor) -> Tensor:
    """The combination of the rows with these coefficients, (d,), in the rows' own dtype.

    >>> combine(np.array([2.0, 1.0]), torch.tensor([[1.0, 2.0], [0.0, 3.0]])).tolist()
    [2.0, 7.0]
    """
    out = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    weights = torch.from_numpy(coefficients).to(rows.device)
    for columns, block in _blocks(rows):
        out[columns] = (weights @ block).to(rows.dtype)
    return out


def _blocks(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Columns and their values in float64, in a buffer that the next block overwrites: fresh pages cost more."""
    m, d = rows.shape
    width = max(BLOCK // m, 256)
    buffer = rows.new_empty(m, min(width, d), dtype=torch.float64)
    for start in range(0, d, width):
        columns = slice(start, min(start + width, d))
        yield columns, buffer[:, : columns.stop - start].copy_(rows[:, columns])
