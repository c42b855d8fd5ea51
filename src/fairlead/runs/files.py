"""JSON, tables and named tensors to disk and back: never half written, and a bit that flips later is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fairlead.core import Named, RunError
from fairlead.core.device import on_host
from fairlead.core.files import atomically, write_text

FORMAT = "3"
ANEW = "delete that file to train this run anew, or restore a copy"


def write_json(path: Path, value: object) -> None:
    """Readable JSON; a NaN is refused rather than written as something no other reader takes."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    except ValueError as error:
        raise RunError(
            f"{path} would hold a number that is not finite ({error}); look in the data for values beyond 1e150, whose "
            "mean or deviation cannot be computed"
        ) from error
    write_text(path, text)


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunError(f"{path} is missing; expected a run folder that fairlead wrote") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}); check its permissions and the disk") from error
    except (ValueError, RecursionError) as error:  # among them what is no JSON, or no text
        raise RunError(
            f"{path} is not valid JSON ({error}); restore it or start the run anew in another --out"
        ) from error


def read_object(path: Path) -> dict[str, Any]:
    """What `write_json` wrote of a mapping; anything else is refused."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise RunError(f"{path} holds a {type(found).__name__}, expected what fairlead wrote, a JSON object")
    return found


def append_part(folder: Path, round: int, columns: dict[str, list[Any]]) -> None:
    """Add rows to a table that grows: a folder of parquet files, one for every time that something was added.

    A file's name says the last round in it, and a checksum of its content.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    data = sink.getvalue().to_pybytes()
    atomically(folder / f"{round:09d}-{_checksum(data)}.parquet", lambda p: p.write_bytes(data))


def table_parts(folder: Path) -> list[Path]:
    """The files of a table that grows, in order."""
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder, expected the records of a run; train it anew with --fresh")
    return sorted(folder.glob("*.parquet"))


def last_round(folder: Path) -> int:
    """The last round that a table which grows has rows of, 0 where it has none yet; asks no file for its content."""
    return max((int(path.stem.partition("-")[0]) for path in folder.glob("*.parquet")), default=0)


def read_part(path: Path) -> pa.Table:
    """One file of a table that grows; one whose bits are not those that were written is refused."""
    try:
        data = path.read_bytes()
        if path.stem.partition("-")[2] != _checksum(data):
            raise RunError(f"{path} is damaged: its content does not fit its checksum; {ANEW}, with --fresh")
        return pq.read_table(pa.BufferReader(data))
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} cannot be read ({error}); restore it or train the run anew with --fresh") from error


def read_parts(folder: Path) -> pa.Table:
    """A table that grew, whole."""
    tables = [read_part(path) for path in table_parts(folder)]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def read_table(folder: Path) -> dict[str, list[Any]]:
    """A table that grew, whole, as columns."""
    columns: dict[str, list[Any]] = read_parts(folder).to_pydict()
    return columns


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def write_tensors(path: Path, tensors: Named, **facts: str) -> None:
    """A safetensors file; `facts` go into its header, with checksums of both."""
    whole: Named = {}
    storages: set[int] = set()
    for n, x in tensors.items():
        # The format wants tensors apart, and a server may keep the very message it sent.
        shared = x.untyped_storage().data_ptr() in storages
        whole[n] = on_host(x).contiguous().clone() if shared else on_host(x).contiguous()
        storages.add(x.untyped_storage().data_ptr())
    told = sealed({"format": FORMAT, **facts}, whole)
    atomically(path, lambda p: save_file(whole, p, metadata=told))


def sealed(facts: dict[str, str], tensors: Named) -> dict[str, str]:
    """The facts with checksums of the tensors and of the facts themselves."""
    facts = {**facts, "tensors": _digest_of(tensors)}
    return {**facts, "facts": _checksum(json.dumps(facts, sort_keys=True).encode())}


def _digest_of(tensors: Named) -> str:
    total = hashlib.sha256()
    for n, x in sorted(tensors.items()):
        total.update(f"{n} {x.dtype} {tuple(x.shape)}".encode())
        flat = x.reshape(-1)
        if flat.stride(0) != 1:  # a single number may have any stride
            flat = flat.clone(memory_format=torch.contiguous_format)
        total.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return total.hexdigest()[:16]


def read_tensors(path: Path) -> tuple[Named, dict[str, str]]:
    """What `write_tensors` wrote: tensors and facts; one bit of difference is refused."""
    with _opened(path) as (file, facts):
        tensors: Named = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118 - not a dict
    if _digest_of(tensors) != facts["tensors"]:
        raise RunError(f"{path} is corrupt (its content does not fit its checksum); {ANEW}")
    return tensors, facts


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
                    f"{path} has format {facts.get('format')}, expected {FORMAT}; it was written by another version, "
                    "train anew with --fresh"
                )
            told = {n: text for n, text in facts.items() if n != "facts"}
            if facts.get("facts") != _checksum(json.dumps(told, sort_keys=True).encode()):
                raise RunError(f"{path} is corrupt (its header does not fit its checksum); {ANEW}")
            yield file, facts
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing; nothing to go on from") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is corrupt ({error}); {ANEW}") from error
