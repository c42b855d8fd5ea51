"""Images by owner, arrays by owner and torch data sets become sources; nothing is unpickled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import fairlead
from fairlead.core.errors import DataError, InputError
from fairlead.data import Scenario, from_dataset, from_tensors, load, owner_column


def draw(path: Path, value: int, size: tuple[int, int] = (4, 4), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 0)).save(path)


def test_images_by_owner_and_class(tmp_path: Path) -> None:
    for k, owner in enumerate(("north", "south")):
        for i in range(8):
            draw(tmp_path / "pets" / owner / ("cat" if i % 2 else "dog") / f"{i}.png", 10 * k + i)
    source = load(tmp_path / "pets")
    assert source.raw.shape == (16, 1, 4, 4)
    assert source.classes == ("cat", "dog")
    assert owner_column(tmp_path / "pets") == "owner"
    values = source.raw[:, 0, 0, 0]
    assert torch.equal(source.y, 1 - values % 10 % 2)
    assert source.columns["owner"].tolist() == ["north" if v < 10 else "south" for v in values.tolist()]
    federation = Scenario(data=str(tmp_path / "pets"), split="column", clients=None).build(0)
    assert federation.names == ("north", "south")


def test_images_by_class_alone(tmp_path: Path) -> None:
    for i in range(4):
        draw(tmp_path / "pets" / ("cat" if i % 2 else "dog") / f"{i}.jpg", 50, mode="RGB")
    source = load(str(tmp_path / "pets"))
    assert source.raw.shape == (4, 3, 4, 4)
    assert source.columns == {}
    assert owner_column(tmp_path / "pets") is None
    draw(tmp_path / "pets" / "cat" / "large.png", 5, size=(9, 9), mode="RGB")
    with pytest.raises(DataError, match="one size, found 4x4 and 9x9"):
        load(tmp_path / "pets")
    draw(tmp_path / "one" / "cat" / "0.png", 5)
    with pytest.raises(InputError, match="one class alone, 'cat'"):
        load(tmp_path / "one")


def test_arrays_by_owner(tmp_path: Path) -> None:
    for part, n in (("train", 6), ("test", 4)):
        (tmp_path / "arrays" / part).mkdir(parents=True)
        for k in (0, 2, 10):
            x = np.full((n, 3), k, dtype=np.float32)
            np.savez(tmp_path / "arrays" / part / f"{k}.npz", x=x, y=np.arange(n) % 2)
    source = load(tmp_path / "arrays")
    assert (len(source), int((source.parts == "test").sum())) == (30, 12)
    assert source.columns["owner"].astype(int).tolist() == source.raw[:, 0].tolist()
    plan = Scenario(data=str(tmp_path / "arrays"), split="column", clients=None, pool="train")
    federation = plan.build(0)
    assert federation.test.sizes.tolist() == [4, 4, 4]
    assert federation.names == ("0", "2", "10")
    np.savez(tmp_path / "one.npz", x=np.zeros((4, 5), np.int64), y=[0.5, 1, 2, 3], owner=list("aabb"))
    one = load(tmp_path / "one.npz")
    assert (one.raw.dtype, one.classes, one.columns["owner"].tolist()) == (torch.int64, (), list("aabb"))


def test_arrays_that_cannot_be_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "0.npz", data=np.array({"x": [1], "y": [0]}, dtype=object))
    with pytest.raises(DataError, match=r"unpickles nothing.*convert each once: d = numpy.load"):
        load(tmp_path / "0.npz")
    np.savez(tmp_path / "1.npz", a=np.zeros(3))
    with pytest.raises(InputError, match="no array 'x'; it has: a"):
        load(tmp_path / "1.npz")
    (tmp_path / "2.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"2\.npz"):
        load(tmp_path / "2.npz")
    with pytest.raises(DataError, match="no file"):
        load(tmp_path / "3.npz")


def test_torch_data_sets() -> None:
    x, y = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    source = from_dataset(TensorDataset(x, y))
    assert torch.equal(source.raw, x)
    assert source.classes == ("0", "1", "2")
    both = from_dataset({"a": TensorDataset(x, y), "b": TensorDataset(x[:2], y[:2])})
    assert both.columns["owner"].tolist() == ["a"] * 6 + ["b"] * 2
    tokens = from_dataset(TensorDataset(torch.ones(4, 7, dtype=torch.int64), torch.tensor([0, 1, 0, 1])))
    federation = Scenario(clients=1, fractions=(0.5, 0.0, 0.5)).build(0, source=tokens)
    assert federation.train.x.dtype == torch.int64
    quantity = from_dataset(TensorDataset(x, torch.rand(6)))
    assert quantity.classes == ()
    images = from_dataset([(Image.new("RGB", (4, 5)), 0), (Image.new("RGB", (4, 5)), 1)])
    assert (images.raw.shape, images.raw.dtype) == ((2, 3, 5, 4), torch.uint8)
    with pytest.raises(InputError, match=r"a pair \(x, y\)"):
        from_dataset(TensorDataset(x))
    with pytest.raises(InputError, match="differ in shape"):
        from_dataset([(torch.zeros(3), 0), (torch.zeros(4), 1)])
    with pytest.raises(InputError, match="no samples"):
        from_dataset([])


def test_quantities_of_tensors_are_standardised() -> None:
    y = torch.arange(40.0) * 3 + 7
    federation = Scenario(clients=2).build(0, source=from_tensors(torch.rand(40, 2), y))
    for split in (federation.train, federation.validation, federation.test):
        back = split.y * federation.target.sd[0] + federation.target.mean[0]
        assert torch.allclose(back, y[split.rows], atol=1e-4)
    assert abs(float(federation.train.y.mean())) < 1e-6
    with pytest.raises(InputError, match="split 'dirichlet' needs classes"):
        Scenario(clients=2, split="dirichlet").build(0, source=from_tensors(torch.rand(40, 2), y))


def test_tokens_need_a_model_that_embeds_them() -> None:
    source = from_tensors(torch.randint(0, 9, (40, 5)), torch.arange(40) % 2)
    settings: dict[str, Any] = {"source": source, "clients": 2, "rounds": 2, "engine": "loop"}
    with pytest.raises(InputError, match=r"pass model=function; if they are measurements, pass x\.float\(\)"):
        fairlead.compare(["fedavg"], **settings)

    def model(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(20, classes))

    result = fairlead.compare(["fedavg"], model=model, **settings)
    assert dict(result.model("fedavg", 0).named_parameters())["0.weight"].shape == (9, 4)
