"""Blank tensors are what `new_empty` would give, at whole cache lines; threads for columns survive a fork."""

import multiprocessing
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from fairlead.core.fast import machine
from fairlead.core.fast.machine import SHORTEST, aligned_rows, by_columns, large_empty, recycling


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(3, 5), (0, 7), (2, 0), (1,), (2, 3, 4)])
def test_blank(dtype: torch.dtype, shape: Any) -> None:
    x = large_empty(torch.ones(1, dtype=dtype), *shape)
    assert x.shape == shape
    assert x.dtype == dtype
    assert x.is_contiguous()
    assert x.data_ptr() % 64 == 0
    x.fill_(1)
    assert x.sum() == x.numel()


def test_a_forked_process_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 2)

    def lengths() -> list[int]:
        return by_columns(lambda some: some.stop - some.start, torch.empty(1, 10 * SHORTEST))

    expected = lengths()  # the parent's threads exist now, and would not in the child
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(lengths()), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, which is what this is about
        child.start()
    child.join(30)
    child.kill()
    assert child.exitcode == 0, "the child hangs"
    assert answers.get() == expected


def test_memory_goes_from_one_large_tensor_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LARGE", 1 << 10)
    like = torch.ones(1)

    def address(x: Tensor) -> int:
        return x.untyped_storage().data_ptr()

    with recycling():
        first = large_empty(like, 40, 30).fill_(1.0)
        view, where = first[3], address(first)
        del first
        other = large_empty(like, 40, 30).fill_(2.0)
        assert address(other) != where  # a view still lives there
        assert view.tolist() == [1.0] * 30
        del view
        assert address(large_empty(like, 20, 30)) != where  # of another size
        third = large_empty(like, 30, 40)
        assert address(third) == where
        assert third.shape == (30, 40)
        many = [large_empty(like, 50, 50) for _ in range(9)]
        del many
        large_empty(like, 60, 60)
        free = [room for room, lent in machine._recycler.rooms if lent() is None]
        assert len(free) == machine.MOST_KEPT + 1  # those kept, and the last one, which is gone by now
        with recycling():
            pass
        assert machine._recycler.rooms  # for whoever is still at work
    assert not machine._recycler.rooms
    third.fill_(3.0)  # lives on by itself
    assert third.sum() == 3600


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 5), (3, 16), (2, 3, 33)])
def test_blank_rows_start_on_cache_lines(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    like = torch.zeros(shape, dtype=kind)
    rows = aligned_rows(like)
    assert (rows.shape, rows.dtype) == (like.shape, kind)
    assert all(row.data_ptr() % 64 == 0 for row in rows.flatten(0, -2))
    rows.copy_(torch.arange(like.numel()).view(shape))  # rows do not overlap
    assert rows.flatten().tolist() == list(range(like.numel()))


def test_a_worker_keeps_its_one_thread_whatever_others_set() -> None:
    # A worker that found no work at its start took over the number that the main thread had set by then.
    with ThreadPoolExecutor(1, initializer=machine.one_thread) as pool:
        pool.submit(int).result()  # nothing of torch
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            assert pool.submit(torch.get_num_threads).result() == 1
        finally:
            torch.set_num_threads(before)
