"""Read labelled images from Parquet files in the Hugging Face layout, or from the hub itself.

Decoding is slow, so it is done once: the pixels are kept as bytes in the user's cache folder (`FAIRLEAD_CACHE` moves
it), under a key made of the files' names, sizes and times. Labels are cheap and always read anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import platformdirs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fairlead.core.errors import DataError, InputError, nearest
from fairlead.data.source import PARTS, Source

log = logging.getLogger(__name__)

_PART_NAMES = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label", "labels")
_GREY = ("1", "L", "LA", "I", "I;16", "F")
BATCH = 512  # images a thread decodes at a time


class Known(NamedTuple):
    """What we know of a data set by its name."""

    hub: str | None  # its address on the hub
    size: tuple[int, int]  # width and height that other sizes are brought to
    grey: bool


KNOWN = {
    "mnist": Known("ylecun/mnist", (28, 28), True),
    "fashion_mnist": Known("zalando-datasets/fashion_mnist", (28, 28), True),
    "cifar10": Known("uoft-cs/cifar10", (32, 32), False),
    "cifar100": Known("uoft-cs/cifar100", (32, 32), False),
    "tiny-imagenet": Known("zh-plus/tiny-imagenet", (64, 64), False),
    "flowers102": Known("nelorth/oxford-flowers", (64, 64), False),
    "gtsrb": Known("tanganke/gtsrb", (32, 32), False),
    "yearbook": Known(None, (32, 32), True),
    "pacs": Known(None, (64, 64), False),
}


def part_files(folder: Path) -> dict[str, list[Path]]:
    """The Parquet files of each part in a folder, or in its `data` folder as on the hub; empty if there are none."""
    for place in (folder, folder / "data"):
        found: dict[str, list[Path]] = {}
        for file in sorted(place.glob("*.parquet")):
            part = _PART_NAMES.get(file.stem.split("-")[0])
            if part:
                found.setdefault(part, []).append(file)
        if found:
            return {part: found[part] for part in PARTS if part in found}
    return {}


def read_folder(name: str, folder: Path, label: str | None = None) -> Source:
    """A folder of `train-*.parquet`, `validation-*.parquet` and `test-*.parquet` as a source."""
    files = part_files(folder)
    try:
        schema = pq.read_schema(next(iter(files.values()))[0])
        image, label = _image_and_label(name, schema, label)
        rest = [column for column in schema.names if column != image]
        tables = {part: pa.concat_tables(pq.read_table(f, columns=rest) for f in files[part]) for part in files}
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: the files in {folder} cannot be read: {str(error).splitlines()[0]}") from error

    def images() -> Iterator[pa.Array]:
        for group in files.values():
            for file in group:
                with pq.ParquetFile(file) as reader:
                    yield from (b.column(0) for b in reader.iter_batches(BATCH, columns=[image]))

    stats = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for group in files.values() for f in group]
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return _source(name, tables, label, features.get(label, {}).get("names"), decoded(name, stats, images))


def read_hub(name: str, hub: str, label: str | None = None) -> Source:
    """A data set of the Hugging Face hub as a source; needs the optional `datasets` package."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise DataError(
            f"{name} is not on this machine: run pip install 'fairlead[hub]' to fetch it from the hub ({hub}), or say "
            f"--data-dir DIR, where DIR/{name.split('/')[-1]} holds its train-*.parquet"
        ) from error
    try:
        loaded = datasets.load_dataset(hub)
    except Exception as error:  # the hub fails in many ways of its own, all of them outside our hands
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{name} could not be fetched from the hub ({hub}): {reason}; or say --data-dir DIR") from error
    # Other parts, such as GTSRB's artificially damaged test sets, would count samples twice.
    sets = {_PART_NAMES[part]: loaded[part] for part in loaded if part in _PART_NAMES}
    if not sets:
        raise DataError(f"{name} has no train, validation or test part on the hub ({hub}); it has: {', '.join(loaded)}")
    first = next(iter(sets.values()))
    image, label = _image_and_label(name, first.features.arrow_schema, label)
    tables = {
        part: sets[part].cast_column(image, datasets.Image(decode=False)).with_format("arrow")[:]
        for part in PARTS
        if part in sets
    }

    def images() -> Iterator[pa.Array]:
        for table in tables.values():
            yield from (b.column(0) for b in table.select([image]).to_batches(BATCH))

    key = [(hub, part, table.num_rows, getattr(sets[part], "_fingerprint", "")) for part, table in tables.items()]
    pixels = decoded(name, key, images)
    rest = {part: table.drop_columns([image]) for part, table in tables.items()}
    return _source(name, rest, label, getattr(first.features[label], "names", None), pixels)


def _image_and_label(name: str, schema: pa.Schema, label: str | None) -> tuple[str, str]:
    image = next((c for c in _IMAGE_COLUMNS if c in schema.names), None)
    if image is None:
        raise DataError(f"{name} has no image column; expected one of {', '.join(_IMAGE_COLUMNS)}")
    found = label if label is not None else next((c for c in _LABEL_COLUMNS if c in schema.names), "label")
    if found not in schema.names:
        raise InputError(f"{name} has no label column '{found}'; {nearest(found, set(schema.names) - {image})}")
    return image, found


def _source(name: str, tables: dict[str, pa.Table], label: str, classes: list[str] | None, pixels: Tensor) -> Source:
    """Put pixels, labels and the other plain columns of all parts together."""
    try:
        table = pa.concat_tables(tables.values(), promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{name}: the columns of {', '.join(tables)} differ in type: {error}") from error
    parts = np.repeat(list(tables), [t.num_rows for t in tables.values()])
    if classes is None:
        y, names = _encode(name, label, table[label])
    else:
        y, names = table[label].fill_null(-1).to_numpy().astype(np.int64), tuple(classes)
        unnamed = (y < 0) | (y >= len(names))
        if unnamed.any():
            row = int(unnamed.argmax())
            raise DataError(f"{name}: sample {row} ({parts[row]}) has label {y[row]}, expected 0 to {len(names) - 1}")
    plain = [f.name for f in table.schema if f.name != label and not pa.types.is_nested(f.type)]
    return Source(
        name, pixels, torch.from_numpy(y.copy()), names, parts, {column: table[column].to_numpy() for column in plain}
    )


def _encode(name: str, label: str, values: pa.ChunkedArray) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Turn the labels of a column, whole numbers or words, into 0, 1, ... and the class names in order."""
    if values.null_count:
        row = int(pc.is_null(values).to_numpy().argmax()) + 1
        raise InputError(f"{name}: '{label}' is empty in row {row}; drop the row or fill it")
    if pa.types.is_floating(values.type):
        odd = [not math.isfinite(v) or v != int(v) for v in values.to_pylist()]
        if any(odd):
            raise InputError(f"{name}: '{label}' must hold classes, and row {odd.index(True) + 1} is not whole")
        values = values.cast(pa.int64())
    found, index = np.unique(np.array(values.to_pylist()), return_inverse=True)
    return index.astype(np.int64), tuple(str(v) for v in found)


def cache_folder() -> Path:
    """Where decoded images are kept."""
    return Path(os.environ.get("FAIRLEAD_CACHE") or platformdirs.user_cache_dir("fairlead"))


def decoded(name: str, key: list[tuple[Any, ...]], images: Callable[[], Iterable[pa.Array]]) -> Tensor:
    """The decoded images (n, C, H, W) as bytes: from the cache if they are there, else into it."""
    digest = hashlib.sha256(json.dumps(["v1", name, key]).encode()).hexdigest()[:24]
    file = cache_folder() / f"{name.replace('/', '--')}-{digest}.safetensors"
    if file.is_file():
        try:
            return load_file(file)["pixels"]
        except (SafetensorError, OSError, KeyError):
            log.warning("the cache file %s is damaged; decoding %s again", file, name)
    pixels = torch.from_numpy(_decode(name, images()))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its place and moved, so that no process reads half a file.
        handle, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}-")
        os.close(handle)
        try:
            save_file({"pixels": pixels}, draft)
            os.replace(draft, file)
        finally:
            Path(draft).unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s could not be cached (%s); it will be decoded again next time", name, error)
    return pixels


def _decode(name: str, batches: Iterable[pa.Array]) -> NDArray[np.uint8]:
    """Decode all images in threads; Pillow lets go of the interpreter lock while it works."""

    def decode(batch: pa.Array) -> list[NDArray[np.uint8]]:
        content = batch.field("bytes") if pa.types.is_struct(batch.type) else batch
        return [_decode_one(name, data) for data in content.to_pylist()]

    try:
        with ThreadPoolExecutor() as pool:
            images = [image for batch in pool.map(decode, batches) for image in batch]
    except (UnidentifiedImageError, OSError, pa.ArrowException) as error:
        raise DataError(f"{name}: an image cannot be decoded: {error}") from error
    return _stacked(name, images)


def _stacked(name: str, images: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Images of one size as one block, channels first."""
    sizes = sorted({image.shape[1::-1] for image in images})
    if len(sizes) != 1:
        found = " and ".join(f"{w}x{h}" for w, h in sizes[:2]) or "none"
        raise DataError(f"{name}: images must have one size, found {found}; resize them before")
    if len({image.ndim for image in images}) > 1:  # some grey images among colour ones
        images = [image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in images]
    stacked = np.stack(images)
    return np.ascontiguousarray(stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2))


def _decode_one(name: str, data: bytes | None) -> NDArray[np.uint8]:
    """One image, grey or in colour, of the size that the data set's images have."""
    if data is None:
        raise DataError(f"{name}: an image is missing its bytes; embed the images in the Parquet files")
    known = KNOWN.get(name)
    with Image.open(io.BytesIO(data)) as opened:
        grey = known.grey if known else opened.mode in _GREY
        image = opened.convert("L" if grey else "RGB")
    if known and image.size != known.size:
        # Cropped about the centre to the shape wanted, so that nothing is stretched.
        image = ImageOps.fit(image, known.size, Image.Resampling.BILINEAR)
    return np.asarray(image)
