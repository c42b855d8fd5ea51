"""Real tables of real owners, as they are, from the file to predictions; skipped where the data is not at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fairlead
from fairlead.comparison.recheck import recheck
from fairlead.prediction.predict import predict

QUICK: dict[str, Any] = {"effort": "quick", "rounds": 2, "lr": 0.3, "model": "logistic", "engine": "vectorised"}


@pytest.fixture
def tables(real_data: Path) -> Path:
    if not (real_data / "tables").is_dir():
        pytest.skip(f"no real tables: {real_data / 'tables'} is not there")
    return real_data / "tables"


def all_the_way(folder: Path, rows: pd.DataFrame, **settings: Any) -> fairlead.Comparison:
    """Compare, score the raw rows again, predict for rows as they are in the file."""
    result = fairlead.compare(["fedavg"], out=folder / "run", **QUICK | settings)
    done = recheck(folder / "run")
    assert done.scores
    assert all(one.equal for one in done.scores)
    rows.to_csv(folder / "new.csv", index=False)
    owner = result.summary["findings"]["owners"][-1]
    assert len(predict(folder / "run", folder / "new.csv", owner, "fedavg")) == len(rows)
    return result


def test_four_hospitals_from_four_raw_files(tables: Path, tmp_path: Path) -> None:
    """No line of names, question marks and empty cells for what is missing, five classes of which one is healthy."""
    names = [f"c{i}" for i in range(1, 15)]
    rows = pd.read_csv(tables / "heart_disease/sites/processed.va.data", names=names).head(5).drop(columns="c14")
    settings = {"data": tables / "heart_disease/sites", "label": "c14", "positive": ">0", "folds": 2}
    result = all_the_way(tmp_path, rows, **settings)
    assert result.summary["findings"]["owners"] == ["cleveland", "hungarian", "switzerland", "va"]
    data = result.summary["data"]
    assert data["rows"] == 920
    assert "c5" not in next(o for o in data["owners"] if o["name"] == "switzerland")["missing"]  # only what is missing
    assert sum(sum(o["missing"].values()) for o in data["owners"]) > 1000


def test_schools_with_two_pupils_and_words(tables: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(tables / "schools/Exam.csv")
    some = rows[rows["school"].isin([1, 2, 48, 54])]  # school 48 has two pupils, school 54 has eight
    some.to_csv(tmp_path / "Exam.csv", index=False)
    result = all_the_way(tmp_path, some.head(4), data=tmp_path / "Exam.csv", label="normexam", column="school", folds=2)
    assert result.summary["findings"]["owners"] == ["1", "2", "54"]
    assert result.summary["findings"]["metric"] == "rmse"
    notes = " ".join(result.summary["data"]["notes"])
    assert "they take no part: 48 (2)" in notes
    assert "54 (8)" in notes
    roles = {column["name"]: column["role"] for column in result.summary["data"]["columns"]}
    assert (roles["student"], roles["intake"], roles["sex"]) == ("id", "words", "words")


def test_a_quantity_with_missing_values(tables: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(tables / "beijing_air/beijing_air_daily.csv").groupby("station").head(150)
    rows = rows[rows["station"].isin(rows["station"].unique()[:3])]
    rows.to_csv(tmp_path / "air.csv", index=False)
    settings = {"data": tmp_path / "air.csv", "label": "PM2.5", "column": "station", "folds": 1, "scaling": "own"}
    settings |= {"lr": 0.01}
    result = all_the_way(tmp_path, rows.head(6), **settings)
    found = predict(tmp_path / "run", tmp_path / "new.csv", method="local")
    assert found["PM2.5"].between(-300, 800).all()
    assert result.summary["findings"]["metric"] == "rmse"


def test_survival_times_of_six_regions(tables: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(tables / "tcga_brca/tcga_brca.csv")
    settings = {"data": tables / "tcga_brca/tcga_brca.csv", "label": "T", "event": "E", "column": "region", "folds": 2}
    result = all_the_way(tmp_path, rows.head(5).drop(columns=["T", "E"]), **settings)
    ways = {way["name"]: way for way in result.summary["findings"]["ways"]}
    assert 0.65 < ways["pooled"]["score"] < 0.9
    assert 0.65 < ways["linear"]["score"] < 0.9
    assert "2 owners have fewer than 10 events" in " ".join(result.summary["data"]["notes"])
