"""States on disk do what states in memory do, survive a crash, and do not pile up."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead
from fairlead.clients import States, inprocess
from fairlead.runs import run as runs
from fairlead.runs.statefiles import StateFiles

FIRST = {"v": torch.tensor([[1.0, 2.0]]), "n": torch.tensor([[7]])}
N = 9


def rows(ids: list[int], tag: int) -> dict[str, torch.Tensor]:
    t = torch.tensor([[float(tag), float(i)] for i in ids])
    return {"v": t, "n": torch.tensor([[tag] for _ in ids])}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sets(st.integers(0, N - 1), min_size=1, max_size=4), max_size=30), st.integers(1, 5))
def test_as_in_memory_whatever_the_cohorts(
    tmp_path_factory: pytest.TempPathFactory, cohorts: list[set[int]], every: int
) -> None:
    folder = tmp_path_factory.mktemp("states")
    memory, disk = States(N, FIRST), StateFiles(N, FIRST, folder)
    everyone = torch.arange(N)
    for tag, cohort in enumerate(cohorts):
        ids = sorted(cohort)
        for store in (memory, disk):
            store.put(torch.tensor(ids), rows(ids, tag))
        if tag % every == 0:
            disk.save()()
    expected = {n: x.expand(N, *x.shape[1:]) for n, x in memory.get(everyone).items()}
    found = disk.get(everyone)
    assert all(torch.equal(found[n], expected[n]) for n in expected)


def test_a_crash_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    before = StateFiles(N, FIRST, tmp_path)
    before.put(torch.tensor([1, 3]), rows([1, 3], 0))
    before.put(torch.tensor([3, 4]), rows([3, 4], 1))
    saved = {n: x.clone() for n, x in before.save()().items()}
    at_checkpoint = before.get(torch.arange(N))
    for tag in range(2, 8):  # overwrites everything the checkpoint refers to, and is lost
        before.put(torch.tensor([1, 3, 4]), rows([1, 3, 4], tag))
    after = StateFiles(N, FIRST, tmp_path)
    after.load(saved)
    assert all(torch.equal(after.get(torch.arange(N))[n], x) for n, x in at_checkpoint.items())
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_files_do_not_pile_up(tmp_path: Path) -> None:
    store = StateFiles(N, FIRST, tmp_path)
    generator = torch.Generator().manual_seed(0)
    for tag in range(200):
        ids = torch.randperm(N, generator=generator)[:3].sort().values
        store.put(ids, rows(ids.tolist(), tag))
        store.save()()
    # Two generations are kept: what is current, and what the last checkpoint refers to.
    assert len(list(tmp_path.glob("*.safetensors"))) <= 2 * N


def test_a_run_with_states_on_disk_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan: dict[str, Any] = {
        "clients": 5,
        "rounds": 6,
        "evaluate_every": 3,
        "participation": 0.4,
        "engine": "loop",
        "model": "logistic",
    }
    plan |= {"select": "last"}
    usual = fairlead.compare(["ditto"], out=tmp_path / "memory", **plan)
    monkeypatch.setattr(runs, "MEMORY_BYTES", 0)
    monkeypatch.setattr(inprocess, "MODELS_BYTES", 0)
    monkeypatch.setattr(inprocess, "BLOCK_BYTES", 4 * 650 * 2)
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    disk = fairlead.compare(["ditto"], out=tmp_path / "disk", **plan)
    assert list((tmp_path / "disk" / "runs" / "ditto-seed0" / "states").glob("*.safetensors"))
    assert not (tmp_path / "memory" / "runs" / "ditto-seed0" / "states").exists()
    for client in range(5):
        a, b = (r.model("ditto", client).state_dict() for r in (usual, disk))
        assert all(torch.equal(a[n], b[n]) for n in a)
    figures = ("accuracy", "ptr", "bytes_up", "clients")
    a, b = (dict(r.summary["methods"]["ditto"]) for r in (usual, disk))
    assert all(a[f] == b[f] for f in figures)
    with pytest.raises(fairlead.InputError, match="use --select last"):
        fairlead.compare(["ditto"], out=tmp_path / "no", **(plan | {"select": "validation"}))
