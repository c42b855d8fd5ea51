"""FedSAM."""

import pytest
import torch
from helpers import CLASSES, Sum, blobs, net, quadratic, run, training

from fairlead.core import InputError
from fairlead.methods import fedavg, fedsam

CENTRES = torch.tensor([[3.0, 0.0], [-1.0, 4.0]])


def test_one_step_uses_the_gradient_uphill() -> None:
    """The gradient at u + ρ r/|r| is r (1 + ρ/|r|), with r = u - c_k."""
    r = torch.tensor([0.5, -1.0]) - CENTRES
    steps = -0.1 * r * (1 + 0.3 / r.norm(dim=1, keepdim=True))
    models, _ = run(fedsam(rho=0.3), quadratic(CENTRES), [0.5, -1.0], how=training(lr=0.1))
    torch.testing.assert_close(models, (torch.tensor([0.5, -1.0]) + steps.mean(0)).expand(2, -1))


def test_the_norm_is_over_the_whole_model() -> None:
    """Both layers have gradient r, together of norm √2 |r|; uphill, both move, and the gradient is r (1 + √2 ρ/|r|)."""
    r = torch.tensor([[3.0, 4.0]])
    module = Sum([3.0, 4.0], [0.0, 0.0])
    models, _ = run(fedsam(rho=0.5), quadratic(torch.zeros(1, 2)), module, how=training(lr=0.1))
    step = -0.1 * r * (1 + 2**0.5 * 0.5 / 5)
    torch.testing.assert_close(models, torch.cat([r + step, step], 1))


def test_radius_zero_is_fedavg() -> None:
    ours, _ = run(fedsam(rho=0.0), blobs(), net(), rounds=3, how=CLASSES)
    theirs, _ = run(fedavg(), blobs(), net(), rounds=3, how=CLASSES)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)  # its gradients are seen, and so rounded once more


def test_radius_matters() -> None:
    ours, _ = run(fedsam(), blobs(), net(), rounds=3, how=CLASSES)
    theirs, _ = run(fedavg(), blobs(), net(), rounds=3, how=CLASSES)
    assert (ours - theirs).norm() > 1e-3


def test_at_a_minimum_nothing_moves() -> None:
    models, _ = run(fedsam(), quadratic([[1.0, 2.0]]), [1.0, 2.0])
    torch.testing.assert_close(models, torch.tensor([[1.0, 2.0]]))


def test_radius_below_zero_is_refused() -> None:
    with pytest.raises(InputError, match="rho must be >= 0"):
        fedsam(rho=-0.1)
