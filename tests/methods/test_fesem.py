"""FeSEM: clusters by parameter distance, FedAvg as its limit, and clients that join late."""

import pytest
import torch
from helpers import quadratic, run, training

from fairlead.core import Cohort, InputError
from fairlead.functional import kmeans
from fairlead.methods import fedavg, fesem
from fairlead.servers import mean, median

CENTRES = torch.tensor([[0.0, 9.0], [1.0, 10.0], [9.0, 0.0], [10.0, 1.0], [-9.0, -9.0]])
SIZES = [1, 3, 2, 2, 4]
LR = 0.1


def test_one_cluster_is_fedavg_bit_for_bit() -> None:
    federation = quadratic(CENTRES, SIZES)
    for participation in (1.0, 0.6):
        mine, theirs = (
            run(m, federation, [1.0, 2.0], rounds=4, participation=participation, how=training(steps=3))[0]
            for m in (fesem(clusters=1), fedavg())
        )
        assert torch.equal(mine, theirs)


def test_the_first_round_already_parts_the_clients() -> None:
    """One step from 0 gives lr c_k; each cluster's centre is the weighted mean of its members' models."""
    _, snapshot = run(fesem(), quadratic(CENTRES, SIZES), [0.0, 0.0])
    expected = LR * torch.tensor([[0.75, 9.75], [0.75, 9.75], [9.5, 0.5], [9.5, 0.5], [-9.0, -9.0]])
    torch.testing.assert_close(snapshot.message["centre"], expected)


def test_it_settles_at_the_clusters_centres() -> None:
    models, _ = run(fesem(), quadratic(CENTRES, SIZES), [0.0, 0.0], rounds=30, how=training(0.5))
    expected = torch.tensor([[0.75, 9.75], [0.75, 9.75], [9.5, 0.5], [9.5, 0.5], [-9.0, -9.0]])
    torch.testing.assert_close(models, expected, atol=1e-4, rtol=1e-4)


def test_another_average_acts_within_the_clusters() -> None:
    centres = [[0.0], [1.0], [5.0], [-40.0], [-44.0], [-48.0]]
    models, _ = run(fesem(clusters=2), quadratic(centres), [0.0], rounds=30, average=median(), how=training(0.5))
    torch.testing.assert_close(models[:, 0], torch.tensor([1.0, 1.0, 1.0, -44.0, -44.0, -44.0]), atol=1e-4, rtol=1e-4)


def cohort(ids: list[int], round: int = 1) -> Cohort:
    return Cohort(torch.tensor(ids), torch.full((len(ids),), 1 / len(ids)), 5, round, 0)


def test_a_client_changes_to_the_nearest_centre_and_one_that_sits_out_keeps_its_own() -> None:
    server = fesem(clusters=2).server(mean())
    state, _ = server.init({"centre": torch.zeros(1, 1)}, {}, 5)
    state, sent = server.update(state, {"w": torch.tensor([[1.0], [2.0], [9.0], [11.0]])}, cohort([0, 1, 2, 3]))
    assert sent["centre"][:4, 0].tolist() == [1.5, 1.5, 10.0, 10.0]
    state, sent = server.update(state, {"w": torch.tensor([[8.0]])}, cohort([1], 2))
    assert sent["centre"][:4, 0].tolist() == [1.5, 8.0, 8.0, 8.0]


def test_who_never_took_part_starts_from_the_members_mean_and_then_joins_a_cluster() -> None:
    server = fesem(clusters=2).server(mean())
    state, _ = server.init({"centre": torch.full((1, 1), 100.0)}, {}, 5)
    state, sent = server.update(state, {"w": torch.tensor([[1.0], [2.0], [9.0]])}, cohort([0, 1, 2]))
    assert sent["centre"][[0, 2], 0].tolist() == [1.5, 9.0]
    torch.testing.assert_close(sent["centre"][3:, 0], torch.tensor([4.0, 4.0]))
    _, sent = server.update(state, {"w": torch.tensor([[7.0]])}, cohort([4], 2))
    assert sent["centre"][:, 0].tolist() == pytest.approx([1.5, 1.5, 7.0, (3 + 14) / 4, 7.0])


def test_kmeans_finds_the_groups_and_survives_equal_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(4).repeat_interleave(6)
    rows = 10 * torch.randn(4, 50, generator=generator)[groups] + torch.randn(24, 50, generator=generator)
    labels = kmeans(rows, 4)
    pairs = (labels[:, None] == labels) == (groups[:, None] == groups)
    assert bool(pairs.all())
    assert kmeans(torch.ones(5, 3), 3).tolist() == [0] * 5
    assert sorted(kmeans(torch.tensor([[0.0], [5.0]]), 7).tolist()) == [0, 1]


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match=r"between 1 \(FedAvg\) and 1,000, got 0"):
        fesem(clusters=0)
