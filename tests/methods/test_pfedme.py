"""pFedMe."""

import pytest
import torch
from helpers import CLASSES, blobs, net, quadratic, run, training
from torch import Tensor

from fairlead.core import InputError
from fairlead.methods import pfedme

CENTRES = torch.tensor([[3.0, 0.0], [-1.0, 4.0]])
START = torch.tensor([0.5, -1.0])


def inner(theta: Tensor, w: Tensor, lam: float, lr: float, steps: int) -> Tensor:
    """Steps on |θ - c|²/2 + λ|θ - w|²/2 shrink the way to (c + λw)/(1 + λ) by 1 - lr(1 + λ) each."""
    best = (CENTRES + lam * w) / (1 + lam)
    return best + (1 - lr * (1 + lam)) ** steps * (theta - best)


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_one_round_of_two_batches(beta: float) -> None:
    lr, lam = 0.05, 15.0
    w = START.expand(2, -1)
    theta = inner(w, w, lam, 0.09, 5)
    w = w - lr * lam * (w - theta)
    theta = inner(theta, w, lam, 0.09, 5)
    w = w - lr * lam * (w - theta)
    models, snapshot = run(pfedme(beta=beta), quadratic(CENTRES, sizes=[1, 3]), START, how=training(lr=lr, steps=2))
    torch.testing.assert_close(models, theta)
    torch.testing.assert_close(snapshot.message["w"], ((1 - beta) * START + beta * w.mean(0))[None])


def test_settles_at_the_mean_with_personal_models_on_the_way_to_their_own() -> None:
    """A client's envelope is |w - c|²/2 · λ/(1 + λ), so w settles at the plain mean of the centres."""
    lam = 2.0
    method = pfedme(lam=lam, inner_steps=20, personal_lr=0.3)
    models, snapshot = run(method, quadratic(CENTRES, sizes=[1, 3]), START, rounds=40, how=training(lr=0.5))
    w = CENTRES.mean(0)
    torch.testing.assert_close(snapshot.message["w"], w[None], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(models, (CENTRES + lam * w) / (1 + lam), rtol=1e-4, atol=1e-4)


def test_a_client_out_of_batches_keeps_its_models() -> None:
    on = {on: run(pfedme(), blobs((5, 7)), net(), rounds=2, how=CLASSES, on=on) for on in ("loop", "vectorised")}
    torch.testing.assert_close(on["loop"][0], on["vectorised"][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(on["loop"][1].message["w"], on["vectorised"][1].message["w"], rtol=1e-5, atol=1e-6)


def test_what_is_deployed_is_personal() -> None:
    models, snapshot = run(pfedme(), blobs(), net(), rounds=3, how=CLASSES)
    assert (models - snapshot.message["w"]).norm(dim=1).min() > 1e-3
    assert (models[0] - models[1]).norm() > 1e-3


def test_a_tight_leash_ties_the_models() -> None:
    far, _ = run(pfedme(lam=1.0), quadratic(CENTRES), START, rounds=20)
    near, _ = run(pfedme(lam=20.0, personal_lr=0.04), quadratic(CENTRES), START, rounds=20)
    assert (near[0] - near[1]).norm() < 0.2 * (far[0] - far[1]).norm()


def test_steps_that_diverge_are_refused() -> None:
    with pytest.raises(InputError, match="larger steps diverge"):
        pfedme(lam=15.0, personal_lr=0.2)
