"""Other processes that train beside this one, a core each.

The rounds of a small federation leave cores idle: clients are put together, scored and written to files by one thread,
and Python runs one thread at a time. Whole trainings do not. Each is a folder, which whoever comes first makes and
everybody else reads; so further processes (`fairlead.comparison.__main__`) begin at the other end of the list, and this
one finds their folders. Each is told its comparison by the folder's settings.json.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fairlead.clients import RAY
from fairlead.comparison.assess import Bench, Fold, crossings, pieces
from fairlead.core.fast.machine import cores
from fairlead.core.files import private_folder
from fairlead.metrics import Metric

Pieces = Mapping[str, Callable[[], object]]

WORTH = 20.0  # seconds of work that another process saves time on, though it imports the library and reads the data


def share(bench: Bench, folds: Sequence[Fold], metric: Metric) -> None:
    """Train what the assessment is made of beside other processes, where that is quicker."""
    if cores() == 1 or bench.engine.name == RAY or bench.experiment.device != "cpu":
        return
    count = len(pieces(bench, folds, metric) | crossings(bench, folds, metric))
    start = time.monotonic()
    next(iter(pieces(bench, folds, metric).values()))()
    if (time.monotonic() - start) * (count - 1) < WORTH:
        return
    alone = on_one_core(bench)
    with others(bench.folder, min(cores(), count) - 1):
        take(pieces(alone, folds, metric), bench.folder)
        take(crossings(alone, folds, metric), bench.folder)


def on_one_core(bench: Bench) -> Bench:
    """The bench of one process among several."""
    return dataclasses.replace(bench, engine=dataclasses.replace(bench.engine, workers=1))


def take(todo: Pieces, folder: Path) -> None:
    """Make every piece that nobody else is at; then wait for the others', and make what they left."""
    locks = private_folder(folder / "runs" / "locks")
    left = [name for name in todo if not _claimed(todo[name], locks / name, wait=False)]
    for name in left:
        _claimed(todo[name], locks / name, wait=True)


def _claimed(make: Callable[[], object], lock: Path, *, wait: bool) -> bool:
    try:
        with FileLock(lock, timeout=-1 if wait else 0):
            make()
    except Timeout:
        return False
    return True


@contextmanager
def others(folder: Path, count: int) -> Iterator[None]:
    """So many further processes at work on a comparison; they end with the block, or with this process."""
    # A core each: a team of threads in every process would wait for each other longer than they work.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fairlead.comparison", str(folder)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True) for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()
