"""Survival times: from a table with a time and an event to verdicts, risks and a model to take home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import approx_fprime

import fairlead
from fairlead.cli import main
from fairlead.comparison.recheck import recheck
from fairlead.comparison.yardsticks import CoxRegression, partial_likelihood
from fairlead.core.targets import cox
from fairlead.data import Scenario, from_tensors, survey
from fairlead.metrics import OwnerPairs, PairedRun, judge, metric
from fairlead.prediction.export import export
from fairlead.prediction.predict import predict

QUICK: dict[str, Any] = {"effort": "quick", "rounds": 4, "lr": 0.1, "model": "logistic", "engine": "vectorised"}


def patients(n: int = 240, seed: int = 0) -> pd.DataFrame:
    """Three clinics; the hazard rises with age and with the stage; about half of the patients are only watched."""
    rng = np.random.default_rng(seed)
    age, stage = rng.normal(60, 10, n), rng.choice(["I", "II", "III"], n)
    risk = 0.1 * (age - 60) + 1.2 * (stage == "III")
    died, left = rng.exponential(900 * np.exp(-risk)), rng.exponential(900, n)
    return pd.DataFrame(
        {
            "clinic": np.array(["aachen", "basel", "cork"])[np.arange(n) % 3],
            "age": age.round(1),
            "stage": stage,
            "days": np.minimum(died, left).round(),
            "died": np.where(died <= left, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fairlead.Comparison]:
    """The table, and a comparison on it."""
    folder = tmp_path_factory.mktemp("clinics")
    patients().to_csv(folder / "clinics.csv", index=False)
    settings = QUICK | {"data": folder / "clinics.csv", "label": "days", "event": "died", "column": "clinic"}
    return folder / "clinics.csv", fairlead.compare(["fedavg"], out=folder / "run", folds=2, **settings)


def test_the_partial_likelihood_is_that_of_the_losses_and_its_gradient_is_right() -> None:
    rng = np.random.default_rng(0)
    y = np.column_stack([rng.integers(1, 9, 40), rng.random(40) < 0.6]).astype(np.float64)  # many ties
    risk = rng.normal(size=40)
    value, gradient = partial_likelihood(risk, y)
    assert value == pytest.approx(float(cox(torch.from_numpy(risk)[:, None], torch.from_numpy(y)).sum()))
    assert np.allclose(gradient, approx_fprime(risk, lambda f: partial_likelihood(f, y)[0], 1e-6), atol=1e-4)


def test_a_cox_regression_finds_the_rule_and_a_penalty_shrinks_it() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 3))
    time = rng.exponential(np.exp(-x @ [1.0, -0.5, 0.0]))
    y = np.column_stack([time, np.ones(800)])
    found = []
    for penalty in (0.01, 1000.0):
        model = CoxRegression(penalty)
        model.fit(x, y)
        found.append(model.coef_)
    assert np.allclose(found[0], [1.0, -0.5, 0.0], atol=0.12)
    assert np.linalg.norm(found[1]) < np.linalg.norm(found[0]) / 2


def test_a_table_of_times_is_compared_by_the_c_index(clinics: tuple[Path, fairlead.Comparison]) -> None:
    summary = clinics[1].summary
    found = summary["findings"]
    assert (found["metric"], found["why_metric"][:7]) == ("c-index", "c-index")
    ways = {way["name"]: way for way in found["ways"]}
    assert list(ways) == ["local", "majority", "linear", "fedavg", "pooled"] or "best alone" in ways
    assert ways["majority"]["score"] == pytest.approx(0.5)
    for name in ("local", "linear", "fedavg", "pooled"):
        assert 0.6 < ways[name]["score"] < 0.9
    for verdict in ways["fedavg"]["verdicts"]:
        assert verdict["lower"] < verdict["gain"] < verdict["upper"]
    assert [owner["events"] for owner in summary["data"]["owners"]]
    assert "c-index" in str(clinics[1])


def test_raw_rows_give_the_c_index_of_the_page_and_risks(clinics: tuple[Path, fairlead.Comparison]) -> None:
    table, result = clinics
    done = recheck(result.folder)
    assert done.scores
    assert all(one.equal and one.before is not None for one in done.scores)
    rows = pd.read_csv(table)
    found = predict(result.folder, table)
    assert list(found.columns) == ["clinic", "risk of died"]
    died = rows["died"] == "yes"
    value = metric("c-index")(np.column_stack([rows["days"], died]), found["risk of died"]).value
    assert value > 0.65
    assert np.corrcoef(rows["age"], found["risk of died"])[0, 1] > 0.5
    without = predict(result.folder, table, owner="basel", method="fedavg")
    assert list(without.columns) == ["risk of died"]


def test_an_exported_model_gives_the_same_risks(clinics: tuple[Path, fairlead.Comparison], tmp_path: Path) -> None:
    table, result = clinics
    export(result.folder, "cork", tmp_path / "cork", "fedavg")
    rows = pd.read_csv(table).drop(columns=["days", "died", "clinic"])
    again = fairlead.load_model(tmp_path / "cork")(rows)
    pd.testing.assert_frame_equal(again, result.predictor("fedavg", "cork")(rows))
    assert "a risk, higher for an earlier event" in (tmp_path / "cork" / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"event": "dead"}, "has no column 'dead'"),
        ({"label": "died"}, "cannot be both the time and the event"),
        ({"label": "days,age"}, "with --event the label is one column"),
        ({"label": "stage"}, "'stage' cannot be a time until 'died': a row holds 'I"),
        ({"event": "stage"}, "event 'stage' must be yes or no"),
        ({"task": "classes"}, "contradict each other"),
        ({"metric": "accuracy"}, "is for classes, and the label is a time until an event"),
        ({"balance": True}, "balance weighs classes"),
    ],
)
def test_what_cannot_be_a_time_is_said(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    patients(60).to_csv(tmp_path / "t.csv", index=False)
    settings = QUICK | {"data": tmp_path / "t.csv", "label": "days", "event": "died", "column": "clinic"} | change
    with pytest.raises(fairlead.InputError, match=said):
        fairlead.compare(["fedavg"], **settings)
    patients(60).assign(days=-3).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(fairlead.InputError, match="'days' cannot be a time until 'died': a row holds '-3', which is"):
        Scenario(data=str(tmp_path / "t.csv"), label="days", event="died", column="clinic").load()


def test_events_in_words_are_named_by_positive_and_few_events_are_told(tmp_path: Path) -> None:
    frame = patients(45)
    frame["died"] = np.where(frame["died"] == "yes", "Dead", "alive at last contact")
    frame.to_csv(tmp_path / "t.csv", index=False)
    plan = Scenario(
        data=str(tmp_path / "t.csv"),
        label="days",
        event="died",
        column="clinic",
        positive="dead",
        split="column",
        clients=None,
    )
    source = plan.load()
    assert source.kind == "survival"
    assert int(source.y[:, 1].sum()) == int((frame["died"] == "Dead").sum())
    found = survey(plan, source)
    assert found.target == "'days', the time until 'died'"
    few = [owner["name"] for owner in found.owners if owner["events"] < 10]
    assert few
    assert [note for note in found.notes if "fewer than 10 events" in note and few[0] in note]
    shares = [[part.client(k)[1][:, 1].mean() for k in range(3)] for part in _parts(plan)]
    assert np.ptp(np.array(shares), axis=0).max() < 0.2  # events are spread evenly over train, validation and test


def _parts(plan: Scenario) -> list[Any]:
    built = plan.build(0)
    return [built.train, built.validation, built.test]


def test_tensors_may_have_an_event() -> None:
    x, time = torch.randn(90, 4), torch.rand(90) + 0.1
    event = torch.arange(90) % 2
    result = fairlead.compare(["fedavg"], source=from_tensors(x, time, event=event), clients=3, **QUICK)
    assert result.summary["findings"]["metric"] == "c-index"
    assert result.predictor("local", 0)(x[:5]).columns.tolist() == ["risk"]
    with pytest.raises(fairlead.InputError, match="event must hold 0 and 1"):
        from_tensors(x, time, event=event + 1)


def test_the_variance_of_a_difference_of_c_indices_is_that_of_a_bootstrap_over_rows() -> None:
    """The rows' expansion, which verdicts rest on, beside the plain way: draw rows, compute both c-indices again."""
    rng = np.random.default_rng(1)
    n = 150
    risk = rng.normal(size=n)
    y = np.column_stack([rng.exponential(np.exp(-risk)), rng.random(n) < 0.5])
    ours, theirs = risk + rng.normal(0, 0.8, n), risk + rng.normal(0, 1.2, n)
    (found,) = judge([OwnerPairs("one", [PairedRun(np.arange(n), y, ours, theirs, 0, 0)])], metric("c-index"))
    assert found.evidence is not None
    expanded = np.sqrt(found.evidence.spread / n)
    draws = []
    for _ in range(400):
        rows = rng.integers(0, n, n)
        draws.append(metric("c-index")(y[rows], ours[rows]).value - metric("c-index")(y[rows], theirs[rows]).value)
    assert expanded == pytest.approx(np.std(draws), rel=0.15)


def test_the_command_line_tells_of_times(
    clinics: tuple[Path, fairlead.Comparison], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["data", str(clinics[0]), "--label", "days", "--event", "died", "--column", "clinic"]
    monkeypatch.setattr("sys.argv", ["fairlead", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "to predict: 'days', the time until 'died'" in said
    assert "events, median time" in said
