"""Cells of a study side by side, a process each, on a share of the cores.

Small federations leave cores idle: while clients are put together, scored and written to files, and where a round has
fewer of them than there are cores. Whole cells do not, and share nothing but the folder their results go to.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch

from fairlead.core import FairleadError
from fairlead.core.fast.machine import cores
from fairlead.reproduce.cells import Progress, Wanted, Workshop, runs_of, work
from fairlead.reproduce.study import Cell, Study

_workshop: Workshop  # of a worker, set when it begins


def side_by_side(
    study: Study, out: Path, *, data_dir: str | None, seeds: int, jobs: int, progress: Progress | None = None
) -> None:
    """Train the study's cells, `jobs` at a time; they leave their folders behind, which `collect` then reads.

    What is computed rather than trained may be a timing, and is left for a quiet machine. A cell that cannot run is
    left to `collect` as well, which says why.
    """
    plan = [run for run in runs_of(study, seeds) if isinstance(run.cell, Cell)]
    total, done = sum(work(run.cell) for run in plan), 0.0
    spawn = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    shares: SimpleQueue[list[int]] = spawn.SimpleQueue()
    for i in range(jobs):
        shares.put(share(i, jobs))
    with ProcessPoolExecutor(jobs, spawn, _begin, (out / "cells", data_dir, shares)) as pool:
        running = {pool.submit(_train, run): run for run in plan}
        try:
            for future in as_completed(running):
                future.result()
                run = running[future]
                done += work(run.cell)
                if progress and isinstance(run.cell, Cell):
                    progress(done, total, run.cell.method)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def share(i: int, jobs: int) -> list[int]:
    """The cores of one job: an equal part, at least one of them.

    >>> len(share(0, 1)) == cores()
    True
    """
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
    return mine[i::jobs] or [mine[i % len(mine)]]


def _begin(folder: Path, data_dir: str | None, shares: SimpleQueue[list[int]]) -> None:
    global _workshop
    mine = shares.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, mine)
    torch.set_num_threads(len(mine))
    _workshop = Workshop(folder, data_dir)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever; its cell goes on from its checkpoint."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _train(run: Wanted) -> None:
    with suppress(FairleadError):
        _workshop.result(run, lambda share: None)
