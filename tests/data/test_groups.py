"""Rows about the same patient stay together, and count as one patient in a verdict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fairlead.comparison.all_rows import joined
from fairlead.comparison.decisions import in_parts
from fairlead.core import Federation, InputError
from fairlead.data import from_tensors
from fairlead.data.scenario import Scenario
from fairlead.metrics import OwnerPairs, PairedRun, judge, metric


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Two hospitals with 20 patients each, who have the same numbers, and one to four visits."""
    rng = np.random.default_rng(0)
    rows = [
        {"hospital": who, "patient": p, "pulse": rng.normal(), "ill": int(p % 3 == 0)}
        for who in "AB"
        for p in range(20)
        for _ in range(1 + p % 4)
    ]
    path = tmp_path / "visits.csv"
    pd.DataFrame(rows).sample(frac=1, random_state=0).to_csv(path, index=False)
    return path


def scenario(path: Path, **more: str) -> Scenario:
    return Scenario(data=str(path), label="ill", column="hospital", split="column", clients=None, **more)  # type: ignore[arg-type]


def owned(federation: Federation, client: int, part: str) -> set[int]:
    split = getattr(federation, part)
    return set(split.groups[split.starts[client] : split.starts[client + 1]].tolist())


@pytest.mark.parametrize("fold", [None, (1, 5)])
def test_the_rows_of_a_patient_are_in_one_part(visits: Path, fold: tuple[int, int] | None) -> None:
    federation = scenario(visits, group="patient").build(0, fold=fold)
    for client in range(2):
        parts = [owned(federation, client, part) for part in ("train", "validation", "test")]
        assert all(parts)
        assert sum(map(len, parts)) == 20
    assert sum(int(s.sizes.sum()) for s in (federation.train, federation.validation, federation.test)) == 100
    assert not owned(federation, 0, "train") & owned(federation, 1, "train")  # equal numbers, other patients


def test_every_patient_is_tested_once(visits: Path) -> None:
    folds = [scenario(visits, group="patient").build(0, fold=(i, 5)) for i in range(5)]
    rows = torch.cat([f.test.rows for f in folds])
    assert sorted(rows.tolist()) == list(range(100))


def test_parts_of_the_guard_keep_patients_together(visits: Path) -> None:
    federation = scenario(visits, group="patient").build(0, fold=(0, 5), refit=True)
    for part in in_parts(federation, 3, seed=0, validation=0.2):
        for client in range(2):
            train, held, test = (owned(part, client, name) for name in ("train", "validation", "test"))
            assert train
            assert held
            assert test
            assert not (train & test)
            assert not (train & held)
            assert not (held & test)
    assert set(joined(federation).train.groups.tolist()) == set(
        federation.train.groups.tolist() + federation.test.groups.tolist()
    )


def test_an_empty_group_is_about_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    frame = pd.DataFrame({"who": ["a"] * 6, "person": ["x", "X ", "", "", "y", "y"], "v": range(6), "ill": [0, 1] * 3})
    frame.to_csv(path, index=False)
    how = Scenario(data=str(path), label="ill", column="who", split="column", clients=None, group="person")
    groups = how.load().columns["person"]
    assert groups[0] == groups[1]
    assert groups[4] == groups[5]
    assert len(set(groups.tolist())) == 4


def test_tensors_of_ones_own_can_have_groups() -> None:
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    who, visit = np.arange(40) % 2, np.arange(40) // 4
    source = from_tensors(x, y, columns={"site": who, "person": visit * 2 + who})
    federation = Scenario(data="tensors", split="column", column="site", clients=None, group="person").build(
        0, source=source
    )
    assert not owned(federation, 0, "train") & owned(federation, 0, "test")
    with pytest.raises(InputError, match="no column 'nobody'"):
        Scenario(data="tensors", split="column", column="site", clients=None, group="nobody").build(0, source=source)


def test_a_repeated_id_is_no_feature_and_says_what_to_do(visits: Path) -> None:
    found = scenario(visits).load().table
    assert found is not None
    (note,) = [n for n in found.notes if "'patient'" in n]
    assert "90 rows share" in note
    assert "--group patient" in note
    assert {c.name: c.role for c in found.columns}["patient"] == "id"
    together = scenario(visits, group="patient").load().table
    assert together is not None
    assert not together.notes


@pytest.mark.parametrize(("more", "says"), [({"group": "ill"}, "label or the owner"), ({"group": "who"}, "no column")])
def test_what_cannot_be_a_group_is_refused(visits: Path, more: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        scenario(visits, **more).load()


def test_copies_of_rows_add_no_evidence() -> None:
    """Every row five times over: with groups the verdict is that of the rows once; without, it is far too sure."""
    rng = np.random.default_rng(1)
    n, times = 60, 5
    y = rng.integers(2, size=n)
    right, wrong = np.eye(2)[y], np.eye(2)[1 - y]
    method = np.where(rng.random(n)[:, None] < 0.85, right, wrong)
    control = np.where(rng.random(n)[:, None] < 0.75, right, wrong)

    def told(groups: bool, copies: int) -> list[float | None]:
        index = np.repeat(np.arange(n), copies)
        about = index if groups else ()
        run = PairedRun(np.arange(len(index)), y[index], method[index], control[index], groups=about)
        (verdict,) = judge([OwnerPairs("a", [run])], metric("accuracy"))
        return [verdict.gain, verdict.lower, verdict.upper]

    once, grouped, flat = told(False, 1), told(True, times), told(False, times)
    np.testing.assert_allclose(np.array(grouped, float), np.array(once, float), atol=1e-9)
    assert once[1] is not None
    assert flat[1] is not None
    assert once[0] is not None
    assert flat[0] is not None
    assert flat[0] - flat[1] < 0.75 * (once[0] - once[1])


def test_a_verdict_counts_groups_by_their_name() -> None:
    y = np.zeros(12, dtype=int)
    ours, theirs = np.tile([1.0, 0.0], (12, 1)), np.tile([1.0, 0.0], (12, 1))
    run = PairedRun(np.arange(12), y, ours, theirs, groups=np.arange(12) // 3)
    (verdict,) = judge([OwnerPairs("a", [run])], metric("accuracy"))
    assert verdict.rows == 4
    assert verdict.why.startswith("4 groups of test rows")
    with pytest.raises(InputError, match="say it of all or of none"):
        judge([OwnerPairs("a", [PairedRun(np.arange(12), y, ours, theirs, groups=[1, 2])])], metric("accuracy"))
