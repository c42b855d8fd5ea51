"""PLGU-GHN: pFedHN as its limit, and a step taken with the gradient further up the slope."""

import pytest
import torch
from helpers import quadratic, run, training
from test_pfedhn import CENTRES, START, begun, whole_cohort
from torch.func import vjp

from fairlead.core import InputError
from fairlead.methods import pfedhn, plgu_ghn
from fairlead.methods.pfedhn import generate, norm, under


def test_without_looking_ahead_it_is_pfedhn_bit_for_bit() -> None:
    federation = quadratic(CENTRES, [1, 4, 2])
    for participation in (1.0, 0.7):
        mine, theirs = (
            run(m, federation, START, rounds=4, participation=participation, how=training(steps=3))[0]
            for m in (plgu_ghn(rho=0.0), pfedhn())
        )
        assert torch.equal(mine, theirs)


def test_phi_moves_by_the_gradient_at_phi_plus_epsilon_and_v_by_the_plain_one() -> None:
    rho, delta = 0.5, torch.tensor([[1.0, 2.0], [-1.0, 0.0], [3.0, 3.0]])
    server, state, _ = begun(plgu_ghn(rho=rho, momentum=0.0, weight_decay=0.0))
    after, _ = server.update(state, {"theta": delta}, whole_cohort(3))
    phi, v = under("phi.", state), state["v"]
    g, g_v = vjp(generate, phi, v)[1](-delta / 3)
    ahead = {n: x + rho * g[n] / norm(g) for n, x in phi.items()}
    assert float(norm({n: ahead[n] - x for n, x in phi.items()})) == pytest.approx(rho, rel=1e-4)
    g_ahead, _ = vjp(generate, ahead, v)[1](-delta / 3)
    for n, x in phi.items():
        torch.testing.assert_close(after[f"phi.{n}"], x - 0.03 * g_ahead[n])
    torch.testing.assert_close(after["v"], v - 0.03 * g_v)
    assert not torch.allclose(g["2.weight"], g_ahead["2.weight"], atol=1e-4)


def test_clients_that_ask_for_nothing_move_nothing() -> None:
    """A gradient of zero has no direction to look into."""
    server, state, message = begun(plgu_ghn(weight_decay=0.0))
    _, after = server.update(state, {"theta": torch.zeros(3, 2)}, whole_cohort(3))
    assert torch.equal(after["theta"], message["theta"])


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="0 is pFedHN"):
        plgu_ghn(rho=-0.1)
