"""Local training against arithmetic done by hand, and the fast path against the plain one."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairlead.core import BodyAndHead, FastNetwork, Federation, Layout, Plus, Sgd, Split, Task, Tie, Towards, Training
from fairlead.core.batches import orders, schedule
from fairlead.core.errors import InputError
from fairlead.core.gradient import Gradient


class Point(nn.Module):
    """Predicts its own parameter whatever the input: the loss |u - y|²/2 is a bowl around the mean target."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.u.expand(len(x), -1)


def half_square(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 0.5 * (out - y).square().sum(-1)


def split_of(sizes: list[int], features: int = 2, seed: int = 0) -> Split:
    n = sum(sizes)
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randn(n, features, generator=generator)
    return Split(torch.zeros(n, 1), targets, torch.tensor([0, *sizes]).cumsum(0))


def bowl(sizes: list[int], **training: object) -> Task:
    data = split_of(sizes)
    module = Point()
    federation = Federation(data, data, data, ())
    settings = Training(criterion=half_square, **training)  # type: ignore[arg-type]
    return Task(FastNetwork(module, Layout(module)), federation, list(range(len(sizes))), settings, round=1, seed=0)


def means(task: Task) -> torch.Tensor:
    return torch.stack([y.mean(0) for _, y in task.data()])


@pytest.mark.parametrize("sizes", [[4], [4, 4, 4], [5, 2, 9]])
def test_full_batch_descent_contracts_towards_each_clients_own_mean(sizes: list[int]) -> None:
    # u <- u - lr (u - mean) per epoch, so after K epochs u = mean (1 - (1 - lr)^K).
    task = bowl(sizes, lr=0.1, epochs=7, batch_size=100)
    torch.testing.assert_close(task.descend(torch.zeros(1, 2)), means(task) * (1 - 0.9**7))


def test_momentum_and_weight_decay_follow_sgd() -> None:
    task = bowl([6, 3], lr=0.1, epochs=5, batch_size=100, momentum=0.9, weight_decay=0.01)
    expected = torch.zeros(2, 2)
    for k in range(2):
        u = torch.zeros(2, requires_grad=True)
        optimiser = torch.optim.SGD([u], lr=0.1, momentum=0.9, weight_decay=0.01)
        for _ in range(5):
            optimiser.zero_grad()
            half_square(u[None], means(task)[k : k + 1]).sum().backward()
            optimiser.step()
        expected[k] = u.detach()
    torch.testing.assert_close(task.descend(torch.zeros(1, 2)), expected)


def test_a_term_passes_through_momentum_and_towards_does_not() -> None:
    task = bowl([4], lr=0.1, epochs=3, batch_size=100, momentum=0.5)
    still = torch.zeros(1, 2)

    def none(u: torch.Tensor, batch: object) -> torch.Tensor:
        return torch.zeros_like(u)

    # Three equal terms: momentum replays the first 1.75 times, the second 1.5 times, the last once.
    torch.testing.assert_close(task.descend(still, Plus(torch.ones(1, 2)), gradient=none), still - 0.1 * 4.25)
    # Towards v by a tenth a step, three times over: 1 - 0.9³ of the way, whatever the momentum.
    v = torch.tensor([[3.0, -2.0]])
    torch.testing.assert_close(task.descend(still, Towards(v, torch.ones(1, 1)), gradient=none), v * (1 - 0.9**3))


class Own:
    """A term of one's own: the same tie, by its formula."""

    def __init__(self, v: Tensor, strength: Tensor | float) -> None:
        self.v, self.strength = v, strength

    def at(self, u: torch.Tensor) -> torch.Tensor:
        return (u - self.v) * self.strength


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("strength", [0.7, torch.tensor([[0.0], [0.7], [2.0]])])
@pytest.mark.parametrize("sizes", [[4, 4, 4], [5, 2, 9]])
def test_a_tie_is_the_gradient_of_half_a_square(sizes: list[int], strength: Tensor | float, momentum: float) -> None:
    task = bowl(sizes, lr=0.1, epochs=3, batch_size=3, momentum=momentum, weight_decay=0.01)
    start, v = torch.randn(3, 2), torch.randn(3, 2)
    expected = task.descend(start, Own(v, strength))
    torch.testing.assert_close(task.descend(start, Tie(v, strength)), expected)


def test_neighbours_of_one_size_are_evaluated_without_a_copy() -> None:
    task = bowl([4, 4, 4])
    _, y, real = task.padded("train")
    assert y.data_ptr() == next(iter(task.data()))[1].data_ptr()
    assert y.shape == (3, 4, 2)
    assert bool(real.all())
    apart = bowl([4, 3, 4])
    _, y, real = apart.padded("train")
    assert real.sum(1).tolist() == [4, 3, 4]
    torch.testing.assert_close(y[1, :3], list(apart.data())[1][1])


@pytest.mark.parametrize("sizes", [[4], [5, 2, 9]])
def test_towards_without_momentum_is_a_term_in_the_gradient(sizes: list[int]) -> None:
    task = bowl(sizes, lr=0.1, epochs=3, batch_size=2)
    start, v, strength = torch.ones(1, 2), torch.tensor([[3.0, -2.0]]), torch.linspace(0, 2, len(sizes))[:, None]
    pulled = task.descend(start, Own(v, strength))
    torch.testing.assert_close(task.descend(start, Towards(v, strength)), pulled)
    both = task.descend(start, Towards(v, strength / 2), Tie(v, strength / 2))
    torch.testing.assert_close(both, pulled)


def test_steps_counts_gradients_as_momentum_replays_them() -> None:
    assert bowl([10, 3], batch_size=4, epochs=2).steps().tolist() == [[6.0], [2.0]]
    torch.testing.assert_close(bowl([4], batch_size=4, epochs=3, momentum=0.5).steps(), torch.tensor([[4.25]]))


def test_with_steps_an_epoch_is_so_many_batches_for_everybody() -> None:
    task = bowl([10, 3], batch_size=2, epochs=5, steps=3)
    assert [len(list(task.batches(task.sgd.but(epochs=e)))) for e in (None, 0, 1, 4)] == [3, 0, 3, 12]
    assert len(list(task.batches(task.sgd.but(steps=2)))) == 2
    assert task.steps(task.sgd.but(epochs=4)).tolist() == [[12.0], [12.0]]
    assert all(batch.active is None or bool(batch.active.all()) for batch in task.batches(task.sgd.but(epochs=4)))


def test_only_moves_one_part_and_leaves_the_rest() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    layout = Layout(module)
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
    data = Split(x, y, torch.tensor([0, 3, 6]))
    task = Task(
        FastNetwork(module, layout), Federation(data, data, data, ("a", "b")), [0, 1], Training(lr=0.1), round=1, seed=0
    )
    start = layout.read(module)
    after = task.descend(start, only=layout.head)
    assert torch.equal(after[:, layout.body.columns], start[:, layout.body.columns].expand(2, -1))
    assert not torch.isclose(after[:, layout.head.columns], start[:, layout.head.columns]).any(1).all()


@pytest.mark.parametrize("how", [Sgd(lr=0.1, epochs=10**12), Sgd(lr=0.1, steps=10**12), Sgd(lr=0.1, epochs=10**7)])
def test_more_steps_than_memory_has_room_for_are_refused(how: Sgd) -> None:
    """Before anything is laid out: such an option once took all of a machine's memory."""
    split = Split(torch.zeros(40, 2), torch.zeros(40, dtype=torch.long), torch.tensor([0, 10, 40]))
    with pytest.raises(InputError, match=r"batches of 30 in one round.*lower epochs"):
        list(schedule(split, [0, 1], how, seed=0, round=1))


def test_every_sample_is_seen_once_an_epoch_whatever_the_neighbours_size() -> None:
    data = split_of([7, 3, 1])
    tagged = Split(torch.arange(11.0)[:, None], data.y, data.starts)
    seen = torch.zeros(3, 11)
    for batch in schedule(tagged, [0, 1, 2], Sgd(lr=0.1, epochs=2, batch_size=2), seed=0, round=1):
        weight = torch.full(batch.x.shape[:2], 0.5) if batch.weight is None else batch.weight
        for k in range(3):
            for value, w in zip(batch.x[k, :, 0], weight[k], strict=True):
                seen[k, int(value)] += float(w > 0)
    for k in range(3):
        own = torch.zeros(11)
        own[int(data.starts[k]) : int(data.starts[k + 1])] = 2
        assert torch.equal(seen[k], own)


def test_a_lone_sample_gets_company_and_nothing_is_lost() -> None:
    (batches,) = islice(orders(9, 4, seed=0, round=1, client=0, at_least_two=True), 1)
    assert [(row >= 0).sum() for row in batches] == [4, 3, 2]
    assert sorted(batches[batches >= 0].tolist()) == list(range(9))


def test_a_nan_client_does_not_reach_its_neighbours() -> None:
    task = bowl([5, 2], lr=0.1, batch_size=2, momentum=0.9)
    data = split_of([5, 2])
    data.y[:5] = torch.nan
    module = Point()
    poisoned = Task(
        FastNetwork(module, Layout(module)),
        Federation(data, data, data, ("a",)),
        [0, 1],
        task.training,
        round=1,
        seed=0,
    )
    after = poisoned.descend(torch.zeros(1, 2))
    assert after[0].isnan().all()
    torch.testing.assert_close(after[1], task.descend(torch.zeros(1, 2))[1])


def test_schedules() -> None:
    assert Training(lr=0.1).lr_at(50) == 0.1
    assert Training(lr=0.1, schedule="exponential", decay=0.5).lr_at(3) == pytest.approx(0.025)
    cosine = Training(lr=0.1, schedule="cosine", rounds=10)
    assert cosine.lr_at(1) == 0.1
    assert cosine.lr_at(6) == pytest.approx(0.05)
    assert 0 < cosine.lr_at(10) < 0.01


@pytest.mark.parametrize(
    "wrong", [{"lr": 0}, {"epochs": 0}, {"batch_size": 0}, {"momentum": 1.0}, {"weight_decay": -1}, {"decay": 2}]
)
def test_training_refuses_what_cannot_work(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Training(**wrong)  # type: ignore[arg-type]


def layered(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), *more, nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def classified(module: nn.Module, ids: list[int], **how: object) -> Task:
    sizes = [7, 4, 9, 7]
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(sum(sizes), 4, generator=generator), torch.randint(3, (sum(sizes),), generator=generator)
    data = Split(x, y, torch.tensor([0, *sizes]).cumsum(0))
    settings = Training(batch_size=3, lr=0.2, **how)  # type: ignore[arg-type]
    federation = Federation(data, data, data, ("a", "b", "c"))
    return Task(FastNetwork(module, Layout(module)), federation, ids, settings, round=2, seed=0)


@pytest.mark.parametrize("ids", [[1], [0, 3], [2, 0, 3, 1]])
@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize(
    "how", [{"epochs": 3, "momentum": 0.5, "weight_decay": 0.1}, {"epochs": 1}, {"steps": 2}, {"steps": 5}]
)
def test_layers_below_those_that_learn_may_be_computed_once(
    ids: list[int], last: int, how: dict[str, float] | dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = classified(layered(), ids, **how)
    start = task.layout.read(layered()) + 0.1 * torch.randn(len(ids), task.layout.size)
    part = task.layout.cut(last)[1]
    quick = task.descend(start, only=part, how=task.sgd.but(start=1))
    monkeypatch.setattr(FastNetwork, "tail", lambda *_: None)
    torch.testing.assert_close(quick, task.descend(start, only=part, how=task.sgd.but(start=1)), rtol=1e-4, atol=1e-6)
    assert not torch.equal(quick[:, part.columns], start[:, part.columns])
    assert torch.equal(quick[:, task.layout.cut(last)[0].columns], start[:, task.layout.cut(last)[0].columns])


@pytest.mark.parametrize("module", [layered(), layered(nn.Dropout(0.5))], ids=["settled", "dropout"])
def test_a_part_is_a_task_of_its_own(module: nn.Module) -> None:
    task = classified(module, [2, 0], epochs=2)
    rows = task.layout.read(module) + 0.1 * torch.randn(2, task.layout.size)
    head = task.layout.head
    top, mine = task.above(head, rows), rows[:, head.columns]
    whole = task.descend(rows, only=head)
    torch.testing.assert_close(top.descend(mine), whole[:, head.columns], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(top.loss(mine, "train"), task.loss(rows, "train"))
    torch.testing.assert_close(top.outputs(mine, "train"), task.outputs(rows, "train"))
    (a, *_), (b, *_) = top.batches(), task.batches()
    g = top.grad(mine, a)
    assert not torch.equal(top.grad(2 * mine, a), g)  # nor does it change what the first call gave
    torch.testing.assert_close(g, task.grad(rows, b, only=head)[:, head.columns])


@pytest.mark.parametrize("ids", [[1], [2, 0, 3]])
@pytest.mark.parametrize("which", [[[0, 4], [4, 4], [1, 0]], [[], [], []]])
@pytest.mark.parametrize("held", [False, True])
def test_losses_of_models_that_clients_name_are_those_of_each_model_by_itself(
    ids: list[int], which: list[list[int]], held: bool
) -> None:
    module = layered(nn.Dropout(0.5)) if held else layered()
    task = classified(module, ids)
    rows = task.layout.read(module) + 0.1 * torch.randn(len(ids), task.layout.size)
    task = task.above(task.layout.head, rows) if held else task
    models = torch.randn(5, task.layout.head.size if held else task.layout.size)
    named = torch.tensor(which[: len(ids)], dtype=torch.int64)
    found = task.losses(models, named)
    assert found.shape == named.shape
    for i, sent in enumerate(named.tolist()):
        for m, j in enumerate(sent):
            torch.testing.assert_close(found[i, m], task.loss(models[j : j + 1].expand(len(ids), -1))[i, 0])


class Wider(nn.Sequential):
    """Might compute anything."""


def test_only_settled_layers_below_the_last_are_computed_once() -> None:
    def tail(module: nn.Module, *names: str) -> object:
        layout = Layout(module)
        return FastNetwork(module, layout).tail(layout.part(*names) if names else layout.head)

    assert tail(layered())
    assert tail(BodyAndHead(layered()))
    assert tail(layered(nn.GroupNorm(2, 6)))
    for module in (layered(nn.Dropout(0.5)), layered(nn.BatchNorm1d(6)), Wider(*layered()), Point()):
        assert tail(module) is None
    for names in (("0",), ("2",), ("0", "4"), ("0", "2", "4"), ("4.weight",)):
        assert tail(layered(), *names) is None
    same = nn.Linear(4, 4)
    assert tail(nn.Sequential(same, nn.ReLU(), same, nn.Linear(4, 3))) is None
    watched = layered()
    watched[0].register_forward_hook(lambda *_: None)
    assert tail(watched) is None


def test_layers_computed_once_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    task = classified(layered(), [0, 3], epochs=4)
    seen = []
    gradient = FastNetwork.gradient

    def watched_gradient(network: FastNetwork, rows: Tensor, *more: Any) -> Gradient:
        seen.append(rows.shape[1])
        return gradient(network, rows, *more)

    monkeypatch.setattr(FastNetwork, "gradient", watched_gradient)
    task.descend(task.layout.read(layered()), only=task.layout.head)
    assert set(seen) == {task.layout.head.size}
