"""Find a data set by its name or path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairlead.core.errors import DataError, FairleadError, InputError, nearest
from fairlead.core.surroundings import unchanged
from fairlead.data.files import OWNER, SUFFIXES, table_files
from fairlead.data.folders import image_files, npz_files, read_images, read_npz
from fairlead.data.images import KNOWN, part_files, read_folder, read_hub
from fairlead.data.source import Source, from_tensors
from fairlead.data.tables import Reading, read_table

# Tables that come with the package: file, label and owner column.
EXAMPLES = {"heart-disease": ("heart_disease.csv", "disease", "hospital")}


def load(
    data: str | Path = "digits",
    data_dir: str | Path | None = None,
    label: str | None = None,
    column: str | None = None,
    **reading: Any,
) -> Source:
    """Load a data set.

    `data` is "digits" (comes with scikit-learn), "heart-disease" (comes with this package), the name of a folder inside
    `data_dir` in Hugging Face layout, the path of such a folder, a table (`.csv`, `.tsv`, `.xlsx`, `.parquet`), a
    folder of tables or several with commas between them (one owner's each), a folder of images (`owner/class/1.png`) or
    arrays (`0.npz` or `train/0.npz` with x and y), a name in `KNOWN`, or an `owner/name` on the hub. `reading` are the
    fields of `Reading`, for tables.

    >>> load("digits").raw.shape
    torch.Size([1797, 1, 8, 8])
    """
    try:
        return _load(data, data_dir, label, column, **reading)
    except FairleadError:
        raise
    except UNREADABLE as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise DataError(f"{data} cannot be read as data ({reason}); check its columns and types") from error


# What readers raise where a file holds something that they were not written for.
UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError, OSError)


def _load(
    data: str | Path, data_dir: str | Path | None, label: str | None, column: str | None, **reading: Any
) -> Source:
    name, path = str(data), Path(data)
    if name == "digits":
        return _digits()
    if name in EXAMPLES:
        _, its_label, its_column = EXAMPLES[name]
        return read_table(files_of(name), Reading(label or its_label, column or its_column, **reading))
    if not part_files(path):
        if tables := table_files(data):
            return read_table(tables, Reading(label, column, **reading))
        if npz_files(path):
            return read_npz(path)
        if image_files(path):
            return read_images(path)
    if path.is_dir() and data_dir is None and not part_files(path) and name not in KNOWN:
        raise DataError(f"the folder {name} holds no tables ({', '.join(SUFFIXES)}), images or arrays; check the path")
    if path.is_file():
        raise DataError(f"{path.name} is no table that can be read; save it as .csv, or as {', '.join(SUFFIXES[1:])}")
    if data_dir is not None:
        return _from_folder(name, Path(data_dir), label)
    if "/" in name and path.is_dir():
        return _from_folder(path.resolve().name, path.resolve().parent, label)
    return _from_hub(name, label)


def _from_hub(name: str, label: str | None) -> Source:
    """A data set that is fetched by its name."""
    if name in KNOWN:
        hub = KNOWN[name].hub
        if hub is None:
            raise DataError(f"{name} is on no hub: say --data-dir DIR, where DIR/{name} holds its train-*.parquet")
        return read_hub(name, hub, label)
    if name.count("/") == 1 and not name.startswith((".", "~", "/")):
        return read_hub(name, name, label)
    if "/" in name:
        raise DataError(f"no folder {name}; check the path")
    raise InputError(
        f"unknown data set '{name}'; {nearest(name, ['digits', *EXAMPLES, *KNOWN])}, a path to a table "
        f"({', '.join(SUFFIXES)}), or a folder inside --data-dir DIR"
    )


def files_of(data: str | Path) -> list[Path]:
    """The files of a table, by its path or name; none where it is no table."""
    if str(data) in EXAMPLES:
        return [Path(__file__).parent / "examples" / EXAMPLES[str(data)][0]]
    return table_files(data)


def owner_column(data: str | Path) -> str | None:
    """The column that says whose row it is, where the data says so by itself: one file per owner, or a known table."""
    if str(data) in EXAMPLES:
        return EXAMPLES[str(data)][2]
    path = Path(data)
    if path.is_dir() and part_files(path):
        return None
    images = image_files(path)
    by_owner = bool(images) and len(images[0].relative_to(path).parts) == 3
    return OWNER if by_owner or len(table_files(data)) > 1 or len(npz_files(path)) > 1 else None


def _digits() -> Source:
    """The 1,797 hand-written digits of 8x8 pixels that scikit-learn carries."""
    with unchanged():
        from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(bunch.images.astype(np.float32) / 16)[:, None]
    return from_tensors(x, torch.from_numpy(bunch.target.astype(np.int64)), name="digits")


def _from_folder(name: str, data_dir: Path, label: str | None) -> Source:
    if part_files(data_dir / name):
        return read_folder(name, data_dir / name, label)
    if not data_dir.is_dir():
        raise DataError(f"the data folder {data_dir} does not exist; check --data-dir")
    there = sorted(p.name for p in data_dir.iterdir() if p.is_dir() and part_files(p))
    listing = f"it holds: {', '.join(there)}" if there else "it holds no data sets"
    advice = "; leave out --data-dir to fetch it from the hub" if name in KNOWN and KNOWN[name].hub else ""
    raise DataError(f"no {name}/train-*.parquet in {data_dir}; {listing}{advice}")
