"""Read a CSV or Parquet file of numbers, one sample a row."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from fairlead.core.errors import DataError, InputError, nearest, require
from fairlead.data.source import Source, from_tensors


def read_table(path: Path, label: str | None = None, column: str | None = None) -> Source:
    """A file of numbers as a source: `label` is the class, `column` (if any) only says whose row it is.

    Every other column is a feature. It is brought to [0, 1] here, where it still has float64's digits; a scenario does
    so again by its train samples alone, so that nothing of the test samples remains in it.
    """
    try:
        table = pq.read_table(path) if path.suffix.lower() == ".parquet" else pyarrow.csv.read_csv(path)
    except FileNotFoundError as error:
        raise DataError(f"no file {path}; check the path") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path.name} cannot be read: {str(error).splitlines()[0]}") from error
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"{path.name}: two columns are called {', '.join(twice)}; rename one")
    label = label or "label"
    for role, name in (("label column", label), ("column", column)):
        if name is not None and name not in names:
            raise InputError(f"{path.name} has no {role} '{name}'; {nearest(name, names)}")
    require(label != column, f"{path.name}: '{label}' cannot be both the label and the column to split by")
    require(table.num_rows > 0, f"{path.name} has no rows")
    features = [name for name in names if name not in (label, column)]
    require(bool(features), f"{path.name} has no columns beside '{label}' to learn from")
    x = np.stack([_numbers(path.name, name, table[name]) for name in features], axis=1)
    low, high = x.min(0), x.max(0)
    x = (x - low) / np.where(high > low, high - low, 1)
    y, classes = encode(path.name, label, table[label])
    columns = {} if column is None else {column: table[column].to_numpy()}
    source = from_tensors(torch.from_numpy(x), torch.from_numpy(y), columns, classes, name=path.stem)
    return replace(source, measured=True)


def encode(name: str, label: str, values: pa.ChunkedArray) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Turn the labels of a column, whole numbers or words, into 0, 1, ... and the class names in order."""
    if values.null_count:
        raise InputError(f"{name}: '{label}' is empty in row {_first(pc.is_null(values))}; drop the row or fill it")
    if pa.types.is_floating(values.type):
        odd = [not math.isfinite(v) or v != int(v) for v in values.to_pylist()]
        if any(odd):
            raise InputError(f"{name}: '{label}' must hold classes, and row {odd.index(True) + 1} is not whole")
        values = values.cast(pa.int64())
    found, index = np.unique(np.array(values.to_pylist()), return_inverse=True)
    return index.astype(np.int64), tuple(str(v) for v in found)


def _numbers(file: str, name: str, values: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column as finite numbers, or an error that says where it is not."""
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        row = next((i for i, cell in enumerate(values.to_pylist()) if not _is_number(cell)), 0)
        cell = values[row].as_py()
        raise InputError(
            f"{file}: column '{name}' must hold numbers, and row {row + 1} holds {cell!r}; "
            "encode it, drop the column, or name it as the column to split by"
        )
    numbers: NDArray[np.float64] = values.cast(pa.float64()).to_numpy()
    if not np.isfinite(numbers).all():  # an empty cell is NaN by now
        row = int((~np.isfinite(numbers)).argmax())
        raise InputError(f"{file}: column '{name}' is empty, NaN or infinite in row {row + 1}; fill or drop such rows")
    return numbers


def _is_number(cell: Any) -> bool:
    try:
        return math.isfinite(float(cell))
    except (TypeError, ValueError):
        return False


def _first(mask: pa.ChunkedArray) -> int:
    return int(mask.to_numpy().argmax()) + 1
