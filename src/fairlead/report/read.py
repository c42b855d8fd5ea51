"""The records of a comparison's runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.core.errors import RunError
from fairlead.runs.files import read_parts
from fairlead.runs.summary import AGAIN, Summary

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS = ("round", "client", "split", "model", "accuracy", "loss", "n")


def read_records(folder: Path, summary: Summary) -> pa.Table:
    """Every run's `records.parquet`, one after another, with the columns `method` and `seed` added."""
    import pyarrow as pa

    tables = []
    for method in summary["methods"]:
        for seed, run in zip(summary["settings"]["seeds"], summary["methods"][method]["runs"], strict=True):
            path = Path(folder) / run / "records.parquet"
            if not path.is_dir():
                raise RunError(f"{path}: no such folder, expected the records of {method} with seed {seed}; {AGAIN}")
            table = read_columns(path, RECORDS)
            table = table.append_column("method", pa.array([method] * len(table), pa.string()))
            tables.append(table.append_column("seed", pa.array([seed] * len(table), pa.int64())))
    return pa.concat_tables(tables, promote_options="permissive")


def read_columns(path: Path, columns: Sequence[str]) -> pa.Table:
    """These columns of a run's table."""
    table = read_parts(path)
    lacking = [name for name in columns if name not in table.column_names]
    if lacking:
        expected = ", ".join(columns)
        raise RunError(f"{path}: the columns {', '.join(lacking)} are missing, expected {expected}; {AGAIN}")
    return table.select(list(columns))
