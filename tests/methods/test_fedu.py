"""FedU: the Laplacian step by hand, a given graph, LOCAL as its limit, and clients that join late."""

import pytest
import torch
from helpers import cohorts, quadratic, run, training

from fairlead.core import InputError
from fairlead.methods import fedu, local

CENTRES = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 8.0]])
LR = 0.1


def test_a_round_is_local_steps_and_one_laplacian_step() -> None:
    """w_k = c_k + (1 - lr)^R (s_k - c_k), then w_k - lr R η Σ_l a_kl (w_k - w_l) with a_kl = 1/(N - 1)."""
    eta, steps, s = 0.7, 3, torch.tensor([[1.0, 1.0]])
    for _ in range(2):
        w = CENTRES + (1 - LR) ** steps * (s - CENTRES)
        laplacian = (w[:, None] - w[None]).sum(1) / 2
        s = w - LR * steps * eta * laplacian
    models, _ = run(fedu(eta=eta), quadratic(CENTRES), [1.0, 1.0], rounds=2, how=training(LR, steps))
    torch.testing.assert_close(models, s)


def test_a_graph_says_who_is_drawn_to_whom() -> None:
    """0 follows 1 and 2 as 3:1, 1 follows 0, and 2 nobody."""
    graph = [[0.0, 3.0, 1.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    models, _ = run(fedu(eta=2.0, graph=graph), quadratic(CENTRES), [1.0, 1.0])
    w = 1 + LR * (CENTRES - 1)
    m = torch.stack([(3 * w[1] + w[2]) / 4, w[0], w[2]])
    torch.testing.assert_close(models, w - LR * 2 * (w - m))


def test_the_step_stops_at_the_neighbours_mean() -> None:
    models, _ = run(fedu(eta=1e6), quadratic(CENTRES), [1.0, 1.0])
    w = 1 + LR * (CENTRES - 1)
    torch.testing.assert_close(models, (w.sum(0) - w) / 2)


def test_without_the_laplacian_term_it_is_local() -> None:
    federation = quadratic(CENTRES, [1, 4, 2])
    for participation in (1.0, 0.7):
        mine, alone = (
            run(m, federation, [1.0, 1.0], rounds=4, participation=participation, how=training(steps=3))[0]
            for m in (fedu(eta=0.0), local())
        )
        assert torch.equal(mine, alone)


def test_one_client_has_no_neighbour() -> None:
    mine, alone = (run(m, quadratic([[2.0, 1.0]]), [0.0, 0.0], rounds=3)[0] for m in (fedu(), local()))
    assert torch.equal(mine, alone)


def test_who_never_took_part_pulls_nobody_and_hears_the_mean() -> None:
    """Only clients 0 and 1 have moved; the third's start, 100, reaches neither."""
    seed = next(s for s in range(99) if cohorts(0.7, 3, 1, s)[0] == [0, 1])
    start = [100.0, 100.0]
    _, snapshot = run(fedu(), quadratic(CENTRES), start, participation=0.7, seed=seed)
    w = 100 + LR * (CENTRES - 100)
    torch.testing.assert_close(snapshot.message["theta"], torch.stack([w[1], w[0], w[:2].mean(0)]))


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="0 is LOCAL"):
        fedu(eta=-0.1)
    with pytest.raises(InputError, match="square matrix"):
        fedu(graph=[[0.0, 1.0]])
    with pytest.raises(InputError, match="client 2 took part"):
        run(fedu(graph=[[0.0, 1.0], [1.0, 0.0]]), quadratic(CENTRES), [0.0, 0.0])
