"""Every method of the catalogue on targets that are no classes: it learns them, or says why it cannot."""

from typing import Any

import pytest
import torch
from helpers import suited
from torch import Tensor, nn

from fairlead.clients import InProcess, engine
from fairlead.core import FastNetwork, Federation, InputError, Layout, Plan, Split, Task, Training
from fairlead.core.targets import binary_cross_entropy, cox, squared_error
from fairlead.core.types import Target
from fairlead.methods import METHODS
from fairlead.metrics import metric
from fairlead.rounds import federate

SIZES = (24, 20, 20)
NEED_CLASSES = ("fedrod", "fedpac", "fedproto", "fedas", "knnper")


def federation(labels: int = 0, survival: bool = False) -> Federation:
    """Three clients whose targets are a common linear rule and a little of their own; with `labels`, their signs.

    With `survival` the rule is the risk: who has a higher one has its event earlier, and every fourth is not watched
    that long.
    """
    g = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *SIZES]).cumsum(0)
    x = torch.randn(int(starts[-1]), 6, generator=g)
    rule = torch.randn(6, max(labels, 1), generator=g)
    y = x @ rule
    for k in range(len(SIZES)):
        y[starts[k] : starts[k + 1]] += 0.3 * k
    if survival:
        event = torch.arange(len(y)) % 4 > 0
        time = (-y[:, 0]).exp() * torch.where(event, 1.0, 0.7)
        data = Split(x, torch.stack([time, event.float()], 1), starts)
        return Federation(data, data, data, (), target=Target(survival=True))
    data = Split(x, (y > 0).float() if labels else y[:, 0], starts)
    return Federation(data, data, data, tuple("abcdef"[:labels]))


def net(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, outputs))


def task_of(module: nn.Module, data: Federation) -> Task:
    return Task(FastNetwork(module, Layout(module)), data, [0, 1, 2], Training(), round=1, seed=0)


def losses_of(name: str, data: Federation, on: str, rounds: int) -> Tensor:
    """Each client's test loss with its deployed model after some rounds."""
    how = Training(lr=0.05 if data.target_kind == "quantity" else 0.2, epochs=2, batch_size=4)
    plan = Plan(rounds=rounds, evaluate_every=rounds)
    happened = federate(METHODS[name](), InProcess(data, how, engine(on)), suited(name, net(data.outputs)), plan)
    (found,) = [s.values["loss"] for r, _ in happened for s in r.scores if s.split == "test"]
    return found


@pytest.mark.parametrize("kind", ["a quantity", "several yes/no labels", "a time until an event"])
@pytest.mark.parametrize("name", METHODS)
def test_methods_learn_other_targets_or_refuse(name: str, kind: str) -> None:
    data = federation(3 if kind == "several yes/no labels" else 0, survival=kind == "a time until an event")
    if name in NEED_CLASSES:
        for on in ("loop", "vectorised"):
            with pytest.raises(InputError, match=f"needs samples with one class each.*is {kind}; leave"):
                losses_of(name, data, on, 1)
        return
    module = net(data.outputs)
    untrained = task_of(module, data).loss(Layout(module).read(module), "test")[:, 0].mean()
    rounds = 12 if name in ("pfedhn", "plgu-ghn") else 4  # a hypernetwork follows its clients slowly
    assert losses_of(name, data, "vectorised", rounds).mean() < 0.9 * untrained
    one, other = (losses_of(name, data, on, 1) for on in ("loop", "vectorised"))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_scores_of_quantities_are_in_their_own_unit() -> None:
    data, module = federation(), net(1)
    rows = Layout(module).read(module)
    found = Task(FastNetwork(module, Layout(module)), data, [0, 1, 2], Training(), round=1, seed=0).evaluate(
        rows, "test"
    )
    assert found.keys() == {"loss", "rmse"}
    for k in range(3):
        x, y = data.test.client(k)
        squares = (module(x)[:, 0] - y).square()
        torch.testing.assert_close(found["loss"][k, 0], squares.mean())
        torch.testing.assert_close(found["rmse"][k, 0], squares.mean().sqrt())


def test_scores_of_labels_count_every_label() -> None:
    data, module = federation(3), net(3)
    rows = Layout(module).read(module)
    found = Task(FastNetwork(module, Layout(module)), data, [0, 1, 2], Training(), round=1, seed=0).evaluate(
        rows, "test"
    )
    assert found.keys() == {"loss", "accuracy"}
    for k in range(3):
        x, y = data.test.client(k)
        torch.testing.assert_close(found["accuracy"][k, 0], ((module(x) > 0) == (y == 1)).float().mean())
        torch.testing.assert_close(found["loss"][k, 0], nn.functional.binary_cross_entropy_with_logits(module(x), y))


def test_a_stack_of_clients_compares_survival_times_within_each_client_alone() -> None:
    """Clients of unequal size, whose short batches are padded, train together as one by one."""
    data, module = federation(survival=True), net(1)
    layout, how = Layout(module), Training(lr=0.1, epochs=2, batch_size=8)

    def trained(ids: list[int]) -> Tensor:
        task = Task(FastNetwork(module, layout), data, ids, how, round=1, seed=0)
        return task.descend(layout.read(module))

    alone = torch.cat([trained([k]) for k in range(3)])
    torch.testing.assert_close(trained([0, 1, 2]), alone)
    assert not torch.isclose(alone[0], alone[1]).all()


def test_one_loss_per_sample_whatever_the_shapes() -> None:
    out, y = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 0.0, 1.0])
    assert squared_error(out, y).tolist() == [0.0, 4.0, 9.0]
    assert squared_error(out[:, 0], y).tolist() == [0.0, 4.0, 9.0]
    assert squared_error(out, y.double()).shape == (3,)
    assert binary_cross_entropy(torch.zeros(2, 3), torch.ones(2, 3)).shape == (2,)


def test_scores_of_survival_times_compare_the_samples_of_one_client() -> None:
    data, module = federation(survival=True), net(1)
    found = task_of(module, data).evaluate(Layout(module).read(module), "test")
    assert found.keys() == {"loss", "c-index"}
    for k in range(3):
        x, y = data.test.client(k)
        risk, (time, event) = module(x)[:, 0], y.unbind(1)
        terms = [(risk[time >= time[i]].logsumexp(0) - risk[i]) * event[i] for i in range(len(y))]
        torch.testing.assert_close(found["loss"][k, 0], torch.stack(terms).mean())
        assert float(found["c-index"][k, 0]) == pytest.approx(metric("c-index")(y, risk.detach()).value)


def test_padding_is_compared_with_nobody() -> None:
    """Three clients side by side in batches of unlike length have the gradients that each has alone."""
    data, module = federation(survival=True), net(1)
    how, rows = Training(batch_size=7), Layout(module).read(module)
    together = Task(FastNetwork(module, Layout(module)), data, [0, 1, 2], how, round=1, seed=0).descend(rows)
    for k in range(3):
        alone = Task(FastNetwork(module, Layout(module)), data, [k], how, round=1, seed=0).descend(rows)
        torch.testing.assert_close(together[k : k + 1], alone)
    assert cox(torch.zeros(0, 1), torch.zeros(0, 2)).shape == (0,)


def rare(sizes: tuple[int, ...] = (40, 25), every: int = 10) -> Federation:
    """Two classes that overlap, the second of them rare."""
    g = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *sizes]).cumsum(0)
    y = (torch.arange(int(starts[-1])) % every == 0).long()
    x = torch.randn(len(y), 6, generator=g) + 1.2 * y[:, None]
    data = Split(x, y, starts)
    return Federation(data, data, data, ("usual", "rare"))


def test_every_class_of_a_client_weighs_the_same() -> None:
    data, module = rare(), net(2)
    how = Training(balance=True)
    task = Task(FastNetwork(module, Layout(module)), data, [0, 1], how, round=1, seed=0)
    found = task.loss(Layout(module).read(module), "test")
    for k in range(2):
        x, y = data.test.client(k)
        losses = nn.functional.cross_entropy(module(x), y, reduction="none")
        mean_of_means = (losses[y == 0].mean() + losses[y == 1].mean()) / 2
        torch.testing.assert_close(found[k, 0], mean_of_means)
    weights = task.given["class weights"]
    assert weights[0].tolist() == pytest.approx([40 / 72, 5.0])
    full = task.descend(Layout(module).read(module), how=task.sgd.but(batch_size=40))
    network = net(2)
    task.losses_of.criterion(network(data.train.client(0)[0]), data.train.client(0)[1]).mul(
        weights[0][data.train.client(0)[1]]
    ).mean().backward()
    step = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
    torch.testing.assert_close(full[0], Layout(module).read(module)[0] - how.lr * step)


@pytest.mark.parametrize("name", METHODS)
def test_balance_makes_every_method_lean_to_the_rare_class(name: str) -> None:
    """With and without, on the same rows; and engines agree."""
    data, said = rare(), {}
    heads: dict[str, Any] = {"answer": "head"} if name == "fedproto" else {}  # its prototypes know no weights
    for balance, on in ((False, "loop"), (True, "loop"), (True, "vectorised")):
        how = Training(lr=0.1, epochs=2, batch_size=8, balance=balance)
        with InProcess(data, how, engine(on)) as clients:
            for _ in federate(METHODS[name](**heads), clients, suited(name, net(2)), Plan(rounds=4, evaluate_every=4)):
                pass
            said[balance, on] = torch.cat(clients.outputs("test"))
    torch.testing.assert_close(said[True, "loop"], said[True, "vectorised"], atol=2e-4, rtol=2e-3)
    lean = {key: float((out[:, 1] - out[:, 0]).mean()) for key, out in said.items()}
    assert lean[True, "loop"] > lean[False, "loop"] + 0.02


def test_balance_is_refused_without_classes() -> None:
    data = federation()
    with (
        pytest.raises(InputError, match="balance weighs classes"),
        InProcess(data, Training(balance=True), engine("loop")) as clients,
    ):
        clients.start(METHODS["fedavg"](), net(1), Plan(rounds=1))
