"""FedFomo: weights by hand, who is sent whose model, LOCAL as its limit, and clients that join late."""

import pytest
import torch
from helpers import cohorts, quadratic, run, training
from torch import Tensor

from fairlead.core import Federation, InputError
from fairlead.methods import fedfomo, local
from fairlead.methods.fedfomo import choose, mixture

CENTRES = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 8.0]])
LR = 0.1


def loss(u: Tensor, c: Tensor) -> Tensor:
    return (u - c).square().sum(-1) / 2


def test_every_round_starts_from_the_weighted_mixture() -> None:
    """w_n = (L(θ') - L(θ_n)) / |θ_n - θ'| with θ' before training and one's own model among the θ_n, in float64."""
    centres, start = CENTRES.double(), torch.tensor([4.0, 4.0], dtype=torch.float64)
    before = start.expand(3, -1)
    theta, preference = before + LR * (centres - before), torch.zeros(3, 3, dtype=torch.float64)
    shares = []
    for _ in range(3):
        mixed = []
        for k, c in enumerate(centres):
            w = torch.stack([(loss(before[k], c) - loss(o, c)) / (o - before[k]).norm() for o in theta])
            share = w.clamp(min=0) / w.clamp(min=0).sum()
            mixed.append(share @ theta)
            shares.append(share)
            preference[k] += w.where(torch.arange(3) != k, 0)
        before = torch.stack(mixed)
        theta = before + LR * (centres - before)
    models, snapshot = run(fedfomo(), quadratic(CENTRES), start.tolist(), rounds=4)
    torch.testing.assert_close(models.double(), theta, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(snapshot.server["preference"].double(), preference, atol=1e-4, rtol=1e-4)
    own = torch.stack(shares).view(3, 3, 3).diagonal(dim1=1, dim2=2)
    assert bool((own > 0.1).all())  # one's own model keeps a share
    alone, _ = run(local(), quadratic(CENTRES), start.tolist(), rounds=4)
    assert float((models - alone).abs().max()) > 0.01


NOTHING = torch.zeros(1, 1)


def test_where_no_model_helps_the_round_is_taken_back() -> None:
    state = {"theta": torch.tensor([[1.0]]), "before": torch.tensor([[3.0]])}
    sent = {"models": torch.tensor([[[5.0], [6.0]]]), "chosen": torch.tensor([[0, 1]])}
    assert mixture(state, sent, NOTHING, torch.tensor([[-1.0, 0.0]])).tolist() == [[3.0]]
    nobody = sent | {"chosen": torch.zeros(1, 0, dtype=torch.int64)}
    assert mixture(state, nobody, NOTHING, torch.zeros(1, 0)).tolist() == [[3.0]]
    assert mixture(state, nobody, torch.ones(1, 1), torch.zeros(1, 0)).tolist() == [[1.0]]


def test_training_that_raises_the_validation_loss_is_not_gone_on_with() -> None:
    train, held = (quadratic([[c]]).train for c in (4.0, 0.0))
    models, _ = run(fedfomo(), Federation(train, held, held, ()), [1.0], rounds=3)
    assert models.tolist() == [[pytest.approx(1.0 + LR * 3)]]  # each round starts from 1 again


@pytest.mark.parametrize("clients", [1, 7], ids=["a few rows", "one product"])
def test_the_mixture_is_the_weighted_sum_however_many_ask(clients: int) -> None:
    draw = torch.Generator().manual_seed(0)
    models, w = torch.randn(9, 4, generator=draw), torch.rand(clients, 3, generator=draw)
    chosen = torch.randint(9, (clients, 3), generator=draw)
    chosen[0, 1] = chosen[0, 0]  # a model twice counts twice
    own, theta = torch.rand(clients, 1, generator=draw), torch.randn(clients, 4, generator=draw)
    state = {"theta": theta, "before": torch.zeros(clients, 4)}
    mixed = mixture(state, {"models": models[None], "chosen": chosen}, own, w)
    by_hand = [
        (own[k] * theta[k] + sum(w[k, n] * models[chosen[k, n]] for n in range(3))) / (own[k] + w[k].sum())
        for k in range(clients)
    ]
    torch.testing.assert_close(mixed, torch.stack(by_hand))


def test_with_its_own_model_only_it_is_local_where_training_helps() -> None:
    federation = quadratic(CENTRES, [1, 4, 2])
    for participation in (1.0, 0.7):
        mine, alone = (
            run(m, federation, [1.0, 1.0], rounds=4, participation=participation, how=training(steps=3))[0]
            for m in (fedfomo(models=0), local())
        )
        assert torch.equal(mine, alone)
    mine, alone = (run(m, quadratic(CENTRES[:1]), [1.0, 1.0], rounds=3)[0] for m in (fedfomo(), local()))
    assert torch.equal(mine, alone)


def everybody(n: int) -> Tensor:
    return torch.ones(n, 1, dtype=torch.bool)


def test_without_exploring_the_preferred_models_are_sent() -> None:
    preference = torch.tensor(
        [[9.0, 1.0, 3.0, 2.0], [0.0, 9.0, -1.0, -2.0], [5.0, 0.0, 9.0, 1.0], [1.0, 2.0, 0.0, 9.0]]
    )
    chosen, offered = choose(preference, everybody(4), 2, 0.0, 0, 1)
    assert [set(row) for row in chosen.tolist()] == [{2, 3}, {0, 2}, {0, 3}, {0, 1}]
    assert bool(offered.all())


def test_exploring_sends_the_others_now_and_then_and_never_ones_own() -> None:
    preference = torch.tensor([[0.0, 5.0, 0.0, 0.0]] * 4)
    seen = torch.zeros(4)
    for t in range(400):
        chosen, offered = choose(preference, everybody(4), 1, 0.3, 0, t)
        assert bool(offered.all())
        assert bool((chosen[:, 0] != torch.arange(4)).all())
        seen[chosen[0, 0]] += 1
    # "the rest" is everybody when the only place is explored, client 1 included
    assert float(seen[1] / 400) == pytest.approx(0.7 + 0.3 / 3, abs=0.06)
    assert float(seen[2] / 400) == pytest.approx(0.1, abs=0.05)


def test_models_of_clients_never_seen_are_sent_to_nobody() -> None:
    present = torch.tensor([[True], [False], [True], [False]])
    for t in range(50):
        chosen, offered = choose(torch.zeros(4, 4), present, 3, 0.3, 0, t)
        for k in range(4):
            assert set(chosen[k][offered[k]].tolist()) == {0, 2} - {k}


def test_a_client_that_joins_late_gains_from_those_present_and_harms_nobody() -> None:
    """Client 2 sits out round 1; its start, far away, would help nobody and is not even offered."""
    federation = quadratic([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    seed = next(s for s in range(99) if cohorts(0.7, 3, 2, s) == [[0, 1], [1, 2]])
    start = [50.0, 50.0]
    _, snapshot = run(fedfomo(), federation, start, participation=0.7, seed=seed)
    offered = snapshot.message["offered"]
    assert offered.sum(1).tolist() == [1, 1, 2]
    models, _ = run(fedfomo(), federation, start, rounds=2, participation=0.7, seed=seed)
    alone, _ = run(local(), federation, start, rounds=2, participation=0.7, seed=seed)
    assert float(models[2].norm()) < float(alone[2].norm()) - 4


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="with 0 clients train alone"):
        fedfomo(models=-1)
    with pytest.raises(InputError, match="never explores"):
        fedfomo(epsilon=1.5)
