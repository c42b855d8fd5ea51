"""The machine's cores, for work on long rows that divides into columns, and its memory for such rows."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")
Bytes = NDArray[np.uint8]

# Stretches of columns: more of them than most machines have cores, and the same number on all, so that sums over them
# have the same bits everywhere. Shorter ones are not worth a thread.
STRETCHES = 16
SHORTEST = 1 << 14


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many intra-op threads for what runs here."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> None:
    """What a worker thread does first: it takes one intra-op thread, and keeps it whatever other threads set.

    At a thread's first operation PyTorch gives it the number that any thread set last, in place of one it set itself.
    Asking comes first, so that this has happened: else a thread that found no work at its start, on a busy machine,
    would later share its products between two, and their last bits would differ from run to run.
    """
    torch.get_num_threads()
    torch.set_num_threads(1)


def by_columns(work: Callable[[slice], T], rows: Tensor) -> list[T]:
    """`work` on stretches of the rows' columns, all cores at once; the results in order. It must not call this itself.

    A thread each with one intra-op thread: a team of OpenMP threads waits in a loop that keeps busy the core which the
    next round's workers need, and collapses where others use the machine. A device has its own ways to divide work.

    >>> by_columns(lambda some: some.stop - some.start, torch.empty(1, 40_000))
    [13333, 13333, 13334]
    """
    columns = rows.shape[1]
    if rows.device.type != "cpu":
        return [work(slice(0, columns))]
    count = max(1, min(STRETCHES, -(-columns // SHORTEST)))
    stretches = [slice(a, b) for a, b in pairwise(columns * i // count for i in range(count + 1))]
    workers = min(cores(), count)
    if workers == 1:
        return [work(some) for some in stretches]
    return list(_column_threads(workers).map(work, stretches))


@cache
def _column_threads(workers: int) -> ThreadPoolExecutor:
    """Threads that stay: a new one has memory to find, and tells torch anew that it is alone."""
    return ThreadPoolExecutor(workers, initializer=one_thread)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_column_threads.cache_clear)  # a forked process has no threads


LINE = 64  # bytes of a cache line, which vector instructions want whole


def aligned_rows(like: Tensor) -> Tensor:
    """Uninitialised rows of the same shape and kind, each starting on a cache line.

    Products that write to a row which does not can take a quarter longer.

    >>> aligned_rows(torch.ones(2, 3)).stride()
    (16, 1)
    """
    *lead, d = like.shape
    line = LINE // like.element_size()
    return like.new_empty(*lead, -(-d // line) * line)[..., :d]


LARGE = 1 << 22  # bytes: what is smaller the allocator keeps for the next time by itself
MOST_KEPT = 4


def large_empty(like: Tensor, *shape: int) -> Tensor:
    """An uninitialised tensor of that shape, of the same kind as `like`.

    Its memory comes from numpy, which asks the system for huge pages where torch does not: hundreds of megabytes are
    then written for the first time in a third of the time. Within `recycling`, it is memory of an earlier one.

    >>> large_empty(torch.ones(2), 3, 4).shape
    torch.Size([3, 4])
    """
    if like.device.type != "cpu":
        return like.new_empty(shape)
    size = math.prod(shape) * like.element_size()
    raw = torch.from_numpy(_recycler.take(size + LINE))
    start = -raw.data_ptr() % LINE
    return raw[start : start + size].view(like.dtype).view(shape)


class Recycler:
    """Hands out memory, and hands it out again when no tensor uses it any more.

    A round makes the same tensors as the one before. What the system gives anew it clears first, page by page, which
    takes longer than to fill it.
    """

    def __init__(self) -> None:
        self.users = 0
        self.lock = threading.Lock()
        # The memory, and the array on it that was handed out: every tensor there keeps that array alive.
        self.rooms: list[tuple[Bytes, weakref.ref[Bytes]]] = []

    def take(self, size: int) -> Bytes:
        """Memory of so many bytes."""
        if size < LARGE or not self.users:
            return np.empty(size, dtype=np.uint8)
        with self.lock:
            free = [room for room, lent in self.rooms if lent() is None]
            fitting = next((room for room in free if len(room) == size), None)
            room = np.empty(size, dtype=np.uint8) if fitting is None else fitting
            lent = room.view()
            dropped = [r for r in free if r is not fitting][:-MOST_KEPT]
            gone = {id(r) for r in (room, *dropped)}
            self.rooms = [(r, ref) for r, ref in self.rooms if id(r) not in gone] + [(room, weakref.ref(lent))]
        return lent


_recycler = Recycler()


@contextmanager
def recycling() -> Iterator[None]:
    """Within this block, `large_empty` uses the memory of earlier ones that are gone.

    Four of FedU's server steps for 20 CNNs take 103 ms of processor time in place of 153 (`python -m benchmarks --only
    pieces`), and its rounds on W2 a few percent less. FedAvg's rounds on W1 and W2 gain nothing.
    """
    with _recycler.lock:
        _recycler.users += 1
    try:
        yield
    finally:
        with _recycler.lock:
            _recycler.users -= 1
            if not _recycler.users:
                _recycler.rooms.clear()
