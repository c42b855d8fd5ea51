"""FedAMP: attention by hand, a tie that pulls, LOCAL as its limit, and clients that join late."""

import math

import pytest
import torch
from helpers import quadratic, run, training

from fairlead.core import Cohort, InputError
from fairlead.methods import fedamp, local
from fairlead.methods.fedamp import attention
from fairlead.servers import mean

CENTRES = [[0.0, 0.0], [1.0, 0.0], [0.0, 8.0]]
LR = 0.5


def test_attention_is_the_slope_of_one_minus_exp() -> None:
    xi = attention(torch.tensor([[0.0], [1.0], [3.0]]), alpha=0.4, sigma=2.0)
    near, far, across = (0.4 / 2 * math.exp(-x / 2) for x in (1, 9, 4))
    expected = [[1 - near - far, near, far], [near, 1 - near - across, across], [far, across, 1 - far - across]]
    torch.testing.assert_close(xi, torch.tensor(expected, dtype=torch.float64))


def test_equal_models_give_their_plain_mean_and_nobody_gives_more_of_itself_away() -> None:
    xi = attention(torch.zeros(5, 3), alpha=1.0, sigma=1.0)
    torch.testing.assert_close(xi, torch.full((5, 5), 1 / 5, dtype=torch.float64))
    near = torch.tensor([[0.0], [0.1], [0.3], [0.2]], dtype=torch.float64)
    for alpha in (0.2, 1.0, 50.0):
        xi = attention(near, alpha, sigma=0.5)
        slopes = 2 * torch.exp(-((near - near.T) ** 2) / 0.5) * (1 - torch.eye(4))
        smaller = torch.minimum(torch.tensor(alpha), 0.75 / slopes.sum(1))  # the α_k of each client
        expected = smaller[:, None] * slopes
        torch.testing.assert_close(xi, expected + torch.diag(1 - expected.sum(1)))
        assert bool((xi.diagonal() >= 0.25 - 1e-12).all())


def test_the_tie_has_a_gradient() -> None:
    """Second round: w <- w + lr (c - w) - lr (λ/α) (w - u), u = ξ w of the first."""
    method = fedamp(alpha=0.5, pull=0.3, sigma=2.0)
    w, first = run(method, quadratic(CENTRES), [1.0, 1.0], how=training(LR))
    u = attention(w, 0.5, 2.0).float() @ w
    torch.testing.assert_close(first.message["theta"], u)
    second, _ = run(method, quadratic(CENTRES), [1.0, 1.0], rounds=2, how=training(LR))
    torch.testing.assert_close(second, w + LR * (torch.tensor(CENTRES) - w) - LR * 0.6 * (w - u))
    assert float((second - (w + LR * (torch.tensor(CENTRES) - w))).abs().max()) > 0.01


def test_the_fixed_point_of_two_clients() -> None:
    """Centres ±c: w = ±x with c - x = (λ/α)(x - u) and u = (1 - 2 α exp(-4x²/σ)/σ) x."""
    c, alpha, pull, sigma = 1.0, 0.5, 0.8, 10.0
    models, _ = run(
        fedamp(alpha=alpha, pull=pull, sigma=sigma), quadratic([[c], [-c]]), [0.1], rounds=60, how=training(0.5)
    )
    x = float(models[0, 0])
    assert x == pytest.approx(-float(models[1, 0]), abs=1e-5)
    assert c - x == pytest.approx(pull * 2 * math.exp(-4 * x * x / sigma) / sigma * x, abs=1e-5)
    assert 0 < x < c - 0.05


def test_without_the_tie_it_is_local() -> None:
    federation = quadratic(CENTRES, [1, 4, 2])
    for participation in (1.0, 0.7):
        mine, alone = (
            run(m, federation, [1.0, 1.0], rounds=4, participation=participation, how=training(steps=3))[0]
            for m in (fedamp(pull=0.0), local())
        )
        assert torch.equal(mine, alone)


def test_one_client_mixes_its_own_model_only() -> None:
    _, snapshot = run(fedamp(), quadratic([[2.0, 1.0]]), [0.0, 0.0], rounds=3)
    assert torch.equal(snapshot.message["theta"], snapshot.clients()["state.row.theta"])


def test_who_never_took_part_is_in_nobodys_mixture() -> None:
    server = fedamp().server(mean())
    state, _ = server.init({"theta": torch.full((1, 1), 0.1)}, {}, 3)
    cohort = Cohort(torch.tensor([0, 2]), torch.tensor([0.5, 0.5]), 3, 1, 0)
    rows = torch.tensor([[0.0], [0.3]])
    state, message = server.update(state, {"theta": rows}, cohort)
    torch.testing.assert_close(message["theta"][[0, 2]], attention(rows, 1.0, 1.0).float() @ rows)
    torch.testing.assert_close(message["theta"][1], torch.tensor([0.15]))
    late = Cohort(torch.tensor([1]), torch.ones(1), 3, 2, 0)
    _, message = server.update(state, {"theta": torch.tensor([[0.2]])}, late)
    models = torch.tensor([[0.0], [0.2], [0.3]])
    torch.testing.assert_close(message["theta"], attention(models, 1.0, 1.0).float() @ models)


def test_what_cannot_work_is_refused() -> None:
    for wrong in ({"alpha": 0.0}, {"pull": -1.0}, {"sigma": 0.0}):
        with pytest.raises(InputError, match=f"fedamp: {next(iter(wrong))}"):
            fedamp(**wrong)
