"""The round loop: who takes part, who is held out, what is kept."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fairlead
from fairlead.catalogue import parse
from fairlead.clients import Answer, InProcess, engine
from fairlead.core import FairleadError, Federation, Layout, Named, Plan, Split, Training
from fairlead.data import scenario
from fairlead.methods import METHODS
from fairlead.models import build
from fairlead.rounds import Round, Snapshot, assemble, draw, federate, held_out


def federation(sizes: tuple[int, ...] = (6, 9, 12, 7), poison: int | None = None) -> Federation:
    generator = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *sizes]).cumsum(0)
    x = torch.randn(int(starts[-1]), 3, generator=generator)
    if poison is not None:
        x[int(starts[poison]) : int(starts[poison + 1])] = torch.nan
    data = Split(x, (x[:, 0] > 0).long(), starts)
    return Federation(data, data, data, ("no", "yes"))


def in_process(data: Federation) -> InProcess:
    return InProcess(data, Training(lr=0.1), engine("loop"))


def train(name: str, data: Federation, **settings: object) -> list[Round]:
    torch.manual_seed(0)
    plan = Plan(**{"rounds": 3, "evaluate_every": 1} | settings)  # type: ignore[arg-type]
    entry = parse(name)
    happened = fairlead.federate(entry.method, in_process(data), nn.Linear(3, 2), plan, average=entry.average)
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
    runs = [train("fedavg", data, unseen=0.25)[-1].scores[-1].values["loss"] for data in (plain, other)]
    assert torch.equal(runs[0][seen], runs[1][seen])
    assert not torch.isclose(runs[0][k], runs[1][k])


def test_all_clients_diverging_is_said_plainly() -> None:
    data = federation()
    data.train.x[:] = torch.nan
    with pytest.raises(FairleadError, match="round 1: every client's update is NaN or infinite; try a smaller lr"):
        train("fedavg", data)


def test_a_poisoned_client_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    rounds = train("fedavg", federation(poison=2))
    assert [list(r.absent) for r in rounds] == [[2], [2], [2]]
    assert "left out clients [2]" in caplog.text
    losses = rounds[-1].scores[-1].values["loss"]
    assert losses[[0, 1, 3]].isfinite().all()


def test_bytes_are_those_of_the_rows_that_travel() -> None:
    (first, *_) = train("fedavg", federation(), participation=0.5)
    assert first.bytes_up == first.bytes_down == 2 * 8 * 4  # clients, parameters, bytes each
    (first, *_) = train("local", federation())
    assert (first.bytes_up, first.bytes_down) == (0, 0)
    hello, second, *_ = train("fedora", federation())
    assert hello.bytes_up - second.bytes_up == 4 * 3 * 4  # one subspace vector of inputs each


def test_swapping_the_stage_of_a_method_that_averages_nothing_is_refused() -> None:
    with pytest.raises(fairlead.InputError, match="averages nothing"):
        assemble(parse("fedora").method, parse("fedavg+median").average, Layout(nn.Linear(3, 2)))


def test_a_newcomer_of_a_hypernetwork_is_fitted_without_changing_anything_for_the_others() -> None:
    _, newcomers = held_out(0.25, 4, seed=0)
    k = int(newcomers[0])

    def last(epochs: int) -> torch.Tensor:
        return train("pfedhn", federation(), unseen=0.25, newcomer_epochs=epochs, rounds=6)[-1].scores[0].values["loss"]

    short, long = last(1), last(8)
    assert torch.equal(short[[i for i in range(4) if i != k]], long[[i for i in range(4) if i != k]])
    assert float(long[k]) < float(short[k])


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", ["ditto", "fedora"])
def test_snapshots_stay_as_they_were(name: str, participation: float) -> None:
    """All of them at once hold what each held when it was yielded."""
    plan = Plan(rounds=4, participation=participation, evaluate_every=2)

    def happening() -> Iterator[tuple[Round, Snapshot]]:
        torch.manual_seed(0)
        return fairlead.federate(METHODS[name](), in_process(federation()), nn.Linear(3, 2), plan)

    def holds(s: Snapshot) -> list[Any]:
        return [s.clients(), s.server, s.message, s.round, s.best]

    copies = [deepcopy(holds(s)) for _, s in happening()]
    later = [holds(s) for _, s in list(happening())]
    assert len({s.round for _, s in list(happening())}) == 4
    for held, copy in zip(later, copies, strict=True):
        assert held[3:] == copy[3:]
        for rows, before in zip(held[:3], copy[:3], strict=True):
            assert rows.keys() == before.keys()
            assert all(torch.equal(rows[n], before[n]) for n in rows)
    states = [held[0]["state.row.v" if name == "ditto" else "state.row.theta"] for held in later]
    assert not any(a.shape == b.shape and torch.equal(a, b) for a, b in pairwise(states))


@pytest.mark.parametrize("pause", [0, 1, 2])
def test_training_stops_when_patience_runs_out_and_a_resumed_run_stops_there_too(pause: int) -> None:
    """Validation samples with the wrong labels: the longer the training, the higher their loss."""
    plan = Plan(rounds=20, evaluate_every=2, patience=2, select="validation")
    data = federation()
    wrong = replace(data, validation=replace(data.validation, y=1 - data.validation.y))
    clients = in_process(wrong)

    def go(snapshot: Snapshot | None = None) -> list[tuple[Round, Snapshot]]:
        torch.manual_seed(0)
        return list(fairlead.federate(METHODS["local"](), clients, nn.Linear(3, 2), plan, snapshot=snapshot))

    whole = go()
    losses = [float(s.values["loss"].mean()) for r, _ in whole for s in r.scores if s.split == "validation"]
    lowest = losses.index(min(losses))
    assert len(losses) == lowest + 1 + 2 < 10
    assert [r.stopped for r, _ in whole] == [False] * (len(whole) - 1) + [True]
    resumed = go(whole[pause][1])
    assert [r.round for r, _ in resumed] == [r.round for r, _ in whole[pause + 1 :]]
    assert resumed[-1][0].stopped
    assert resumed[-1][1].best == whole[-1][1].best
    ends = [snapshots[-1][1].clients() for snapshots in (whole, resumed)]
    assert all(torch.equal(ends[0][n], ends[1][n]) for n in ends[0])
    assert go(whole[-1][1]) == []


class Scored(InProcess):
    """Client 1's scores are as given, or its answer does not come."""

    given: dict[int, float | None]  # by round; None: not asked

    def score(self, ids: Tensor, round: int, message: Named) -> Answer:
        one = super().score(ids, round, message)
        value = self.given.get(round, self.given[0])
        if value is None:
            return Answer(ids[ids != 1], {n: x[ids != 1] for n, x in one.rows.items()}, {1: "answer did not come"})
        return one if value == 1.0 else one._replace(rows={n: x.clone() for n, x in one.rows.items()} | bad(one, value))


def bad(one: Answer, value: float) -> Named:
    return {n: x.index_fill(0, torch.tensor([1]), value) for n, x in one.rows.items()}


def kept_and_rounds(given: dict[int, float | None], **settings: Any) -> tuple[int, int]:
    torch.manual_seed(0)
    clients = Scored(federation(), Training(lr=0.5), engine("loop"))
    clients.given = given
    plan = Plan(rounds=20, evaluate_every=1, **settings)
    *_, (r, now) = federate(parse("fedavg").method, clients, nn.Linear(3, 2), plan)
    assert now.best is not None
    return now.best.round, r.round


@pytest.mark.parametrize("select", ["validation", "loss", "last"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_client_whose_scores_are_never_finite_decides_nothing(select: str, value: float) -> None:
    settings = {"select": select, "patience": 3}
    found = kept_and_rounds({0: value}, **settings)
    assert found == kept_and_rounds({0: None}, **settings)
    assert found[1] > 4  # patience did not run out because of it


def test_a_round_in_which_a_client_diverged_is_not_kept_and_the_last_one_is_where_that_is_asked_for() -> None:
    diverged: dict[int, float | None] = {0: torch.nan, 1: 1.0, 2: 1.0, 3: 1.0}
    assert kept_and_rounds(diverged, select="loss")[0] <= 3
    assert kept_and_rounds(diverged, select="loss", patience=3)[1] == 6
    assert kept_and_rounds(diverged, select="last")[0] == 20


def test_a_client_that_says_it_has_no_samples_and_is_alone_in_a_round_changes_nothing() -> None:
    empty = federation(sizes=(0, 6))
    rounds = list(federate(parse("fedavg").method, in_process(empty), nn.Linear(3, 2), Plan(rounds=4, participation=1)))
    assert all(now.message["w"].isfinite().all() for _, now in rounds)


def test_selection_and_patience_need_validation_samples() -> None:
    data = federation()
    empty = Split(data.test.x[:0], data.test.y[:0], torch.zeros(5, dtype=torch.int64))
    for settings in ({"select": "validation"}, {"patience": 3}):
        with pytest.raises(fairlead.InputError, match="need validation samples, and the clients have none"):
            train("fedavg", replace(data, validation=empty), **settings)
    assert [s.split for s in train("fedavg", replace(data, validation=empty))[-1].scores] == ["test"]


@pytest.mark.parametrize("on", ["loop", "vectorised"])
@pytest.mark.parametrize("unseen", [0.0, 0.25])
def test_outputs_are_those_of_the_models_that_were_kept(on: str, unseen: float) -> None:
    data = federation()
    clients = InProcess(data, Training(lr=0.1), engine(on))
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    plan = Plan(rounds=6, evaluate_every=1, select="validation", unseen=unseen)
    happened = list(fairlead.federate(METHODS["ditto"](), clients, module, plan))
    best = happened[-1][1].best
    assert best is not None
    scores = {(s.model, s.split): s for s in happened[best.round - 1][0].scores}
    found = clients.outputs("test")
    assert [len(rows) for rows in found] == data.test.sizes.tolist()
    for k, rows in enumerate(found):
        right = (rows.argmax(1) == data.test.client(k)[1]).float().mean()
        assert float(right) == float(scores["personal", "test"].values["accuracy"][k])
        Layout(module).write(clients.models(torch.tensor([k]))[0], module)
        torch.testing.assert_close(rows, module(data.test.client(k)[0]).detach())


def test_a_client_without_samples_to_score_has_no_score_and_stops_nobody() -> None:
    whole = scenario("rotated-digits", clients=3).build(seed=0)

    def without(split: Split, client: int) -> Split:
        keep = torch.ones(len(split.y), dtype=torch.bool)
        keep[int(split.starts[client]) : int(split.starts[client + 1])] = False
        sizes = split.sizes.clone()
        sizes[client] = 0
        return Split(split.x[keep], split.y[keep], torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))

    data = replace(whole, validation=without(whole.validation, 1), test=without(whole.test, 2))
    entry, module = parse("fedavg"), build("mlp", (1, 8, 8), 10, seed=0)
    for name in ("loop", "threads+vectorised"):
        with InProcess(data, Training(lr=0.05), engine(name)) as clients:
            plan = Plan(rounds=2, evaluate_every=1, select="loss")
            happened = [r for r, _ in federate(entry.method, clients, module, plan)]
            loss = {s.split: s.values["loss"] for s in happened[-1].scores}
            assert loss["validation"].isnan().tolist() == [False, True, False]
            assert loss["test"].isnan().tolist() == [False, False, True]
            assert [len(o) for o in clients.outputs("test")] == data.test.sizes.tolist()


def test_select_loss_keeps_the_models_of_the_round_with_the_lowest_validation_loss() -> None:
    data = scenario("rotated-digits", clients=3).build(seed=0)
    entry, module = parse("local"), build("mlp", (1, 8, 8), 10, seed=0)
    with InProcess(data, Training(lr=0.5, epochs=5, momentum=0.9), engine("loop")) as clients:
        plan = Plan(rounds=6, evaluate_every=1, select="loss")
        rounds = list(federate(entry.method, clients, module, plan))
    losses = [float(s.values["loss"].mean()) for r, _ in rounds for s in r.scores if s.split == "validation"]
    best = rounds[-1][1].best
    assert best is not None
    assert best.round == losses.index(min(losses)) + 1
    assert best.round < 6, "the step size is so large that later rounds are worse"


@pytest.mark.parametrize(("name", "passes"), [("local", 1), ("ditto", 2), ("fedsam", 2), ("fedavg", 1), ("apfl", 2)])
def test_every_gradient_over_a_sample_counts_as_a_pass(name: str, passes: int) -> None:
    rounds = train(name, federation(), evaluate_every=3)
    extra = 34 if name == "apfl" else 0  # a batch more, which is everybody's whole data here, to learn its mixture from
    assert {r.passes for r in rounds} == {passes * 34 + extra}


def test_training_before_deployment_counts_once_however_often_models_are_scored() -> None:
    rounds = train("fedavg+ft", federation())
    assert [r.passes for r in rounds] == [34, 34, 34 + 5 * 34]


def test_without_test_scores_validation_still_decides() -> None:
    plain, untested = (train("fedavg", federation(), select="loss", tested=tested) for tested in (True, False))
    assert [s.split for s in untested[-1].scores] == ["validation"]
    assert torch.equal(plain[-1].scores[0].values["loss"], untested[-1].scores[0].values["loss"])


@pytest.mark.parametrize("name", ["fedamp", "pfedhn", "plgu-ghn"])
def test_bits_do_not_depend_on_how_many_threads_a_product_may_use(name: str) -> None:
    # Products of a long row over two threads have other last bits than over one: pFedHN's server was such a case.
    g = torch.Generator().manual_seed(0)
    split = Split(torch.randn(48, 64, generator=g), torch.randint(10, (48,), generator=g), torch.arange(0, 49, 12))
    data = Federation(split, split, split, tuple("0123456789"))
    ends, before = [], torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        try:
            with InProcess(data, Training(lr=0.1, batch_size=4), engine("threads+vectorised")) as clients:
                plan = Plan(rounds=3, evaluate_every=1, unseen=0.25, newcomer_epochs=1)
                *_, (happened, snapshot) = federate(METHODS[name](), clients, build("mlp", (64,), 10, 0), plan)
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(before)
        ends.append([*snapshot.message.values(), *(s.values["loss"] for s in happened.scores)])
    assert all(torch.equal(x, y) for x, y in zip(*ends, strict=True))
