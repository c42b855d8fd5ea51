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


def by_columns(work: Callable[[slice], T], columns: int) -> list[T]:
    """`work` on stretches of the columns, all cores at once; the results in order. `work` must not call this itself.

    A thread each with one intra-op thread: a team of OpenMP threads waits in a loop that burns the core which the
    next round's workers need, and collapses where others use the machine.

    >>> by_columns(lambda some: some.stop - some.start, 40_000)
    [13333, 13333, 13334]
    """
    count = max(1, min(STRETCHES, -(-columns // SHORTEST)))
    stretches = [slice(a, b) for a, b in pairwise(columns * i // count for i in range(count + 1))]
    workers = min(cores(), count)
    if workers == 1:
        return [work(some) for some in stretches]
    return list(_crew(workers).map(work, stretches))


@cache
def _crew(workers: int) -> ThreadPoolExecutor:
    """Threads that stay: a new one has memory to find, and tells torch anew that it is alone."""
    return ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crew.cache_clear)  # threads do not come along


LINE = 64  # bytes of a cache line, which vector instructions want whole


def blank_rows(like: Tensor) -> Tensor:
    """Rows of the same shape and kind with nothing in them yet, each starting on a cache line.

    Products that write to a row which does not can take a quarter longer.

    >>> blank_rows(torch.ones(2, 3)).stride()
    (16, 1)
    """
    *lead, d = like.shape
    line = LINE // like.element_size()
    return like.new_empty(*lead, -(-d // line) * line)[..., :d]


LARGE = 1 << 22  # bytes: what is smaller the allocator keeps for the next time by itself
MOST_KEPT = 4
_lock = threading.RLock()  # a tensor may be collected, and its memory come back, while another asks for some
_kept: list[NDArray[np.uint8]] = []  # memory of large tensors that are gone, the longest unused first
_users = 0


def blank(like: Tensor, *shape: int) -> Tensor:
    """A tensor of that shape with nothing in it yet, of the same kind as `like`.

    Its memory comes from numpy, which asks the system for huge pages where torch does not: hundreds of megabytes are
    then written for the first time in a third of the time.

    >>> blank(torch.ones(2), 3, 4).shape
    torch.Size([3, 4])
    """
    if like.device.type != "cpu":
        return like.new_empty(shape)
    size = math.prod(shape) * like.element_size()
    raw = torch.from_numpy(_memory(size + LINE))
    start = -raw.data_ptr() % LINE
    return raw[start : start + size].view(like.dtype).view(shape)


@contextmanager
def recycling() -> Iterator[None]:
    """Meanwhile a large `blank` takes over the memory of an earlier one that is gone, if that was of the same size.

    A round makes the same tensors as the one before. What the system gives anew it clears first, page by page, which
    takes longer than to fill it.
    """
    global _users
    with _lock:
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _kept.clear()


def _memory(size: int) -> NDArray[np.uint8]:
    if size < LARGE:
        return np.empty(size, dtype=np.uint8)
    with _lock:
        fitting = next((i for i, room in enumerate(_kept) if len(room) == size), None)
        room = np.empty(size, dtype=np.uint8) if fitting is None else _kept.pop(fitting)
    lent = room.view()
    weakref.finalize(lent, _keep, room).atexit = False  # called when the tensor and all views of it are gone
    return lent


def _keep(room: NDArray[np.uint8]) -> None:
    with _lock:
        if _users:
            _kept.append(room)
            del _kept[:-MOST_KEPT]
