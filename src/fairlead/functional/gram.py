"""Passes over rows of any length, on all cores: the Gram matrix in, combinations of rows out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.device import on_host, widest
from fairlead.core.errors import InputError, require
from fairlead.core.fast.machine import by_columns, large_empty

Array = NDArray[np.float64]
BLOCK = 1 << 18  # numbers in float64 at a time and thread: two megabytes, which stay in the cache of a core


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

    def products(columns: slice) -> Tensor:
        total = torch.zeros(len(rows), len(rows), dtype=widest(rows.device), device=rows.device)
        for _, block in _blocks(rows[:, columns]):
            total.addmm_(block, block.T)
        return total

    first, *rest = by_columns(products, rows)
    return np.asarray(on_host(sum(rest, first)).double().numpy())


def combine(coefficients: Array, rows: Tensor) -> Tensor:
    """The combination of the rows with these coefficients, (d,), in the rows' own dtype.

    >>> combine(np.array([2.0, 1.0]), torch.tensor([[1.0, 2.0], [0.0, 3.0]])).tolist()
    [2.0, 7.0]
    """
    out = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    weights = torch.from_numpy(coefficients).to(widest(rows.device)).to(rows.device)

    def write(columns: slice) -> None:
        part = out[columns]
        for some, block in _blocks(rows[:, columns]):
            part[some] = (weights @ block).to(rows.dtype)

    by_columns(write, rows)
    return out


def mix(weights: Tensor, rows: Tensor) -> Tensor:
    """As many combinations of the rows as `weights` (k, m) has rows of its own, (k, d), in the rows' own dtype.

    >>> mix(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 2.0], [0.0, 3.0]])).tolist()
    [[0.5, 2.5]]
    """
    flat, w = rows.flatten(1), weights.to(rows.dtype).to(rows.device)
    out = large_empty(flat, len(w), flat.shape[1])

    def write(columns: slice) -> None:
        # Narrow products: with all columns at once, every row is on pages of its own and the processor looks them up.
        for some in _narrow(columns, len(rows)):
            torch.mm(w, flat[:, some], out=out[:, some])

    by_columns(write, flat)
    return out.view(len(w), *rows.shape[1:])


def _blocks(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Columns and their values in float64, in a buffer that the next block overwrites: fresh pages cost more."""
    m, d = rows.shape
    stretches = list(_narrow(slice(0, d), m))
    most = m * stretches[0].stop if stretches else 0  # the first stretch is the longest
    buffer = rows.new_empty(most, dtype=widest(rows.device))
    for columns in stretches:
        width = columns.stop - columns.start
        yield columns, buffer[: m * width].view(m, width).copy_(rows[:, columns])


def _narrow(columns: slice, m: int) -> Iterator[slice]:
    """The columns in stretches of about BLOCK numbers each."""
    width = max(BLOCK // m, 256)
    for start in range(columns.start, columns.stop, width):
        yield slice(start, min(start + width, columns.stop))
