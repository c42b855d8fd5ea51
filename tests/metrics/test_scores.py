"""Summaries of per-client scores."""

import numpy as np
import pytest

from fairlead.core.errors import InputError
from fairlead.metrics import over_seeds, summarise


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
