"""The round loop: who takes part, who is held out, what is kept."""

import pytest
import torch
from torch import nn

import fairlead
from fairlead.catalogue import parse
from fairlead.core import FairleadError, Federation, Layout, Plan, Split, Training
from fairlead.engines import engine
from fairlead.rounds import Round, assemble, draw, held_out


def federation(sizes: tuple[int, ...] = (6, 9, 12, 7), poison: int | None = None) -> Federation:
    generator = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *sizes]).cumsum(0)
    x = torch.randn(int(starts[-1]), 3, generator=generator)
    if poison is not None:
        x[int(starts[poison]) : int(starts[poison + 1])] = torch.nan
    data = Split(x, (x[:, 0] > 0).long(), starts)
    return Federation(data, data, data, ("no", "yes"))


def train(name: str, data: Federation, **settings: object) -> list[Round]:
    torch.manual_seed(0)
    plan = Plan(**{"rounds": 3, "evaluate_every": 1} | settings)  # type: ignore[arg-type]
    entry = parse(name)
    happened = fairlead.federate(
        entry.method, data, nn.Linear(3, 2), Training(lr=0.1), plan, engine=engine("loop"), average=entry.average
    )
    return [r for r, _ in happened]


@pytest.mark.parametrize(("participation", "expected"), [(1.0, 10), (0.3, 3), (0.25, 3), (0.01, 1), (4, 4), (10, 10)])
def test_participation_is_a_rate_up_to_one_and_a_count_above(participation: float, expected: int) -> None:
    ids = draw(participation, 10, seed=0, round=1)
    assert len(ids) == len(set(ids.tolist())) == expected
    assert ids.tolist() == sorted(ids.tolist())
    assert torch.equal(ids, draw(participation, 10, seed=0, round=1))


def test_cohorts_differ_from_round_to_round_and_reach_everybody() -> None:
    cohorts = [tuple(draw(0.3, 10, seed=0, round=t).tolist()) for t in range(30)]
    assert len(set(cohorts)) > 10
    assert set().union(*cohorts) == set(range(10))


def test_held_out_clients_never_train_and_are_scored_as_newcomers() -> None:
    seen, newcomers = held_out(0.25, 4, seed=0)
    assert len(newcomers) == 1
    assert sorted([*seen.tolist(), *newcomers.tolist()]) == [0, 1, 2, 3]
    k = int(newcomers[0])
    # What the newcomer holds changes nobody's model: the run is the same if its data is something else.
    plain, other = federation(), federation()
    a, b = int(other.train.starts[k]), int(other.train.starts[k + 1])
    other.train.x[a:b] = torch.randn(b - a, 3)
    runs = [train("fedavg", data, unseen=0.25)[-1].scores[-1].loss for data in (plain, other)]
    assert torch.equal(runs[0][seen], runs[1][seen])
    assert not torch.isclose(runs[0][k], runs[1][k])


def test_all_clients_diverging_is_said_plainly() -> None:
    data = federation()
    data.train.x[:] = torch.nan
    with pytest.raises(FairleadError, match="round 1: every client's update is NaN or infinite; try a smaller lr"):
        train("fedavg", data)


def test_a_poisoned_client_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    rounds = train("fedavg", federation(poison=2))
    assert [r.dropped for r in rounds] == [[2], [2], [2]]
    assert "left out clients [2]" in caplog.text
    losses = rounds[-1].scores[-1].loss
    assert losses[[0, 1, 3]].isfinite().all()


def test_bytes_are_those_of_the_rows_that_travel() -> None:
    (first, *_) = train("fedavg", federation(), participation=0.5)
    assert first.bytes_up == first.bytes_down == 2 * 8 * 4  # clients, parameters, bytes each
    (first, *_) = train("local", federation())
    assert (first.bytes_up, first.bytes_down) == (0, 0)
    hello, second, *_ = train("fedora", federation())
    assert hello.bytes_up - second.bytes_up == 4 * (3 + 2) * 4  # one subspace vector of inputs and labels each


def test_swapping_the_stage_of_a_method_that_averages_nothing_is_refused() -> None:
    with pytest.raises(fairlead.InputError, match="averages nothing"):
        assemble(parse("fedora").method, parse("fedavg+median").average, Layout(nn.Linear(3, 2)))


def test_a_newcomer_of_a_hypernetwork_is_fitted_without_changing_anything_for_the_others() -> None:
    _, newcomers = held_out(0.25, 4, seed=0)
    k = int(newcomers[0])

    def last(epochs: int) -> torch.Tensor:
        return train("pfedhn", federation(), unseen=0.25, newcomer_epochs=epochs, rounds=6)[-1].scores[0].loss

    short, long = last(1), last(8)
    assert torch.equal(short[[i for i in range(4) if i != k]], long[[i for i in range(4) if i != k]])
    assert float(long[k]) < float(short[k])
