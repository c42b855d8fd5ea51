"""Divide one owner's rows into train, validation and test rows, or into folds, with a like mix of classes in each.

Each owner's rows are divided by its own random numbers, so that nothing changes for it when others come or go.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

from fairlead.core.seeds import stream
from fairlead.data.partition import Index, Rng, apportion

FEWEST = 3  # rows of an owner that can train, choose and test


def owner_stream(seed: int, owner: str, *keys: int) -> Rng:
    """An owner's own random numbers, by its name."""
    return stream(seed, "owner's rows", zlib.crc32(owner.encode()), *keys)


def shares(n: int, fractions: list[float]) -> Index:
    """Cut n in the given fractions, at least one for each fraction above zero; if n is too small, for the outer first.

    >>> shares(10, [0.5, 0.2, 0.3]).tolist(), shares(2, [0.5, 0.2, 0.3]).tolist(), shares(1, [0.5, 0.2, 0.3]).tolist()
    ([5, 2, 3], [1, 0, 1], [1, 0, 0])
    """
    needed = [i for i in (0, len(fractions) - 1, *range(1, len(fractions) - 1)) if fractions[i] > 0]
    if n < len(needed):
        return np.array([int(i in needed[:n]) for i in range(len(fractions))], dtype=np.int64)
    sizes = apportion(n, fractions)
    for i in needed:
        if sizes[i] == 0:
            sizes[sizes.argmax()] -= 1
            sizes[i] += 1
    return sizes


def divide(rows: Index, targets: NDArray[np.float64], sizes: Index, rng: Rng) -> list[Index]:
    """Parts of the given sizes, each with a like mix of targets, in random order; sizes may leave rows over."""
    order, sizes = _sorted(rows, targets, rng), np.append(sizes, len(rows) - sizes.sum())
    # Every part's places are spread evenly over the sorted rows, each at random within its stretch.
    places = np.concatenate([(np.arange(size) + rng.random(size)) / max(size, 1) for size in sizes])
    part = np.repeat(np.arange(len(sizes)), sizes)[np.argsort(places)]
    return [rng.permutation(order[part == i]) for i in range(len(sizes) - 1)]


def in_folds(rows: Index, targets: NDArray[np.float64], count: int, rng: Rng) -> list[Index]:
    """As many folds as `count`, each with a like mix of targets; every row in one, sizes that differ by one at most.

    An owner with fewer rows than folds has one row in as many folds as it has rows, and none in the others; with a
    single row it has none in any, since nothing would be left to train with.
    """
    if len(rows) < 2:
        return [rows[:0] for _ in range(count)]
    order = _sorted(rows, targets, rng)
    # Each stretch of `count` neighbours in the sorted rows gives one row to every fold.
    fold = np.concatenate([rng.permutation(count) for _ in range(0, len(rows), count)])[: len(rows)]
    return [order[fold == i] for i in range(count)]


def group_means(groups: Index, targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean target of each group, by its number.

    >>> group_means(np.array([0, 1, 0]), np.array([1.0, 2.0, 3.0])).tolist()
    [2.0, 2.0]
    """
    counts = np.bincount(groups)
    flat = targets.reshape(len(targets), math.prod(targets.shape[1:]))
    columns = [np.bincount(groups, column) / counts for column in flat.T]
    return np.stack(columns, 1).reshape(len(counts), *targets.shape[1:])


def _sorted(rows: Index, targets: NDArray[np.float64], rng: Rng) -> Index:
    """Rows by their targets, equal ones in random order; several labels a row count as one number."""
    mixed = rng.permutation(len(rows))
    values = targets if targets.ndim == 1 else targets @ 2.0 ** np.arange(targets.shape[1])
    return rows[mixed[np.argsort(values[rows][mixed], kind="stable")]]
