"""FedBN: normalisation layers stay home, the others are FedAvg's, and a model without any is refused."""

import pytest
import torch
from helpers import blobs, net, run, suited
from torch import nn

from fairlead.core import InputError, Layout, Training
from fairlead.methods import fedavg, fedbn, local

HOW = Training(lr=0.1, batch_size=4)


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def test_norms_are_the_clients_own_and_the_rest_is_shared() -> None:
    layout = Layout(normed())
    own = layout.part("1").columns
    mine, snapshot = run(fedbn(), blobs((8, 9, 12)), normed(), rounds=3, how=HOW)
    assert layout.norms.tensors == ("1.weight", "1.bias", "1.running_mean", "1.running_var")
    for k in range(3):
        torch.testing.assert_close(mine[k, layout.rest("1").columns], snapshot.message["w"][0])
    assert float((mine[0, own] - mine[1, own]).abs().min()) > 0
    theirs, _ = run(fedavg(), blobs((8, 9, 12)), normed(), rounds=3, how=HOW)
    assert float((mine - theirs).abs().max()) > 0.01


def test_a_round_is_local_training_whose_other_layers_are_averaged() -> None:
    """From the same start, one round: the norms of LOCAL, the other layers of FedAvg."""
    layout = Layout(normed())
    mine, alone, together = (
        run(m, blobs((8, 9, 12)), normed(), rounds=1, how=HOW)[0] for m in (fedbn(), local(), fedavg())
    )
    own, shared = layout.norms.columns, layout.rest("1").columns
    torch.testing.assert_close(mine[:, own], alone[:, own])
    torch.testing.assert_close(mine[:, shared], together[:, shared])


def test_without_normalisation_layers_it_is_refused() -> None:
    with pytest.raises(InputError, match="without one fedbn is fedavg"):
        run(fedbn(), blobs(), net(), how=HOW)
    run(fedbn(), blobs(), suited("fedbn", net()), how=HOW)
