"""IFCA: averages within clusters, FedAvg as its limit, and clusters that nobody chose."""

import pytest
import torch
from helpers import Point, cohorts, quadratic, run, training
from torch import nn

from fairlead.core import Cohort, InputError, Layout
from fairlead.core.initial import initial_models
from fairlead.methods import fedavg, ifca
from fairlead.servers import mean, median, uniform

CENTRES = [[1.0, 8.0], [2.0, 9.0], [8.0, 1.0], [9.0, 2.0]]
SIZES = [1, 3, 2, 2]
START = [0.0, 5.0]  # its other order, (5, 0), is the second cluster's start
LR = 0.1


def test_one_cluster_is_fedavg_bit_for_bit() -> None:
    federation = quadratic(CENTRES, SIZES)
    for participation in (1.0, 0.7):
        mine, theirs = (
            run(m, federation, START, rounds=4, participation=participation, how=training(steps=3))[0]
            for m in (ifca(clusters=1), fedavg())
        )
        assert torch.equal(mine, theirs)


def test_a_round_averages_each_cluster_by_itself() -> None:
    """Clients 0, 1 are nearer to (0, 5) and 2, 3 to (5, 0); each pair moves its model by lr (mean centre - model)."""
    _, snapshot = run(ifca(clusters=2), quadratic(CENTRES, SIZES), START)
    w = torch.tensor([[0.0, 5.0], [5.0, 0.0]])
    c = torch.tensor([[1.75, 8.75], [8.5, 1.5]])  # weighted 1:3 and 1:1
    torch.testing.assert_close(snapshot.message["w"][0], w + LR * (c - w))


def test_it_settles_at_the_clusters_centres() -> None:
    models, _ = run(ifca(clusters=2), quadratic(CENTRES, SIZES), START, rounds=30, how=training(0.5))
    torch.testing.assert_close(models[:2], torch.tensor([[1.75, 8.75]] * 2))
    torch.testing.assert_close(models[2:], torch.tensor([[8.5, 1.5]] * 2))


def test_another_average_acts_within_the_clusters() -> None:
    models, _ = run(ifca(clusters=2), quadratic(CENTRES, SIZES), START, rounds=30, average=uniform(), how=training(0.5))
    torch.testing.assert_close(models[0], torch.tensor([1.5, 8.5]))
    centres = [[1.0, 8.0], [2.0, 9.0], [0.0, 50.0], [9.0, 2.0]]
    models, _ = run(ifca(clusters=2), quadratic(centres), START, rounds=30, average=median(), how=training(0.5))
    torch.testing.assert_close(models[0], torch.tensor([1.0, 9.0]))


def test_a_cluster_that_nobody_chose_keeps_its_model_and_weights_sum_to_one() -> None:
    server = ifca(clusters=3).server(mean())
    state, _ = server.init({"w": torch.zeros(1, 3, 1)}, {}, 9)
    rows = {"w": torch.tensor([[1.0], [2.0], [6.0]]), "cluster": torch.tensor([[0], [2], [2]])}
    cohort = Cohort(torch.tensor([1, 4, 7]), torch.tensor([0.5, 0.2, 0.3]), 9, 1, 0)
    _, message = server.update(state, rows, cohort)
    torch.testing.assert_close(message["w"], torch.tensor([[[1.0], [0.0], [4.4]]]))
    assert not state["w"].any()


def test_the_choice_is_by_training_loss() -> None:
    """Validation targets that speak for the other cluster change nothing."""
    federation = quadratic(CENTRES)
    misleading = federation.__class__(federation.train, quadratic(CENTRES[::-1]).train, federation.test, ("only",))
    (plain, _), (other, _) = (run(ifca(clusters=2), f, START, rounds=3) for f in (federation, misleading))
    assert torch.equal(plain, other)


def test_a_client_that_joins_late_finds_its_cluster() -> None:
    federation = quadratic(CENTRES)
    seed = next(s for s in range(99) if all(3 not in ids for ids in cohorts(0.5, 4, 20, s)[:3]))
    models, _ = run(ifca(clusters=2), federation, START, rounds=3, participation=0.5, seed=seed)
    assert torch.equal(models[3], models[2])


def test_starts_are_distinct_draws_of_the_same_kind() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 4))
    layout = Layout(module)
    params = layout.read(module)
    models = initial_models(params, layout, 4)[0]
    assert torch.equal(models[0], params[0])
    assert len({tuple(row) for row in models.tolist()}) == 4
    for name, slot in layout.slots.items():
        cut = models[:, slot.start : slot.stop].sort(1).values
        assert torch.equal(cut, cut[:1].expand_as(cut)), name
    assert torch.equal(models, initial_models(params, layout, 4)[0])
    constant = Point([0.0, 0.0])
    zeros = initial_models(torch.zeros(1, 2), Layout(constant), 3)[0]
    assert len({tuple(row) for row in zeros.tolist()}) == 3


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match=r"between 1 \(FedAvg\) and 1,000, got 0"):
        ifca(clusters=0)
