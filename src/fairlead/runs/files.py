"""JSON, tables and named tensors to disk and back, never half written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fairlead.core import Named, RunError
from fairlead.core.device import on_host
from fairlead.core.files import atomically

FORMAT = "2"


def write_json(path: Path, value: object) -> None:
    """Readable JSON; a NaN is refused rather than written as something no other reader takes."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing; expected a run folder that fairlead wrote") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(
            f"{path} is not valid JSON ({error}); restore it or start the run anew in another --out"
        ) from error


def write_table(path: Path, columns: dict[str, list[Any]]) -> None:
    """A parquet file with these columns."""
    atomically(path, lambda p: pq.write_table(pa.table(columns), p))


def read_table(path: Path) -> dict[str, list[Any]]:
    """What `write_table` wrote."""
    try:
        table: dict[str, list[Any]] = pq.read_table(path).to_pydict()
    except (OSError, pa.ArrowInvalid) as error:
        raise RunError(f"{path} cannot be read ({error}); start the run anew in another --out") from error
    return table


def write_tensors(path: Path, tensors: Named, **facts: str) -> None:
    """A safetensors file; `facts` go into its header."""
    whole: Named = {}
    storages: set[int] = set()
    for n, x in tensors.items():
        # The format wants tensors apart, and a server may keep the very message it sent.
        shared = x.untyped_storage().data_ptr() in storages
        whole[n] = on_host(x).contiguous().clone() if shared else on_host(x).contiguous()
        storages.add(x.untyped_storage().data_ptr())
    atomically(path, lambda p: save_file(whole, p, metadata={"format": FORMAT, **facts}))


def read_tensors(path: Path) -> tuple[Named, dict[str, str]]:
    """What `write_tensors` wrote: tensors and facts."""
    with _opened(path) as (file, facts):
        return {n: file.get_tensor(n) for n in file.keys()}, facts  # noqa: SIM118 - not a dict


def read_facts(path: Path) -> dict[str, str]:
    """The facts alone, without the tensors."""
    with _opened(path) as (_, facts):
        return facts


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """A safetensors file and its facts."""
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, str] = file.metadata() or {}
            if facts.get("format") != FORMAT:
                raise RunError(
                    f"{path} has format {facts.get('format')}, expected {FORMAT}; it was written by another version"
                )
            yield file, facts
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing; nothing to go on from") from error
    except (SafetensorError, OSError) as error:
        raise RunError(
            f"{path} is corrupt ({error}); delete that file to train this run anew, or restore a copy"
        ) from error
