"""Read samples that lie in folders: images by owner and class, arrays by owner, and data sets of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fairlead.core.errors import DataError, require
from fairlead.data.files import OWNER
from fairlead.data.images import BATCH, decoded
from fairlead.data.source import Source, from_tensors

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
CONVERT = "d = numpy.load(file, allow_pickle=True)['data'].item(); numpy.savez(file, x=d['x'], y=d['y'])"


def image_files(folder: Path) -> list[Path]:
    """The images in DIR/owner/class/ or, without owners, in DIR/class/; empty if there are none."""
    if not folder.is_dir():
        return []
    for depth in ("*/*/*", "*/*"):
        found = sorted(p for p in folder.glob(depth) if p.suffix.lower() in IMAGES)
        if found:
            return found
    return []


def read_images(folder: Path) -> Source:
    """Images by owner and class, DIR/owner/class/1.png, or by class alone."""
    files = image_files(folder)
    owners = [file.parent.parent.name for file in files]
    labels = [file.parent.name for file in files]
    classes, y = np.unique(labels, return_inverse=True)
    require(len(classes) > 1, f"{folder} has one class alone, '{classes[0]}'; expected DIR/owner/class/*.png")

    def contents() -> Iterator[pa.Array]:
        for start in range(0, len(files), BATCH):
            yield pa.array([file.read_bytes() for file in files[start : start + BATCH]], type=pa.binary())

    stats = [(str(f.relative_to(folder)), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    by_owner = len(files[0].relative_to(folder).parts) == 3
    columns = {OWNER: owners} if by_owner else None
    x = decoded(folder.name, stats, contents)
    return from_tensors(x, torch.from_numpy(y), columns, [str(c) for c in classes], name=folder.name)


def npz_files(path: Path) -> list[Path]:
    """A file of arrays, those of a folder, or those in its folders train and test."""
    if path.suffix.lower() == ".npz":
        return [path]
    if not path.is_dir():
        return []
    return sorted(path.glob("*.npz"), key=_by_number) or [
        file for part in ("train", "validation", "test") for file in sorted((path / part).glob("*.npz"), key=_by_number)
    ]


def read_npz(path: Path) -> Source:
    """Arrays x and y of each owner in a file of its own, as DIR/0.npz or DIR/train/0.npz and DIR/test/0.npz.

    A single file may have an array `owner` beside x and y. Nothing is unpickled.
    """
    files = npz_files(path)
    x, y, owners, parts = [], [], [], []
    for file in files:
        arrays = _arrays(file)
        for key in ("x", "y"):
            require(key in arrays, f"{file.name} has no array '{key}'; it has: {', '.join(arrays)}")
            found = arrays[key]
            numbers = found.dtype.kind in "buif" and found.dtype.itemsize <= 8 and found.ndim >= 1
            require(numbers, f"{file.name}: '{key}' must hold numbers, a row each, got {found.dtype} {found.shape}")
        same = len(arrays["x"]) == len(arrays["y"])
        require(same, f"{file.name}: {len(arrays['x'])} rows of x and {len(arrays['y'])} of y; expected as many")
        x.append(torch.from_numpy(arrays["x"]))
        y.append(torch.from_numpy(arrays["y"]))
        owner = arrays.get(OWNER, np.full(len(arrays["y"]), file.stem))
        require(owner.shape == (len(arrays["y"]),), f"{file.name}: '{OWNER}' must have one value for each y")
        owners.append(owner.astype(str))
        known = file.parent.name if file.parent.name in ("train", "validation", "test") else "train"
        parts.append(np.full(len(arrays["y"]), known))
    shapes = {(tuple(a.shape[1:]), a.dtype) for a in x}
    require(len(shapes) == 1, f"{path}: the owners' x differ in shape or type: {', '.join(map(str, list(shapes)[:2]))}")
    names = np.concatenate(owners)
    who = {OWNER: names.astype(np.int64) if all(map(str.isdecimal, names)) else names}  # so that 2 comes before 10
    return from_tensors(torch.cat(x), torch.cat(y), who, name=path.stem, parts=np.concatenate(parts))


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(file, allow_pickle=False) as content:
            return {key: content[key] for key in content.files}
    except FileNotFoundError as error:
        raise DataError(f"no file {file}; check the path") from error
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{file.name} holds pickled objects, as PFLlib's generators write them, and Fairlead unpickles "
                f"nothing, since that runs whatever the file says; if you trust the files, convert each once: {CONVERT}"
            ) from error
        raise DataError(f"{file.name} cannot be read: {(str(error).splitlines() or ['it is empty'])[0]}") from error


def _by_number(file: Path) -> tuple[int, str]:
    return (int(file.stem) if file.stem.isdecimal() else -1, file.stem)


def from_dataset(
    dataset: Any,
    columns: Mapping[str, ArrayLike] | None = None,
    classes: Sequence[str] | None = None,
    *,
    name: str = "dataset",
) -> Source:
    """Use a torch Dataset of (x, y) pairs, or a dict of them by owner, all of whose samples fit into memory.

    x is a tensor, an array or an image of Pillow; y a class that counts from 0, a quantity, or a row of 0 and 1.
    """
    if isinstance(dataset, Mapping):
        require(bool(dataset), f"{name}: there is no data set in the dict")
        by_owner = {str(owner): _all_of(one) for owner, one in dataset.items()}
        columns = {OWNER: np.repeat(list(by_owner), [*map(len, by_owner.values())])} | dict(columns or {})
        samples = [*chain.from_iterable(by_owner.values())]
    else:
        samples = _all_of(dataset)
        classes = getattr(dataset, "classes", None) if classes is None else classes
    require(bool(samples), f"{name} has no samples")
    pairs = all(isinstance(sample, tuple | list) and len(sample) == 2 for sample in samples)
    require(pairs, f"{name}: each sample must be a pair (x, y), got {type(samples[0]).__name__}")
    x = [_as_tensor(sample[0]) for sample in samples]
    shapes = sorted({tuple(one.shape) for one in x})
    require(
        len(shapes) == 1, f"{name}: samples differ in shape, such as {shapes[0]} and {shapes[-1]}; resize or pad them"
    )
    y = torch.stack([torch.as_tensor(sample[1]) for sample in samples])
    stacked = torch.stack(x)
    return from_tensors(stacked if stacked.dim() > 1 else stacked[:, None], y, columns, classes, name=name)


def _all_of(dataset: Any) -> list[Any]:
    """The samples of a torch Dataset, which may be asked for by number alone."""
    return [dataset[i] for i in range(len(dataset))]


def _as_tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x
    array = np.asarray(x)
    if array.dtype == np.uint8 and array.ndim in (2, 3) and hasattr(x, "mode"):  # an image: channels go first
        array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return torch.from_numpy(array.copy())
