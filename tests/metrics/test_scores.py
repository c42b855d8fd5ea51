"""Summaries of per-client scores, and verdicts with an interval."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InputError
from fairlead.metrics import difference_interval, over_seeds, summarise


def test_summary_by_hand() -> None:
    acc = np.arange(1, 41) / 40
    s = summarise(acc, np.full(40, 0.5), np.arange(1, 41))
    assert s["accuracy"] == pytest.approx(acc.mean())
    assert s["accuracy_samples"] == pytest.approx((acc * np.arange(1, 41)).sum() / 820)
    assert s["low5"] == pytest.approx(1.5 / 40)
    assert s["top5"] == pytest.approx(39.5 / 40)
    assert s["ptr"] == pytest.approx(0.5)
    assert s["r_accuracy"] == pytest.approx(acc.mean() / 0.5 - 1)
    assert s["std"] == pytest.approx(acc.std())


@pytest.mark.parametrize(("clients", "few"), [(1, 1), (20, 1), (21, 2), (100, 5)])
def test_five_percent_is_rounded_up(clients: int, few: int) -> None:
    acc = np.linspace(0.1, 0.9, clients)
    assert summarise(acc, acc, np.ones(clients))["low5"] == pytest.approx(acc[:few].mean())


def test_summary_refuses() -> None:
    with pytest.raises(InputError, match="one number per client"):
        summarise([0.5], [0.5, 0.5], [1, 1])
    with pytest.raises(InputError, match="no client has a test sample"):
        summarise([0.5], [0.5], [0])


def test_over_seeds_uses_the_sample_deviation() -> None:
    table = over_seeds([{"ptr": 0.25}, {"ptr": 0.5}, {"ptr": 0.75}])
    assert table["ptr"] == {"mean": pytest.approx(0.5), "std": pytest.approx(0.25)}
    assert over_seeds([{"ptr": 0.25}])["ptr"]["std"] is None
    with pytest.raises(InputError, match="disagree"):
        over_seeds([{"ptr": 0.5}, {"std": 0.5}])
    with pytest.raises(InputError, match="no summaries"):
        over_seeds([])


def test_the_interval_is_built_from_two_wilson_intervals() -> None:
    i = difference_interval([56], [42], [70])
    p, q, n, z = 0.8, 0.6, 70, 1.959964

    def wilson(p: float) -> tuple[float, float]:
        mid, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (mid - half) / (1 + z * z / n), (mid + half) / (1 + z * z / n)

    (p_low, p_high), (q_low, q_high) = wilson(p), wilson(q)
    assert i.lower[0] == pytest.approx(0.2 - np.hypot(p - p_low, q_high - q), abs=1e-6)
    assert i.upper[0] == pytest.approx(0.2 + np.hypot(p_high - p, q - q_low), abs=1e-6)
    assert i.verdict.tolist() == ["helped"]


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(60, 90))
def test_the_interval_holds_the_difference_and_mirrors(a: int, b: int, n: int) -> None:
    i, j = difference_interval([a], [b], [n]), difference_interval([b], [a], [n])
    assert -1 <= i.lower[0] <= i.difference[0] <= i.upper[0] <= 1
    assert i.lower[0] == pytest.approx(-j.upper[0])
    mirror = {"helped": "hurt", "hurt": "helped", "unclear": "unclear"}
    assert mirror[i.verdict[0]] == j.verdict[0]
    if a == b:
        assert i.verdict[0] == "unclear"


def test_nobody_is_hurt_on_little_evidence() -> None:
    i = difference_interval([0, 3, 0], [1, 5, 0], [1, 5, 0])
    assert i.verdict.tolist() == ["unclear"] * 3
    assert (i.lower[2], i.upper[2]) == (-1, 1)


def test_interval_refuses() -> None:
    with pytest.raises(InputError, match="between 0 and n"):
        difference_interval([5], [1], [4])
    with pytest.raises(InputError, match="level must lie"):
        difference_interval([1], [1], [4], level=1.0)
