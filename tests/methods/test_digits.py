"""Methods that look at features or mix layers, on real digits: far above chance within a few rounds."""

import pytest

from fairlead.clients import InProcess, engine
from fairlead.core import Plan, Training
from fairlead.data import scenario
from fairlead.methods import METHODS
from fairlead.models import build
from fairlead.rounds import federate

TRAINING = Training(lr=0.1, epochs=2, batch_size=16, momentum=0.9)


@pytest.mark.parametrize("name", ["fedrod", "fedcp", "fedala", "fedpac"])
def test_it_learns(name: str) -> None:
    federation = scenario("rotated-digits", clients=5, angle=20.0).build(seed=0)
    *_, (last, _) = federate(
        METHODS[name](),
        InProcess(federation, TRAINING, engine("loop")),
        build("mlp", tuple(federation.train.x.shape[1:]), 10, seed=0),
        Plan(rounds=8, participation=0.7),
    )
    (accuracy,) = (s.values["accuracy"] for s in last.scores if s.split == "test")
    assert float(accuracy.mean()) > 0.5
