"""LG-FedAvg."""

import pytest
import torch
from helpers import CLASSES, Point, Sum, blobs, net, quadratic, run, training

from fairlead.core import InputError
from fairlead.methods import lg_fedavg, local

CENTRES = torch.tensor([[3.0, 0.0], [-1.0, 4.0]])


def test_one_round_keeps_the_bottom_and_averages_the_top() -> None:
    """With outputs a_k + b, both layers have gradient r_k = a_k + b - c_k; the top is then averaged."""
    a, b = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0])
    r = a + b - CENTRES
    weights = torch.tensor([0.25, 0.75])
    models, _ = run(lg_fedavg(), quadratic(CENTRES, sizes=[1, 3]), Sum(a, b), how=training(lr=0.1))
    top = b - 0.1 * weights @ r
    torch.testing.assert_close(models, torch.cat([a - 0.1 * r, top.expand(2, -1)], 1))


def test_one_client_trains_alone() -> None:
    ours, _ = run(lg_fedavg(), blobs([11]), net(), rounds=3, how=CLASSES)
    alone, _ = run(local(), blobs([11]), net(), rounds=3, how=CLASSES)
    torch.testing.assert_close(ours, alone)


@pytest.mark.parametrize(("layers", "kept"), [(None, 59), (1, 59), (2, 35)])
def test_what_is_shared(layers: int | None, kept: int) -> None:
    models, snapshot = run(lg_fedavg(layers=layers), blobs(), net(), rounds=2, how=CLASSES)
    assert snapshot.message["w"].shape == (1, 74 - kept)
    torch.testing.assert_close(models[:, kept:], snapshot.message["w"].expand(3, -1), rtol=0, atol=0)
    assert (models[0, :kept] - models[1, :kept]).norm() > 1e-3


def test_sharing_matters() -> None:
    ours, _ = run(lg_fedavg(), blobs(), net(), rounds=3, how=CLASSES)
    alone, _ = run(local(), blobs(), net(), rounds=3, how=CLASSES)
    assert (ours - alone).norm(dim=1).min() > 1e-3


def test_a_model_of_one_layer_is_refused() -> None:
    with pytest.raises(InputError, match="nothing can stay local"):
        run(lg_fedavg(), quadratic(CENTRES), Point([0.0, 0.0]))
