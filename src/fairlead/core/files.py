"""Files that are never half written, in folders that other users cannot read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from fairlead.core.errors import RunError

PARTIAL = ".partial"  # how the name of a file ends that is being written
LOCK = ".lock"


def private_folder(folder: Path) -> Path:
    """The folder, made where it is missing; a new one is readable by its owner alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made a folder ({_reason(error)}); {ELSEWHERE}") from error
    return folder


def atomically(path: Path, write: Callable[[Path], object], *, flush: bool = True) -> None:
    """Write beside the file, flush to the disk, then swap: a reader sees the old file or the new one, whole.

    The name beside it has the number of this process, so that two processes never write to the same file. What a killed
    process left there goes with `clear_partial`.
    """
    private_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        temporary.unlink(missing_ok=True)
        # Made here and never followed: a link that somebody planted would lead the writing elsewhere.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        write(temporary)
        if flush:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be written ({_reason(error)}); {ELSEWHERE}") from error
    finally:
        _remove(temporary)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder; a folder that stays empty is not left behind."""
    missing = next((f for f in reversed([folder, *folder.parents]) if not f.exists()), None)
    lock = FileLock(private_folder(folder) / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunError(
            f"another process is at work on {folder}; wait until it has ended, or choose another folder"
        ) from error
    except OSError as error:
        raise RunError(f"{folder} cannot be written to ({error.strerror or error}); choose another --out") from error
    try:
        yield
    finally:
        # While the lock is held: another process may be waiting to be the next.
        if missing is not None and [path.name for path in folder.iterdir()] == [LOCK]:
            with suppress(OSError):  # somebody may have put a file there just now
                (folder / LOCK).unlink()
                for path in [folder, *folder.parents][: len(folder.parts) - len(missing.parts) + 1]:
                    path.rmdir()
        lock.release()


def write_text(path: Path, text: str) -> None:
    """A text file that is never half written, and that other users cannot read."""
    atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


ELSEWHERE = "make room or give leave to write there, or choose another --out; a run goes on from its last checkpoint"


def clear_partial(folder: Path) -> None:
    """Delete what killed processes had begun to write in a folder, and in those inside, to which nobody writes now."""
    for path in folder.rglob(f".*{PARTIAL}"):
        _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # in a folder that has become read-only, say: what matters was said by then
        return


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).replace("\n", " ")
