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
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from threadpoolctl import threadpool_limits

from fairlead.clients import RAY
from fairlead.comparison.assess import Piece, crossings, pieces
from fairlead.comparison.bench import Bench, Fold
from fairlead.core.fast.machine import cores, threads
from fairlead.core.files import private_folder
from fairlead.metrics import Metric

Pieces = Mapping[str, Piece]

SOON = 3.0  # seconds of training after which the others are started: importing the library takes them about as long
WORTH = 20.0  # seconds of work that another process saves time on, though it imports the library and reads the data


def share(bench: Bench, folds: Sequence[Fold], metric: Metric) -> None:
    """Train what the assessment is made of beside other processes, where that is quicker."""
    if cores() == 1 or bench.engine.name == RAY or bench.experiment.device != "cpu":
        return
    todo = pieces(bench, folds, metric)
    further = crossings(bench, folds, metric)
    with others(bench.folder, min(cores(), len(todo)) - 1):
        first, start = next(iter(todo)), time.monotonic()
        take({first: todo[first]}, bench.folder)
        if (time.monotonic() - start) * (len(todo) + len(further) - 1) < WORTH:
            return
        alone = on_one_core(bench)
        # A core each, here too: a team of threads waits for a core that another process is using.
        with threads(1), threadpool_limits(1):
            take(pieces(alone, folds, metric), bench.folder)
            take(crossings(alone, folds, metric), bench.folder)


def on_one_core(bench: Bench) -> Bench:
    """The bench of one process among several."""
    return dataclasses.replace(bench, engine=dataclasses.replace(bench.engine, workers=1))


def from_the_other_end(todo: Pieces) -> Pieces:
    """The same pieces backwards, and still none before what it goes on from."""

    def depth(name: str) -> int:
        return 1 + depth(todo[name].after) if todo[name].after else 0

    backwards = list(todo)[::-1]
    return {name: todo[name] for name in sorted(backwards, key=depth)}


def take(todo: Pieces, folder: Path) -> None:
    """Make every piece that nobody else is at; then wait for the others', and make what they left."""
    locks = private_folder(folder / "runs" / "locks")
    left = [name for name in todo if not _claimed(todo, name, locks, wait=0)]
    for name in left:
        _claimed(todo, name, locks, wait=-1)


def _claimed(todo: Pieces, name: str, locks: Path, wait: float) -> bool:
    """Whether the piece was made here; not if another process is at it, or at what it goes on from."""
    make, after = todo[name]
    try:
        with FileLock(locks / name, timeout=wait):
            if after and not _claimed(todo, after, locks, wait):
                return False
            make()
    except Timeout:
        return False
    return True


@contextmanager
def others(folder: Path, count: int) -> Iterator[None]:
    """So many further processes at work on a comparison, soon; they end with the block, or with this process."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with starting, suppress(OSError):  # without them it takes longer, and that is all
            if not over.is_set():
                started.extend(begin(folder) for _ in range(count))

    starting, over, timer = threading.Lock(), threading.Event(), threading.Timer(SOON, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with starting:  # it may be at it
            over.set()
        for process in started:
            process.kill()
            process.communicate()


def begin(folder: Path) -> subprocess.Popen[bytes]:
    """A further process at work on a comparison, until its standard input is closed."""
    command = [sys.executable, "-m", "fairlead.comparison", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)
