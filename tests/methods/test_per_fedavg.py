"""Per-FedAvg."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from helpers import CLASSES, blobs, net, quadratic, run, training

from fairlead.core import InputError, Split
from fairlead.methods import fedavg, per_fedavg
from fairlead.servers import uniform

CENTRES = torch.tensor([[3.0, 0.0], [-1.0, 4.0]])
START = torch.tensor([0.5, -1.0])


@pytest.mark.parametrize(("variant", "power"), [("first-order", 1), ("hessian-free", 2)])
@pytest.mark.parametrize("beta", [None, 0.2])
def test_one_round(variant: Literal["first-order", "hessian-free"], power: int, beta: float | None) -> None:
    """The gradient after adapting is (1 - α)(u - c_k); the curvature I - α∇²f is another 1 - α."""
    alpha, rate = 0.3, beta or 0.1
    w = (START - rate * (1 - alpha) ** power * (START - CENTRES)).mean(0)
    method = per_fedavg(alpha=alpha, beta=beta, variant=variant)
    models, snapshot = run(method, quadratic(CENTRES, sizes=[1, 3]), START, how=training(lr=0.1))
    torch.testing.assert_close(snapshot.message["w"], w[None], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(models, w - alpha * (w - CENTRES), rtol=1e-4, atol=1e-4)


def test_the_difference_of_gradients_is_the_curvature() -> None:
    """On a network, without batches to choose from: the meta gradient is that of f(w - α∇f(w)), by autograd."""
    module, data = net(), blobs([8])
    x, y = data.train.client(0)
    weights = list(module.parameters())
    f = torch.nn.functional.cross_entropy(module(x), y)
    moved = [p - 0.5 * g for p, g in zip(weights, torch.autograd.grad(f, weights, create_graph=True), strict=True)]
    named = dict(zip(dict(module.named_parameters()), moved, strict=True))
    f = torch.nn.functional.cross_entropy(torch.func.functional_call(module, named, (x,)), y)
    meta = torch.cat([g.flatten() for g in torch.autograd.grad(f, weights)])
    before = torch.cat([p.detach().flatten() for p in weights])
    how = replace(CLASSES, steps=1, batch_size=8, lr=1.0)
    _, snapshot = run(per_fedavg(alpha=0.5, variant="hessian-free", delta=0.01), data, net(), how=how)
    torch.testing.assert_close(before - snapshot.message["w"][0], meta, rtol=1e-3, atol=1e-4)


def test_without_adaptation_it_is_fedavg() -> None:
    ours, _ = run(per_fedavg(alpha=0.0), quadratic(CENTRES), START, rounds=3)
    theirs, _ = run(fedavg(), quadratic(CENTRES), START, rounds=3, average=uniform())
    torch.testing.assert_close(ours, theirs)


def test_adapts_on_train_data_only() -> None:
    data = blobs()
    noise = Split(-data.test.x, data.test.y.flip(0), data.test.starts)
    ours, _ = run(per_fedavg(alpha=0.1), data, net(), rounds=2, how=CLASSES)
    same, _ = run(per_fedavg(alpha=0.1), replace(data, test=noise, validation=noise), net(), rounds=2, how=CLASSES)
    torch.testing.assert_close(ours, same, rtol=0, atol=0)


def test_what_is_deployed_is_adapted() -> None:
    ours, snapshot = run(per_fedavg(alpha=0.1), blobs(), net(), rounds=2, how=CLASSES)
    more, _ = run(per_fedavg(alpha=0.1, adapt_steps=5), blobs(), net(), rounds=2, how=CLASSES)
    w = snapshot.message["w"]
    assert (ours - w).norm(dim=1).min() > 1e-3
    assert ((more - w).norm(dim=1) > (ours - w).norm(dim=1)).all()


def test_unknown_variant_is_refused() -> None:
    with pytest.raises(InputError, match="variant must be"):
        per_fedavg(variant="exact")  # type: ignore[arg-type]
