"""Folds test every row once, a refit tests the same rows, and an owner's rows do not depend on the others'."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core import Federation
from fairlead.core.errors import InputError
from fairlead.data import Scenario, from_tensors
from fairlead.data.folds import divide, in_folds, shares

SIZES = {"big": 60, "middle": 17, "three": 3, "two": 2, "one": 1}


def table(path: Path, sizes: dict[str, int], quantity: bool = False, seed: int = 0) -> Scenario:
    rng = np.random.default_rng(seed)
    owner = np.repeat(list(sizes), list(sizes.values()))
    x = rng.normal(size=len(owner)).round(3)
    y = (x + rng.normal(size=len(owner))).round(3) if quantity else rng.integers(0, 2, len(owner))
    y[:2] = [0, 1]
    pd.DataFrame({"x": x, "label": y, "who": owner}).to_csv(path, index=False)
    return Scenario(data=str(path), column="who", split="column", clients=None)


def parts(federation: Federation, k: int) -> list[set[int]]:
    """The rows of one owner's three parts."""
    splits = (federation.train, federation.validation, federation.test)
    return [set(s.rows[s.starts[k] : s.starts[k + 1]].tolist()) for s in splits]


@pytest.mark.parametrize("quantity", [False, True])
@pytest.mark.parametrize("count", [2, 5])
def test_every_row_is_tested_once(tmp_path: Path, quantity: bool, count: int) -> None:
    plan = table(tmp_path / "t.csv", SIZES, quantity)
    source = plan.load()
    folds = [plan.build(3, source=source, fold=(i, count)) for i in range(count)]
    assert folds[0].names == ("big", "middle", "three")[: 2 if count == 2 else 3]
    small = "one (1), three (3), two (2)" if count == 2 else "one (1), two (2)"
    assert folds[0].notes == (f"too few rows to train, choose and test with, so they take no part: {small}",)
    rows = pd.read_csv(tmp_path / "t.csv")
    for k, name in enumerate(folds[0].names):
        own = set(np.flatnonzero(rows["who"] == name))
        tested = [parts(f, k)[2] for f in folds]
        assert sorted(row for fold in tested for row in fold) == sorted(own)
        assert max(map(len, tested)) - min(map(len, tested)) <= 1
        for f in folds:
            train, validation, test = parts(f, k)
            assert train
            assert validation
            assert train | validation | test == own
            assert len(train) + len(validation) + len(test) == len(own)
    again = plan.build(3, source=source, fold=(0, count))
    assert torch.equal(again.test.rows, folds[0].test.rows)
    assert not torch.equal(plan.build(4, source=source, fold=(0, count)).test.rows, folds[0].test.rows)


def test_owners_with_one_and_two_rows_where_there_are_no_others(tmp_path: Path) -> None:
    plan = table(tmp_path / "t.csv", {"two": 2, "also": 2, "one": 1})
    folds = [plan.build(0, fold=(i, 3)) for i in range(3)]
    assert folds[0].names == ("also", "one", "two")
    assert sorted(torch.cat([f.test.rows for f in folds]).tolist()) == [0, 1, 2, 3]  # the single row only trains
    assert all(f.train.sizes.min() == 1 for f in folds)
    whole = plan.build(0)
    assert whole.train.sizes.tolist() == [1, 1, 1]
    assert whole.test.sizes.tolist() == [1, 0, 1]
    (sentence,) = whole.notes
    assert sentence.startswith(
        "every owner has fewer than 3 rows, too few to train, choose and test with; check that '"
    )


@pytest.mark.parametrize("fold", [None, (1, 4)])
@pytest.mark.parametrize("quantity", [False, True])
def test_a_refit_tests_the_same_rows_and_trains_on_the_rest(
    tmp_path: Path, fold: tuple[int, int] | None, quantity: bool
) -> None:
    plan = table(tmp_path / "t.csv", SIZES, quantity)
    first, again = (plan.build(5, fold=fold, refit=refit) for refit in (False, True))
    assert torch.equal(first.test.rows, again.test.rows)
    assert again.validation.sizes.tolist() == [0, 0, 0]
    assert again.validation.x.shape == (0, 1)
    for k in range(3):
        assert parts(again, k)[0] == parts(first, k)[0] | parts(first, k)[1]
    x = again.train.x[:, 0]
    assert (abs(float(x.mean())), float(x.std(correction=0))) == pytest.approx((0, 1), abs=1e-5)


def test_an_owners_rows_do_not_depend_on_others(tmp_path: Path) -> None:
    plan = table(tmp_path / "t.csv", {"big": 60, "middle": 17, "three": 3})
    frame = pd.read_csv(tmp_path / "t.csv")
    for fold in (None, (2, 5)):
        first = plan.build(1, fold=fold)
        frame[frame["who"] != "big"].to_csv(tmp_path / "rest.csv", index=False)
        rest = Scenario(data=str(tmp_path / "rest.csv"), column="who", split="column", clients=None).build(1, fold=fold)
        for k, name in enumerate(rest.names):
            moved = [{row + 60 for row in part} for part in parts(rest, k)]
            assert moved == parts(first, first.names.index(name))


def test_classes_are_spread_over_the_parts(tmp_path: Path) -> None:
    y = np.array([0] * 90 + [1] * 10)
    pd.DataFrame({"x": np.arange(100) % 7, "label": y, "who": "all"}).to_csv(tmp_path / "t.csv", index=False)
    plan = Scenario(data=str(tmp_path / "t.csv"), column="who", split="column", clients=None)
    for seed in range(5):
        federation = plan.build(seed)
        counts = [int(s.y.sum()) for s in (federation.train, federation.validation, federation.test)]
        assert np.abs(np.array(counts) - [5, 2, 3]).max() <= 1
        assert all(1 <= int(plan.build(seed, fold=(i, 5)).test.y.sum()) <= 3 for i in range(5))


def test_images_and_tensors_in_folds() -> None:
    source = from_tensors(torch.rand(60, 1, 4, 4), torch.arange(60) % 3)
    for split in ("iid", "dirichlet"):
        plan = Scenario(split=split, clients=4, beta=5.0)
        tested = torch.cat([plan.build(0, source=source, fold=(i, 3)).test.rows for i in range(3)])
        assert sorted(tested.tolist()) == list(range(60))
    usual, refit = (Scenario(clients=4).build(0, source=source, refit=refit) for refit in (False, True))
    assert torch.equal(usual.test.x, refit.test.x)
    assert torch.equal(source.raw[usual.train.rows], usual.train.x)
    assert refit.train.sizes.tolist() == (usual.train.sizes + usual.validation.sizes).tolist()


@pytest.mark.parametrize(
    ("fields", "fold", "reason"),
    [
        ({}, (5, 5), "0 <= i < K"),
        ({}, (0, 1), "K >= 2"),
        ({"samples": (3, 3, 3)}, (0, 2), "samples fixes how many"),
        ({"pool": "train"}, (0, 2), "tests a published part alone"),
    ],
)
def test_folds_that_cannot_be(
    fields: dict[str, str] | dict[str, tuple[int, int, int]], fold: tuple[int, int], reason: str
) -> None:
    parts = np.where(np.arange(60) < 40, "train", "test")
    source = from_tensors(torch.rand(60, 2), torch.arange(60) % 3, parts=parts)
    with pytest.raises(InputError, match=reason):
        Scenario(clients=2, **fields).build(0, source=source, fold=fold)


def test_a_published_part_of_a_table(tmp_path: Path) -> None:
    plan = Scenario(data="heart-disease", split="column", clients=None, pool="train")
    federation = plan.build(0)
    source = plan.load()
    assert set(source.parts[federation.test.rows]) == {"test"}
    assert len(federation.test.y) == 254
    assert set(source.parts[federation.train.rows]) == {"train"}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(2, 8), st.integers(0, 10))
def test_dividing_loses_and_doubles_nothing(n: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, targets = np.arange(n) + 100, np.random.default_rng(seed).integers(0, 3, 200).astype(float)
    pieces = divide(rows, targets, shares(n, [0.5, 0.2, 0.3]), rng)
    assert sorted(np.concatenate(pieces)) == rows.tolist()
    folds = in_folds(rows, targets, count, rng)
    assert sorted(np.concatenate(folds)) == (rows.tolist() if n > 1 else [])
