"""Decisions after training: the weights and chances against what they must be, and the exchange through every door."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fairlead.clients import Clients, InProcess, Node, Remote, engine, only, placed
from fairlead.core import Cohort, Federation, InputError, Layout, Plan, Split, Training
from fairlead.functional import chance_positive, common_gain, stack_weights
from fairlead.functional.gains import FAR
from fairlead.functional.stacking import stack_terms
from fairlead.methods import guard, stack
from fairlead.methods.voices import (
    COMMON,
    MOST,
    ROUNDS,
    SHARED,
    Deciding,
    Decision,
    Voices,
    Weigh,
    decide,
    lognormal,
    rows_together,
    training_luck,
)
from fairlead.metrics import METRICS
from fairlead.rounds import federate

GUARD = guard(("local", "fedavg"))
TRAINING = Training()


def draws(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_weights_of_quantities_are_those_of_the_normal_equations() -> None:
    z, strength, centre = draws(0, 1, 40, 2, 1).double(), 3.0, torch.tensor([[0.5, 0.4]], dtype=torch.float64)
    y = (0.7 * z[0, :, 0, 0] + 0.2 * z[0, :, 1, 0] + 0.1 * draws(1, 40))[None]
    found = stack_weights(z, y, torch.ones(1, 40).double(), "quantity", centre, strength)[0]
    variance = ((z[0, :, 0, 0] - y[0]) ** 2).mean()
    a = z[0, :, :, 0]
    wanted = torch.linalg.solve(
        a.T @ a / variance + 2 * strength * torch.eye(2), a.T @ y[0] / variance + 2 * strength * centre[0]
    )
    assert torch.allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("kind", ["class", "labels"])
def test_weights_are_optimal_where_positive_and_pushed_down_where_zero(kind: str) -> None:
    z = draws(2, 1, 60, 3, 4).double()
    truth = (z[..., 0, :] + 0.5 * draws(3, 1, 60, 4)).double()
    y = truth.argmax(-1) if kind == "class" else (truth > 0).double()
    z[..., 2, :] = -z[..., 0, :]  # a voice that is wrong about everything
    centre, rows = torch.full((1, 3), 1 / 3).double(), torch.ones(1, 60).double()
    s = stack_weights(z, y, rows, kind, centre, 2.0)
    slope = stack_terms(z, y, rows, s, kind).slope + 4.0 * (s - centre)
    assert float(s[0, 2]) == 0.0
    assert float(slope[0, 2]) > 0
    assert torch.allclose(slope[s > 0], torch.zeros(int((s > 0).sum())).double(), atol=1e-3)


def test_a_strong_pull_leaves_everybody_at_the_common_weights() -> None:
    z, y = draws(4, 2, 10, 2, 3), torch.arange(20).view(2, 10) % 3
    s = stack_weights(z, y, torch.ones(2, 10), "class", torch.tensor([[0.3, 0.9]]), 1e6)
    assert torch.allclose(s, torch.tensor([0.3, 0.9]).expand(2, 2), atol=1e-3)


def test_a_client_that_measured_nothing_has_the_chance_of_the_federation() -> None:
    gains = torch.tensor([0.10, 0.12, 0.08, 0.11, 0.09, 0.10])
    common = common_gain(gains, torch.full((6,), 1e-4), 0.05)
    chance, gain = chance_positive(torch.zeros(1), torch.tensor([FAR]), common, torch.zeros(1))
    assert float(chance) > 0.95
    assert float(gain) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("clients", "mean", "scatter"), [(30, 0.0, 0.05), (10, 0.02, 0.03), (4, 0.0, 0.0), (4, 0.02, 0.1)]
)
def test_chances_are_kept_by_clients_drawn_at_random(clients: int, mean: float, scatter: float) -> None:
    """No more than a tenth deploy what makes them lose; a loss is only known because it is simulated."""
    g = torch.Generator().manual_seed(0)
    sure = lost = 0
    for _ in range(300):
        true = mean + scatter * torch.randn(clients, generator=g)
        variance = 0.03**2 * (0.5 + torch.rand(clients, generator=g))
        measured = true + variance.sqrt() * torch.randn(clients, generator=g)
        luck = torch.full((clients,), 0.01**2)
        chance, _ = chance_positive(measured, variance, common_gain(measured, variance, 0.05), luck)
        deployed = true + luck.sqrt() * torch.randn(clients, generator=g)
        sure += int((chance >= 0.9).sum())
        lost += int(((chance >= 0.9) & (deployed < 0)).sum())
    assert sure > 50
    assert lost <= 0.1 * 300 * clients
    if scatter:  # where gains differ, the chance that each is told is kept, too
        assert lost <= 0.1 * sure + 2 * (0.09 * sure) ** 0.5


def test_training_luck_of_small_parts_is_what_it_usually_is_and_of_large_ones_what_they_show() -> None:
    """A ratio of 1 is rows alone; with five rows in a part even 1.3 says next to nothing."""
    many = torch.ones(12)
    small, usual = (training_luck(f * many, 25.0 * many, 5.0 * many)[0] for f in (1.3, 1.0))
    assert usual < small < 0.03
    assert training_luck(many[:0], many[:0], many[:0])[0] < 0.03
    quiet, loud = (training_luck(f * many, 500.0 * many, 100.0 * many)[0] for f in (1.0, 4.0))
    assert quiet < 0.004
    assert 0.02 < loud < 0.06


def test_values_of_luck_have_its_mean() -> None:
    values = lognormal(torch.tensor([0.02]).double(), torch.tensor([0.0004]).double())
    assert float(values.mean()) == pytest.approx(0.02)
    assert float(values.min()) > 0
    assert float(values.median()) < 0.018  # a long tail to the right


Chances = dict[int, tuple[float, float]]


def answers(good: Chances, rows: int = 60, half: Chances | None = None) -> Federation:
    """What LOCAL and another voice say of the rows of each client, right with the given chances; three classes.

    `half`: with these, where they learned from half of the rows.
    """
    g = torch.Generator().manual_seed(1)
    x, y = [], []
    for own, other in (chances for k in good for chances in (good[k], (half or good)[k])):
        truth = torch.randint(3, (rows,), generator=g)
        voices = []
        for chance in (own, other):
            said = torch.where(torch.rand(rows, generator=g) < chance, truth, (truth + 1) % 3)
            voices.append((2.0 * torch.eye(3)[said]).log_softmax(-1))
        x.append(torch.stack(voices, 1))
        y.append(truth)
    parts = torch.cat([torch.arange(rows) * parts // rows for parts in (GUARD.parts, 2)]).repeat(len(good))
    train = Split(torch.cat(x), torch.cat(y), torch.arange(len(good) + 1) * 2 * rows, parts)
    none = Split(train.x[:0], train.y[:0], torch.zeros_like(train.starts))
    return Federation(train, none, none, ("a", "b", "c"))


MIXED = {0: (0.6, 0.95), 1: (0.6, 0.95), 2: (0.95, 0.4), 3: (0.9, 0.88), 4: (0.55, 0.9)}
PLAN = Plan(rounds=ROUNDS, evaluate_every=ROUNDS)


def decisions(how: Decision, clients: Clients, plan: Plan = PLAN) -> None:
    for _ in federate(decide(how, METRICS["accuracy"], "class"), clients, Weigh(len(how.voices)), plan):
        pass


def decided(how: Decision, samples: Federation, on: str = "loop", plan: Plan = PLAN) -> Tensor:
    with InProcess(samples, TRAINING, engine(on)) as clients:
        decisions(how, clients, plan)
        return clients.models(torch.arange(samples.clients))


@pytest.mark.parametrize("on", ["loop", "vectorised", "threads", "threads+vectorised"])
def test_who_is_better_off_alone_stays_alone_on_every_engine(on: str) -> None:
    rows = decided(GUARD, answers(MIXED), on)
    weights, worse, gain = rows[:, :2], rows[:, 2], rows[:, 3]
    assert weights[2].tolist() == [1.0, 0.0]  # the method would have cost it half of its answers
    assert worse[2] > 0.1  # with the stack, which it declined
    for k in (0, 1, 4):
        assert weights[k, 1] > weights[k, 0]
        assert worse[k] <= 0.1
        assert gain[k] > 0.1
    assert torch.allclose(rows, decided(GUARD, answers(MIXED)), atol=1e-4)


def test_where_everybody_gains_clearly_small_owners_leave_too() -> None:
    """24 rows each, right in 65 and 90 of 100: no owner's rows could tell, but everybody's together do."""
    rows = decided(GUARD, answers(dict.fromkeys(range(12), (0.65, 0.9)), rows=24))
    assert int((rows[:, 1] > 0.5).sum()) >= 11
    assert float(rows[:, 2].max()) <= 0.1


def test_where_everybody_loses_nobody_leaves() -> None:
    rows = decided(GUARD, answers(dict.fromkeys(range(12), (0.85, 0.6)), rows=24))
    assert int((rows[:, 0] == 1).sum()) == 12


def test_a_gain_that_falls_as_rows_grow_is_not_counted_on() -> None:
    """The same gains with all rows but a part; where LOCAL caught up on the way there, it goes on to do so."""
    now = dict.fromkeys(range(12), (0.8, 0.9))
    steady, falling = (decided(GUARD, answers(now, half=dict.fromkeys(now, h))) for h in ((0.8, 0.9), (0.5, 0.9)))
    assert int((steady[:, 0] == 1).sum()) < 3
    assert int((falling[:, 0] == 1).sum()) == 12
    assert float(falling[:, 2].min()) > 0.1  # the chances that were declined


def test_nothing_is_promised_where_nothing_is_known_of_further_rows() -> None:
    samples = answers(dict.fromkeys(range(12), (0.8, 0.9)))
    for k in range(12):
        samples.train.client(k)[0][60:] = torch.nan  # what was said of the halves
    assert decided(GUARD, samples)[:, 0].tolist() == [1.0] * 12


@pytest.mark.parametrize("parts", [2, 3, 5, 10])
@pytest.mark.parametrize("power", [0.1, 0.5, 1.0, 2.0])
def test_errors_that_fall_by_a_power_of_the_rows_fall_by_less_than_is_taken_off(parts: int, power: float) -> None:
    fewer = 0.25 if parts == 2 else 0.5
    half, most, all_rows = (rows**-power for rows in (fewer, 1 - 1 / parts, 1.0))
    assert most - all_rows < guard(("local", "fedavg"), parts=parts).further * (half - most)


def test_surer_owners_stay_alone_more_often() -> None:
    samples = answers(dict.fromkeys(range(8), (0.8, 0.83)))
    home = [int((decided(GUARD._replace(sure=s), samples)[:, 0] == 1).sum()) for s in (0.5, 0.9, 0.999)]
    assert home[0] <= home[1] <= home[2]
    assert home[0] < home[2] == 8


HONEST = {"gain": 0.1, "rows": 60.0, "variance": 0.2, "ratio": 1.5, "size": 12.0, "fall": 0.01, "halved": 60.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [("rows", -1e18), ("rows", 1e-18), ("variance", -1e18), ("ratio", -1e18), ("size", -1e18), ("halved", -1e18)],
)
def test_who_tells_what_cannot_be_decides_for_nobody_else(name: str, value: float) -> None:
    deciding = Deciding(GUARD, METRICS["accuracy"], "class")
    told = {n: torch.tensor([[x, x]]).repeat(4, 1) for n, x in HONEST.items()}
    told["gain"] = torch.tensor([[0.1, 0.2], [-0.1, 0.0], [0.05, 0.1], [0.3, 0.2]])
    state = {"s": torch.full((1, 2), 0.5), "best": torch.full((1, 2), 0.5), "lowest": torch.ones(1, 1)}
    state |= {n: torch.zeros(1, 2) for n in (*SHARED, *COMMON)}
    lying = {n: x.clone() for n, x in told.items()}
    lying[name][3] = value
    without = {n: x[:3] for n, x in told.items()}
    messages = [
        deciding.update(state, rows, Cohort(torch.arange(n), torch.full((n,), 1 / n), 4, ROUNDS, 0))[1]
        for rows, n in ((lying, 4), (without, 3))
    ]
    for n, x in messages[1].items():
        assert x.isfinite().all()
        assert torch.equal(messages[0][n], x), n


def test_one_client_cannot_carry_the_common_weights_to_where_no_loss_is_finite() -> None:
    deciding = Deciding(GUARD, METRICS["accuracy"], "class")
    state = {"s": torch.full((1, 2), 0.5), "best": torch.full((1, 2), 0.5), "lowest": torch.full((1, 1), 9.0)}
    state |= {n: torch.zeros(1, 2) for n in (*SHARED, *COMMON)}
    rows = {"loss": torch.ones(3, 1), "slope": torch.ones(3, 2), "curve": torch.eye(2).flatten().repeat(3, 1)}
    rows["curve"][1] = -1e18
    _, message = deciding.update(state, rows, Cohort(torch.arange(3), torch.full((3,), 1 / 3), 3, 1, 0))
    assert message["s"].isfinite().all()
    assert float(message["s"].max()) <= MOST


def test_voices_that_say_no_numbers_are_not_deployed() -> None:
    samples = answers(MIXED)
    samples.train.x[0, 1] = torch.nan  # client 0's
    rows = decided(GUARD, samples)
    assert rows[0, :2].tolist() == [1.0, 0.0]
    assert rows[1, 1] > 0.5
    assert decided(stack(("local", "fedavg")), samples)[0, :2].tolist() == [1.0, 0.0]


def test_rows_that_are_about_the_same_patient_count_as_one() -> None:
    """Each row five times, as five rows of one patient: the chances of the rows once; as five patients: others."""
    once = answers(dict.fromkeys(range(8), (0.7, 0.8)), rows=30)
    train = once.train
    five = torch.arange(len(train.y)).repeat_interleave(5)
    often = train.take(five, train.starts * 5)
    patients = replace(often, groups=torch.arange(len(train.y)).repeat_interleave(5))
    # Pulled hard to the common weights, the stack is the same: five times the rows would find other weights.
    how = GUARD._replace(strength=1e6)
    alone, as_one, as_five = (decided(how, replace(once, train=rows)) for rows in (train, patients, often))
    assert torch.allclose(as_one[:, 2:4], alone[:, 2:4], atol=1e-4)
    assert not torch.allclose(as_five[:, 2], alone[:, 2], atol=0.05)


def test_a_client_without_rows_follows_the_others() -> None:
    everybody = answers(dict.fromkeys(range(6), (0.5, 0.95)))
    starts = torch.cat([everybody.train.starts, everybody.train.starts[-1:]])
    train = replace(everybody.train, starts=starts)
    none = Split(train.x[:0], train.y[:0], torch.zeros_like(starts))
    rows = decided(GUARD, Federation(train, none, none, everybody.classes))
    assert rows[6, 1] > 0.5
    assert 0 < rows[6, 2] <= 0.1


def test_the_decision_has_the_same_bits_between_machines(tmp_path: Path) -> None:
    samples, how = answers(MIXED), decide(GUARD, METRICS["accuracy"], "class")
    plan = Plan(rounds=ROUNDS, evaluate_every=ROUNDS, participation=4)
    nodes = {
        k: Node(k, placed(only(samples, k), k, 5), TRAINING, how, Weigh(2), plan, tmp_path / str(k)) for k in range(5)
    }
    made_up = Split(
        torch.full((4, 2, 3), -1.0), torch.zeros(4, dtype=torch.int64), torch.tensor([0, 4]), torch.tensor([0, 1, 0, 1])
    )
    invented = placed(Federation(made_up, made_up, made_up, samples.classes), 0, 5)
    sent: list[int] = []

    def send(questions: dict[int, bytes]) -> dict[int, bytes]:
        replies = {k: nodes[k].answer(question) for k, question in questions.items()}
        sent.extend(len(reply) for reply in replies.values())
        return replies

    there = Remote(send, invented, TRAINING, "guard")
    with InProcess(samples, TRAINING, engine("loop")) as here:
        decisions(GUARD, here, plan)
        decisions(GUARD, there, plan)
        for a, b in zip(here.outputs("train"), there.outputs("train"), strict=True):
            assert torch.equal(a, b)
    there.close()
    for node in nodes.values():
        node.close()


def test_networks_that_answer_as_one() -> None:
    one, two = nn.Linear(4, 3), nn.Linear(4, 3)
    module, x = Voices([one, two]), draws(5, 7, 4)
    layout, own = Layout(module), Layout(one)
    pieces = [(own, own.read(one)), (own, own.read(two))]
    weigh = torch.tensor([[0.3, 0.9, 0.05, 0.1, 1.0]])
    layout.write(rows_together(pieces, weigh, layout)[0], module)
    wanted = 0.3 * one(x).log_softmax(-1) + 0.9 * two(x).log_softmax(-1)
    assert torch.allclose(module(x), wanted, atol=1e-6)
    alone = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]])  # a quantity's: outputs as they are
    layout.write(rows_together(pieces, alone, layout)[0], module)
    assert torch.equal(module(x), one(x))


@pytest.mark.parametrize("options", [{"sure": 1.0}, {"sure": 0.4}, {"parts": 1}, {"strength": 0.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"guard: {next(iter(options))} must"):
        guard(("local", "fedavg"), **options)  # type: ignore[arg-type]
