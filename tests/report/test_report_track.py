"""What trackers are told; the packages themselves are stood in for, as none of them is installed for the tests."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.core.errors import InputError
from fairlead.report.track import check_tracker, track
from fairlead.runs.files import read_parts


class Recorder:
    """Writes down every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.summary: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> "Recorder":
            self.calls.append((name, (given, named)))
            return self

        return call

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def of(self, name: str) -> list[Any]:
        return [given for called, given in self.calls if called == name]


def mean_at(folder: Path, method: str, seed: int, round: int) -> float:
    rows = read_parts(folder / "runs" / f"{method}-seed{seed}" / "records.parquet").to_pylist()
    found = [row["accuracy"] for row in rows if (row["round"], row["split"]) == (round, "test")]
    return float(sum(found) / len(found))


def test_tensorboard_has_every_round_and_the_verdicts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers: dict[str, Recorder] = {}

    def writer(path: str) -> Recorder:
        return writers.setdefault(Path(path).name, Recorder())

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=writer))
    assert track(folder, "tensorboard") == f"TensorBoard: tensorboard --logdir {folder / 'tensorboard'}"
    assert len(writers) == 6 * 3
    told = {(name, number): value for (name, value, number), _ in writers["ditto-seed1"].of("add_scalar")}
    assert told["test/personal/accuracy", 30] == pytest.approx(mean_at(folder, "ditto", 1, 30))
    summary = json.loads((folder / "summary.json").read_text())
    ditto = next(way for way in summary["findings"]["ways"] if way["name"] == "ditto")
    better = sum(v["verdict"] == "better" for v in ditto["verdicts"])
    assert told["final/owners better", 50] == better > 0
    assert told["final/gain", 50] == ditto["gain"]


def test_mlflow_has_a_run_for_every_method_and_seed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "report.html").write_text("page")
    mlflow = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    assert track(folder, "mlflow").startswith("MLflow: experiment 'fairlead'")
    names = [named["run_name"] for _, named in mlflow.of("start_run")]
    assert len(names) == len(set(names)) == 6 * 3
    assert len(mlflow.of("log_artifact")) == 6 * 3
    (params,), _ = mlflow.of("log_params")[0]
    assert (params["method"], params["seed"], params["rounds"]) == ("local", "0", "50")


def test_wandb_is_finished_after_every_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Recorder()
    wandb = SimpleNamespace(init=lambda **named: run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    assert track(folder, "wandb") == "Weights & Biases: project 'fairlead'"
    assert len(run.of("finish")) == 6 * 3
    assert "final/score" in run.summary


def test_a_tracker_that_is_not_there_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="--track wandb needs a package that is missing: pip install wandb"):
        check_tracker("wandb")
    with pytest.raises(InputError, match="--track tensorbord: unknown; did you mean 'tensorboard'"):
        check_tracker("tensorbord")
