"""Every kind of source can be read, is decoded once, and fails in one helpful sentence."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from fairlead.core.errors import DataError, InputError
from fairlead.data import from_tensors, images, load


def test_digits() -> None:
    source = load()
    assert source.x.shape == (1797, 1, 8, 8)
    assert (source.x.min(), source.x.max()) == (0, 1)
    assert source.y.dtype == torch.int64
    assert source.classes == tuple("0123456789")
    assert set(source.parts) == {"train"}


def test_folder_pixels_labels_parts_and_columns(image_folder: Callable[..., Any], tmp_path: Path) -> None:
    extra = {"year": lambda n: np.arange(n) + 1930, "who": lambda n: ["x"] * n}
    pixels = image_folder("faces", {"train": 5, "validation": 2, "test": 3}, extra=extra)
    source = load("faces", tmp_path)
    assert torch.equal(source.raw, torch.from_numpy(pixels)[:, None])
    assert torch.equal(source.x, source.raw.float() / 255)
    assert source.parts.tolist() == ["train"] * 5 + ["validation"] * 2 + ["test"] * 3
    assert source.y.tolist() == [0, 1, 0, 1, 0, 0, 1, 0, 1, 0]
    assert source.classes == ("a", "b")
    assert source.columns["year"][:2].tolist() == [1930, 1931]
    assert source.columns["who"][0] == "x"
    assert torch.equal(load(str(tmp_path / "faces")).raw, source.raw)


def test_colour_and_other_column_names(image_folder: Callable[..., Any], tmp_path: Path) -> None:
    pixels = image_folder("cifar100", {"train": 2}, size=(32, 32), mode="RGB", image="img", label="fine_label")
    assert torch.equal(load("cifar100", tmp_path).raw, torch.from_numpy(pixels).permute(0, 3, 1, 2))


def test_images_are_decoded_once(
    image_folder: Callable[..., Any], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_folder("tiny", {"train": 4})
    first = load("tiny", tmp_path).raw.clone()
    (file,) = cache.iterdir()
    assert file.name.startswith("tiny-")
    with monkeypatch.context() as patch:
        patch.setattr(images, "_decode", lambda *_: pytest.fail("decoded twice"))
        assert torch.equal(load("tiny", tmp_path).raw, first)
    assert [p.name for p in (tmp_path / "tiny").iterdir()] == ["train-00000-of-00001.parquet"]

    file.write_bytes(b"half a file")  # a damaged file is made again
    assert torch.equal(load("tiny", tmp_path).raw, first)

    image_folder("tiny", {"train": 5})  # changed data are not taken from the cache
    assert len(load("tiny", tmp_path).raw) == 5
    assert len(list(cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written_only_warns(
    image_folder: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    image_folder("tiny", {"train": 4})
    (tmp_path / "file").touch()
    monkeypatch.setenv("FAIRLEAD_CACHE", str(tmp_path / "file" / "below"))
    assert len(load("tiny", tmp_path)) == 4
    assert "could not be cached" in caplog.text


def test_known_names_have_one_size_and_others_must(image_folder: Callable[..., Any], tmp_path: Path) -> None:
    image_folder("yearbook", {"train": 2}, size=(40, 50), mode="RGB")
    assert load("yearbook", tmp_path).raw.shape == (2, 1, 32, 32)
    image_folder("mixed", {"train": 2}, size=(4, 4))
    image_folder("mixed", {"test": 2}, size=(5, 4))
    with pytest.raises(DataError, match="one size, found 4x4 and 5x4"):
        load("mixed", tmp_path)


def test_grey_images_among_colour_ones(image_folder: Callable[..., Any], tmp_path: Path) -> None:
    image_folder("mixed", {"train": 2}, mode="RGB")
    grey = image_folder("mixed", {"test": 2}, mode="L")
    assert torch.equal(load("mixed", tmp_path).raw[2:], torch.from_numpy(grey)[:, None].expand(-1, 3, -1, -1))


def test_images_as_plain_bytes_and_labels_as_words(tmp_path: Path, image_folder: Callable[..., Any]) -> None:
    image_folder("tiny", {"train": 3})
    file = tmp_path / "tiny" / "train-00000-of-00001.parquet"
    content = pq.read_table(file)["image"].combine_chunks().field("bytes")
    pq.write_table(pa.table({"image": content, "label": ["cat", "ant", "cat"]}), file)
    source = load("tiny", tmp_path)
    assert source.y.tolist() == [1, 0, 1]
    assert source.classes == ("ant", "cat")


def test_broken_images_and_labels(tmp_path: Path, image_folder: Callable[..., Any]) -> None:
    image_folder("tiny", {"train": 3})
    file = tmp_path / "tiny" / "train-00000-of-00001.parquet"
    good = pq.read_table(file)
    pq.write_table(good.set_column(0, "image", pa.array([b"no image"] * 3)), file)
    with pytest.raises(DataError, match="cannot be decoded"):
        load("tiny", tmp_path)
    pq.write_table(good.set_column(1, "label", pa.array([0, 1, -1])), file)
    with pytest.raises(DataError, match=r"sample 2 \(train\) has label -1, expected 0 to 1"):
        load("tiny", tmp_path)
    with pytest.raises(InputError, match="no label column 'lable'; did you mean 'label'"):
        load("tiny", tmp_path, label="lable")
    pq.write_table(good.set_column(1, "label", pa.array(["a", "b", "c"])), file.with_name("test-0.parquet"))
    pq.write_table(good, file)
    with pytest.raises(DataError, match="the columns of train, test differ in type"):
        load("tiny", tmp_path)
    file.with_name("test-0.parquet").unlink()
    pq.write_table(good.drop_columns(["image"]), file)
    with pytest.raises(DataError, match="no image column"):
        load("tiny", tmp_path)
    file.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be read"):
        load("tiny", tmp_path)


def test_missing_data_say_what_to_do(
    image_folder: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    image_folder("faces", {"train": 1})
    with pytest.raises(DataError, match=r"pip install 'fairlead\[hub\]'.*--data-dir DIR"):
        load("mnist")
    with pytest.raises(DataError, match="it holds: faces; leave out --data-dir"):
        load("mnist", tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        load("mnist", tmp_path / "nowhere")
    with pytest.raises(DataError, match="on no hub: say --data-dir"):
        load("yearbook")
    (tmp_path / "stata.dta").write_bytes(b"x")
    with pytest.raises(DataError, match=r"stata.dta is no table that can be read; save it as .csv, or as .tsv, "):
        load(str(tmp_path / "stata.dta"))
    (tmp_path / "bare").mkdir()
    with pytest.raises(
        DataError, match=r"the folder .*bare holds no tables \(.csv, .*\), images or arrays; check the path"
    ):
        load(str(tmp_path / "bare"))
    with pytest.raises(DataError, match="no folder"):
        load(str(tmp_path / "a" / "b"))
    with pytest.raises(InputError, match="did you mean 'fashion_mnist'"):
        load("fashion-mnist")


class FakeDataset:
    """What the hub reader uses of `datasets.Dataset`."""

    def __init__(self, table: Any, names: list[str]) -> None:
        self.table = table
        self.features = type("Features", (dict,), {"arrow_schema": table.schema})(
            fine_label=SimpleNamespace(names=names)
        )

    def cast_column(self, name: str, feature: None) -> "FakeDataset":
        return self

    def with_format(self, kind: str) -> "FakeDataset":
        return self

    def __getitem__(self, key: slice) -> Any:
        return self.table


def test_hub(monkeypatch: pytest.MonkeyPatch, image_folder: Callable[..., Any], tmp_path: Path) -> None:
    pixels = image_folder("any", {"train": 3}, size=(32, 32), mode="RGB", image="img", label="fine_label")
    data = FakeDataset(pq.read_table(tmp_path / "any"), ["a", "b"])
    asked = []

    def load_dataset(hub: str) -> dict[str, FakeDataset]:
        asked.append(hub)
        return {"train": data, "valid": data, "contrast": data}

    fake = SimpleNamespace(load_dataset=load_dataset, Image=lambda decode: None)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    source = load("cifar100")
    assert asked == ["uoft-cs/cifar100"]
    assert source.parts.tolist() == ["train"] * 3 + ["validation"] * 3
    assert torch.equal(source.raw[:3], torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert source.classes == ("a", "b")
    load("somebody/something")
    assert asked[-1] == "somebody/something"

    def offline(hub: str) -> None:
        raise ConnectionError("no network")

    fake.load_dataset = offline
    with pytest.raises(DataError, match=r"could not be fetched .* no network"):
        load("cifar10")


@pytest.mark.parametrize(
    ("x", "y", "kwargs", "reason"),
    [
        (torch.zeros(3), torch.zeros(3).long(), {}, "x must have shape"),
        (torch.zeros(3, 2), torch.zeros(2).long(), {}, "y has shape"),
        (torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool), {}, "whole numbers"),
        (torch.zeros(3, 2), torch.tensor([0.5, float("nan"), 1]), {}, "NaN or infinite"),
        (torch.zeros(3, 2), torch.rand(3), {"classes": ["a"]}, "has no classes"),
        (torch.zeros(3, 2), torch.full((3, 2), 2), {}, "0 and 1 alone"),
        (torch.zeros(3, 2), torch.zeros(3, 2), {"classes": ["a"]}, "1 names for 2 labels"),
        (torch.tensor([[0.0], [float("nan")]]), torch.tensor([0, 1]), {}, "sample 1 has a value that is NaN"),
        (torch.zeros(1, 2), torch.tensor([-1]), {}, "labels count from 0, got -1"),
        (torch.zeros(1, 2), torch.tensor([1]), {"classes": ["a"]}, "label 1 has no name"),
        (torch.zeros(1, 2), torch.tensor([0]), {"columns": {"user": [1, 2]}}, "column 'user'"),
        (torch.zeros(1, 2), torch.tensor([0]), {"parts": ["exam"]}, "parts must say"),
    ],
)
def test_tensors_are_checked(
    x: Tensor, y: Tensor, kwargs: dict[str, dict[str, Any]] | dict[str, list[str]], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        from_tensors(x, y, **kwargs)


def test_real_mnist(real_data: Path) -> None:
    source = load("mnist", real_data)
    assert source.raw.shape == (70_000, 1, 28, 28)
    assert (source.parts == "test").sum() == 10_000
    assert source.y[:5].tolist() == [5, 0, 4, 1, 9]
    start = time.process_time()
    load("mnist", real_data)
    assert time.process_time() - start < 2


def test_tensors_may_have_quantities_labels_or_tokens() -> None:
    quantity = from_tensors(torch.zeros(3, 2), torch.tensor([0.5, 1, 2]))
    assert (quantity.classes, quantity.y.tolist()) == ((), [0.5, 1, 2])
    labels = from_tensors(torch.zeros(3, 2), torch.tensor([[1, 0], [0, 0], [1, 1]]), classes=["a", "b"])
    assert (labels.classes, labels.y.dtype, labels.y.shape) == (("a", "b"), torch.float32, (3, 2))
    tokens = from_tensors(torch.tensor([[5, 0], [1, 7]]), torch.tensor([0, 1]))
    assert tokens.x.tolist() == [[5, 0], [1, 7]]
    assert tokens.x.dtype == torch.int64
