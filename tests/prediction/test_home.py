"""Models on raw rows: from the folder of a comparison, from Python, and as a folder of their own."""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fairlead
from fairlead.cli import main
from fairlead.comparison.all_rows import joined, middle
from fairlead.comparison.recheck import recheck
from fairlead.data.sources import files_of
from fairlead.effort import Choice
from fairlead.prediction.export import export
from fairlead.prediction.predict import choose_run, load_run, predict
from fairlead.runs.deployment import read_deployment

QUICK: dict[str, Any] = {
    "effort": "quick",
    "rounds": 3,
    "lr": 0.1,
    "model": "logistic",
    "folds": 2,
    "engine": "vectorised",
}


@pytest.fixture(scope="module")
def heart(tmp_path_factory: pytest.TempPathFactory) -> fairlead.Comparison:
    """The table of four hospitals, with a method that adds to the network."""
    return fairlead.compare(["fedrod"], data="heart-disease", out=tmp_path_factory.mktemp("heart") / "run", **QUICK)


@pytest.fixture(scope="module")
def rents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A quantity with words, empty cells and a scale of each owner's own; the table and the comparison."""
    folder, rng = tmp_path_factory.mktemp("rents"), np.random.default_rng(0)
    size, kind = rng.normal(70, 20, 90), rng.choice(["flat", "house", "room"], 90)
    city = np.repeat(["bern", "cluj", "oslo"], 30)
    rent = 12.5 * size + 300 * (kind == "house") + 100 * (city == "oslo") + rng.normal(0, 20, 90)
    size[::11] = np.nan
    table = folder / "rents.csv"
    pd.DataFrame({"size": size, "kind": kind, "rent": rent.round(2), "city": city}).to_csv(table, index=False)
    settings = QUICK | {"data": str(table), "label": "rent", "column": "city", "scaling": "own", "model": "mlp"}
    fairlead.compare(["fedavg"], out=folder / "run", **settings)
    return table, folder / "run"


@pytest.fixture(scope="module")
def symptoms(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Three yes/no labels for each row, in words; the table and the comparison."""
    folder, rng = tmp_path_factory.mktemp("symptoms"), np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).round(3)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(ward=list("mnop") * 30)
    for i, name in enumerate(("cough", "fever", "rash")):
        frame[name] = np.where(x[:, i] + 0.3 * rng.normal(size=120) > 0, "Yes", "no ")
    frame.to_csv(folder / "symptoms.csv", index=False)
    settings = QUICK | {"data": str(folder / "symptoms.csv"), "label": "cough,fever,rash", "column": "ward"}
    fairlead.compare(["fedavg"], out=folder / "run", **settings | {"rounds": 20, "lr": 1.0})
    return folder / "symptoms.csv", folder / "run"


@pytest.fixture(scope="module")
def as_published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A table without validation rows: nothing is searched for, two seeds as in a published protocol."""
    folder = tmp_path_factory.mktemp("published")
    settings: dict[str, Any] = {
        "data": "heart-disease",
        "fractions": (0.7, 0.0, 0.3),
        "rounds": 4,
        "lr": 0.1,
        "model": "logistic",
    }
    fairlead.compare(["fedavg"], out=folder / "run", seeds=2, engine="vectorised", **settings)
    return files_of("heart-disease")[0], folder / "run"


def hospitals() -> pd.DataFrame:
    """The raw table."""
    return pd.read_csv(files_of("heart-disease")[0])


def test_every_finished_run_says_how_to_use_its_models(heart: fairlead.Comparison) -> None:
    runs = [path.parent for path in heart.folder.glob("runs/**/summary.json")]
    assert len(runs) >= 8
    for run in runs:
        made = read_deployment(run)
        assert made.model == "logistic"
        assert made.owners == ("cleveland", "hungarian", "switzerland", "va")
        assert (made.classes, made.labels, made.column) == (("0", "1"), ("disease",), "hospital")
        assert made.preparation is not None
        assert type(made).from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(("data", "count"), [("heart", 20), ("rents", 15), ("symptoms", 20), ("as_published", 8)])
def test_raw_rows_give_the_scores_of_the_page_in_every_bit(
    data: str, count: int, request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue(data)
    done = recheck(found.folder if data == "heart" else found[1])
    assert len(done.scores) == count
    assert all(one.before is not None for one in done.scores)
    assert [one.now for one in done.scores] == [one.before for one in done.scores]
    assert done.apart < 1e-5


def test_the_check_tells_a_changed_model_and_changed_data(rents: tuple[Path, Path], tmp_path: Path) -> None:
    table, folder = rents
    summary = json.loads((folder / "summary.json").read_text())
    run = folder / summary["methods"]["fedavg"]["final"][0][0]
    before = (run / "deployment.json").read_text()
    plain = json.loads(before)
    plain["preparation"]["scales"]["oslo"]["mean"][0] += 1.0
    (run / "deployment.json").write_text(json.dumps(plain))
    try:
        unequal = [(one.method, one.owner) for one in recheck(folder).scores if not one.equal]
    finally:
        (run / "deployment.json").write_text(before)
    assert unequal == [("fedavg", "oslo")]
    other = pd.read_csv(table)
    other.loc[0, "rent"] += 1
    other.to_csv(tmp_path / "rents.csv", index=False)
    with pytest.raises(fairlead.RunError, match="made from other data"):
        recheck(folder, tmp_path / "rents.csv")


def test_a_predictor_takes_rows_of_any_kind(heart: fairlead.Comparison, tmp_path: Path) -> None:
    predictor, rows = heart.predictor("fedrod", "va"), hospitals().query("hospital == 'va'")
    rows[rows.columns[::-1]].to_csv(tmp_path / "va.tsv", sep="\t", index=False)
    rows.to_excel(tmp_path / "va.xlsx", index=False)
    rows.to_parquet(tmp_path / "va.parquet")
    expected = predictor(rows)
    assert list(expected.columns) == ["disease", "probability of 0", "probability of 1"]
    assert np.allclose(expected.iloc[:, 1:].sum(axis=1), 1)
    assert (expected["disease"] == (expected["probability of 1"] > 0.5).map({True: "1", False: "0"})).all()
    ways = [tmp_path / "va.tsv", tmp_path / "va.xlsx", str(tmp_path / "va.parquet"), rows.to_dict("list")]
    for way in [*ways, rows.to_dict("records")]:
        pd.testing.assert_frame_equal(predictor(way), expected)
    pd.testing.assert_frame_equal(heart.predictor("fedrod", 3)(rows), expected)
    model = heart.model("fedrod", client=3)
    fold = heart.predictor("fedrod", "va", fold=0)
    assert torch.equal(model(fold.samples(rows)), fold.outputs(rows))


def test_models_of_two_clients_are_two_models(heart: fairlead.Comparison) -> None:
    first, second = heart.model("local", 0), heart.model("local", 1)
    weights = [next(iter(model.parameters())) for model in (first, second)]
    assert not torch.equal(*weights)


def test_quantities_come_in_their_own_unit(rents: tuple[Path, Path]) -> None:
    table, folder = rents
    rows = pd.read_csv(table)
    found = predict(folder, table, method="local")
    assert list(found.columns) == ["city", "rent"]
    assert found["city"].tolist() == rows["city"].tolist()
    assert np.corrcoef(found["rent"], rows["rent"])[0, 1] > 0.8
    assert abs(found["rent"].mean() - rows["rent"].mean()) < 0.2 * rows["rent"].mean()


def test_several_labels_come_with_a_probability_each(symptoms: tuple[Path, Path], tmp_path: Path) -> None:
    table, folder = symptoms
    rows, found = pd.read_csv(table), predict(folder, table, method="fedavg")
    names = ["cough", "fever", "rash"]
    assert list(found.columns) == ["ward", *names, *(f"probability of {name}" for name in names)]
    truth = rows[names].apply(lambda column: column.str.strip() == "Yes")
    assert (found[names] == truth.astype(int)).to_numpy().mean() > 0.75
    assert ((found[names] == 1).to_numpy() == (found.iloc[:, 4:] >= 0.5).to_numpy()).all()
    export(folder, "n", tmp_path / "model", "fedavg")
    mine = found[found["ward"] == "n"].drop(columns="ward").reset_index(drop=True)
    again = fairlead.load_model(tmp_path / "model")(rows[rows["ward"] == "n"])
    pd.testing.assert_frame_equal(again, mine)


def test_a_published_protocol_has_models_to_use(as_published: tuple[Path, Path], tmp_path: Path) -> None:
    table, folder = as_published
    found = predict(folder, table, owner="va", method="fedavg")
    assert list(found.columns) == ["disease", "probability of 0", "probability of 1"]
    export(folder, "va", tmp_path / "model", "fedavg")
    pd.testing.assert_frame_equal(fairlead.load_model(tmp_path / "model")(table), found)


def test_all_rows_train_the_model_that_is_used(heart: fairlead.Comparison) -> None:
    local = heart.summary["methods"]["local"]
    choice = choose_run(heart.folder, "va", "local")
    assert choice.run == heart.folder / local["all_rows"]
    assert sum(read_deployment(choice.run).train_rows) == 740
    assert choose_run(heart.folder, "va", "local", fold=1).run == heart.folder / local["final"][1][0]
    with pytest.raises(fairlead.InputError, match="--fold must be 0 to 1, got 2"):
        choose_run(heart.folder, "va", "local", fold=2)


def test_rows_join_client_by_client_and_choices_meet_in_the_middle() -> None:
    federation = fairlead.Scenario("heart-disease", split="column", clients=None).build(0, refit=True)
    both = joined(federation)
    assert both.train.sizes.tolist() == (federation.train.sizes + federation.test.sizes).tolist()
    assert len(both.test.y) == 0
    for k in range(both.clients):
        mine = torch.cat([federation.train.client(k)[0], federation.test.client(k)[0]])
        assert torch.equal(both.train.client(k)[0], mine)
    nothing: dict[str, Any] = dict.fromkeys(Choice._fields, 0)
    tried = [
        Choice(**nothing | {"lr": lr, "round": r}) for lr, r in [(0.1, 7), (0.3, 9), (0.1, 5), (0.03, 50), (0.1, 6)]
    ]
    assert (middle(tried).lr, middle(tried).round) == (0.1, 6)


@pytest.fixture
def command(
    heart: fairlead.Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> "type[Call]":
    """The command line, in a folder that holds a table of new rows."""
    monkeypatch.chdir(tmp_path)
    hospitals().drop(columns=["disease", "split"]).groupby("hospital").head(2).to_csv("new.csv", index=False)
    Call.run, Call.patch, Call.read = str(heart.folder), monkeypatch, capsys
    return Call


class Call:
    """One call of the command: its code and what it printed."""

    run: str
    patch: pytest.MonkeyPatch
    read: pytest.CaptureFixture[str]

    def __init__(self, *words: str) -> None:
        self.patch.setattr(sys, "argv", ["fairlead", words[0], self.run, *words[1:]])
        with pytest.raises(SystemExit) as left:
            main()
        self.code = int(left.value.code or 0)
        self.out, self.err = self.read.readouterr()


def test_predict_answers_for_every_owner_in_the_file(command: type[Call], heart: fairlead.Comparison) -> None:
    done = command("predict", "new.csv", "--method", "local", "--out", "p.csv")
    assert done.code == 0, done.err
    found, rows = pd.read_csv("p.csv", dtype={"disease": str}), pd.read_csv("new.csv")
    assert found["hospital"].tolist() == rows["hospital"].tolist()
    for owner in ("cleveland", "va"):
        mine = (rows["hospital"] == owner).to_numpy()
        expected = heart.predictor("local", owner)(rows[mine])
        assert np.allclose(found.loc[mine, "probability of 1"], expected["probability of 1"])
    assert "va: local; the model trained on all rows" in done.err


def test_predict_says_what_is_unusual_and_what_cannot_be(command: type[Call]) -> None:
    rows = pd.read_csv("new.csv").drop(columns="hospital").assign(colour="red")
    rows["chol"] = rows["chol"].astype(object)
    rows.loc[0, "chol"] = "high"
    rows.to_csv("odd.csv", index=False)
    done = command("predict", "odd.csv", "--owner", "VA")
    assert done.code == 0, done.err
    assert done.out.count("\n") == len(rows) + 1
    assert "column 'colour' was not in the training data" in done.err
    assert "'chol' is no number in 1 rows" in done.err
    assert "--owner is not given and the file has no column 'hospital'" in command("predict", "odd.csv").err
    assert "did you mean 'cleveland'" in command("predict", "odd.csv", "--owner", "clevland").err
    assert command("predict", "odd.csv", "--owner", "va", "--method", "linear").code == 0
    assert "pooled has no models" in command("predict", "odd.csv", "--owner", "va", "--method", "pooled").err
    assert "is not in this comparison" in command("predict", "odd.csv", "--owner", "va", "--method", "ditto").err
    rows.drop(columns="age").to_csv("less.csv", index=False)
    assert "lack column 'age'" in command("predict", "less.csv", "--owner", "va").err


def test_predict_check_prints_that_scores_are_equal(command: type[Call]) -> None:
    done = command("predict", "--check")
    assert done.code == 0, done.err
    assert "20 of 20 scores equal those of summary.json in every bit." in done.out


def test_export_is_a_folder_that_predicts_alone(command: type[Call], heart: fairlead.Comparison) -> None:
    done = command("export", "model", "--owner", "va", "--method", "fedrod")
    assert done.code == 0, done.err
    names = {"model.safetensors", "model.json", "README.md", "use.py"}
    onnx = importlib.util.find_spec("onnx") is not None and importlib.util.find_spec("onnxscript") is not None
    assert {path.name for path in Path("model").iterdir()} == names | ({"model.onnx"} if onnx else set())
    assert all(path.stat().st_mode & 0o077 == 0 for path in (Path("model"), *Path("model").iterdir()))
    model, rows = fairlead.load_model("model"), pd.read_csv("new.csv")
    expected = heart.predictor("fedrod", "va")(rows)
    pd.testing.assert_frame_equal(model(rows), expected)
    assert model.deployment.owners == ("va",)
    card = Path("model/README.md").read_text()
    score = heart.summary["methods"]["fedrod"]["clients"][3]["accuracy"]
    for text in (f"{score:.4f}", "| age | number |", "## Licence", "fedrod"):
        assert text in card
    used = [sys.executable, "model/use.py", "new.csv"]
    told = subprocess.run(used, capture_output=True, text=True, check=True, timeout=120).stdout
    assert told == expected.to_csv(index=False)
    if onnx:
        from onnx.reference import ReferenceEvaluator

        (given,) = ReferenceEvaluator("model/model.onnx").run(None, {"samples": model.samples(rows).numpy()})
        assert np.allclose(given, model.outputs(rows).numpy(), atol=1e-5)
    assert "is not empty" in command("export", "model", "--owner", "va").err


def test_an_export_holds_nothing_of_other_owners(rents: tuple[Path, Path], tmp_path: Path) -> None:
    export(rents[1], "oslo", tmp_path / "model", "local")
    plain = json.loads((tmp_path / "model" / "model.json").read_text())
    assert list(plain["preparation"]["scales"]) == plain["owners"] == ["oslo"]
    assert "bern" not in (tmp_path / "model" / "model.json").read_text()
    expected = load_run(choose_run(rents[1], "oslo", "local").run, "oslo")(rents[0])
    pd.testing.assert_frame_equal(fairlead.load_model(tmp_path / "model")(rents[0]), expected)


def test_a_network_of_ones_own_is_asked_for(tmp_path: Path) -> None:
    def network(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], 3), nn.Tanh(), nn.Linear(3, outputs))

    settings: dict[str, Any] = {"data": "heart-disease", "rounds": 1, "effort": "quick", "lr": 0.1, "folds": 1}
    result = fairlead.compare(["fedavg"], model=network, out=tmp_path / "run", **settings)
    rows = hospitals().head(5)
    predictor = result.predictor("fedavg", "va")
    assert len(predictor(rows)) == 5
    with pytest.raises(fairlead.InputError, match="a model function of your own made this network"):
        predict(tmp_path / "run", files_of("heart-disease")[0], "va", "fedavg")
    assert dataclasses.replace(predictor.deployment, model="logistic").network() is not None
