"""FedRoD: with nothing to balance the generic model is FedAvg's, and the personal head never reaches it."""

import pytest
import torch
from helpers import CLASSES, blobs, net, run
from torch import Tensor
from torch.nn.functional import cross_entropy

from fairlead.core import FastNetwork, Federation, InputError, Layout, Split, Task
from fairlead.methods import fedavg, fedrod
from fairlead.methods.fedrod import TwoHeads, log_prior

EQUAL = blobs((6, 9, 12))  # every client has as many samples of each class
UNEQUAL = blobs((5, 10, 13))


def without_class(federation: Federation, client: int, absent: int) -> Federation:
    """The federation, with one client's samples of a class relabelled."""
    split = federation.train
    y = split.y.clone()
    own = y[split.starts[client] : split.starts[client + 1]]
    own[own == absent] = (absent + 1) % 3
    split = Split(split.x, y, split.starts)
    return Federation(split, split, split, federation.classes)


def task(federation: Federation, ids: list[int]) -> tuple[Task, Tensor]:
    module = TwoHeads(net())
    layout = Layout(module)
    return Task(FastNetwork(module, layout), federation, ids, CLASSES, round=1, seed=0), layout.read(module)


def test_equal_counts_train_the_generic_model_as_fedavg() -> None:
    _, snapshot = run(fedrod(), EQUAL, net(), rounds=3, how=CLASSES)
    w, _ = run(fedavg(), EQUAL, net(), rounds=3, how=CLASSES)
    torch.testing.assert_close(snapshot.message["w"][0], w[0], atol=1e-6, rtol=1e-5)


def test_without_balance_the_generic_model_is_fedavg_whatever_the_counts() -> None:
    _, snapshot = run(fedrod(balance=0), UNEQUAL, net(), rounds=3, how=CLASSES)
    w, _ = run(fedavg(), UNEQUAL, net(), rounds=3, how=CLASSES)
    torch.testing.assert_close(snapshot.message["w"][0], w[0], atol=1e-6, rtol=1e-5)
    _, balanced = run(fedrod(), UNEQUAL, net(), rounds=3, how=CLASSES)
    assert not torch.allclose(balanced.message["w"][0], w[0], atol=1e-4)


def test_the_prior_is_the_logarithm_of_the_counts_and_finite_for_absent_classes() -> None:
    federation = without_class(UNEQUAL, 0, absent=2)
    t, _ = task(federation, [0, 1])
    prior = log_prior(t, 1.0)
    counts = t.class_counts()
    assert int(counts[0, 2]) == 0
    assert bool(prior.isfinite().all())
    torch.testing.assert_close(prior[counts > 0].exp(), counts[counts > 0].float())
    logits, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    present = cross_entropy(logits[:, :2] + prior[0, :2], y)
    torch.testing.assert_close(cross_entropy(logits + prior[0], y), present)


@pytest.mark.parametrize(("balance", "moves"), [(1.0, False), (0.0, True)])
def test_a_client_leaves_classes_alone_that_it_has_never_seen(balance: float, moves: bool) -> None:
    t, start = task(without_class(UNEQUAL, 0, absent=2), [0])
    method = fedrod(balance=balance)
    state, message = method.init(start, t.layout)
    _, reply = method.client(state, message, t)
    change = t.layout.join((t.layout.rest("own"), reply["w"]), (t.layout.part("own"), state["own"]))
    row = t.layout.stacked(change)["head.weight"][0, 2]
    assert bool((row.abs() > 1e-4).any()) is moves


def test_the_deployed_model_adds_both_heads() -> None:
    models, snapshot = run(fedrod(), UNEQUAL, net(), rounds=2, how=CLASSES)
    module = TwoHeads(net())
    layout = Layout(module)
    layout.write(models[1], module)
    x = UNEQUAL.test.client(1)[0]
    z = module.body(x)
    torch.testing.assert_close(module(x), module.head(z) + module.own(z))
    own = snapshot.clients()["state.row.own"]
    torch.testing.assert_close(models[:, layout.part("own").columns], own)
    assert len({tuple(row.tolist()) for row in own}) == 3


def test_a_client_that_never_trained_deploys_the_generic_model() -> None:
    module, x = net(), UNEQUAL.test.x
    torch.testing.assert_close(TwoHeads(module)(x), module(x))


def test_balance_is_checked() -> None:
    with pytest.raises(InputError, match="balance must be >= 0"):
        fedrod(balance=-1)
