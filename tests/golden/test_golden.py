"""A few tiny recorded curves: a commit that moves one says why.

`python tests/golden/test_golden.py` writes them anew.
"""

import json
from pathlib import Path

import pytest

from fairlead.catalogue import parse
from fairlead.clients import InProcess, engine
from fairlead.core import Plan, Training
from fairlead.data import scenario
from fairlead.models import build
from fairlead.rounds import federate

CURVES = Path(__file__).parent / "curves.json"
NAMES = ("local", "fedavg", "scaffold", "fedrep+confree", "ditto", "fedora")


def curve(name: str) -> list[float]:
    """Mean test loss of the personal models after each of five rounds."""
    data = scenario("rotated-digits", clients=4).build(seed=0)
    module = build("mlp", (1, 8, 8), 10, seed=0)
    entry = parse(name)
    training = Training(lr=0.05, epochs=1, batch_size=16, momentum=0.5)
    plan = Plan(rounds=5, evaluate_every=1)
    rounds = federate(entry.method, InProcess(data, training, engine("loop")), module, plan, average=entry.average)
    return [float(s.values["loss"].mean()) for r, _ in rounds for s in r.scores if s.split == "test"]


@pytest.mark.parametrize("name", NAMES)
def test_the_curve_has_not_moved(name: str) -> None:
    # Rounding differs between processors; a changed algorithm moves the curve by far more.
    assert curve(name) == pytest.approx(json.loads(CURVES.read_text())[name], rel=1e-3)


if __name__ == "__main__":
    CURVES.write_text(json.dumps({name: curve(name) for name in NAMES}, indent=1) + "\n")
