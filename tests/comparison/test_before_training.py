"""What `fairlead compare` says of a table before it trains, and keeps for the page; and results as data frames."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fairlead
from fairlead.cli import main
from fairlead.comparison.compare import FOLDS, usual_folds
from fairlead.core import InputError
from fairlead.runs.summary import read_summary
from fairlead.settings import check, resolve

QUICK = ["--effort", "quick", "--rounds", "2", "--lr", "0.1", "--model", "logistic", "--engine", "vectorised"]


def suspicious() -> pd.DataFrame:
    """Everything at once: a giveaway, an id, a site of one class, one of three rows, copies across sites, 3% ill."""
    rng = np.random.default_rng(0)
    n = 200
    frame = pd.DataFrame(
        {
            "patient_id": rng.permutation(np.arange(5000, 5000 + n)),
            "site": np.repeat(["north", "south", "tiny"], [120, 77, 3]),
            "age": rng.normal(60, 9, n).round(2),
            "pulse": rng.normal(75, 9, n).round(2),
            "ill": "no",
        }
    )
    frame.loc[:5, "ill"] = "yes"  # all at north
    frame["discharge"] = np.where(frame["ill"] == "yes", "to ward", "home")
    copied = frame.iloc[20:24].assign(site="south", patient_id=[1, 2, 3, 4])
    return pd.concat([frame, copied], ignore_index=True)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    suspicious().to_csv(tmp_path / "ward.csv", index=False)
    return tmp_path / "ward.csv"


def call(words: list[str], patch: pytest.MonkeyPatch, read: pytest.CaptureFixture[str]) -> str:
    patch.setattr(sys, "argv", ["fairlead", *words])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = read.readouterr()
    assert left.value.code == 0, err
    return out


def test_what_is_wrong_with_a_table_is_said_before_training_and_kept(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "fedavg", "--data", str(table), "--label", "ill", "--column", "site", "--folds", "1", *QUICK]
    said = call([*words, "--out", str(tmp_path / "run")], monkeypatch, capsys)
    plain = " ".join(said.split())  # lines are folded at the width of the terminal
    told = [
        "ward: 204 rows, 3 owners with 3 to 120 rows; to predict: 'ill', one of 2 classes: no, yes",
        "'discharge' alone predicts 'ill' almost without error",
        "'patient_id' looks like an id",
        "2 owners have rows of one class alone: south (all 'no'), tiny (all 'no')",
        "1 owner has fewer than 20 rows, too few to be sure of much: tiny (3)",
        "8 rows are the same, cell by cell, as a row of another owner (north, south)",
        "rare: 'yes' (2.9%, 6 rows)",
        "--balance",
    ]
    for text in told:
        assert text in plain
        assert plain.index(text) < plain.index("Verdicts are about")
    again = "8 of 204 rows are also another owner's: gains of training together may come from rows"
    assert plain.index(again) > plain.index("Verdicts are about")
    assert again in (tmp_path / "run" / "report.html").read_text().replace("&#x27;", "'")
    for name, role in (("patient_id", "id"), ("site", "owner"), ("discharge", "words"), ("ill", "label")):
        assert [line for line in said.splitlines() if name in line and role in line and "│" in line], name
    kept = read_summary(tmp_path / "run")["data"]
    assert len(kept["notes"]) >= 6
    assert [column["name"] for column in kept["columns"]] == list(suspicious().columns)
    assert kept["owners"][0] == {"name": "north", "rows": 120, "classes": {"no": 114, "yes": 6}, "missing": {}}


def test_many_columns_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(["a", "b"], 30), "label": np.arange(60) % 2})
    for i in range(20):
        frame[f"number{i}"] = rng.normal(size=60).round(3)
        frame[f"word{i}"] = rng.choice(["red", "green", "blue"], 60)
    frame.to_csv(tmp_path / "wide.csv", index=False)
    words = ["compare", "fedavg", "--data", str(tmp_path / "wide.csv"), "--column", "site", "--folds", "1", *QUICK]
    said = call([*words, "--out", str(tmp_path / "run")], monkeypatch, capsys)
    assert "20 number (standardised), 20 words (one of 3 categories)" in " ".join(said.split())
    assert "word7" not in said


def test_balance_is_said_and_changes_what_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    ill = np.arange(400) % 20 == 0
    frame = pd.DataFrame({"marker": (rng.normal(size=400) + 1.5 * ill).round(3), "ill": np.where(ill, "yes", "no")})
    frame["site"] = np.repeat(["a", "b"], 200)
    frame.to_csv(tmp_path / "rare.csv", index=False)
    words = ["compare", "fedavg", "--data", str(tmp_path / "rare.csv"), "--label", "ill", "--column", "site"]
    words += ["--folds", "1", *QUICK, "--rounds", "20", "--out"]
    called = {}
    for name, more in (("plain", []), ("balanced", ["--balance"])):
        said = " ".join(call([*words, str(tmp_path / name), *more], monkeypatch, capsys).split())
        assert ("every class weighs the same in training (--balance)" in said) == bool(more)
        found = call(
            ["predict", str(tmp_path / name), str(tmp_path / "rare.csv"), "--method", "local"], monkeypatch, capsys
        )
        called[name] = int((pd.read_csv(io.StringIO(found))["ill"] == "yes").sum())
    assert called["plain"] < 15 < called["balanced"]
    monkeypatch.setattr(sys, "argv", ["fairlead", *words, str(tmp_path / "plain"), "--balance"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "training.balance: False there, True here" in capsys.readouterr().err


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> fairlead.Comparison:
    settings: dict[str, Any] = {"effort": "quick", "rounds": 4, "lr": 0.1, "model": "logistic", "folds": 2}
    folder = tmp_path_factory.mktemp("hospitals")
    return fairlead.compare(["fedavg"], data="heart-disease", engine="vectorised", out=folder, **settings)


def test_curves_and_clients_are_data_frames(hospitals: fairlead.Comparison) -> None:
    curves = hospitals.curves()
    first = ["method", "fold", "round", "client", "owner", "split", "model", "accuracy", "loss", "n"]
    assert list(curves.columns)[:10] == first
    assert set(curves["method"]) == {"local", "fedavg"}
    assert set(curves["owner"]) == {"cleveland", "hungarian", "switzerland", "va"}
    assert sorted(curves["fold"].unique()) == [0, 1]
    mean = curves.query("split == 'validation' and method == 'local'").groupby("round")["loss"].mean()
    assert mean.index.tolist() == [2, 4]
    assert mean.iloc[-1] < mean.iloc[0]
    clients = hospitals.clients()
    assert list(clients["way"].unique()) == [way["name"] for way in hospitals.summary["findings"]["ways"]]
    one = clients.query("way == 'fedavg' and owner == 'va'").iloc[0]
    verdict = next(v for v in _way(hospitals, "fedavg")["verdicts"] if v["owner"] == "va")
    assert (one["gain"], one["verdict"], one["lower"]) == (verdict["gain"], verdict["verdict"], verdict["lower"])
    assert clients.groupby("way")["n_test"].sum().eq(740).all()
    assert clients["score"].dtype == np.float64


def _way(result: fairlead.Comparison, name: str) -> Any:
    return next(way for way in result.summary["findings"]["ways"] if way["name"] == name)


def test_curves_of_a_published_protocol_have_seeds() -> None:
    result = fairlead.compare(["fedavg"], clients=3, rounds=2, seeds=2, model="logistic", engine="loop")
    curves = result.curves()
    assert list(curves.columns)[:5] == ["method", "seed", "round", "client", "owner"]
    assert sorted(curves["seed"].unique()) == [0, 1]
    assert curves["accuracy"].between(0, 1).all()
    assert set(result.clients()["owner"]) == {"0", "1", "2"}


def test_a_model_takes_raw_rows(hospitals: fairlead.Comparison) -> None:
    rows = pd.read_csv(Path(fairlead.__file__).parent / "data" / "examples" / "heart_disease.csv").head(6)
    model, predictor = hospitals.model("fedavg", "va"), hospitals.predictor("fedavg", "va", fold=0)
    assert torch.equal(model(rows), predictor.outputs(rows))
    assert torch.equal(model(rows.to_dict("list")), model(predictor.samples(rows)))
    shares = predictor(rows)["probability of 1"]
    assert np.allclose(model(rows).double().softmax(1)[:, 1].detach(), shares)
    with pytest.raises(fairlead.InputError, match="from 0 to 3 or a name, got 'vaa'"):
        hospitals.model("fedavg", "vaa")


@pytest.mark.parametrize(
    ("rows", "more", "folds"), [(2000, {}, FOLDS), (3000, {}, 1), (2000, {"samples": (100, 50, 100)}, 1)]
)
def test_every_row_of_a_small_table_is_tested(tmp_path: Path, rows: int, more: dict[str, Any], folds: int) -> None:
    numbers = np.arange(rows)
    frame = pd.DataFrame({"x": numbers % 97 / 7, "label": numbers % 2, "site": numbers % 3})
    frame.to_csv(tmp_path / "many.csv", index=False)
    experiment = resolve(check({"data": tmp_path / "many.csv", "column": "site"} | more))
    assert usual_folds(experiment, experiment.scenario.load()) == folds


def test_owners_who_all_have_a_single_row_are_refused_by_the_column_that_names_them(tmp_path: Path) -> None:
    rows = [f"o{i},{i * i},{i % 2}" for i in range(40)]
    (tmp_path / "one.csv").write_text("\n".join(["who,x,y", *rows]), encoding="utf-8")
    with pytest.raises(InputError, match=r"no owner has 3 rows, .* check that 'who' is the column that says whose"):
        fairlead.compare(["fedavg"], data=str(tmp_path / "one.csv"), label="y", column="who", out=tmp_path / "run")
