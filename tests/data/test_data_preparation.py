"""A preparation is learned from train rows alone, is plain data, and treats new rows as it treated the old."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fairlead.core.errors import InputError
from fairlead.data import Preparation, Scenario

WORDS = ["red", "green", "blue"]


def patients(n: int = 120, seed: int = 0) -> Any:
    """Four sites; a number with gaps, words with a rare one, yes/no, dates, a quantity."""
    rng = np.random.default_rng(seed)
    colour = np.array(WORDS)[rng.integers(0, 3, n)].astype(object)
    colour[5] = "violet"
    age = rng.normal(50, 10, n).round(1).astype(object)
    age[rng.random(n) < 0.2] = None
    return pd.DataFrame(
        {
            "site": np.array(["a", "b", "c", "d"])[np.arange(n) % 4],
            "age": age,
            "pressure": rng.normal(1000, 3, n).round(2),
            "colour": colour,
            "smoker": np.where(rng.random(n) < 0.5, "yes", "no"),
            "seen": (pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D")).strftime("%d.%m.%Y"),
            "ill": rng.integers(0, 2, n),
            "cost": rng.normal(300, 40, n).round(1),
        }
    )


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Any]:
    """A function that writes the table and gives a scenario of it, and the table."""

    def make(change: Callable[..., Any] | None = None, **fields: str) -> tuple[Scenario, Any]:
        frame = patients()
        if change:
            change(frame)
        frame.to_csv(tmp_path / "p.csv", index=False)
        settings: dict[str, Any] = {
            "label": "ill",
            "column": "site",
            "split": "column",
            "clients": None,
            "drop": "cost",
        } | fields
        return Scenario(data=str(tmp_path / "p.csv"), **settings), frame

    return make


def test_what_becomes_of_each_column(plan: Callable[..., Any]) -> None:
    scenario, frame = plan()
    federation = scenario.build(0)
    train = federation.train
    names = federation.preparation.outputs
    assert names == (
        "age", "age is missing", "pressure", "colour = blue", "colour = green", "colour = red",
        *(["colour = other"] if 5 in train.rows else []),
        "smoker", "seen", "seen (sine of the year)", "seen (cosine of the year)",
    )  # fmt: skip
    of = {name: train.x[:, i] for i, name in enumerate(names)}
    raw = frame.iloc[train.rows.numpy()]
    gaps = torch.tensor(raw["age"].isna().to_numpy())
    assert torch.equal(of["age is missing"], gaps.float())
    assert (of["age"][gaps] == 0).all()
    assert torch.allclose(of["age"][~gaps].std(correction=0), torch.tensor(1.0), atol=1e-5)
    pressure = torch.tensor(raw["pressure"].to_numpy())
    expected = (pressure - pressure.mean()) / pressure.std(correction=0)
    assert torch.allclose(of["pressure"].double(), expected, atol=1e-5)
    assert of["colour = red"].tolist() == (raw["colour"] == "red").astype(float).tolist()
    smokes = (raw["smoker"] == "yes").to_numpy()
    assert torch.allclose(of["smoker"], torch.tensor(smokes - smokes.mean(), dtype=torch.float32))
    days = pd.to_datetime(raw["seen"], format="%d.%m.%Y")
    angle = 2 * np.pi * ((days - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy() / 365.2425
    assert np.allclose(of["seen (sine of the year)"], np.sin(angle), atol=1e-5)


@pytest.mark.parametrize("scaling", ["shared", "own"])
@pytest.mark.parametrize("label", ["ill", "cost"])
def test_nothing_of_test_and_validation_rows_is_learned(plan: Callable[..., Any], scaling: str, label: str) -> None:
    fields = {"scaling": scaling, "label": label, "drop": "cost" if label == "ill" else "ill"}
    usual = plan(**fields)[0].build(0)
    held_out = torch.cat([usual.validation.rows, usual.test.rows]).numpy()

    def change(frame: Any) -> None:
        frame.loc[held_out, "pressure"] = 1e6
        frame.loc[held_out, "colour"] = "orange"
        frame.loc[held_out, "age"] = None

    other = plan(change, **fields)[0].build(0)
    assert torch.equal(other.train.rows, usual.train.rows)
    assert torch.equal(other.train.x, usual.train.x)
    assert other.preparation == usual.preparation
    assert other.target == usual.target


def test_scaling_by_each_owner_alone(plan: Callable[..., Any]) -> None:
    def shift(frame: Any) -> None:
        frame.loc[frame["site"] == "b", "pressure"] += 500

    shared, own = (plan(shift, scaling=scaling)[0].build(0) for scaling in ("shared", "own"))
    column = shared.preparation.outputs.index("pressure")
    means = torch.tensor([[f.train.client(k)[0][:, column].mean() for k in range(4)] for f in (shared, own)])
    assert means[0, 1] > 1.5
    assert means[1].abs().max() < 1e-5
    assert shared.preparation.features == own.preparation.features
    assert sorted(own.preparation.scales) == ["a", "b", "c", "d"]
    with pytest.raises(InputError, match="no owner 'e' in the training data"):
        own.preparation.transform(patients(), "e")


@pytest.mark.parametrize("scaling", ["shared", "own"])
def test_quantities_come_back_in_their_unit(plan: Callable[..., Any], scaling: str) -> None:
    scenario, frame = plan(label="cost", drop="ill", scaling=scaling)
    federation = scenario.build(0)
    assert federation.classes == ()
    assert federation.target.names == ("cost",)
    for k, name in enumerate(federation.names):
        a, b = federation.test.starts[k : k + 2]
        y, cost = federation.test.y[a:b], frame["cost"].to_numpy()[federation.test.rows[a:b]]
        assert np.allclose(federation.preparation.restore(y, name), cost)
        assert np.allclose(y * federation.target.sd[k] + federation.target.mean[k], cost)
    assert abs(float(federation.train.y.mean())) < 1e-6
    assert float(federation.train.y.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_several_labels_are_left_as_they_are(plan: Callable[..., Any]) -> None:
    scenario, frame = plan(lambda f: f.insert(0, "old", (f["cost"] > 300).astype(int)), label="ill,old")
    federation = scenario.build(0)
    assert federation.classes == federation.target.names == ("ill", "old")
    assert np.array_equal(federation.test.y, frame[["ill", "old"]].to_numpy()[federation.test.rows])


def test_new_rows_are_treated_like_the_old(plan: Callable[..., Any], tmp_path: Path) -> None:
    scenario, frame = plan(scaling="own")
    federation = scenario.build(0)
    prepared = Preparation.from_json(json.loads(json.dumps(federation.preparation.to_json())))
    assert prepared == federation.preparation
    for k, name in enumerate(federation.names):
        a, b = federation.test.starts[k : k + 2]
        rows = frame.iloc[federation.test.rows[a:b].numpy()]
        expected = federation.test.x[a:b]
        shuffled = rows[rows.columns[::-1]]
        shuffled.to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",")
        shuffled.to_excel(tmp_path / "new.xlsx", index=False)
        given = [
            rows, shuffled, rows.to_dict("list"), rows.to_dict("records"), tmp_path / "new.csv",
            str(tmp_path / "new.xlsx"), rows.drop(columns=["ill", "site", "cost"]).astype(str),
        ]  # fmt: skip
        for raw in given:
            notes: list[str] = []
            assert torch.equal(prepared.transform(raw, name, notes), expected)
            assert notes == []
        one = {key: value for key, value in rows.iloc[0].items() if key != "ill"}
        assert torch.equal(prepared.transform(one, name), expected[:1])


def test_new_rows_that_differ_are_said(plan: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    scenario, frame = plan()
    prepared = scenario.build(0).preparation
    rows = frame.head(2).assign(colour="orange", pressure=["high", "1000"], room=7)
    notes: list[str] = []
    x = prepared.transform(rows, "a", notes)
    of = dict(zip(prepared.outputs, x.T, strict=True))
    assert x[0].isfinite().all()
    assert of["pressure"][0] == 0
    assert all(of[f"colour = {word}"].eq(0).all() for word in WORDS)
    assert notes == [
        "column 'room' was not in the training data and is not used",
        "'pressure' is no number in 1 rows, such as 'high'; they count as empty",
        "'colour' has words that were rare or unknown in training (orange)",
    ]
    with caplog.at_level(logging.WARNING):
        prepared.transform(rows, "a")
    assert "rare or unknown in training (orange)" in caplog.text
    with pytest.raises(InputError, match="the rows lack columns 'age', 'seen', which the model was trained with"):
        prepared.transform(frame.drop(columns=["age", "seen"]), "a")
    with pytest.raises(InputError, match="is no table"):
        prepared.transform("model.onnx", "a")


@pytest.mark.parametrize("scaling", ["shared", "own"])
def test_long_tails_end_at_ten_deviations(plan: Callable[..., Any], scaling: str) -> None:
    """One cell that is 30 deviations off would make the training of everybody who has it diverge."""

    def change(frame: Any) -> None:
        rng = np.random.default_rng(0)
        frame["paid"] = np.where(rng.random(len(frame)) < 0.02, 1e6, rng.normal(50, 10, len(frame))).round(1)

    scenario, frame = plan(change, scaling=scaling)
    federation = scenario.build(0)
    preparation = federation.preparation
    assert preparation is not None
    every = torch.cat([split.x for split in (federation.train, federation.validation, federation.test)])
    assert float(every.abs().max()) <= 10
    notes: list[str] = []
    rows = frame.drop(columns=["ill", "cost"]).head(2).assign(pressure=[1e9, 1001])
    x = preparation.transform(rows, "a", notes)
    place = preparation.outputs.index("pressure")
    assert x[0, place] == 10
    assert abs(float(x[1, place])) < 3
    assert [note for note in notes if "pressure" in note] == [
        "'pressure' is further from the train rows' mean than 10 deviations in 1 row, such as '1000000000.0'; "
        "they count as that far"
    ]
    plain = preparation.to_json()
    assert Preparation.from_json(plain) == preparation
    del plain["limit"]  # a folder from before there was one gives the scores that it gave
    assert float(Preparation.from_json(plain).transform(rows, "a")[0, place]) > 1e6


def test_rare_words_share_a_column(tmp_path: Path) -> None:
    words = ["w1"] * 50 + ["w2"] * 40 + ["r1", "r2", "r3", "r4"] * 2 + ["x"] * 2
    pd.DataFrame({"w": words, "z": np.arange(100) % 7, "label": np.arange(100) % 2}).to_csv(
        tmp_path / "w.csv", index=False
    )
    federation = Scenario(data=str(tmp_path / "w.csv"), clients=2).build(0)
    prepared = federation.preparation
    assert isinstance(prepared, Preparation)
    feature = prepared.features[0]
    assert {"w1", "w2"} <= set(feature.categories)
    assert feature.other
    x = torch.cat([federation.train.x, federation.test.x])
    assert (x[:, : len(feature.outputs)].sum(1) == 1).all()
    new = prepared.transform({"w": ["never seen"], "z": [3]})
    assert new[0, feature.outputs.index("w = other")] == 1


def test_a_number_among_words_is_the_same_in_a_file_of_numbers(tmp_path: Path) -> None:
    rows = [
        f"{site},{code},{i % 2}" for i, code in enumerate(["12.0", "<5", "07", "<5", "12.0", "07"] * 6) for site in "ab"
    ]
    (tmp_path / "t.csv").write_text("site,code,label\n" + "\n".join(rows) + "\n")
    plan = Scenario(data=str(tmp_path / "t.csv"), column="site", split="column", clients=None)
    preparation = plan.build(0).preparation
    assert isinstance(preparation, Preparation)
    both = preparation.transform(pd.DataFrame({"code": ["12.0", "07", "<5"]}))
    assert torch.equal(preparation.transform(pd.DataFrame({"code": [12.0, 7.0]})), both[:2])
    assert both.sum(1).tolist() == [1, 1, 1]


def test_a_column_flat_in_training_is_zero(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [5.0] * 99 + [6.0], "z": np.arange(100) % 9, "label": np.arange(100) % 2})
    frame.to_csv(tmp_path / "f.csv", index=False)
    plan = Scenario(data=str(tmp_path / "f.csv"), clients=2)
    seed = next(s for s in range(20) if 99 not in plan.build(s).train.rows)
    federation = plan.build(seed)
    for split in (federation.train, federation.validation, federation.test):
        assert (split.x[:, 0] == 0).all()


def test_scaling_needs_a_table() -> None:
    with pytest.raises(InputError, match="scaling 'own' needs a table"):
        Scenario(scaling="own").build(0)
    with pytest.raises(InputError, match="unknown scaling 'alone'"):
        Scenario(scaling="alone")
