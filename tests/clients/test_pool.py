"""Chunks, choices and failures."""

import logging

import pytest
import torch
from torch import nn

from fairlead.clients import Engine, States, choose, engine
from fairlead.core import EngineError, Federation, InputError, Layout, Named, Split, Task, Training


def federation(sizes: tuple[int, ...] = (8, 9, 30, 10)) -> Federation:
    starts = torch.tensor([0, *sizes]).cumsum(0)
    data = Split(torch.randn(int(starts[-1]), 3), torch.randint(0, 2, (int(starts[-1]),)), starts)
    return Federation(data, data, data, ("a", "b"))


class Picky(nn.Module):
    """A module of the user's own that fails on its data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch._C._functorch.is_batchedtensor(x) and len(x) == 10:
            raise ValueError("ten is too many")
        out: torch.Tensor = self.layer(x)
        return out


def test_plans_cover_everybody_once_and_stack_only_like_sizes() -> None:
    sizes = torch.tensor([10, 1000, 11, 12, 9, 990])
    for name in ("loop", "vectorised", "threads", "threads+vectorised"):
        plan = engine(name).plan(sizes)
        assert sorted(i for chunk in plan for i in chunk) == list(range(6))
    for chunk in Engine("x", 2, stacked=True).plan(sizes):
        assert int(sizes[chunk].max()) <= 1.5 * int(sizes[chunk].min())


def test_little_work_is_done_at_once_by_one_worker() -> None:
    sizes = torch.tensor([10, 30, 11, 12])
    assert Engine("x", 2, stacked=True).plan(sizes, work=1e3) == [[1, 3, 2, 0]]
    assert Engine("x", 2, stacked=True).plan(sizes, work=1e8) == [[1], [3, 0], [2]]
    assert len(Engine("x", 2, stacked=True).plan(sizes, 3, work=1e3)) == 2


def test_like_clients_are_neighbours_and_their_rows_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.clients.pool.LITTLE_WORK", 1.0)
    assert Engine("x", 2, stacked=True).plan(torch.full((5,), 8)) == [[0, 1], [2, 3, 4]]
    module = nn.Linear(3, 2)
    rows = {"w": torch.randn(4, 8)}
    seen: list[int] = []

    def work(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        seen.append(state["w"].data_ptr())
        kept = state["w"] + 1
        return {"w": kept}, {"w": kept, "half": kept / 2}

    like = federation((8, 8, 8, 8))
    with Engine("x", 2, stacked=True).start(module, Layout(module), like, Training(), 0) as pool:
        states, replies = pool.map(work, torch.arange(4), 1, rows, {})
    assert sorted(seen) == [rows["w"].data_ptr(), rows["w"][2:].data_ptr()]
    assert states["w"] is replies["w"], "what is kept and sent is put together once"
    torch.testing.assert_close(replies["half"], (rows["w"] + 1) / 2)


def test_states_that_a_server_holds_too_are_not_changed_under_it() -> None:
    states = States(3, {"u": torch.zeros(1, 2)})
    whole = torch.arange(6.0).view(3, 2)
    states.put(torch.arange(3), {"u": whole})
    states.put(torch.tensor([1]), {"u": torch.full((1, 2), 9.0)})
    assert whole.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert states.get(torch.arange(3))["u"].tolist() == [[0, 1], [9, 9], [4, 5]]


def test_a_failure_inside_names_client_and_round_and_keeps_its_cause() -> None:
    module = Picky()
    with engine("loop").start(module, Layout(module), federation(), Training(batch_size=64), 0) as pool:
        with pytest.raises(EngineError, match="client 3, round 7: ValueError: ten is too many") as failure:
            pool.map(lambda s, m, t: ({"u": t.descend(Layout(module).read(module))}, {}), torch.arange(4), 7, {}, {})
        assert isinstance(failure.value.__cause__, ValueError)


def test_a_batch_of_one_is_refused_before_batch_norm_meets_it() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(InputError, match="client 1 with 9 samples ends in a batch of one at batch_size 2"):
        engine("loop").start(module, Layout(module), federation(), Training(batch_size=2), 0)


def test_a_lone_last_sample_finds_a_partner_under_batch_norm() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    layout = Layout(module)
    with engine("loop").start(module, layout, federation(), Training(batch_size=4), 0) as pool:
        models, _ = pool.map(lambda s, m, t: ({"u": t.descend(layout.read(module))}, {}), torch.arange(4), 1, {}, {})
    assert models["u"].isfinite().all()


def test_auto_says_what_it_picked_and_avoids_what_cannot_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert choose(nn.Linear(3, 2), federation(), Training(), 4).name in ("threads", "threads+vectorised")
    assert "engine auto: " in caplog.text
    norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert choose(norm, federation(), Training(batch_size=5), 4).name == "threads"
    assert "BatchNorm1d" in caplog.text
