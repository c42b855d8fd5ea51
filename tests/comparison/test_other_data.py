"""Data that is no table, from its folder or Dataset to a model to take home; and tables that are odd in one way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fairlead
from fairlead.comparison.recheck import recheck
from fairlead.data import from_dataset, from_tensors
from fairlead.prediction.export import export
from fairlead.prediction.predict import predict
from fairlead.report import write_page

QUICK: dict[str, Any] = {"effort": "quick", "rounds": 3, "lr": 0.1, "folds": 1, "engine": "vectorised"}


@pytest.fixture(autouse=True)
def no_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing ONNX takes seconds, and tests/prediction does it."""
    monkeypatch.setattr("fairlead.prediction.export._write_onnx", lambda predictor, path: False)


def kept(result: fairlead.Comparison, folder: Path, owner: str | int, samples: Tensor) -> Tensor:
    """What the exported model makes of samples; the comparison's own model makes the same of them."""
    export(result.folder, str(owner), folder, "fedavg")
    loaded = fairlead.load_model(folder)
    own = result.predictor("fedavg", owner)
    pd.testing.assert_frame_equal(loaded(samples), own(samples))
    torch.testing.assert_close(result.model("fedavg", owner)(samples), own.outputs(samples))
    return loaded.outputs(samples)


def test_a_folder_of_images_by_owner_and_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for owner in "xyz":
        for name, light in (("cat", 0), ("dog", 90)):
            folder = tmp_path / "pets" / owner / name
            folder.mkdir(parents=True)
            for i in range(12):
                Image.fromarray((rng.integers(0, 120, (8, 8)) + light).astype(np.uint8)).save(folder / f"{i}.png")
    settings = QUICK | {"data": tmp_path / "pets", "model": "logistic", "rounds": 10}
    result = fairlead.compare(["fedavg"], out=tmp_path / "run", **settings)
    assert result.summary["findings"]["owners"] == ["x", "y", "z"]
    assert result.summary["data"]["owners"][0]["classes"] == {"cat": 12, "dog": 12}
    assert result.summary["data"]["columns"] == []
    assert kept(result, tmp_path / "model", "y", torch.zeros(2, 1, 8, 8)).argmax(1).tolist() == [0, 0]
    with pytest.raises(fairlead.InputError, match="was trained on images or tensors"):
        predict(tmp_path / "run", tmp_path / "pets", "y")


def test_arrays_as_pfllib_lays_them_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, n in (("train", 40), ("test", 20)):
        for k in range(3):
            (tmp_path / "pfl" / part).mkdir(parents=True, exist_ok=True)
            x = rng.normal(size=(n, 5)).astype(np.float32)
            np.savez(tmp_path / "pfl" / part / f"{k}.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    settings = QUICK | {"data": tmp_path / "pfl", "model": "logistic", "pool": "train"}
    result = fairlead.compare(["fedavg"], out=tmp_path / "run", **settings)
    assert [owner["rows"] for owner in result.summary["data"]["owners"]] == [60, 60, 60]
    assert [client["n_test"] for client in result.summary["methods"]["local"]["clients"]] == [20, 20, 20]
    kept(result, tmp_path / "model", "2", torch.zeros(2, 5))


def test_datasets_of_torch_by_owner(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    owners = {}
    for name in ("berlin", "oslo"):
        x = torch.randn(50, 4, generator=draw)
        owners[name] = TensorDataset(x, (x[:, 0] > 0).long())
    settings = QUICK | {"source": from_dataset(owners), "column": "owner", "model": "logistic"}
    result = fairlead.compare(["fedavg"], out=tmp_path / "run", **settings)
    assert result.summary["findings"]["owners"] == ["berlin", "oslo"]
    kept(result, tmp_path / "model", "oslo", torch.zeros(2, 4))


class Sums(nn.Module):
    """The mean of embedded tokens, then a line."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embed, self.line = nn.Embedding(20, 6), nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.line(self.embed(x).mean(1))
        return answer


def test_integer_tokens_with_a_model_of_ones_own(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 20, (150, 7), generator=draw)
    y = (x < 5).sum(1).clamp(max=2)
    source = from_tensors(x, y, {"writer": np.arange(150) % 3})
    settings = QUICK | {"source": source, "column": "writer", "model": lambda shape, classes: Sums(classes)}
    result = fairlead.compare(["fedavg"], out=tmp_path / "run", **settings)
    predictor = result.predictor("fedavg", 1)
    assert predictor(x[:4]).shape == (4, 4)  # the class and three probabilities
    with pytest.raises(fairlead.InputError, match="a model of your own may embed: pass model=function"):
        fairlead.compare(["fedavg"], source=source, column="writer", **QUICK)


def sound(n: int = 120, owners: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, n)).round(4)
    y = a + 0.4 * rng.normal(size=n) > 0
    return pd.DataFrame({"site": [f"s{i % owners}" for i in range(n)], "a": a, "b": b, "y": y.astype(int)})


ODD: dict[str, tuple[pd.DataFrame, dict[str, Any]]] = {
    "one owner": (sound(owners=1), {}),
    "owners with fractions": (sound().assign(site=lambda f: f["site"].str[1].astype(float) + 0.5), {}),
    "owners with slashes": (sound().assign(site=lambda f: "a/" + f["site"] + " ."), {}),
    "a label with blanks": (
        sound().assign(y=lambda f: np.where(f["y"] == 1, " Yes ", "no")).rename(columns={"y": "ill (yes / no)"}),
        {"label": "ill (yes / no)"},
    ),
    "negative labels": (sound().assign(y=lambda f: 2 * f["y"] - 1), {}),
    "boolean labels": (sound().assign(y=lambda f: f["y"] == 1), {}),
    "constant and empty columns": (
        sound().assign(k=7, e=np.nan, b=lambda f: f["b"].where(f["site"] != "s2")),
        {"scaling": "own"},
    ),
    "dates": (sound().assign(when=pd.date_range("2021-12-30", periods=120).strftime("%d.%m.%Y")), {}),
    "half of the rows twice": (pd.concat([sound(60), sound(60)]), {}),
    "a hundred classes": (
        sound(1000).assign(
            y=lambda f: [f"class {i % 100}" for i in range(len(f))], a=lambda f: np.arange(len(f)) % 100
        ),
        {"column": "site"},
    ),
    "other alphabets": (
        sound()
        .rename(columns={"site": "Klinik 漢字", "a": "größe", "y": "μ"})
        .assign(μ=lambda f: f["μ"].map({0: "нет", 1: "да"})),
        {"column": "Klinik 漢字", "label": "μ"},
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_tables_go_all_the_way(case: str, tmp_path: Path) -> None:
    frame, more = ODD[case]
    frame.to_csv(tmp_path / "t.csv", index=False)
    settings = QUICK | {"data": tmp_path / "t.csv", "label": "y", "column": "site", "model": "logistic"} | more
    result = fairlead.compare(["fedavg"], out=tmp_path / "run", **settings)
    done = recheck(tmp_path / "run")
    assert done.scores
    assert all(one.equal for one in done.scores)
    found = predict(tmp_path / "run", tmp_path / "t.csv", method="local")
    assert len(found) == len(frame)
    assert found[str(settings["column"])].tolist() == [str(v) for v in frame[str(settings["column"])]]
    owner = result.summary["findings"]["owners"][0]
    export(tmp_path / "run", owner, tmp_path / "model", "local")
    mine = (frame[str(settings["column"])].map(str) == owner).to_numpy()
    expected = found[mine].drop(columns=str(settings["column"])).reset_index(drop=True)
    pd.testing.assert_frame_equal(fairlead.load_model(tmp_path / "model")(frame[mine]), expected)
    assert write_page(tmp_path / "run").stat().st_size > 1000
