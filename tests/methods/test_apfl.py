"""APFL."""

import pytest
import torch
from helpers import CLASSES, blobs, net, quadratic, run, training
from torch import nn

from fairlead.core import InputError, Layout
from fairlead.methods import apfl, fedavg, local
from fairlead.methods.apfl import mixture
from fairlead.servers import uniform

CENTRES = torch.tensor([[3.0, 0.0], [-1.0, 4.0]])
START = torch.tensor([0.5, -1.0])


def test_two_rounds_follow_the_equations() -> None:
    """First v = u - ηα r and w_k = u - η r, with r = u - c_k; then α loses η <v - w, v̄ - c_k>, and v goes on."""
    lr, a = 0.1, torch.full((2, 1), 0.5)
    v = START - lr * a * (START - CENTRES)
    w = (START - lr * (START - CENTRES)).mean(0)
    models, snapshot = run(apfl(), quadratic(CENTRES), START, how=training(lr=lr))
    torch.testing.assert_close(models, a * v + (1 - a) * w)
    torch.testing.assert_close(snapshot.clients()["state.row.alpha"], a)

    a = a - lr * ((v - w) * (a * v + (1 - a) * w - CENTRES)).sum(1, keepdim=True)
    v = v - lr * a * (a * v + (1 - a) * w - CENTRES)
    w = (w - lr * (w - CENTRES)).mean(0)
    models, snapshot = run(apfl(), quadratic(CENTRES), START, rounds=2, how=training(lr=lr))
    torch.testing.assert_close(snapshot.clients()["state.row.alpha"], a)
    torch.testing.assert_close(models, a * v + (1 - a) * w)


def test_the_share_grows_where_clients_differ_and_stays_within_one() -> None:
    _, snapshot = run(apfl(alpha=0.9, alpha_lr=1.0), quadratic(10 * CENTRES), START, rounds=5)
    assert snapshot.clients()["state.row.alpha"].tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("on", ["loop", "vectorised"])
def test_share_fixed_at_one_is_local(on: str) -> None:
    ours, _ = run(apfl(alpha=1.0, alpha_lr=0.0), blobs(), net(), rounds=3, how=CLASSES, on=on)
    alone, _ = run(local(), blobs(), net(), rounds=3, how=CLASSES, on=on)
    torch.testing.assert_close(ours, alone)


def test_share_fixed_at_zero_is_fedavg() -> None:
    ours, _ = run(apfl(alpha=0.0, alpha_lr=0.0), blobs(), net(), rounds=3, how=CLASSES)
    theirs, _ = run(fedavg(), blobs(), net(), rounds=3, how=CLASSES, average=uniform())
    torch.testing.assert_close(ours, theirs)


def test_adapting_matters() -> None:
    ours, snapshot = run(apfl(), blobs(), net(), rounds=5, how=CLASSES)
    fixed, _ = run(apfl(alpha_lr=0.0), blobs(), net(), rounds=5, how=CLASSES)
    assert len(set(snapshot.clients()["state.row.alpha"].flatten().tolist())) == 3
    assert (ours - fixed).norm(dim=1).min() > 1e-4


def test_buffers_are_not_mixed() -> None:
    layout = Layout(nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)))
    v, w = torch.zeros(1, layout.size), torch.ones(1, layout.size)
    mixed = mixture(v, w, torch.tensor([[0.25]]), layout)
    assert (mixed[:, : layout.trainable] == 0.75).all()
    assert (mixed[:, layout.trainable :] == 0.0).all()


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"alpha must lie in \[0, 1\]"):
        apfl(alpha=1.5)
