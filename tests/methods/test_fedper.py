"""FedPer."""

import pytest
import torch
from helpers import CLASSES, Point, Sum, blobs, net, quadratic, run, training

from fairlead.core import InputError
from fairlead.methods import fedper, local

CENTRES = torch.tensor([[3.0, 0.0], [-1.0, 4.0]])


def test_one_round_moves_base_and_personal_layer_together() -> None:
    """With outputs a + b_k, both layers have gradient r_k = a + b_k - c_k; the base is then averaged."""
    a, b = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0])
    r = a + b - CENTRES
    weights = torch.tensor([0.25, 0.75])
    models, _ = run(fedper(), quadratic(CENTRES, sizes=[1, 3]), Sum(a, b), how=training(lr=0.1))
    base = a - 0.1 * weights @ r
    torch.testing.assert_close(models, torch.cat([base.expand(2, -1), b - 0.1 * r], 1))


def test_every_client_reaches_its_own_minimum() -> None:
    models, _ = run(fedper(), quadratic(CENTRES), Sum([1.0, 1.0], [0.0, 0.0]), rounds=50, how=training(lr=0.4))
    torch.testing.assert_close(models[:, :2] + models[:, 2:], CENTRES)


def test_one_client_trains_alone() -> None:
    ours, _ = run(fedper(), blobs([11]), net(), rounds=3, how=CLASSES)
    alone, _ = run(local(), blobs([11]), net(), rounds=3, how=CLASSES)
    torch.testing.assert_close(ours, alone)


@pytest.mark.parametrize(("layers", "shared"), [(None, 59), (1, 59), (2, 35)])
def test_what_is_shared(layers: int | None, shared: int) -> None:
    models, snapshot = run(fedper(layers=layers), blobs(), net(), rounds=2, how=CLASSES)
    assert snapshot.message["w"].shape == (1, shared)
    torch.testing.assert_close(models[:, :shared], snapshot.message["w"].expand(3, -1), rtol=0, atol=0)
    assert (models[0, shared:] - models[1, shared:]).norm() > 1e-3


def test_a_model_without_base_is_refused() -> None:
    with pytest.raises(InputError, match="no base to share"):
        run(fedper(), quadratic(CENTRES), Point([0.0, 0.0]))
    with pytest.raises(InputError, match="cannot cut below the last 3 of 3"):
        run(fedper(layers=3), blobs(), net(), how=CLASSES)
