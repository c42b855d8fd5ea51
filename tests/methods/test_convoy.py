"""Convoy and its tracks: what they must be where the answer is known."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CLASSES, blobs, run
from torch import nn

import fairlead
from fairlead.catalogue import decision, parts_of
from fairlead.comparison.decisions import Voice, heard
from fairlead.core import InputError
from fairlead.methods import Decision, local, neighbours
from fairlead.methods.convoy import TRACKS
from fairlead.methods.voices import Voices
from fairlead.metrics import METRICS
from fairlead.prediction.predict import load_run
from fairlead.runs.summary import read_run_summary


def build() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(6, 3)


def test_neighbours_that_share_nothing_train_alone() -> None:
    data = blobs((8, 9, 12))
    ours, alone = (run(method, data, build(), rounds=3, how=CLASSES)[0] for method in (neighbours(a=0.0), local()))
    assert torch.allclose(ours, alone, atol=1e-5)
    assert not torch.allclose(run(neighbours(), data, build(), rounds=3, how=CLASSES)[0], alone, atol=1e-3)


def test_convoy_deploys_its_tracks_as_one_module_and_says_whom_a_client_listens_to(tmp_path: Path) -> None:
    settings = {"convoy": {"sure": 0.5, "parts": 2}}
    found = fairlead.compare(
        ["convoy"],
        scenario="rotated-digits",
        clients=3,
        steps=3,
        rounds=3,
        model="mlp",
        engine="loop",
        set=settings,
        out=tmp_path,
    )
    (told,) = found.summary["methods"]["convoy"]["decisions"]
    assert tuple(told["voices"]) == TRACKS
    for k, client in enumerate(told["clients"]):
        assert tuple(client["weights"]) == TRACKS
        assert all(weight >= 0 for weight in client["weights"].values())
        assert client["deploys"] in (*TRACKS, "stack")
        model = found.model("convoy", k)
        assert isinstance(model, Voices)
        assert len(model.voices) == len(TRACKS)
    assert set(found.summary["methods"]) == {*TRACKS, "convoy"}
    for track in TRACKS:  # who is not listened to is trained without the first part alone
        dropped = track in told["dropped"]
        for other in ("part1of2", "part0of2-half", "part1of2-half"):
            assert (tmp_path / "runs" / f"{track}-{other}-seed0").exists() != dropped
        if dropped:
            assert all(client["weights"][track] == 0 for client in told["clients"])
    # It costs the gradients of its tracks' trainings, and deciding costs none.
    spent = {path.parent.name: read_run_summary(path.parent)["passes"] for path in tmp_path.glob("runs/*/summary.json")}
    behind = sum(passes for name, passes in spent.items() if "-part" in name or "-all-rows" in name)
    assert spent["convoy-seed0"] == behind > 0


def test_one_network_answers_as_the_module_that_it_is_distilled_from(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"scenario": "rotated-digits", "shift": "none", "split": "iid", "clients": 3}
    settings |= {"rounds": 8, "model": "mlp", "engine": "vectorised"}

    def compared(distil: bool) -> fairlead.Comparison:
        how = {"convoy": {"sure": 0.5, "parts": 2, "distil": distil}}
        return fairlead.compare(["convoy"], out=tmp_path / str(distil), set=how, **settings)

    teacher = compared(False)
    for track in (tmp_path / "False" / "runs").iterdir():  # trained once for both
        if not track.name.startswith("convoy-"):
            shutil.copytree(track, tmp_path / "True" / "runs" / track.name)
    one = compared(True)
    (told,) = one.summary["methods"]["convoy"]["decisions"]
    assert told["distilled"]
    assert "stack" in {client["deploys"] for client in told["clients"]}  # all are alike, and have few rows
    bare = one.model("fedavg", 0)
    for k in range(3):
        student = one.model("convoy", k)
        assert sum(p.numel() for p in student.parameters()) == sum(p.numel() for p in bare.parameters())
        x, _ = one.jobs["convoy", 0].federation.test.client(k)
        with torch.no_grad():
            same = student(x).argmax(1) == teacher.model("convoy", k)(x).argmax(1)
        assert float(same.double().mean()) > 0.85
        assert torch.allclose(load_run(one.jobs["convoy", 0].folder, k).outputs(x), student(x), atol=1e-4)
    spent = [c.summary["methods"]["convoy"]["passes"] for c in (teacher, one)]
    assert spent[1] > spent[0]


def test_a_track_that_says_nothing_is_not_heard(tmp_path: Path) -> None:
    options: dict[str, Any] = {"scenario": "rotated-digits", "clients": 3, "model": "logistic", "engine": "loop"}
    found = fairlead.compare(["fedavg"], rounds=8, out=tmp_path / "good", **options)
    none = fairlead.compare(["fedavg"], rounds=1, lr=1e-6, out=tmp_path / "none", **options)
    jobs = {"local": found.jobs["local", 0], "fedavg": found.jobs["fedavg", 0], "fedrep": none.jobs["fedavg", 0]}
    voices = [Voice(name, job, [job]) for name, job in jobs.items()]
    assert heard(voices, Decision(("local", "fedavg", "fedrep")), METRICS["accuracy"]) == {"local", "fedavg"}
    assert heard(voices[1:], Decision(("fedavg", "fedrep")), METRICS["accuracy"]) == {"fedavg", "fedrep"}


def test_convoy_decides_by_itself() -> None:
    with pytest.raises(InputError, match="convoy decides by itself"):
        decision("convoy+guard")
    assert {"convoy", "fedavg", "ft", "neighbours"} <= parts_of("convoy")
