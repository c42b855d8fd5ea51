"""Damage, hostile files, full disks and company: one sentence each, and nothing is lost."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from filelock import FileLock
from typer.testing import CliRunner

import fairlead
from fairlead.cli import app
from fairlead.core import RunError
from fairlead.core.files import LOCK, atomically
from fairlead.runs import files
from fairlead.runs.checkpoint import load_snapshot

SMALL: dict[str, Any] = {"clients": 4, "rounds": 4, "evaluate_every": 2, "engine": "loop", "model": "logistic"}
RUN = Path("runs") / "fedavg-seed0"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison, which tests copy."""
    folder = tmp_path_factory.mktemp("trained") / "out"
    fairlead.compare(["fedavg"], out=folder, **SMALL)
    return folder


@pytest.fixture
def unfinished(trained: Path, tmp_path: Path) -> Path:
    """A comparison whose FedAvg has a checkpoint and no summary yet."""
    shutil.copytree(trained, tmp_path / "out")
    (tmp_path / "out" / RUN / "summary.json").unlink()
    return tmp_path / "out"


def test_one_flipped_bit_in_a_checkpoint_is_noticed(unfinished: Path) -> None:
    path = unfinished / RUN / "checkpoint.safetensors"
    whole = bytearray(path.read_bytes())
    draw = random.Random(0)
    for place in [0, 9, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(12))]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(fairlead.RunError, match=r"checkpoint\.safetensors (is corrupt|has format)"):
            fairlead.resume(unfinished)
    path.write_bytes(whole)
    fairlead.resume(unfinished)


@pytest.mark.parametrize("table", ["records.parquet", "rounds.parquet"])
def test_damaged_records_of_a_finished_run_are_noticed(tmp_path: Path, table: str) -> None:
    fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    (part,) = (tmp_path / RUN / table).iterdir()
    whole = bytearray(part.read_bytes())
    whole[len(whole) // 2] ^= 4
    part.write_bytes(whole)
    with pytest.raises(fairlead.RunError, match="does not fit its checksum"):
        fairlead.compare(["fedavg"], out=tmp_path, **SMALL)


@pytest.mark.parametrize(
    ("tensors", "facts", "said"),
    [
        ({"attic/x": torch.ones(1)}, {"round": "2"}, "'attic/x', which this version does not know"),
        ({}, {"round": "minus one"}, "says round 'minus one', expected a whole number"),
        ({}, {"round": "99999"}, "was written after round 99999, and this run has 4"),
        ({}, {"round": "2", "best": "[1, 2]"}, "does not say which models are kept"),
        ({}, {"round": "2", "best": "{]"}, "does not say which models are kept"),
        ({}, {"round": "2"}, "without the clients' states"),
        ({"clients/state.ids": torch.tensor([7])}, {"round": "2"}, "names other clients than 0 to 3"),
        ({"clients/state.ids": torch.tensor([-1, 0])}, {"round": "2"}, "names other clients than 0 to 3"),
        ({"clients/state.ids": torch.tensor([[0]])}, {"round": "2"}, "names other clients than 0 to 3"),
        (
            {"clients/state.ids": torch.tensor([0]), "clients/state.row.w": torch.ones(1, 3)},
            {"round": "2"},
            "states are {'w': ",
        ),
        (
            {"clients/state.ids": torch.zeros(0, dtype=torch.int64), "clients/kept.models": torch.ones(4, 3)},
            {"round": "2"},
            "models are ",
        ),
        ({"clients/state.ids": torch.zeros(0, dtype=torch.int64)}, {"round": "2"}, "round 3: KeyError"),
    ],
)
def test_a_checkpoint_that_fairlead_did_not_write_is_one_sentence(
    unfinished: Path, tensors: dict[str, torch.Tensor], facts: dict[str, str], said: str
) -> None:
    files.write_tensors(unfinished / RUN / "checkpoint.safetensors", tensors, **facts)
    with pytest.raises(fairlead.FairleadError) as error:
        fairlead.resume(unfinished)
    assert said in str(error.value)


def change(path: Path, **entries: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"experiment": 3}, "experiment is a int"),
        ({"experiment": {"colour": 1}}, "experiment has colour, which this version does not know"),
        ({"experiment": {"rounds": "many"}}, "Field required"),
        ({"seeds": "x"}, "seeds must be"),
        ({"seeds": [1e9]}, "seeds must be"),
        ({"methods": 5}, "methods must be"),
        ({"own": 1.5}, "own must be a list of names"),
        ({"methods": ["fedavg/../.."]}, "is unknown"),
    ],
)
def test_settings_from_elsewhere_are_one_sentence(unfinished: Path, entries: dict[str, object], said: str) -> None:
    change(unfinished / "settings.json", **entries)
    with pytest.raises(fairlead.FairleadError) as error:
        fairlead.resume(unfinished)
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["[]", "7", "[" * 100_000, "\x00", '{"method": 1}'])
def test_settings_that_are_no_object_are_one_sentence(unfinished: Path, text: str) -> None:
    (unfinished / "settings.json").write_text(text)
    with pytest.raises(fairlead.FairleadError, match=r"settings\.json"):
        fairlead.resume(unfinished)


def test_settings_that_cannot_be_read_are_not_called_damaged(unfinished: Path) -> None:
    with pytest.raises(fairlead.RunError, match=r"checkpoint\.safetensors/x is missing"):
        files.read_json(unfinished / RUN / "checkpoint.safetensors" / "x")
    (unfinished / "settings.json").unlink()
    (unfinished / "settings.json").mkdir()
    with pytest.raises(fairlead.RunError, match=r"settings\.json cannot be read \(Is a directory\)"):
        fairlead.resume(unfinished)


def test_a_run_of_a_later_version_is_one_sentence(unfinished: Path) -> None:
    path = unfinished / "settings.json"
    experiment = json.loads(path.read_text())["experiment"]
    change(path, experiment=experiment | {"scenario": experiment["scenario"] | {"galaxy": 1}})
    with pytest.raises(fairlead.RunError, match=r"experiment\.scenario has galaxy, which this version does not know"):
        fairlead.resume(unfinished)


def test_a_second_process_is_told_so_and_harms_nothing(tmp_path: Path) -> None:
    fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    before = (tmp_path / "summary.json").read_bytes()
    with FileLock(tmp_path / LOCK), pytest.raises(fairlead.RunError, match="another process is at work on"):
        fairlead.compare(["fedavg"], out=tmp_path, fresh=True, **SMALL)
    assert (tmp_path / "summary.json").read_bytes() == before
    fairlead.resume(tmp_path)


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / f".notes.json.{os.getpid()}.partial").symlink_to(precious)
    files.write_json(tmp_path / "notes.json", {"a": 1})
    assert precious.read_text() == "mine"
    assert not (tmp_path / "notes.json").is_symlink()
    assert not list(tmp_path.glob(".*"))


def test_what_a_killed_process_had_begun_goes_with_the_next_run(unfinished: Path) -> None:
    left = [unfinished / ".settings.json.99999999.partial", unfinished / RUN / ".settings.json.99999999.partial"]
    left.append(unfinished / RUN / "records.parquet" / ".000000002-0.parquet.99999999.partial")
    for path in left:
        path.write_text("half")
    fairlead.resume(unfinished)
    assert not any(path.exists() for path in left)


def test_folders_are_private(tmp_path: Path) -> None:
    fairlead.compare(["fedavg"], out=tmp_path / "out", **SMALL)
    assert (tmp_path / "out").stat().st_mode & 0o077 == 0
    assert (tmp_path / "out" / RUN).stat().st_mode & 0o077 == 0


def test_a_path_below_a_file_is_one_sentence_and_a_full_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(fairlead.RunError, match="cannot be made a folder"):
        fairlead.compare(["fedavg"], out=tmp_path / "file" / "out", **SMALL)

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(fairlead.RunError, match=r"cannot be written \(No space left on device\); make room"):
        atomically(tmp_path / "x", full)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_limit_on_file_sizes_ends_in_one_sentence_and_the_run_goes_on(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    program = (
        "import resource, sys; from fairlead.cli import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY)); sys.argv[0] = 'fairlead'; main()"
    )
    asked = ["run", "fedavg", "--clients", "3", "--rounds", "2", "--model", "mlp", "--engine", "loop"]
    asked += ["--out", str(tmp_path / "out")]
    del resource
    ended = subprocess.run([sys.executable, "-c", program, *asked], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 2
    assert "cannot be written" in ended.stderr
    assert "Traceback" not in ended.stderr
    fairlead.resume(tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clients": 10**20}, "cannot share 1,797 samples"),
        ({"data": "1" * 300}, "too long for a file"),
        ({"set": {"plgu-ghn": {"hidden": 2**31}}, "methods": ["plgu-ghn"]}, "hidden must lie between 1 and 10,000"),
        ({"set": {"fedres": {"global_epochs": 10**12}}, "methods": ["fedres"]}, "lower epochs"),
        ({"epochs": 10**12}, "lower epochs"),
        (
            {"set": {"fesem": {"clusters": 2**31}}, "methods": ["fesem"]},
            "clusters must lie between 1",
        ),
        (
            {"set": {"ifca": {"clusters": 2**31}}, "methods": ["ifca"]},
            "clusters must lie between 1",
        ),
        ({"batch_size": True}, "setting batch_size: got True"),
    ],
)
def test_huge_values_are_one_sentence_before_they_take_the_memory(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    methods = settings.pop("methods", ["fedavg"])
    with pytest.raises(fairlead.FairleadError, match=said):
        fairlead.compare(methods, out=tmp_path / "out", **SMALL | settings)


def test_too_many_seeds_are_one_sentence(tmp_path: Path) -> None:
    asked = CliRunner().invoke(app, ["compare", "fedavg", "--seeds", "2147483648", "--out", str(tmp_path / "out")])
    assert "--seeds must be at most 10000" in str(asked.exception)


def test_records_grow_by_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairlead.runs import run

    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", 0.0)
    fairlead.compare(["fedavg"], out=tmp_path, **SMALL | {"evaluate_every": 1})
    parts = sorted((tmp_path / RUN / "records.parquet").iterdir())
    assert [int(part.name[:9]) for part in parts] == [1, 2, 3, 4]
    rounds = [set(files.read_part(part)["round"].to_pylist()) for part in parts]
    assert rounds == [{1}, {2}, {3}, {4}]


@pytest.mark.filterwarnings("ignore:overflow")
def test_quantities_whose_deviation_overflows_are_one_sentence(tmp_path: Path) -> None:
    values = torch.linspace(-1, 1, 60).double()
    frame = pd.DataFrame({"owner": ["a", "b"] * 30, "p": values, "y": values * 1e300})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(RunError, match=r"would hold a number that is not finite .* values beyond 1e150"):
        fairlead.compare(["fedavg"], data=str(tmp_path / "rows.csv"), column="owner", label="y", rounds=1, lr=0.1)


def test_a_checkpoint_is_read_back_as_it_was_written(unfinished: Path) -> None:
    path = unfinished / RUN / "checkpoint.safetensors"
    snapshot = load_snapshot(path)
    assert snapshot.round == 4
    assert files.read_facts(path)["format"] == files.FORMAT


def test_importing_and_comparing_leave_the_process_as_it_was(tmp_path: Path) -> None:
    program = (
        "import warnings\n"
        "first = list(warnings.filters)\n"
        "import fairlead\n"
        "assert warnings.filters == first, 'import changes the filters'\n"
        "import os, random, sys, numpy, torch\n"
        "for name in [n for n in sys.modules if n.split('.')[0] == 'fairlead']: del sys.modules[name]\n"
        "random.seed(5); numpy.random.seed(5); torch.manual_seed(5)\n"
        "def now(): return random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()\n"
        "threads = torch.get_num_threads()\n"
        "before, filters, surroundings = now(), list(warnings.filters), dict(os.environ)\n"
        "import fairlead\n"
        "assert now() == before, 'import draws'\n"
        "assert list(warnings.filters) == filters, [f for f in warnings.filters if f not in filters]\n"
        "fairlead.compare(['fedavg'], clients=3, rounds=1, engine='loop', model='logistic')\n"
        "assert now() == before, 'compare draws'\n"
        "assert dict(os.environ) == surroundings, set(os.environ.items()) ^ set(surroundings.items())\n"
        "assert list(warnings.filters) == filters, [f for f in warnings.filters if f not in filters]\n"
        "assert torch.get_num_threads() == threads\n"
    )
    folder = tmp_path / "temporary"
    folder.mkdir()
    # Earlier tests of this process may have had scikit-learn set its variables.
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("KMP_")}
    surroundings["TMPDIR"] = str(folder)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, env=surroundings
    )
    assert ended.returncode == 0, ended.stderr
    assert not list(folder.iterdir()), "temporary folders are left behind"
