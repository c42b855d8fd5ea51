"""Every method of the catalogue on targets that are no classes: it learns them, or says why it cannot."""

import pytest
import torch
from helpers import suited
from torch import Tensor, nn

from fairlead.clients import InProcess, engine
from fairlead.core import FastNetwork, Federation, InputError, Layout, Plan, Split, Task, Training
from fairlead.core.targets import binary_cross_entropy, squared_error
from fairlead.methods import METHODS
from fairlead.rounds import federate

SIZES = (24, 20, 20)
NEED_CLASSES = ("fedrod", "fedpac", "fedproto", "fedas", "knnper")


def federation(labels: int = 0) -> Federation:
    """Three clients whose targets are a common linear rule and a little of their own; with `labels`, their signs."""
    g = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *SIZES]).cumsum(0)
    x = torch.randn(int(starts[-1]), 6, generator=g)
    rule = torch.randn(6, max(labels, 1), generator=g)
    y = x @ rule
    for k in range(len(SIZES)):
        y[starts[k] : starts[k + 1]] += 0.3 * k
    data = Split(x, (y > 0).float() if labels else y[:, 0], starts)
    return Federation(data, data, data, tuple("abcdef"[:labels]))


def net(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, outputs))


def task_of(module: nn.Module, data: Federation) -> Task:
    return Task(FastNetwork(module, Layout(module)), data, [0, 1, 2], Training(), round=1, seed=0)


def last_loss(name: str, data: Federation, on: str) -> Tensor:
    """The mean test loss of the deployed models after some rounds."""
    how = Training(lr=0.2 if data.classes else 0.05, epochs=2, batch_size=4)
    rounds = 12 if name in ("pfedhn", "plgu-ghn") else 8  # a hypernetwork follows its clients slowly
    plan = Plan(rounds=rounds, evaluate_every=rounds)
    happened = federate(METHODS[name](), InProcess(data, how, engine(on)), suited(name, net(data.outputs)), plan)
    (found,) = [s.values["loss"] for r, _ in happened for s in r.scores if s.split == "test"]
    return found.mean()


@pytest.mark.parametrize("on", ["loop", "vectorised"])
@pytest.mark.parametrize("labels", [0, 3], ids=["quantities", "labels"])
@pytest.mark.parametrize("name", METHODS)
def test_methods_learn_other_targets_or_refuse(name: str, labels: int, on: str) -> None:
    data = federation(labels)
    if name in NEED_CLASSES:
        found = "several labels each" if labels else "quantities"
        with pytest.raises(InputError, match=f"needs samples with one class each.*are {found}; leave"):
            last_loss(name, data, on)
        return
    module = net(data.outputs)
    untrained = task_of(module, data).loss(Layout(module).read(module), "test")[:, 0].mean()
    assert last_loss(name, data, on) < 0.9 * untrained


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


def test_one_loss_per_sample_whatever_the_shapes() -> None:
    out, y = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 0.0, 1.0])
    assert squared_error(out, y).tolist() == [0.0, 4.0, 9.0]
    assert squared_error(out[:, 0], y).tolist() == [0.0, 4.0, 9.0]
    assert squared_error(out, y.double()).shape == (3,)
    assert binary_cross_entropy(torch.zeros(2, 3), torch.ones(2, 3)).shape == (2,)
