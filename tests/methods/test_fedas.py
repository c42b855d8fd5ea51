"""FedAS: the alignment against float64, traces by hand, and FedPer as its limit where all traces are equal."""

import pytest
import torch
from helpers import CLASSES, blobs, net, run
from torch import Tensor
from torch.nn.functional import cross_entropy

from fairlead.core import BodyAndHead, Cohort, FastNetwork, InputError, Layout, Task, Training
from fairlead.methods import fedas, fedper
from fairlead.methods.fedas import by_trace, fisher
from fairlead.servers import mean

FEDERATION = blobs()
HOW = Training(lr=0.1, batch_size=5)


def task(ids: list[int], how: Training = HOW) -> tuple[Task, Tensor]:
    module = BodyAndHead(net())
    layout = Layout(module)
    return Task(FastNetwork(module, layout), FEDERATION, ids, how, round=1, seed=0), layout.read(module)


def test_the_trace_sums_the_squared_gradients_of_the_batches() -> None:
    t, start = task([0, 1])  # 5 and 9 samples: one batch, and two
    found = fisher(start.expand(2, -1), t)
    for k, batches in ((0, 1), (1, 2)):
        module = BodyAndHead(net()).double()
        expected = 0.0
        one, _ = task([k])
        pieces = list(one.batches())
        assert len(pieces) == batches
        for batch in pieces:
            real = slice(None) if batch.weight is None else batch.weight[0] > 0
            loss = cross_entropy(module(batch.x[0][real].double()), batch.y[0][real])
            grads = torch.autograd.grad(loss, list(module.parameters()))
            expected += float(sum((g.square().sum() for g in grads), torch.zeros(())))
        assert float(found[k]) == pytest.approx(expected, rel=1e-4)


def test_the_server_weighs_by_the_traces() -> None:
    server = by_trace(mean())
    state, _ = server.init({"w": torch.zeros(1, 1)}, {}, 3)
    rows = {"w": torch.tensor([[1.0], [4.0]]), "trace": torch.tensor([[3.0], [1.0]])}
    cohort = Cohort(torch.tensor([0, 2]), torch.tensor([0.1, 0.9]), 3, 1, 0)
    assert server.update(state, rows, cohort)[1]["w"].tolist() == [[pytest.approx(1.75)]]
    nothing = rows | {"trace": torch.zeros(2, 1)}
    assert server.update(state, nothing, cohort)[1]["w"].tolist() == [[pytest.approx(3.7)]]


def test_alignment_is_a_step_towards_the_own_features_in_float64() -> None:
    """One batch: body - lr ∇ mean ‖f(body; x) - p_y‖²/d, p the class means under the own body; then training."""
    t, start = task([0])
    method = fedas()
    state, message = method.init(start, t.layout)
    draw = torch.Generator().manual_seed(3)
    state |= {"body": state["body"] + 0.3 * torch.randn(state["body"].shape, generator=draw)}
    state |= {"rounds": torch.ones(1, 1)}
    after, reply = method.client(state, message, t)

    x, y = FEDERATION.train.client(0)
    own, received = BodyAndHead(net()), BodyAndHead(net())
    layout = t.layout
    layout.write(layout.join((layout.body, state["body"]), (layout.head, state["head"]))[0], own)
    own, received = own.double(), received.double()
    z = own.body(x.double()).detach()
    p = torch.stack([z[y == c].mean(0) if bool((y == c).any()) else torch.zeros(4).double() for c in range(3)])
    near = (received.body(x.double()) - p[y]).square().mean(1).mean()
    with torch.no_grad():
        body = list(received.body.parameters())
        for w, g in zip(body, torch.autograd.grad(near, body), strict=True):
            w.sub_(0.1 * g)
    loss = cross_entropy(received(x.double()), y)
    with torch.no_grad():
        for w, g in zip(received.parameters(), torch.autograd.grad(loss, list(received.parameters())), strict=True):
            w.sub_(0.1 * g)
    expected = Layout(received).read(received)
    torch.testing.assert_close(after["body"].double(), expected[:, layout.body.columns], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(reply["w"], after["body"] - message["w"])


def test_without_alignment_one_client_is_fedper() -> None:
    alone = blobs((9,))
    mine, _ = run(fedas(align_epochs=0), alone, net(), rounds=3, how=CLASSES)
    theirs, _ = run(fedper(), alone, BodyAndHead(net()), rounds=3, how=CLASSES)
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_what_cannot_work_is_refused() -> None:
    for wrong in ({"align_epochs": -1}, {"align_lr": 0.0}):
        with pytest.raises(InputError, match=f"fedas: {next(iter(wrong))} must"):
            fedas(**wrong)
    assert fedas().needs_classes
