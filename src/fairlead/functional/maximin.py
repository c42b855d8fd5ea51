"""The best worst case in a ball, certified: the small problem inside ConFREE and CAGrad.

    max over |u| <= 1 of  min_j  h_j + c A_j·u     =     min over w in the simplex of  h·w + c |A'w|

Every u of the ball bounds the value from below and every w of the simplex bounds it from above, so a pair carries its
own certificate: the gap between the two.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

Array = NDArray[np.float64]


def maximin(A: Array, h: Array, c: float, *, tol: float = 1e-10, iterations: int = 50) -> tuple[Array, Array, float]:
    """The pair (u, w) that closes the gap, and the gap.

    A primal-dual interior-point method with Nesterov-Todd scaling and Mehrotra's correction, as in Vandenberghe (The
    CVXOPT linear and quadratic cone program solvers, 2010), for the cone program

        max t    with  s = h + cAu - t >= 0,   a = (1, u) in the second-order cone,
        min h·w + ρ    with  w >= 0,  sum w = 1,   b = (ρ, -cA'w) in the second-order cone,

    whose products w·s + a·b it drives to zero. No row has to be independent of the others, and where every optimal w
    makes A'w vanish it settles in the middle of the optimal u.

    A (m, k) has rows of norm at most about one, h (m,) is of the same size. Cost: a dozen or so iterations of m k².

    >>> u, w, gap = maximin(np.eye(2), np.array([0.0, 0.0]), 0.5)
    >>> u.round(4).tolist(), w.round(4).tolist(), gap < 1e-9
    ([0.7071, 0.7071], [0.5, 0.5], True)
    """
    m, k = A.shape
    F = np.append(c * A, -np.ones((m, 1)), axis=1)  # s = h + F x with x = (u, t)
    x = np.append(np.zeros(k), h.min() - c)
    s, a = h - x[k], np.append(1.0, x[:k])
    w = np.full(m, 1 / m)
    b = np.append(0.0, -(w @ F[:, :k]))
    b[0] = np.linalg.norm(b) + c
    best = x[:k], w, np.inf
    for _ in range(iterations):
        share = w / w.sum()
        gap = float(h @ share + np.linalg.norm(share @ F[:, :k]) - (s + x[k]).min())
        if gap < best[2]:
            best = x[:k], share, gap
        if gap <= tol * c:
            break

        # The scaling takes (s, a) and (w, b) to one and the same point (p, q).
        r, p = np.sqrt(w / s), np.sqrt(w * s)
        cone = _Scaling(a, b)
        q = cone.times(b)
        try:
            newton = _newton(F, w, b, r, cone)
        except LinAlgError:
            break

        _, ds, da, dw, db = newton(-p, -q)
        far = min(1.0, _room(s, ds), _room(w, dw), _reach(a, da), _reach(b, db))
        aim = float(p @ p + q @ q) / (m + 1) * (1 - far) ** 3
        e = -p + (aim - ds * dw) / p
        f = _divide(q, -_product(q, q) - _product(cone.over(da), cone.times(db)) + np.append(aim, np.zeros(k)))
        dx, ds, da, dw, db = newton(e, f)
        length = min(1.0, 0.99 * min(_room(s, ds), _room(w, dw), _reach(a, da), _reach(b, db)))
        x, w, b = x + length * dx, w + length * dw, b + length * db
        s, a = h + F @ x, np.append(1.0, x[:k])
        if not (s.min() > 0 and w.min() > 0 and _det(a) > 0 and _det(b) > 0):  # rounding has used up a slack
            break
    return best


Step = tuple[Array, Array, Array, Array, Array]  # of x, s, a, w, b


def _newton(F: Array, w: Array, b: Array, r: Array, cone: _Scaling) -> Callable[[Array, Array], Step]:
    """Factor the Newton system once; the answer solves it for the step whose scaled halves add up to (e, f)."""
    k = F.shape[1] - 1
    M = (F.T * r**2) @ F
    M[:k, :k] += cone.metric()
    jacobi = 1 / np.sqrt(np.diagonal(M))
    M *= jacobi[:, None] * jacobi
    M.flat[:: k + 2] += 1e-14  # rows that depend on others do no harm; the next step corrects for it
    factor = cho_factor(M, lower=True, overwrite_a=True, check_finite=False)

    def newton(e: Array, f: Array) -> Step:
        rhs = (w + r * e) @ F + np.append((b + cone.over(f))[1:], 1.0)
        dx = jacobi * cho_solve(factor, jacobi * rhs, check_finite=False)
        ds, da = F @ dx, np.append(0.0, dx[:k])
        return dx, ds, da, r * (e - r * ds), cone.over(f - cone.over(da))

    return newton


class _Scaling:
    """The symmetric W with W b = W⁻¹ a, for a and b inside the second-order cone."""

    def __init__(self, a: Array, b: Array) -> None:
        a_size, b_size = np.sqrt(_det(a)), np.sqrt(_det(b))
        a, b = a / a_size, b / b_size
        mirrored = np.append(b[0], -b[1:])
        self.middle: Array = (a + mirrored) / np.sqrt(2 * (1 + a @ b))
        self.v: Array = self.middle.copy()
        self.v[0] += 1
        self.v /= np.sqrt(2 * self.v[0])
        self.square = float(a_size / b_size)

    def times(self, x: Array) -> Array:
        """W x"""
        y: Array = 2 * self.square**0.5 * float(self.v @ x) * self.v
        y[0] -= self.square**0.5 * x[0]
        y[1:] += self.square**0.5 * x[1:]
        return y

    def over(self, x: Array) -> Array:
        """W⁻¹ x"""
        y = self.times(np.append(x[0], -x[1:]))
        y[1:] *= -1
        y /= self.square
        return y

    def metric(self) -> Array:
        """W⁻² on the coordinates of u."""
        tail = self.middle[1:]
        M: Array = np.outer(2 / self.square * tail, tail)
        M.flat[:: len(tail) + 1] += 1 / self.square
        return M


def _det(x: Array) -> float:
    """How far inside the second-order cone: x0² - |x1|²."""
    tail = float(np.linalg.norm(x[1:]))
    return (float(x[0]) - tail) * (float(x[0]) + tail)


def _product(x: Array, y: Array) -> Array:
    """The Jordan product of the second-order cone."""
    return np.append(x @ y, x[0] * y[1:] + y[0] * x[1:])


def _divide(x: Array, y: Array) -> Array:
    """The z with _product(x, z) = y."""
    head = (x[0] * y[0] - x[1:] @ y[1:]) / _det(x)
    return np.append(head, (y[1:] - head * x[1:]) / x[0])


def _room(x: Array, dx: Array) -> float:
    """How far x can go along dx until a coordinate reaches zero."""
    falling = dx < 0
    return float((x[falling] / -dx[falling]).min(initial=np.inf))


def _reach(x: Array, dx: Array) -> float:
    """How far x can go along dx until it leaves the second-order cone: the first root of a quadratic."""
    square, slope, start = _det(dx), float(x[0] * dx[0] - x[1:] @ dx[1:]), _det(x)
    below = np.sqrt(max(slope * slope - square * start, 0.0)) - slope
    return float(start / below) if below > 0 else float("inf")
