"""Every method trains on the fast path as it does on the plain reference, whatever the module."""

from collections.abc import Callable

import pytest
import torch
from helpers import blobs, run, suited
from torch import nn

from fairlead.core import FastNetwork, Named, PlainNetwork, Training
from fairlead.methods import METHODS

HOW = Training(lr=0.05, epochs=1, batch_size=4, momentum=0.5, weight_decay=0.01)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def convolution() -> nn.Module:
    """Many clients at once go by `vmap`."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Tanh(), nn.Linear(8, 4), nn.Linear(4, 3)
    )


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 3))


def trained(name: str, build: Callable[[], nn.Module], on: str) -> Named:
    torch.manual_seed(0)
    models, snapshot = run(METHODS[name](), blobs((8, 9, 12)), suited(name, build()), rounds=2, on=on, how=HOW)
    return {"models": models} | snapshot.message


@pytest.mark.parametrize(("build", "on"), [(plain, "vectorised"), (convolution, "vectorised"), (normalised, "loop")])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_as_on_the_reference(
    name: str, build: Callable[[], nn.Module], on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = trained(name, build, on)
    monkeypatch.setattr("fairlead.clients.pool.FastNetwork", PlainNetwork)
    monkeypatch.setattr(FastNetwork, "__init__", None)  # nothing else may make one
    reference = trained(name, build, on)
    assert fast.keys() == reference.keys()
    for entry, expected in reference.items():
        torch.testing.assert_close(fast[entry], expected, atol=1e-4, rtol=1e-3)
