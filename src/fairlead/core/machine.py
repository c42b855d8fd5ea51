"""The machine's cores, for work on long rows that divides into columns, and its memory for such rows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
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


def blank(like: Tensor, *shape: int) -> Tensor:
    """A tensor of that shape with nothing in it yet, of the same kind as `like`.

    Its memory comes from numpy, which asks the system for huge pages where torch does not: hundreds of megabytes are
    then written for the first time in a third of the time. It is not worth the trouble below 32 MB, which the
    allocator keeps for the next time.

    >>> blank(torch.ones(2), 3, 4).shape
    torch.Size([3, 4])
    """
    if like.device.type != "cpu":
        return like.new_empty(shape)
    size, line = math.prod(shape) * like.element_size(), 64
    raw = torch.from_numpy(np.empty(size + line, dtype=np.uint8))
    start = -raw.data_ptr() % line  # vector instructions want whole cache lines
    return raw[start : start + size].view(like.dtype).view(shape)
