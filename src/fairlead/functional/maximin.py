"""The best worst case in a ball, certified: the small problem inside ConFREE and CAGrad.

    max over |u| <= 1 of  min_j  h_j + c A_j·u     =     min over w in the simplex of  h·w + c |A'w|

Every u of the ball bounds the value from below and every w of the simplex bounds it from above, so a pair carries its
own certificate: the gap between the two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

Array = NDArray[np.float64]


def maximin(A: Array, h: Array, c: float, *, tol: float = 1e-10, iterations: int = 60) -> tuple[Array, Array, float]:
    """The pair (u, w) that closes the gap, and the gap: a predictor-corrector interior-point method.

    With slacks s_j = h_j + c A_j·u - t and σ = (1 - |u|²)/2 and multipliers w, λ, it follows the central path

        λ u = c A'w,    sum w = 1,    w_j s_j = μ,    λ σ = μ,    μ -> 0

    by Newton steps (Mehrotra, SIAM J. Optim. 1992; Nocedal and Wright, Section 19.2). No row has to be independent of
    the others, and where every optimal w makes A'w vanish it settles in the middle of the optimal u.

    A (m, k) has rows of norm at most about one, h (m,) is of the same size. Cost: some twenty iterations of m k².

    >>> u, w, gap = maximin(np.eye(2), np.array([0.0, 0.0]), 0.5)
    >>> u.round(4).tolist(), w.round(4).tolist(), gap < 1e-9
    ([0.7071, 0.7071], [0.5, 0.5], True)
    """
    m, k = A.shape
    J = np.zeros((m + 1, k + 1))  # how the slacks z = (s, σ) follow x = (u, t)
    J[:m, :k], J[:m, k] = c * A, -1
    identity = np.append(np.ones(k), 0)
    upwards = np.append(np.zeros(k), 1)  # t is what we raise

    x = np.append(np.zeros(k), h.min() - c)
    z = np.append(h - x[k], 0.5)
    y = 1 / z / (1 / z[:m]).sum()  # the multipliers (w, λ)
    best = x[:k], y[:m], np.inf
    for _ in range(iterations):
        w, reached = y[:m] / y[:m].sum(), z[:m] + x[k]
        gap = float(h @ w + np.linalg.norm(w @ J[:m, :k]) - reached.min())
        if gap < best[2]:
            best = x[:k], w, gap
        if gap <= tol * c:
            break

        J[m, :k] = -x[:k]
        M = (J.T * (y / z)) @ J + np.diag(y[m] * identity)
        scale = 1 / np.sqrt(np.diagonal(M))  # late entries differ by many orders of magnitude
        try:
            factor = cho_factor(scale[:, None] * M * scale, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            break

        # Predict: straight at the optimum. Correct: aim back inside by how far that got, minus the curvature it met.
        dx, dz, dy = _newton(J, factor, scale, z, y, np.zeros(m + 1), upwards)
        mu = float(y @ z) / (m + 1) * (1 - _longest(x[:k], dx[:k], z, dz, y, dy)) ** 3
        aim, bend = mu - dy * dz, dy[m] * dx * identity
        aim[m] += y[m] * (dx[:k] @ dx[:k]) / 2
        dx, dz, dy = _newton(J, factor, scale, z, y, aim, upwards - bend)
        length = 0.995 * _longest(x[:k], dx[:k], z, dz, y, dy)

        x, y = x + length * dx, y + length * dy
        z = np.append(h + J[:m] @ x, (1 - x[:k] @ x[:k]) / 2)
        if not (z.min() > 0 and y.min() > 0):  # rounding has used up a slack: the best pair so far is the answer
            break
    return best


def _newton(
    J: Array, factor: tuple[Array, bool], scale: Array, z: Array, y: Array, aim: Array, pull: Array
) -> tuple[Array, Array, Array]:
    """The step (dx, dz, dy) towards products y z = aim; `factor` is of J' diag(y/z) J + λ I, scaled."""
    dx = scale * cho_solve(factor, scale * ((aim / z) @ J + pull), check_finite=False)
    dz = J @ dx
    return dx, dz, aim / z - y - y / z * dz


def _longest(u: Array, du: Array, z: Array, dz: Array, y: Array, dy: Array) -> float:
    """How far a step can go, at most 1, until a slack or a multiplier reaches zero; σ is quadratic along it."""
    now, change = np.concatenate((z[:-1], y)), np.concatenate((dz[:-1], dy))
    falling = change < 0
    room = (now[falling] / -change[falling]).min(initial=1.0)
    a, b = du @ du, u @ du
    ball = (np.sqrt(b * b + 2 * z[-1] * a) - b) / a if a > 0 else 1.0
    return float(min(room, ball))
