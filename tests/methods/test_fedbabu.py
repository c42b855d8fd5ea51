"""FedBABU: the head never moves while clients train together; FedAvg of the body and LOCAL's fine-tuning as limits."""

import pytest
import torch
from helpers import CLASSES, Sum, blobs, net, quadratic, run, training

from fairlead.core import InputError, Layout
from fairlead.methods import fedbabu

CENTRES = torch.tensor([[3.0, 0.0], [-1.0, 4.0]])
A, B = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0])


def test_a_round_and_the_tuning_in_closed_form() -> None:
    """Two clients of one and three samples: the body steps by -η r, weighted; then both parts step by -η r'."""
    r = A + B - CENTRES
    how = training(lr=0.1, steps=None, batch_size=8)
    models, snapshot = run(fedbabu(tune_epochs=1), quadratic(CENTRES, sizes=[1, 3]), Sum(A, B), how=how)
    body = A - 0.1 * (0.25 * r[0] + 0.75 * r[1])
    torch.testing.assert_close(snapshot.message["w"][0], body)
    left = body + B - CENTRES
    torch.testing.assert_close(models, torch.cat([body - 0.1 * left, B - 0.1 * left], 1))


def test_the_head_stays_as_it_began_until_it_is_tuned() -> None:
    head = Layout(net()).head.columns
    plain, _ = run(fedbabu(tune_epochs=0), blobs(), net(), rounds=3, how=CLASSES)
    first = Layout(net()).read(net())
    assert torch.equal(plain[:, head], first[:, head].expand(3, -1))
    assert float((plain - first).abs().max()) > 0.01
    tuned, _ = run(fedbabu(), blobs(), net(), rounds=3, how=CLASSES)
    assert float((tuned[:, head] - first[:, head]).abs().amax(1).min()) > 0.01


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="tune_epochs must be >= 0"):
        fedbabu(tune_epochs=-1)
    with pytest.raises(InputError, match="no body to share"):
        run(fedbabu(), quadratic(CENTRES), [0.0, 0.0])
