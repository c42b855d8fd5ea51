"""Propagation, subspaces, robust aggregations and transfer ratios on plain tensors."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairlead.core.errors import InputError
from fairlead.functional import (
    clip_norm,
    coordinate_median,
    krum,
    positive_transfer_ratio,
    principal_cosines,
    propagate,
    relative_accuracy,
    spread_matrix,
    subspace_similarity,
    trimmed_mean,
)
from fairlead.functional.gram import combine, gram, mix

SEEDS = st.integers(0, 2**32 - 1)
SHARES = st.sampled_from([0.0, 0.3, 0.8, 0.99])


def graph(seed: int, clients: int = 6) -> torch.Tensor:
    """Similarities, some of them zero, and one client on its own."""
    draw = torch.Generator().manual_seed(seed)
    W = torch.rand(clients, clients, generator=draw, dtype=torch.float64)
    W = torch.where(W < 0.3, 0.0, W)
    W[-1] = 0
    return W


@settings(deadline=None)
@given(SEEDS, SHARES)
def test_spread_rows_are_shares(seed: int, a: float) -> None:
    S = spread_matrix(graph(seed), a)
    assert S.min() >= -1e-12
    torch.testing.assert_close(S.sum(1), torch.ones(6, dtype=S.dtype))


@settings(deadline=None)
@given(SEEDS, SHARES)
def test_equal_models_stay_and_a_lonely_client_keeps_its_own(seed: int, a: float) -> None:
    W = graph(seed)
    same = torch.tensor([[1.0, -2.0]]).expand(6, 2)
    torch.testing.assert_close(propagate(same, W, a), same)
    theta = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(propagate(theta, W, a)[-1], theta[-1])


@settings(deadline=None)
@given(SEEDS)
def test_the_fixed_point_is_the_closed_form(seed: int) -> None:
    theta = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    exact = propagate(theta, graph(seed), 0.5)
    torch.testing.assert_close(propagate(theta, graph(seed), 0.5, iterations=60), exact)
    assert torch.equal(propagate(theta, graph(seed), 0.5, iterations=0), theta)


def test_two_clients_by_hand() -> None:
    """(1-a)(I - aP)⁻¹ with P the swap has 1/(1+a) on the diagonal and a/(1+a) off it."""
    swap = torch.tensor([[0.0, 7.0], [2.0, 0.0]])
    expected = torch.tensor([[1.0, 0.25], [0.25, 1.0]], dtype=torch.float64) / 1.25
    torch.testing.assert_close(spread_matrix(swap, 0.25), expected)


@pytest.mark.parametrize(
    ("theta", "W", "a", "message"),
    [
        (torch.ones(2, 3), torch.ones(2, 2), 1.0, r"a must lie in \[0, 1\), got 1.0"),
        (torch.ones(2, 3), torch.ones(3, 3), 0.5, "similarity is for 3 clients, theta for 2"),
        (torch.ones(2, 3), torch.ones(2, 3), 0.5, "square"),
        (torch.ones(2, 3), -torch.ones(2, 2), 0.5, "not negative"),
        (torch.ones(3), torch.ones(3, 3), 0.5, "floating-point matrix"),
    ],
)
def test_propagate_refuses(theta: Tensor, W: Tensor, a: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        propagate(theta, W, a)


def test_principal_cosines_of_a_turned_plane() -> None:
    t = 0.7
    U = torch.eye(4, dtype=torch.float64)[:, :2]
    V = torch.tensor([[1.0, 0.0], [0.0, math.cos(t)], [0.0, math.sin(t)], [0.0, 0.0]], dtype=torch.float64)
    mixed = V @ torch.tensor([[2.0, 1.0], [-1.0, 3.0]], dtype=torch.float64)  # another basis of the same plane
    torch.testing.assert_close(principal_cosines(U, mixed), torch.tensor([1.0, math.cos(t)], dtype=torch.float64))


def test_subspace_similarity_is_the_sum_of_cosines_for_every_pair() -> None:
    U = torch.randn(4, 9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    S = subspace_similarity(U)
    expected = torch.tensor([[float(principal_cosines(u, v).sum()) for v in U] for u in U], dtype=torch.float64)
    torch.testing.assert_close(S, expected)
    torch.testing.assert_close(S.diagonal(), torch.full((4,), 3.0, dtype=torch.float64))


def test_subspaces_refuse_bad_shapes() -> None:
    with pytest.raises(InputError, match="principal_cosines"):
        principal_cosines(torch.ones(3, 1), torch.ones(2, 1))
    with pytest.raises(InputError, match="subspace_similarity"):
        subspace_similarity(torch.ones(3, 2))


def test_median_and_trimmed_mean_against_numpy() -> None:
    rng = np.random.default_rng(0)
    for m in (1, 2, 5, 6):
        x = rng.standard_normal((m, 7))
        np.testing.assert_allclose(coordinate_median(torch.from_numpy(x)).numpy(), np.median(x, 0))
        np.testing.assert_allclose(trimmed_mean(torch.from_numpy(x), 0.0).numpy(), x.mean(0))
    ten = torch.arange(10.0)[:, None] ** 3
    torch.testing.assert_close(trimmed_mean(ten, 0.2), ten[2:8].mean(0))


def test_krum_passes_over_the_outlier() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.1, 0.0], [0.9, 0.1], [1.0, 0.1], [-50.0, 9.0]])
    assert krum(rows, byzantine=1)[0] > 0.8
    torch.testing.assert_close(krum(rows, byzantine=1, keep=4), rows[:4].mean(0))
    torch.testing.assert_close(krum(rows[:1], byzantine=1), rows[0])
    torch.testing.assert_close(krum(rows[:2], byzantine=1, keep=9), rows[:2].mean(0))


def test_clip_shortens_long_rows_only() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.6, 0.8]])
    torch.testing.assert_close(clip_norm(rows, 2.0), torch.tensor([[1.2, 1.6], [0.0, 0.0], [0.6, 0.8]]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: trimmed_mean(x, 0.5), r"share must lie in \[0, 0.5\), got 0.5"),
        (lambda x: krum(x, -1), "byzantine must be >= 0, got -1"),
        (lambda x: krum(x, 1, keep=0), "keep must be >= 1, got 0"),
        (lambda x: clip_norm(x, 0.0), "bound must be > 0, got 0.0"),
        (lambda x: coordinate_median(x[0]), "floating-point matrix"),
    ],
)
def test_robust_rules_refuse(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(torch.ones(3, 2))


def test_transfer_counts_strict_gains() -> None:
    assert positive_transfer_ratio([0.5, 0.6, 0.4], [0.5, 0.5, 0.5]) == pytest.approx(1 / 3)
    assert relative_accuracy([0.6, 0.4], [0.5, 0.5]) == pytest.approx(0.0)


def test_a_client_that_is_right_on_nothing_alone() -> None:
    assert relative_accuracy([0.0, 0.3], [0.0, 0.0]) == pytest.approx(0.5)


def test_transfer_refuses_unequal_lists() -> None:
    with pytest.raises(InputError, match="relative_accuracy: expected one accuracy per client"):
        relative_accuracy([0.5], [0.5, 0.5])


@pytest.mark.parametrize("cores", [1, 3])
def test_products_on_all_cores_are_those_of_one_with_the_same_bits(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    rows = torch.randn(5, 100_003, generator=torch.Generator().manual_seed(0))
    weights = torch.rand(4, 5, generator=torch.Generator().manual_seed(1))
    usual = gram(rows), mix(weights, rows), combine(np.arange(5.0), rows)
    monkeypatch.setattr("fairlead.core.fast.machine.cores", lambda: cores)
    for a, b in zip(usual, (gram(rows), mix(weights, rows), combine(np.arange(5.0), rows)), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))
    exact = rows.double()
    np.testing.assert_allclose(usual[0], (exact @ exact.T).numpy(), rtol=1e-12)
    torch.testing.assert_close(usual[1], weights @ rows)
    torch.testing.assert_close(usual[2].double(), torch.arange(5.0, dtype=torch.float64) @ exact, rtol=1e-6, atol=1e-6)
