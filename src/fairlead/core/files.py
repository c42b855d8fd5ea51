"""Files that are never half written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the file, flush to the disk, then swap: a reader sees the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")  # always the same, so that a kill leaves nothing for good
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
