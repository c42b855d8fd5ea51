"""CFL: FedAvg until clients pull apart, the two parts against all bipartitions, and clients that stay away."""

from itertools import product

import pytest
import torch
from helpers import quadratic, run, training

from fairlead.core import InputError
from fairlead.methods import cfl, fedavg
from fairlead.methods.cfl import bipartition

CENTRES = torch.tensor([[3.0, 0.0], [3.2, 0.2], [-3.0, 0.0], [-3.1, -0.1], [2.9, -0.1]])


@pytest.mark.parametrize("seed", range(4))
def test_the_parts_have_the_smallest_largest_cosine_across(seed: int) -> None:
    rows = torch.nn.functional.normalize(torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)).double())
    cosines = rows @ rows.T
    part = bipartition(cosines)
    tried = [torch.tensor(p) for p in product([False, True], repeat=6) if 0 < sum(p) < 6]
    best = min(float(cosines[p][:, ~p].max()) for p in tried)
    assert float(cosines[part][:, ~part].max()) == pytest.approx(best)


def test_it_is_fedavg_until_the_mean_change_is_short_and_the_clients_changes_are_not() -> None:
    start, how = [0.0, 5.0], training(0.3)
    federation = quadratic(CENTRES)
    for rounds in (1, 3):
        mine, theirs = (run(m, federation, start, rounds=rounds, how=how)[0] for m in (cfl(), fedavg()))
        torch.testing.assert_close(mine, theirs)
    models, snapshot = run(cfl(), federation, start, rounds=60, how=how)
    clusters = snapshot.server["cluster"][:, 0].tolist()
    assert clusters[0] == clusters[1] == clusters[4] != clusters[2] == clusters[3]
    for members in ([0, 1, 4], [2, 3]):
        torch.testing.assert_close(
            models[members], CENTRES[members].mean(0).expand(len(members), -1), atol=1e-3, rtol=0
        )


def test_clients_that_agree_are_never_divided() -> None:
    _, snapshot = run(cfl(), quadratic([[1.0, 1.0]] * 4), [4.0, 0.0], rounds=40, how=training(0.3))
    assert snapshot.server["cluster"].unique().tolist() == [0]
    wide = CENTRES + torch.tensor([[0.0, 1.5], [0.0, -1.7], [0.0, 0.0], [0.0, 0.1], [0.0, 0.1]])
    found = [run(cfl(gamma=g), quadratic(wide), [0.0, 5.0], rounds=60, how=training(0.3))[1] for g in (0.0, 0.99)]
    assert [len(s.server["cluster"].unique()) > 1 for s in found] == [True, False]


def test_with_some_away_the_members_are_still_told_apart() -> None:
    models, snapshot = run(cfl(), quadratic(CENTRES), [0.0, 5.0], rounds=120, participation=0.8, how=training(0.3))
    clusters = snapshot.server["cluster"][:, 0].tolist()
    assert not {clusters[0], clusters[1], clusters[4]} & {clusters[2], clusters[3]}
    assert float((models[2] - CENTRES[2]).norm()) < 1.0


def test_what_cannot_work_is_refused() -> None:
    for wrong in ({"eps1": 0.0}, {"eps2": 0.5}, {"gamma": 1.0}):
        with pytest.raises(InputError, match=f"cfl: {next(iter(wrong))} must"):
            cfl(**wrong)
