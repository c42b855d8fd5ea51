"""Two columns that together give a quantity away, though neither does alone: two parts of a sum, a start and an end, a
count and what it is a share of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairlead.data.columns import Codes

_EXACT = 0.9999  # R2, from which on two columns hold the quantity
_LIKELY = 0.99  # R2 by sums of all rows at once, from which on a pair is looked at more exactly
_LOOKS = 10  # pairs that are looked at
_ENOUGH = 30  # rows without which nothing is said


class Pair(NamedTuple):
    """Two columns, and what of them the quantity is."""

    first: int
    second: int
    how: str


def find_pair(x: Codes, y: Codes) -> Pair | None:
    """The two columns of (n, d) whose weighted sum, or whose product of powers, is `y` (n,); None if there are none.

    >>> start, days = np.random.default_rng(0).random((2, 50))
    >>> find_pair(np.stack([start, start + days], 1), days)
    Pair(first=0, second=1, how='a sum or difference')
    >>> find_pair(np.stack([start, start * days], 1), days)
    Pair(first=0, second=1, how='a product or ratio')
    """
    found = _sum(x, y)
    if found is not None:
        return Pair(*found, "a sum or difference")
    rows = y > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(np.where(x[rows] > 0, x[rows], np.nan))
    found = _sum(logs, np.log(y[rows])) if rows.any() else None
    return None if found is None else Pair(*found, "a product or ratio")


def _sum(x: Codes, y: Codes) -> tuple[int, int] | None:
    """The pair of columns of which `y` is a weighted sum."""
    y = y / max(float(np.abs(y).max(initial=0.0)), 1e-300)  # squares of large numbers would overflow
    share = _shares(x, y) if len(y) >= _ENOUGH else np.zeros((0, 0))
    for place in np.argsort(-share, axis=None)[:_LOOKS].tolist():
        i, j = divmod(place, len(share))
        if share[i, j] < _LIKELY:
            break
        if _r2(x[:, [i, j]], y) >= _EXACT > max(_r2(x[:, [i]], y), _r2(x[:, [j]], y)):
            return i, j
    return None


def _shares(x: Codes, y: Codes) -> Codes:
    """R2 of `y` by each two columns (d, d), in the rows that have both cells; 0 where these are few, and for i >= j."""
    there = np.isfinite(x)
    m = there.astype(np.float64)
    n = np.maximum(m.T @ m, 1.0)
    fit = n >= _fewest(y)
    middle = np.where(there, x, 0.0).sum(0) / np.maximum(m.sum(0), 1)
    spread = np.abs(np.where(there, x - middle, 0.0)).max(0)
    z, t = np.where(there, x - middle, 0.0) / np.where(spread > 0, spread, 1.0), (y - y.mean())[:, None]
    # Means over the rows that have both: of one column where the other is there, too, and of products.
    mean, mean_t = z.T @ m / n, (m * t).T @ m / n
    own, both = (z**2).T @ m / n - mean**2, z.T @ z / n - mean * mean.T
    with_t, all_t = (z * t).T @ m / n - mean * mean_t, (m * t**2).T @ m / n - mean_t**2
    apart = own * own.T - both**2
    with np.errstate(invalid="ignore", divide="ignore"):
        told = with_t**2 * own.T + (with_t**2 * own.T).T - 2 * with_t * with_t.T * both
        share = np.where(fit & (apart > 1e-6 * own * own.T), told / (apart * all_t), 0.0)
    return np.triu(np.nan_to_num(share), 1)


def _r2(x: Codes, y: Codes) -> float:
    """How much of `y` a weighted sum of these columns tells, in the rows that have all cells."""
    rows = np.isfinite(x).all(1)
    if rows.sum() < _fewest(y):
        return 0.0
    a, b = x[rows] - x[rows].mean(0), y[rows] - y[rows].mean()
    a /= np.maximum(np.abs(a).max(0), 1e-300)
    rest = b - a @ np.linalg.lstsq(a, b, rcond=None)[0]
    total = float((b**2).sum())
    return 1 - float((rest**2).sum()) / total if total > 0 else 0.0


def _fewest(y: Codes) -> float:
    """Rows that must have both cells."""
    return max(_ENOUGH, len(y) / 2)
