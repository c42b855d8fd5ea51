"""Aggregations that a few broken or hostile clients cannot carry away."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fairlead.core.errors import require
from fairlead.functional.gram import check_finite, check_rows, combine, gram


def coordinate_median(updates: Tensor) -> Tensor:
    """The median of every coordinate by itself; of an even number, the mean of the middle two.

    Yin et al. (ICML 2018), option I. Cost: sorts a copy of the updates.

    >>> coordinate_median(torch.tensor([[0.0, 5.0], [1.0, 6.0], [1e9, -1e9]])).tolist()
    [1.0, 5.0]
    """
    check_rows("coordinate_median", updates)
    m = len(updates)
    return updates.sort(0).values[(m - 1) // 2 : m // 2 + 1].mean(0)


def trimmed_mean(updates: Tensor, share: float = 0.1) -> Tensor:
    """The mean of every coordinate without its largest and its smallest values.

    Yin et al. (ICML 2018), option II, with β = share: floor(share m) values are left out at each end. Cost: sorts a
    copy of the updates.

    >>> trimmed_mean(torch.tensor([[0.0], [1.0], [3.0], [1e9]]), share=0.25).tolist()
    [2.0]
    """
    require(
        0 <= share < 0.5, f"trimmed_mean: share must lie in [0, 0.5), got {share}; it is cut at each end of the values"
    )
    check_rows("trimmed_mean", updates)
    m = len(updates)
    cut = int(share * m)
    return updates.sort(0).values[cut : m - cut].mean(0)


# Far outside: beyond so many times the usual length, and so many robust deviations of the lengths' logarithms.
FAR_TIMES = 30.0
FAR_DEVIATIONS = 6.0
FEWEST = 5  # lengths among which one can be called unusual


def far_out(lengths: Tensor, known: Tensor | None = None) -> Tensor:
    """Which of the lengths (m,) are far above what is usual among them, (m,) true for those.

    Usual is the median; deviations are of the logarithms, by their median (1.4826 MAD), so that up to half of the
    lengths can be anything. Of fewer than five nothing can be said, and a short one is never far out. `known` (m,)
    leaves out those that do not count.

    >>> far_out(torch.tensor([1.0, 2.0, 0.5, 20.0, 1e6])).tolist()
    [False, False, False, False, True]
    >>> far_out(torch.tensor([1.0, 2.0, 1e6])).tolist()
    [False, False, False]
    """
    counts = (lengths > 0) if known is None else (lengths > 0) & known
    if int(counts.sum()) < FEWEST:
        return torch.zeros_like(lengths, dtype=torch.bool)
    logs = lengths.double().log()
    usual = logs[counts].median()
    deviation = 1.4826 * (logs[counts] - usual).abs().median()
    return counts & (logs - usual > torch.clamp(FAR_DEVIATIONS * deviation, min=math.log(FAR_TIMES)))


def krum(updates: Tensor, byzantine: int, keep: int = 1) -> Tensor:
    """The update that sits closest among its neighbours; with `keep` > 1, the mean of the best few (Multi-Krum).

    Blanchard et al. (NeurIPS 2017): a row's score is the sum of squared distances to its m - f - 2 nearest others,
    f = byzantine. The paper's guarantee asks for m >= 2f + 3; below that at least one neighbour counts, and `keep` is
    at most m. Ties go to the earlier row. Cost: 2 m² d.

    >>> krum(torch.tensor([[0.0], [1.0], [1.5], [2.5], [100.0]]), byzantine=1).tolist()
    [1.0]
    """
    require(byzantine >= 0, f"krum: byzantine must be >= 0, got {byzantine}; it is the number of clients not trusted")
    require(keep >= 1, f"krum: keep must be >= 1, got {keep}; 1 is Krum, more is Multi-Krum")
    check_rows("krum", updates)
    G = gram(updates)
    squares = np.diagonal(G)
    check_finite("krum", squares)
    m = len(G)
    distances = np.maximum(squares[:, None] + squares - 2 * G, 0)
    np.fill_diagonal(distances, 0)
    nearest = np.sort(distances, 1)[:, 1 : 1 + max(m - byzantine - 2, 1)]
    chosen = np.argsort(nearest.sum(1), kind="stable")[:keep]
    coefficients = np.zeros(m)
    coefficients[chosen] = 1 / len(chosen)
    return combine(coefficients, updates)


def clip_norm(updates: Tensor, bound: float) -> Tensor:
    """Every row, shortened to `bound` where it is longer. (m, d)

    >>> clip_norm(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), bound=1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    require(bound > 0, f"clip_norm: bound must be > 0, got {bound}; it is the longest norm let through")
    check_rows("clip_norm", updates)
    norms: Tensor = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
    return updates * (bound / norms.clamp(min=bound))
