"""ConFREE, CAGrad and PCGrad against closed forms, an independent solver and their own certificate."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, NonlinearConstraint, minimize
from torch import Tensor

from fairlead.core.errors import InputError
from fairlead.functional import cagrad, confree, confree_solution, pcgrad
from fairlead.functional.maximin import maximin

RADII = st.sampled_from([0.05, 0.3, 0.5, 0.9])


@st.composite
def updates(draw: st.DrawFn, most: int = 12) -> Tensor:
    """Rows with the accidents of practice: zero rows, duplicates, opposite pairs, scales far from one."""
    m, d, seed = draw(st.integers(1, most)), draw(st.integers(1, 20)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    D = rng.standard_normal((m, d)) + draw(st.sampled_from([0.0, 0.5, 2.0]))
    if m > 2:
        accident = draw(st.sampled_from(["none", "zero", "duplicate", "opposite", "uneven"]))
        if accident == "zero":
            D[0] = 0
        elif accident == "duplicate":
            D[1] = D[0]
        elif accident == "opposite":
            D[1] = -D[0]
        elif accident == "uneven":
            D *= 10 ** rng.uniform(-6, 6, (m, 1))
    return torch.from_numpy(D * 10.0 ** draw(st.integers(-6, 6)))


def guidance(D: np.ndarray) -> np.ndarray:
    """Equation 9, term by term."""
    total = np.zeros(D.shape[1])
    for i in range(len(D)):
        total += D[i]
        for j in range(len(D)):
            if j != i and D[i] @ D[j] < 0:
                total -= D[i] @ D[j] / (D[j] @ D[j]) * D[j]
    return total / len(D)


@settings(max_examples=150, deadline=None)
@given(updates(), RADII)
def test_the_direction_is_in_the_ball_and_certified(D: Tensor, c: float) -> None:
    s = confree_solution(D, c)
    rows = D.numpy()
    moved = rows[np.linalg.norm(rows, axis=1) > 0]
    g, d = s.guidance @ rows, s.direction @ rows
    radius, largest = c * np.linalg.norm(g), np.linalg.norm(rows, axis=1).max()
    assert np.linalg.norm(d - g) <= radius * (1 + 1e-6)
    assert s.weights.min() >= 0
    assert s.weights.sum() == pytest.approx(1)
    if radius > 0:
        mixed = s.weights @ rows
        upper = g @ mixed + radius * np.linalg.norm(mixed)
        assert upper - (moved @ d).min() <= 1e-6 * radius * largest
        np.testing.assert_allclose(g, guidance(rows), atol=1e-9 * np.abs(rows).max() * len(rows))


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_an_independent_solver(seed: int) -> None:
    """max t with d·D_j >= t inside the ball, in the d variables themselves, by a general-purpose solver."""
    rng = np.random.default_rng(seed)
    m, d, c = int(rng.integers(2, 9)), int(rng.integers(2, 7)), float(rng.uniform(0.1, 0.9))
    D = rng.standard_normal((m, d)) + 0.3
    g = guidance(D)
    radius = c * np.linalg.norm(g)
    ball = NonlinearConstraint(lambda x: radius**2 - ((x[:-1] - g) ** 2).sum(), 0, np.inf)
    worst = LinearConstraint(np.c_[D, -np.ones(m)], 0, np.inf)
    start = np.append(g, (D @ g).min())
    found = minimize(lambda x: -x[-1], start, constraints=[ball, worst], method="SLSQP", options={"ftol": 1e-13})
    ours = D @ confree(torch.from_numpy(D), c).numpy()
    assert ours.min() == pytest.approx(found.x[-1], abs=1e-6 * radius * np.linalg.norm(D, axis=1).max())


@pytest.mark.parametrize(("m", "d"), [(200, 400), (200, 30)])
def test_many_clients_keep_the_certificate(m: int, d: int) -> None:
    D = torch.randn(m, d, generator=torch.Generator().manual_seed(0)) + 0.1
    assert confree_solution(D, 0.5).gap < 1e-8


@settings(max_examples=30, deadline=None)
@given(updates(), RADII, st.randoms(use_true_random=False))
def test_the_worst_served_client_does_not_depend_on_the_order(D: Tensor, c: float, random: Any) -> None:
    order = list(range(len(D)))
    random.shuffle(order)
    scale = float(D.norm(dim=1).max()) ** 2 + 1e-300
    moved = D[D.norm(dim=1) > 0]
    a, b = (moved @ confree(x, c) for x in (D, D[order]))
    if len(moved):
        assert float(a.min() - b.min()) / scale == pytest.approx(0, abs=1e-7)


def test_order_does_not_change_the_direction() -> None:
    D = torch.randn(7, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(confree(D.flip(0)), confree(D), rtol=1e-6, atol=1e-7)


@settings(deadline=None)
@given(RADII, st.integers(1, 5), st.sampled_from([1e-6, 1.0, 1e6]))
def test_equal_rows_go_further_the_same_way(c: float, m: int, scale: float) -> None:
    """g = r and Δθ_w = r, so d = (1 + c) r; one client is the case m = 1. As released: (1 + c) / (1 + c²) r."""
    r = scale * torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
    rows = r.expand(m, 3)
    torch.testing.assert_close(confree(rows, c), (1 + c) * r)
    torch.testing.assert_close(cagrad(rows, c), (1 + c) * r)
    if scale >= 1:
        torch.testing.assert_close(confree(rows, c, "released"), (1 + c) / (1 + c * c) * r)


def test_two_orthogonal_clients() -> None:
    """g = (1, 1)/2 already lies between them, so the ball's best point goes on along it."""
    torch.testing.assert_close(confree(torch.eye(2), 0.5), torch.full((2,), 0.75))


@pytest.mark.parametrize("rule", [confree, cagrad, pcgrad])
def test_nothing_to_agree_on_is_zero(rule: Callable[..., Any]) -> None:
    v = torch.tensor([[1.0, 2.0]])
    assert rule(torch.cat([v, -v])).abs().max() < 1e-6
    assert rule(torch.zeros(3, 4)).tolist() == [0.0] * 4


def test_where_no_direction_helps_all_none_is_harmed() -> None:
    """v, -v and u: zero lies in the hull, so the best worst case is 0, reached across v only."""
    D = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    d = confree(D, 0.5)
    assert (D @ d).tolist() == pytest.approx([0, 0, float(d[1])], abs=1e-6)
    assert d[1] > 0


def test_a_client_without_a_change_counts_in_the_mean_only() -> None:
    D = torch.tensor([[4.0, 0.0], [-1.0, 1.0]])
    torch.testing.assert_close(confree(torch.cat([D, torch.zeros(1, 2)])), confree(D) * 2 / 3)


def test_rows_keep_their_dtype_and_small_ones_their_answer() -> None:
    D = torch.randn(5, 50, generator=torch.Generator().manual_seed(2))
    assert confree(D.half()).dtype == torch.float16
    torch.testing.assert_close(confree(1e-6 * D), 1e-6 * confree(D), rtol=1e-4, atol=1e-10)


def test_released_stays_at_the_mean_of_small_updates() -> None:
    """Its solver's absolute tolerance lets it stop where it starts, at uniform weights."""
    D = 1e-4 * (torch.rand(6, 40, generator=torch.Generator().manual_seed(3)) + 0.1)
    torch.testing.assert_close(confree(D, 0.5, "released"), D.mean(0) * 1.5 / 1.25, rtol=2e-3, atol=0)


def test_released_takes_each_tensor_by_itself_and_its_order_from_the_seed() -> None:
    D = 0.3 * torch.randn(6, 10, generator=torch.Generator().manual_seed(4))
    whole = confree(D, 0.5, "released", blocks=[4, 6], seed=1)
    torch.testing.assert_close(whole[:4], confree(D[:, :4], 0.5, "released", seed=1))
    assert torch.equal(whole, confree(D, 0.5, "released", blocks=[4, 6], seed=1))
    assert not torch.equal(whole, confree(D, 0.5, "released", blocks=[4, 6], seed=2))


def test_released_does_not_divide_its_projections() -> None:
    """Two rows, one projection each: v_1 = D_1 - (D_1·D_2) D_2, and alike for v_2."""
    D = torch.tensor([[0.02, 0.0], [-0.01, 0.01]], dtype=torch.float64)
    dot = D[0] @ D[1]
    g = (D[0] - dot * D[1] + D[1] - dot * D[0]) / 2
    mean = D.mean(0)
    expected = (g + 0.5 * g.norm() / mean.norm() * mean) / 1.25
    torch.testing.assert_close(confree(D, 0.5, "released"), expected, rtol=1e-4, atol=0)


def test_cagrad_helps_the_worst_served_more_than_the_mean_does() -> None:
    D = torch.tensor([[4.0, 0.0], [-1.0, 1.0]])
    assert (D @ cagrad(D, 0.5)).min() > (D @ D.mean(0)).min()


def test_pcgrad_on_two_rows_is_both_projections() -> None:
    torch.testing.assert_close(pcgrad(torch.tensor([[4.0, 0.0], [-1.0, 1.0]])), torch.tensor([1.0, 1.5]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(2, 3), 1.5), r"c must lie in \(0, 1\), got 1.5"),
        ((torch.ones(2, 3), 0.0), r"c must lie in \(0, 1\)"),
        ((torch.ones(2, 3), float("nan")), r"c must lie in \(0, 1\)"),
        ((torch.ones(3),), "must be a floating-point matrix"),
        ((torch.ones(2, 3, dtype=torch.int64),), "must be a floating-point matrix"),
        ((torch.ones(0, 3),), "no rows"),
        ((torch.tensor([[1.0], [float("nan")]]),), "row 1 of updates holds NaN"),
        ((torch.tensor([[float("inf")], [1.0]]),), "row 0 of updates holds NaN or infinity"),
        ((torch.ones(2, 3), 0.5, "relased"), "did you mean 'released'"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"confree: .*{message}"):
        confree(*arguments)


def test_blocks_must_fit() -> None:
    with pytest.raises(InputError, match="blocks must add up to the 3 columns of updates, got 5"):
        confree(torch.ones(2, 3), 0.5, "released", blocks=[2, 3])


def test_maximin_of_a_single_row() -> None:
    u, w, gap = maximin(np.array([[1.0]]), np.array([1.0]), 0.5)
    assert (u[0], w[0], gap) == (pytest.approx(1), 1.0, pytest.approx(0, abs=1e-9))


def test_updates_without_columns_are_served_by_nothing() -> None:
    """A method that shares a body, on a model that is all head, sends rows of width zero."""
    assert confree(torch.empty(3, 0)).shape == (0,)
