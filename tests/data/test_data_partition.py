"""Partitions use each sample at most once, never leave a client empty, and say why a request is impossible."""

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random._generator import Generator

from fairlead.core.errors import DataError, InputError
from fairlead.data import by_column, consecutive, dirichlet, from_flwr, iid, like, pathological, quantity


def rng(seed: int = 0) -> Generator:
    return np.random.default_rng(seed)


def splits(labels: list[int], clients: int, seed: int, beta: float, skew: float) -> dict[str, list[np.ndarray]] | None:
    n = len(labels)
    return {
        "iid": iid(n, clients, rng(seed)),
        "quantity": quantity(n, clients, rng(seed), skew=skew),
        "dirichlet": dirichlet(labels, clients, rng(seed), beta=beta),
    }


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=80),
    clients=st.integers(1, 20),
    seed=st.integers(0, 2**32),
    beta=st.sampled_from([1e-320, 1e-3, 0.1, 1.0, 1e6]),
    skew=st.floats(0, 50),
)
def test_each_sample_once_nobody_empty_and_deterministic(
    labels: list[int], clients: int, seed: int, beta: float, skew: float
) -> None:
    if clients > len(labels):
        with pytest.raises(InputError, match="samples"):
            splits(labels, clients, seed, beta, skew)
        return
    again = splits(labels, clients, seed, beta, skew)
    for name, parts in splits(labels, clients, seed, beta, skew).items():
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels))), name
        assert len(parts) == clients, name
        assert min(map(len, parts)) >= 1, name
        assert all(np.array_equal(a, b) for a, b in zip(parts, again[name], strict=True)), name


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    clients=st.integers(1, 12),
    k=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_pathological_gives_exactly_k_classes(sizes: list[int], clients: int, k: int, seed: int) -> None:
    labels = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    if k > len(sizes) or sum(min(s, clients) for s in sizes) < clients * k:
        with pytest.raises(InputError):
            pathological(labels, clients, rng(seed), k=k)
        return
    parts = pathological(labels, clients, rng(seed), k=k)
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    assert all(len(np.unique(labels[part])) == k for part in parts)
    if clients * k >= len(sizes):
        assert len(used) == len(labels)  # every class is covered
    again = pathological(labels, clients, rng(seed), k=k)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_pathological_is_balanced() -> None:
    labels = np.repeat(np.arange(10), 600)
    sizes = [len(part) for part in pathological(labels, 20, rng(), k=2)]
    assert sizes == [300] * 20


def test_consecutive_deals_classes_in_turn() -> None:
    labels = rng().permutation(np.repeat(np.arange(5), 40))
    held = [np.unique(labels[part]).tolist() for part in consecutive(labels, 5, rng(), k=2)]
    assert held == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]


def test_minimum_is_met_from_the_largest() -> None:
    labels = np.repeat(np.arange(3), 40)
    parts = dirichlet(labels, 10, rng(), beta=1e-3, minimum=12)
    assert [len(part) for part in parts] == [12] * 10
    each = np.arange(1, 11)
    parts = iid(60, 10, rng(), minimum=each)
    assert (np.array([len(part) for part in parts]) >= each).all()
    assert sum(map(len, parts)) == 60


def test_beta_sets_the_skew() -> None:
    labels = np.repeat(np.arange(10), 500)
    kinds = [
        np.mean([len(np.unique(labels[p])) for p in dirichlet(labels, 10, rng(), beta=b)]) for b in (0.01, 0.1, 100.0)
    ]
    assert kinds[0] < kinds[1] < kinds[2] == 10


def test_quantity_follows_proportions() -> None:
    assert [len(p) for p in quantity(100, 3, rng(), proportions=[1, 2, 7])] == [10, 20, 70]
    sizes = sorted(len(p) for p in quantity(1100, 2, rng(), skew=1.0))
    assert sizes == [367, 733]


def test_column_one_client_per_value_or_neighbours_together() -> None:
    years = np.array([1990, 1930, 1930, 2000, 1991])
    assert [p.tolist() for p in by_column(years)] == [[1, 2], [0], [4], [3]]
    assert [p.tolist() for p in by_column(years, 2)] == [[1, 2], [0, 3, 4]]
    assert [p.tolist() for p in by_column(np.array(["b", "a"], dtype=object))] == [[1], [0]]
    skewed = np.repeat(np.arange(6), [1, 1, 1, 100, 1, 1])
    for clients in range(1, 7):
        assert min(map(len, by_column(skewed, clients))) >= 1
    with pytest.raises(InputError, match="row 2 is missing"):
        by_column(np.array(["a", None], dtype=object))
    with pytest.raises(InputError, match="row 1 is missing"):
        by_column(np.array([np.nan, 1.0]))
    with pytest.raises(InputError, match="only 4 different"):
        by_column(years, 5)
    with pytest.raises(InputError, match=r"client 1 \(1990\) has 1 samples"):
        by_column(years, minimum=[1, 2, 1, 1])


def test_like_follows_the_first_pool() -> None:
    labels = np.repeat(np.arange(5), 100)
    parts = pathological(labels, 5, rng(), k=2)
    test = np.repeat(np.arange(6), 20)
    second = like(test, parts, labels, rng(1))
    for a, b in zip(parts, second, strict=True):
        assert set(test[b]) == set(labels[a])
    assert sum(map(len, second)) == 100  # nobody trains on class 5, so nobody is tested on it
    with pytest.raises(InputError, match="lower clients"):
        like(np.repeat(5, 100), parts, labels, rng(1))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: iid(10, 0, rng()), "clients must be at least 1"),
        (lambda: iid(0, 1, rng(), minimum=0), "no samples"),
        (lambda: iid(10, 4, rng(), minimum=3), "need 12 samples, and there are 10"),
        (lambda: quantity(10, 2, rng(), skew=-1), "skew must be >= 0"),
        (lambda: quantity(10, 2, rng(), proportions=[1]), "2 positive numbers"),
        (lambda: dirichlet([0, 1], 1, rng(), beta=0), "beta must be > 0"),
        (lambda: dirichlet([0, 1], 1, rng(), beta=float("nan")), "beta must be > 0"),
        (lambda: pathological([0, 1, 0, 1], 2, rng(), k=3), "k must be 1 to 2"),
        (lambda: pathological([0, 1, 1, 1], 2, rng(), k=2), "samples for only 3"),
        (lambda: pathological([0] * 9 + [1], 2, rng(), k=1, minimum=3), "needs 3"),
        (lambda: consecutive([0, 1], 2, rng(), k=3), "k must be 1 to 2"),
        (lambda: consecutive([0] * 9 + [1], 2, rng(), k=1, minimum=3), "client 1 gets 1 samples .* needs 3"),
    ],
)
def test_impossible_requests(call: Callable[..., Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        call()


def test_sixty_thousand_labels_into_a_thousand_clients_is_quick() -> None:
    labels = rng().integers(0, 10, 60_000)
    for split in (
        lambda: iid(60_000, 1_000, rng()),
        lambda: quantity(60_000, 1_000, rng()),
        lambda: dirichlet(labels, 1_000, rng(), beta=0.1, minimum=10),
        lambda: pathological(labels, 1_000, rng(), k=2),
        lambda: by_column(np.arange(60_000) % 1_000),
    ):
        start = time.process_time()
        assert len(split()) == 1_000
        assert time.process_time() - start < 1


class FakePartitioner:
    """The interface of a flwr-datasets partitioner, dealing out samples in turn."""

    num_partitions = 3
    dataset: dict[str, np.ndarray]

    def load_partition(self, i: int) -> dict[str, np.ndarray]:
        return {name: values[i::3] for name, values in self.dataset.items()}


def test_flwr_partitioner(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(Dataset=SimpleNamespace(from_dict=dict))
    monkeypatch.setitem(sys.modules, "datasets", fake)
    partitioner = FakePartitioner()
    parts = from_flwr(partitioner, np.arange(7) % 2, {"user": np.arange(7)})
    assert [part.tolist() for part in parts] == [[0, 3, 6], [1, 4], [2, 5]]
    assert set(partitioner.dataset) == {"label", "user", "fairlead_index"}


def test_flwr_partitioner_without_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"fairlead\[hub\]"):
        from_flwr(FakePartitioner(), [0, 1])
