"""FedRes."""

import pytest
import torch
from helpers import CLASSES, blobs, net, quadratic, run, training
from torch import nn

from fairlead.core import InputError
from fairlead.methods import fedavg, fedres, local, scaffold
from fairlead.methods.fedres import Residual, silenced
from fairlead.servers import uniform

CENTRES = torch.tensor([[3.0, 0.0], [-1.0, 4.0]])
START = torch.tensor([0.5, -1.0])


def test_one_round_moves_the_local_model_then_the_global_one() -> None:
    """θ_L starts at 0 and goes to -η r with r = u - c_k; the global copy then sees the residual (1 - η) r."""
    lr, r = 0.1, START - CENTRES
    models, _ = run(fedres(), quadratic(CENTRES, sizes=[1, 3]), START, how=training(lr=lr))
    shared = START - lr * (1 - lr) * r.mean(0)
    torch.testing.assert_close(models, torch.cat([shared.expand(2, -1), -lr * r], 1))


def test_every_client_reaches_its_own_minimum() -> None:
    models, _ = run(fedres(), quadratic(CENTRES), START, rounds=50, how=training(lr=0.4))
    torch.testing.assert_close(models[:, :2] + models[:, 2:], CENTRES)


def test_frozen_silent_local_model_is_fedavg() -> None:
    ours, _ = run(fedres(local_epochs=0), blobs(), net(), rounds=3, how=CLASSES)
    theirs, _ = run(fedavg(), blobs(), net(), rounds=3, how=CLASSES, average=uniform())
    torch.testing.assert_close(ours[:, :74], theirs)


def test_frozen_silent_global_model_is_local() -> None:
    ours, _ = run(fedres(global_epochs=0), blobs(), silenced(net()), rounds=3, how=CLASSES)
    alone, _ = run(local(), blobs(), silenced(net()), rounds=3, how=CLASSES)
    torch.testing.assert_close(ours[:, 74:], alone)


def test_control_with_a_frozen_local_model_is_scaffold() -> None:
    ours, _ = run(fedres(local_epochs=0, control=True), blobs(), net(), rounds=3, how=CLASSES, participation=2)
    theirs, _ = run(scaffold(), blobs(), net(), rounds=3, how=CLASSES, participation=2, average=uniform())
    torch.testing.assert_close(ours[:, :74], theirs)


def test_variates_are_the_gradients_of_the_global_model() -> None:
    """After one step, c_i is the gradient (1 - η) r_i that the global copy saw, and c their mean."""
    _, snapshot = run(fedres(control=True), quadratic(CENTRES), START, how=training(lr=0.1))
    gradients = 0.9 * (START - CENTRES)
    torch.testing.assert_close(snapshot.clients()["state.row.c"], gradients)
    torch.testing.assert_close(snapshot.message["c"], gradients.mean(0)[None])


def test_variates_count_the_epochs_of_the_global_model() -> None:
    how = training(lr=0.1, steps=None)
    _, snapshot = run(fedres(control=True, local_epochs=0, global_epochs=3), quadratic(CENTRES), START, how=how)
    mean_gradients = (1 + 0.9 + 0.81) / 3 * (START - CENTRES)
    torch.testing.assert_close(snapshot.clients()["state.row.c"], mean_gradients)


def test_control_matters() -> None:
    ours, _ = run(fedres(control=True), blobs(), net(), rounds=3, how=CLASSES)
    without, _ = run(fedres(), blobs(), net(), rounds=3, how=CLASSES)
    assert (ours - without).norm() > 1e-3


def test_training_begins_with_the_global_predictions() -> None:
    x = torch.randn(4, 6)
    torch.testing.assert_close(Residual(net(), silenced(net()))(x), net()(x), rtol=0, atol=0)


def test_the_local_model_may_be_another_architecture() -> None:
    ours, snapshot = run(fedres(local=lambda module: nn.Linear(6, 3)), blobs(), net(), rounds=2, how=CLASSES)
    assert ours.shape == (3, 74 + 21)
    assert snapshot.message["w"].shape == (1, 74)


def test_control_of_a_frozen_model_is_refused() -> None:
    with pytest.raises(InputError, match="raise global_epochs"):
        fedres(control=True, global_epochs=0)
