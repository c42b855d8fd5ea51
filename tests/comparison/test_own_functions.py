"""Losses and metrics of the user's own program: they decide what is trained and judged, and a folder knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import fairlead
from fairlead.metrics import Metric
from fairlead.report import write_page

QUICK: dict[str, Any] = {"effort": "quick", "rounds": 3, "lr": 0.1, "model": "logistic", "engine": "vectorised"}


def absolute(out: Tensor, y: Tensor) -> Tensor:
    """The absolute error of each sample."""
    return (out[:, 0] - y).abs()


def pinball(out: Tensor, y: Tensor) -> Tensor:
    """The loss whose best answer is the nine tenths quantile."""
    over = y - out[:, 0]
    return torch.maximum(0.9 * over, -0.1 * over)


def costs(y: Any, outputs: Any) -> float:
    """A missed case costs ten times what a false alarm does."""
    said = outputs.argmax(1)
    return float((10 * ((y == 1) & (said == 0)) + ((y == 0) & (said == 1))).mean())


COSTS = Metric("costs", "costs per patient", "classes", higher=False, score=costs, unit="", bounded=False)


@pytest.fixture
def rents(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    size = rng.normal(70, 20, 120)
    frame = pd.DataFrame({"size": size, "rent": 12 * size + 60 * rng.exponential(1, 120), "city": list("abcd") * 30})
    frame.to_csv(tmp_path / "rents.csv", index=False)
    return tmp_path / "rents.csv"


def test_a_loss_of_ones_own_is_trained_and_the_folder_answers_for_it_alone(rents: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = QUICK | {"data": rents, "label": "rent", "column": "city", "folds": 1, "out": tmp_path}
    settings["rounds"] = 20
    result = fairlead.compare(["fedavg"], loss=pinball, **settings)
    rows = pd.read_csv(rents)
    below = (rows["rent"] <= fairlead_predictions(result, rows)).mean()
    assert below > 0.75  # the usual loss aims at the mean, which lies at two thirds here
    again = fairlead.compare(["fedavg"], loss=pinball, **settings)
    assert again.summary["findings"]["ways"] == result.summary["findings"]["ways"]
    with pytest.raises(fairlead.RunError, match="the loss changed, its code or what it uses"):
        fairlead.compare(["fedavg"], loss=absolute, **settings)
    with pytest.raises(fairlead.RunError, match="the loss changed"):
        fairlead.compare(["fedavg"], **settings)
    with pytest.raises(fairlead.RunError, match=r"made with loss of your own program; .*loss=\.\.\."):
        fairlead.resume(tmp_path)
    assert fairlead.resume(tmp_path, loss=pinball).summary["findings"]["ways"] == result.summary["findings"]["ways"]


def fairlead_predictions(result: fairlead.Comparison, rows: pd.DataFrame) -> Any:
    found = [result.predictor("local", city)(rows[rows["city"] == city])["rent"] for city in "abcd"]
    return pd.concat(found).to_numpy()[np.argsort(np.argsort(rows["city"], kind="stable"), kind="stable")]


def test_verdicts_are_about_a_metric_of_ones_own(tmp_path: Path) -> None:
    settings: dict[str, Any] = QUICK | {"data": "heart-disease", "folds": 2, "out": tmp_path / "run"}
    result = fairlead.compare(["fedavg"], metric=COSTS, **settings)
    found = result.summary["findings"]
    assert (found["metric"], found["higher"]) == ("costs", False)
    ways = {way["name"]: way for way in found["ways"]}
    judged = [v for v in ways["fedavg"]["verdicts"] if v["gain"] is not None]
    assert judged
    for v in judged:
        assert v["gain"] == pytest.approx(v["control_score"] - v["method_score"])  # lower is better
        assert v["lower"] <= v["gain"] <= v["upper"]
    assert "costs" in write_page(tmp_path / "run").read_text()
    with pytest.raises(fairlead.RunError, match=r"made with metric of your own program; .*metric=\.\.\."):
        fairlead.resume(tmp_path / "run")
    usual = fairlead.compare(["fedavg"], **settings).summary["findings"]  # the same runs, judged otherwise
    assert usual["metric"] == "accuracy"
    assert {w["name"]: w["others"] for w in usual["ways"] if w["name"] == "local"} == {"local": ways["local"]["others"]}


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"loss": 3}, "loss must be a function of outputs"),
        ({"loss": lambda out, y: (out - y).mean()}, r"one number per sample, \(2,\) for two samples, got \(\)"),
        ({"loss": lambda out, y: 1.0}, "one number per sample.*got float"),
        ({"loss": lambda out: out}, "the loss function fails on outputs"),
        ({"metric": costs}, r"metric must be a name or a fairlead.metrics.Metric, got .*Metric\('name'"),
        ({"metric": COSTS}, "metric 'costs' is for classes, and the label is a quantity"),
        ({"metric": Metric("rmse", "mine", "quantity", False, costs)}, "has the name of another"),
    ],
)
def test_what_cannot_be_a_loss_or_a_metric_is_said(rents: Path, own: dict[str, Any], said: str) -> None:
    with pytest.raises(fairlead.InputError, match=said):
        fairlead.compare(["fedavg"], data=rents, label="rent", column="city", **QUICK, **own)


def test_resume_takes_no_settings(tmp_path: Path) -> None:
    fairlead.compare(["fedavg"], clients=3, rounds=1, out=tmp_path, model="logistic", engine="loop")
    with pytest.raises(fairlead.InputError, match="resume takes no 'lr'"):
        fairlead.resume(tmp_path, lr=0.1)
