"""Aggregations that weigh clients' updates against each other: ConFREE, CAGrad and PCGrad.

All of them need the updates D (m, d) twice only, for the Gram matrix and for one combination of the rows; what lies
between is m x m mathematics in float64.

    paper     here         meaning
    Δθ_i      updates[i]   what client i changed, or would change, in the shared parameters
    Δθ̄_⊥, g  guidance     the mean update (CAGrad), after removing conflicting components (ConFREE, eq. 9)
    c         c            radius of the ball around g, as a share of |g|
    w         weights      a point of the simplex; Δθ_w = sum_j w_j Δθ_j
    d*        direction    the update of the ball that serves the worst-served client best
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from fairlead.core.errors import nearest, require
from fairlead.functional.gram import Array, check_finite, check_rows, combine, gram
from fairlead.functional.maximin import maximin

VARIANTS = ("paper", "released")
SLACK = 4 * float(np.finfo(np.float64).eps)  # of a cosine computed from a Gram matrix


class Solution(NamedTuple):
    """A direction as coefficients of the rows, and the certificate that it is the best of its ball."""

    direction: Array  # (m,) d* = direction @ updates
    weights: Array  # (m,) w* on the simplex; zero for rows that are zero
    guidance: Array  # (m,) g = guidance @ updates
    gap: float  # upper minus lower bound of the worst-served client's gain, over c |g| max_j |Δθ_j|


def confree(
    updates: Tensor,
    c: float = 0.5,
    variant: str = "paper",
    *,
    blocks: Sequence[int] | None = None,
    seed: int = 0,
) -> Tensor:
    """The update that serves every client: conflicts projected away, then the worst-served client helped most.

    ConFREE (Zheng et al., AAAI 2025), equations 9 to 14:

        g  = 1/m sum_i (Δθ_i - sum_{j: Δθ_i·Δθ_j < 0} Δθ_i·Δθ_j / |Δθ_j|² Δθ_j)
        w* = argmin over the simplex of  g·Δθ_w + c |g| |Δθ_w|
        d* = g + c |g| / |Δθ_w*| Δθ_w*

    Cost: 2 m² d for the Gram matrix, m d for the answer, about a dozen times m³ between; no other array of length d.
    `blocks` and `seed` serve the released variant only.

    Differs from the paper where its formulas leave a case open. If g = 0 the answer is zero. If Δθ_w* = 0, no
    direction of the ball improves every client; d* is then the middle of those that harm the worst-served one least.
    A client whose update is zero counts in the mean of g, has no stake in the rest, and leaves the optimum valid.

    `variant="released"` follows the published code where it departs from the paper: each parameter tensor by itself
    (`blocks` gives the tensors' sizes in column order; None is one block), projections one after another in random
    order on the running vector and without the division by |Δθ_j|², SLSQP from uniform weights with its absolute
    tolerance (on small updates it stays there), and a final division by 1 + c². Draws come from `seed`, so they are
    not that code's, and the 1e-8 that guard its roots and quotients are ours. Undivided projections grow without
    bound on conflicting updates of norm above one.

    >>> D = torch.tensor([[4.0, 0.0], [-1.0, 1.0]])  # the second client loses by the mean, (1.5, 0.5)
    >>> d = confree(D, c=0.5)
    >>> d, D @ d
    (tensor([0.4415, 2.2075]), tensor([1.7660, 1.7660]))
    """
    _check(c, "confree")
    require(
        variant in VARIANTS,
        f"confree: variant must be one of {VARIANTS}, got '{variant}'; {nearest(variant, VARIANTS)}",
    )
    if variant == "paper":
        return combine(confree_solution(updates, c).direction, updates)
    check_rows("confree", updates)
    sizes = [updates.shape[1]] if blocks is None else list(blocks)
    require(
        sum(sizes) == updates.shape[1] and min(sizes, default=0) >= 0,
        f"confree: blocks must add up to the {updates.shape[1]} columns of updates, got {sum(sizes)}; "
        "give the number of entries of each parameter tensor",
    )
    rng = np.random.default_rng(seed)
    return torch.cat([_released(block, c, rng) for block in torch.split(updates, sizes, dim=1)])


def confree_solution(updates: Tensor, c: float = 0.5) -> Solution:
    """What `confree` found and how good it is: coefficients of the rows, weights and the certified gap.

    >>> s = confree_solution(torch.tensor([[4.0, 0.0], [-1.0, 1.0]]), c=0.5)
    >>> s.guidance.round(3).tolist(), s.weights.round(3).tolist(), s.gap < 1e-9
    ([0.625, 1.5], [0.05, 0.95], True)
    """
    return _steer("confree", updates, c, project=True)


def cagrad(updates: Tensor, c: float = 0.5) -> Tensor:
    """The update near the mean that serves the worst-served client best.

    CAGrad (Liu et al., NeurIPS 2021), Algorithm 1: as `confree`, with the plain mean for guidance vector. Same cost
    and same conventions for the cases the formulas leave open.

    >>> cagrad(torch.tensor([[4.0, 0.0], [-1.0, 1.0]]), c=0.5)
    tensor([0.9410, 1.0590])
    """
    _check(c, "cagrad")
    return combine(_steer("cagrad", updates, c, project=False).direction, updates)


def pcgrad(updates: Tensor, seed: int = 0) -> Tensor:
    """The mean of the updates after each has given way, in random order, to those it conflicts with.

    PCGrad (Yu et al., NeurIPS 2020), Algorithm 1. Cost: as `confree`. Differs from the paper: the mean of the
    projected updates, where the paper sums them, so that the step size means what it means for the other servers.

    >>> pcgrad(torch.tensor([[4.0, 0.0], [-1.0, 1.0]]))
    tensor([1.0000, 1.5000])
    """
    check_rows("pcgrad", updates)
    G = gram(updates)
    norms = np.diagonal(G)
    check_finite("pcgrad", norms)
    step = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    return combine(_give_way(G, step, np.random.default_rng(seed)).mean(0), updates)


def _check(c: float, caller: str) -> None:
    require(0 < c < 1, f"{caller}: c must lie in (0, 1), got {c}; it is the ball's radius as a share of |g|")


def _steer(caller: str, updates: Tensor, c: float, project: bool) -> Solution:
    _check(c, caller)
    check_rows(caller, updates)
    G = gram(updates)
    check_finite(caller, np.diagonal(G))
    norm = np.sqrt(np.diagonal(G))
    m, largest = len(norm), norm.max()
    moved = np.flatnonzero(norm > 0)
    n = norm[moved] / largest if len(moved) else norm[moved]

    # From here on rows have length one, R holds their cosines, and n carries their lengths: small rows stay accurate.
    R = G[np.ix_(moved, moved)] / np.outer(norm[moved], norm[moved])
    g = (n - np.minimum(R, 0) @ n if project else n) / m
    Rg = R @ g
    size = _length(g, R)
    if size <= 2e-8 * np.sqrt(m) * np.abs(g).sum():  # what rounding leaves of an exact zero
        return Solution(np.zeros(m), np.full(m, 1 / m), np.zeros(m), 0.0)

    values, vectors = np.linalg.eigh(R)
    kept = values > len(n) * np.finfo(float).eps * values[-1]
    roots = np.sqrt(values[kept])
    u, w, _ = maximin(n[:, None] * vectors[:, kept] * roots, n * Rg / size, c)

    # The paper's point and the solver's own agree unless Δθ_w vanishes, where only the second is defined. Lengths are
    # rounded up by what cancellation can hide in them, so that both points lie inside the ball.
    own, paper = (vectors[:, kept] / roots) @ u, n * w
    points = own / max(_length(own, R, slack=SLACK), 1.0), paper / _length(paper, R, slack=SLACK)
    lower, p = max(((float((n * (Rg / size + c * R @ p)).min()), p) for p in points), key=lambda found: found[0])
    upper = float(paper @ Rg) / size + c * _length(paper, R)

    def spread(x: Array) -> Array:
        out = np.zeros(m)
        out[moved] = x
        return out

    return Solution(
        direction=spread((g + c * size * p) / n),
        weights=spread(w),
        guidance=spread(g / n),
        gap=(upper - lower) / c,
    )


def _length(coefficients: Array, G: Array, slack: float = 0.0) -> float:
    """The norm of a combination of rows whose inner products are G, uncertain by `slack` each."""
    square = coefficients @ G @ coefficients + slack * np.abs(coefficients).sum() ** 2
    return float(np.sqrt(np.maximum(square, 0)))


def _give_way(G: Array, step: Array, rng: np.random.Generator) -> Array:
    """Project every row on its conflicting others, one after another; row i of the answer holds its coefficients.

    All rows advance together, each in its own order. `step[j]` multiplies the projection on row j.
    """
    m = len(G)
    rows = np.arange(m)
    order = np.array([rng.permutation(np.delete(rows, i)) for i in rows])
    Q, P = np.eye(m), G.copy()  # coefficients, and their inner products with every row
    for j in order.T:
        conflict = np.minimum(P[rows, j], 0) * step[j]
        Q[rows, j] -= conflict
        P -= conflict[:, None] * G[j]
    return Q


def _released(updates: Tensor, c: float, rng: np.random.Generator) -> Tensor:
    """One parameter tensor under the published code's arithmetic; see `confree`."""
    G = gram(updates)
    check_finite("confree", np.diagonal(G))
    m = len(G)
    g = _give_way(G, np.ones(m), rng).mean(0)
    b, radius = G @ g, c * _length(g, G)
    uniform = np.full(m, 1 / m)

    def objective(w: Array) -> float:
        return float(w @ b + radius * np.sqrt(_length(w, G) ** 2 + 1e-8))

    w = minimize(objective, uniform, bounds=[(0, 1)] * m, constraints={"type": "eq", "fun": lambda w: 1 - w.sum()}).x
    d = g + radius / (_length(w, G) + 1e-8) * w
    return combine(d / (1 + c * c), updates)
