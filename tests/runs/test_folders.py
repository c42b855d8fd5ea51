"""Folders: resumable after a kill at any moment, reusable, never half written."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fairlead
from fairlead.core import Federation, Split
from fairlead.rounds import Round, Score
from fairlead.runs import files, identity, summary
from fairlead.runs.records import Records

SMALL: dict[str, Any] = {"clients": 4, "rounds": 6, "evaluate_every": 2, "engine": "loop", "model": "logistic"}
SMALL |= {"steps": 3}  # a round is little work


def tensors(folder: Path, run: str) -> dict[str, torch.Tensor]:
    return load_file(folder / "runs" / run / "checkpoint.safetensors")


def same_bits(a: Path, b: Path, run: str) -> None:
    left, right = tensors(a, run), tensors(b, run)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[n], right[n]) for n in left)
    records = [files.read_parts(f / "runs" / run / "records.parquet").to_pydict() for f in (a, b)]
    assert records[0] == records[1]


def test_killed_at_any_moment_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    settings = "clients=4, rounds=60, evaluate_every=20, engine='loop', model='logistic', participation=0.5, steps=3"
    # Checkpoints after every round, so that kills fall inside writes too.
    program = (
        "import sys, fairlead; from fairlead.runs import run; run.CHECKPOINT_SECONDS = 0.0;"
        f"fairlead.compare(['fedora'], out=sys.argv[1], {settings})"
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([sys.executable, "-c", program, str(whole)], check=True, timeout=600)
    kills = 0
    for pause in (0.1, 0.5, 0.3):
        process = subprocess.Popen([sys.executable, "-c", program, str(broken)])
        deadline = time.monotonic() + 600
        while process.poll() is None and not list(broken.glob("runs/*/checkpoint.safetensors")):
            assert time.monotonic() < deadline, "no checkpoint appeared"
            time.sleep(0.01)
        time.sleep(pause)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills > 0, "every run ended before it could be killed; make it longer"
    fairlead.resume(broken)
    for run in ("local-seed0", "fedora-seed0"):
        same_bits(whole, broken, run)
    assert [path.name for path in broken.rglob(".*")] in ([], [".lock"])


def test_a_finished_folder_is_reused_and_other_settings_are_refused(tmp_path: Path) -> None:
    first = fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    stamp = (tmp_path / "runs" / "fedavg-seed0" / "checkpoint.safetensors").stat().st_mtime_ns
    again = fairlead.compare(["fedavg", "fedprox"], out=tmp_path, **SMALL)
    assert (tmp_path / "runs" / "fedavg-seed0" / "checkpoint.safetensors").stat().st_mtime_ns == stamp
    assert again.summary["methods"]["fedavg"] == first.summary["methods"]["fedavg"]
    with pytest.raises(fairlead.RunError, match=r"something else: training\.lr: 0\.05 there, 0\.5 here"):
        fairlead.compare(["fedavg"], out=tmp_path, **SMALL, lr=0.5)


def test_resume_from_a_run_folder_finishes_its_comparison(tmp_path: Path) -> None:
    fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    (tmp_path / "runs" / "fedavg-seed0" / "summary.json").unlink()
    result = fairlead.resume(tmp_path / "runs" / "fedavg-seed0")
    assert (tmp_path / "runs" / "fedavg-seed0" / "summary.json").exists()
    assert sorted(result.summary["methods"]) == ["fedavg", "local"]


@pytest.mark.parametrize("damage", [b"", b"not a safetensors file", None])
def test_a_corrupt_checkpoint_is_one_sentence(tmp_path: Path, damage: bytes | None) -> None:
    fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    run = tmp_path / "runs" / "fedavg-seed0"
    (run / "summary.json").unlink()
    path = run / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100] if damage is None else damage)
    with pytest.raises(fairlead.RunError, match=r"checkpoint.safetensors is corrupt .* delete that file"):
        fairlead.resume(tmp_path)


def test_bad_input_leaves_no_folder(tmp_path: Path) -> None:
    for wrong in (
        {"methods": ["fedavgg"]},
        {"methods": ["fedavg"], "clients": 10**6},
        {"methods": ["fedavg"], "rond": 1},
    ):
        out = tmp_path / "out"
        with pytest.raises(fairlead.InputError):
            fairlead.compare(out=out, **wrong)
        assert not out.exists()


def test_an_engine_that_cannot_run_the_model_refuses_before_the_folder(tmp_path: Path) -> None:
    def normed(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes), torch.nn.BatchNorm1d(classes))

    with pytest.raises(fairlead.EngineError, match="use --engine threads or loop"):
        fairlead.compare(
            ["fedavg"],
            out=tmp_path / "o",
            model=normed,
            **({k: v for k, v in SMALL.items() if k != "model"} | {"engine": "vectorised"}),
        )
    assert not (tmp_path / "o").exists()


def test_the_deployed_model_scores_what_the_summary_says() -> None:
    result = fairlead.compare(["ditto"], **SMALL)
    job = result.jobs["ditto", 0]
    for client in range(4):
        x, y = job.federation.test.client(client)
        accuracy = (result.model("ditto", client)(x).argmax(1) == y).double().mean()
        reported = result.summary["methods"]["ditto"]["clients"][client]["accuracy"]
        assert float(accuracy) == pytest.approx(reported, abs=1e-6)


def test_local_is_always_the_control_and_shares_split_and_weights() -> None:
    result = fairlead.compare(["fedavg"], seeds=2, **SMALL)
    assert list(result.summary["methods"]) == ["local", "fedavg"]
    assert result.summary["control"] == "local"
    assert result.jobs["local", 1].module is result.jobs["fedavg", 1].module
    assert result.summary["methods"]["fedavg"]["spread"]["accuracy"] is not None
    assert result.summary["methods"]["local"]["ptr"] == 0.0


def test_summary_has_what_it_promises(tmp_path: Path) -> None:
    fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    summary = json.loads((tmp_path / "summary.json").read_text())
    entry = summary["methods"]["fedavg"]
    promised = "accuracy r_accuracy ptr low5 top5 std bytes_up bytes_down train_seconds samples_per_second clients"
    assert set(promised.split()) <= entry.keys()
    assert {"id", "n_train", "accuracy", "local_accuracy"} <= entry["clients"][0].keys()
    assert entry["round"]["rule"] == "validation"
    parameters = 64 * 10 + 10
    assert entry["bytes_up"] == entry["bytes_down"] == 4 * parameters * 4 * 6  # bytes, parameters, clients, rounds


def test_your_own_method_model_and_data_without_touching_the_library() -> None:
    x, y = torch.randn(200, 5), torch.randint(0, 2, (200,))
    source = fairlead.data.from_tensors(x, y)
    result = fairlead.compare(
        {"mine": fairlead.parse("fedavg").method},
        source=source,
        model=lambda shape, classes: torch.nn.Linear(shape[0], classes),
        clients=3,
        rounds=2,
        engine="loop",
    )
    assert isinstance(result.model("mine", 0), torch.nn.Linear)
    assert identity.versions()["fairlead"]


def test_any_metric_is_a_column_of_the_records(tmp_path: Path) -> None:
    split = Split(torch.zeros(5, 1), torch.zeros(5), torch.tensor([0, 2, 5]))
    data = Federation(split, split, split, ())
    records = Records()
    loss, rmse = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    for t, values in ((1, {"loss": loss}), (2, {"loss": loss, "rmse": rmse}), (3, {"loss": loss, "accuracy": rmse})):
        records.add(Round(t, 0.0, 0, 0, 0, {}, [Score("personal", "test", values)]), data)
    records.save(tmp_path / "records.parquet", 3)
    found = files.read_parts(tmp_path / "records.parquet").to_pydict()
    assert list(found) == ["round", "client", "split", "model", "accuracy", "loss", "n", "rmse"]
    assert found["loss"] == [1.0, 2.0] * 3
    assert found["rmse"] == [None, None, 3.0, 4.0, None, None]
    assert found["accuracy"] == [None, None, None, None, 3.0, 4.0]
    assert found["n"] == [2, 3] * 3


def test_a_summary_has_one_shape_that_is_checked_when_written_and_when_read(tmp_path: Path) -> None:
    result = fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    assert summary.read_summary(tmp_path) == result.summary
    run = tmp_path / "runs" / "fedavg-seed0"
    assert summary.read_run_summary(run)["round"]["of"] == SMALL["rounds"]
    wrong: Any = result.summary | {"control": 3}
    with pytest.raises(fairlead.RunError, match="control: input should be a valid string"):
        summary.write_summary(tmp_path, wrong)
    assert summary.read_summary(tmp_path) == result.summary, "what cannot be read is not written"
    text = (run / "summary.json").read_text().replace('"seed": 0', '"seed": "0"')
    (run / "summary.json").write_text(text)
    with pytest.raises(fairlead.RunError, match="seed: input should be a valid integer"):
        fairlead.compare(["fedavg"], out=tmp_path, **SMALL)


def test_the_last_round_of_a_table_that_has_no_rows_yet_is_zero(tmp_path: Path) -> None:
    """A training makes the folder before its first file; whoever watches it may look in between."""
    table = tmp_path / "rounds.parquet"
    assert files.last_round(table) == 0
    table.mkdir()
    assert files.last_round(table) == 0
    files.append_part(table, 2, {"round": [1, 2]})
    files.append_part(table, 5, {"round": [3, 4, 5]})
    assert files.last_round(table) == 5
