"""Trainings of a comparison in other processes, and tools that are fitted once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock

import fairlead
from fairlead.catalogue import parse
from fairlead.comparison import assess, beside, tools
from fairlead.comparison.bench import FOLD
from fairlead.core.errors import DivergedError, RunError
from fairlead.runs import run
from fairlead.runs.files import read_json
from fairlead.runs.summary import read_summary


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(90, 3)).round(3), columns=["a", "b", "c"])
    frame["ill"] = np.where(frame["a"] + rng.normal(size=90) > 0, "yes", "no")
    frame["site"] = np.repeat(["north", "south", "west"], 30)
    frame.to_csv(tmp_path / "ward.csv", index=False)
    return tmp_path / "ward.csv"


def compared(table: Path, out: Path, **further: Any) -> fairlead.Comparison:
    methods = further.pop("methods", ["fedavg", "ditto"])
    plain: dict[str, Any] = {
        "label": "ill",
        "split": "column",
        "column": "site",
        "folds": 2,
        "effort": "quick",
        "rounds": 4,
    }
    return fairlead.compare(methods, data=str(table), out=out, engine="vectorised", **plain | further)


def no_training(*given: object, **named: object) -> None:
    raise AssertionError("trained again")


def compare_module() -> Any:
    return sys.modules["fairlead.comparison.compare"]  # the package has a function of that name


def scores(folder: Path) -> list[list[float | None]]:
    return [way["scores"] for way in read_summary(folder)["findings"]["ways"]]


def test_another_process_makes_the_same_bits_which_this_one_reads(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scores(compared(table, tmp_path / "alone").folder)
    with monkeypatch.context() as patch:
        # Nothing is trained here: the folder has its settings, and the comparison stops.
        patch.setattr(assess, "trained", lambda *given: (_ for _ in ()).throw(RunError("stopped")))
        with pytest.raises(RunError, match="stopped"):
            compared(table, tmp_path / "both")
    command = [sys.executable, "-m", "fairlead.comparison", str(tmp_path / "both")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as other:
        assert other.stderr is not None
        told = other.stderr.read()
    assert other.returncode == 0, told
    with monkeypatch.context() as patch:
        patch.setattr(run, "train", no_training)
        patch.setattr(tools, "yardsticks", no_training)
        patch.setattr(compare_module(), "train_on_all_rows", lambda *given: {})
        assert scores(compared(table, tmp_path / "both").folder) == expected


def test_work_is_shared_where_there_is_enough_of_it(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    begin = beside.begin

    def counted(folder: Path) -> subprocess.Popen[bytes]:
        started.append(folder)
        return begin(folder)

    monkeypatch.setattr(beside, "cores", lambda: 2)
    monkeypatch.setattr(beside, "begin", counted)
    expected = scores(compared(table, tmp_path / "small").folder)
    assert started == []
    monkeypatch.setattr(beside, "WORTH", 0.0)
    monkeypatch.setattr(beside, "SOON", 0.0)
    assert scores(compared(table, tmp_path / "large").folder) == expected
    assert started == [tmp_path / "large"]
    # A method of the caller's own is in no other process.
    own = {"mine": parse("fedavg", {}).method}
    compared(table, tmp_path / "own", methods=own)
    assert started == [tmp_path / "large"]


def test_the_other_end_comes_first_and_choices_before_what_goes_on_from_them() -> None:
    made: list[str] = []
    names = {"a": "", "b": "", "a-final": "a", "b-final": "b"}
    todo = {name: assess.Piece(partial(made.append, name), after) for name, after in names.items()}
    assert list(beside.from_the_other_end(todo)) == ["b", "a", "b-final", "a-final"]


def test_a_piece_waits_for_what_it_goes_on_from(tmp_path: Path) -> None:
    made: list[str] = []
    after = {"choice": "", "final0": "choice", "final1": "final0"}
    todo = {name: assess.Piece(partial(made.append, name), before) for name, before in after.items()}
    (tmp_path / "runs" / "locks").mkdir(parents=True)
    with FileLock(tmp_path / "runs" / "locks" / "choice"):  # another process is at it
        other = threading.Thread(target=beside.take, args=(todo, tmp_path))
        other.start()
        time.sleep(0.5)
        assert made == []
    other.join(30)
    # What a piece goes on from is made again, that is, read from its folder.
    assert made == ["choice", "choice", "final0", "choice", "final0", "final1"]


WAITS = "from fairlead.comparison.__main__ import leave_with_parent; leave_with_parent()"
STARTS = f"""
import subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", {WAITS!r}], stdin=subprocess.PIPE)
print(other.pid, flush=True)
time.sleep(600)
"""


def test_another_process_ends_with_the_one_that_began_it() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        time.sleep(1)
        assert _alive(pid)
        starter.kill()
    for _ in range(600):
        if not _alive(pid):
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} is still there")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_method_that_is_added_leaves_the_tools_as_they_are(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(table, tmp_path / "out")
    monkeypatch.setattr(tools, "yardsticks", no_training)
    compared(table, tmp_path / "out", methods=["fedavg", "ditto", "fedprox"])
    with pytest.raises(AssertionError, match="trained again"):
        compared(table, tmp_path / "out", fresh=True)


def test_each_choice_is_made_once(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every further training begins with it, and each would read the records of all trials again."""
    search = Mock(wraps=assess.search)
    monkeypatch.setattr(assess, "search", search)
    compared(table, tmp_path / "run")
    assert search.call_count == 3 * 2, "LOCAL and two methods, two folds"


def test_a_method_that_diverges_is_named(table: Path, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"local: training diverged at every step size .*; give a smaller one"):
        compared(table, tmp_path / "run", lr=1e30)


@pytest.mark.parametrize("where", ["final", "part"])
def test_a_final_training_that_diverges_is_made_again_with_a_smaller_step_size(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It has more rows than the trials that its step size was chosen by, or others."""
    real, refused = assess.result, set[float]()

    def result(job: run.Job, *given: Any, **named: Any) -> Any:
        folder = job.folder.relative_to(tmp_path / "run").parts
        if (
            any(part.startswith(where) for part in folder)
            and job.name == "fedavg"
            and job.experiment.training.lr > 0.05
        ):
            refused.add(job.experiment.training.lr)
            raise DivergedError("too large")
        return real(job, *given, **named)

    monkeypatch.setattr(assess, "result", result)
    monkeypatch.setattr(beside, "cores", lambda: 1)
    found = compared(table, tmp_path / "run", methods=["fedavg+guard" if where == "part" else "fedavg"])
    assert refused
    searches = found.summary["methods"]["fedavg"]["search"]
    if where == "final":
        assert all(search["lr"] <= 0.05 for search in searches)
        assert any(None in search["tried"].values() for search in searches), "the page says which diverged"
    assert all(score is not None for score in found.summary["findings"]["ways"][-2]["scores"])


def test_folds_start_from_weights_of_their_own_but_draw_the_same_newcomers(table: Path, tmp_path: Path) -> None:
    """Folds from the same first weights would be lucky or unlucky together, and their differences would not show it."""

    def seeds(folder: Path) -> list[int]:
        runs = sorted(folder.glob("runs/fold*/final0/fedavg/**/settings.json"))
        return [read_json(path)["seed"] for path in runs]

    apart, held = tmp_path / "apart", tmp_path / "held"
    compared(table, apart, methods=["fedavg"])
    assert seeds(apart) == [0, FOLD]
    compared(table, held, methods=["fedavg"], unseen=0.4)
    assert seeds(held) == [0, 0]
