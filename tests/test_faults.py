"""Clients that fail, attack or send nonsense: the others go on, and it is said what happened."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import fairlead
from fairlead.attacks import ATTACKS, Attack, attacked, poisoned
from fairlead.catalogue import COVERED, parse
from fairlead.clients import InProcess, engine
from fairlead.clients.exchange import NOT_FINITE, unsound
from fairlead.core import Cohort, DivergedError, Federation, InputError, Layout, Named, Plan, Split, Task
from fairlead.core.faults import Faults
from fairlead.core.training import Training
from fairlead.core.types import Target
from fairlead.functional.privacy import epsilon
from fairlead.functional.robust import far_out
from fairlead.methods import METHODS
from fairlead.models import build
from fairlead.rounds import Round, federate
from fairlead.runs.files import read_parts
from fairlead.servers import dp

SMALL: dict[str, Any] = {"clients": 6, "rounds": 3, "evaluate_every": 3, "engine": "loop", "model": "logistic"}
TRAINING = Training(lr=0.05, batch_size=16)


@cache
def digits(clients: int = 8) -> Federation:
    return fairlead.scenario("rotated-digits", clients=clients).build(0)


def small(federation: Federation) -> torch.nn.Module:
    return build("mlp", tuple(federation.train.x.shape[1:]), federation.outputs, 0)


def trained(
    name: str,
    federation: Federation,
    attack: Attack | None = None,
    rounds: int = 3,
    faults: str = "",
    training: Training = TRAINING,
) -> list[Round]:
    entry = parse(name)
    method = entry.method if attack is None else attacked(entry.method, attack, federation.clients, 0)
    given = federation if attack is None else poisoned(federation, attack, 0)
    module = small(federation)
    plan = Plan(rounds=rounds, evaluate_every=rounds, faults=Faults.of(faults))
    with InProcess(given, training, engine("vectorised")) as clients:
        return [happened for happened, _ in federate(method, clients, module, plan, average=entry.average)]


def honest(rounds: list[Round], attack: Attack, clients: int) -> float:
    hostile = attack.hostile(clients, 0)
    accuracy = next(s for s in rounds[-1].scores if s.split == "test").values["accuracy"]
    return float(accuracy[[k for k in range(clients) if k not in hostile]].mean())


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("local", "fedbn")])  # needs other layers
def test_one_huge_reply_costs_its_sender(name: str) -> None:
    (bad,) = Attack("huge", 0.2, 1e30).hostile(5, 0)
    found = trained(name, digits(5), Attack("huge", 0.2, 1e30), rounds=2)
    assert [list(r.absent) for r in found] == [[bad], [bad]]
    others = [k for k in range(5) if k != bad]
    assert all(bool(s.values["loss"][others].isfinite().all()) for s in found[-1].scores)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep", "fedamp", "pfedhn"])
def test_one_client_with_samples_in_a_wrong_unit_costs_itself(name: str) -> None:
    federation, attack = digits(), Attack("wrong-unit", 1 / 8, 1e4)
    (bad,) = attack.hostile(8, 0)
    usual, found = trained(name, federation, Attack("scale", 1 / 8, 1.0)), trained(name, federation, attack)
    assert all(set(r.absent) <= {bad} for r in found), "an honest client was left out"
    assert honest(found, attack, 8) > honest(usual, attack, 8) - 0.08
    assert not any(r.absent for r in usual)


@pytest.mark.parametrize("name", ["fedavg", "fedpac", "ditto", "fedamp"])
def test_a_client_without_validation_samples_is_scored_on_the_others(name: str) -> None:
    federation = digits(4)
    split = federation.validation
    a, b = int(split.starts[2]), int(split.starts[3])
    keep = torch.cat([torch.arange(a), torch.arange(b, len(split.y))])
    starts = split.starts - torch.tensor([0, 0, 0, b - a, b - a])
    found = trained(name, replace(federation, validation=Split(split.x[keep], split.y[keep], starts)), rounds=1)
    scored = {s.split: s.values["loss"].isnan().tolist() for s in found[-1].scores}
    assert scored == {"validation": [False, False, True, False], "test": [False] * 4}


def test_a_reply_far_outside_is_set_aside_with_the_reason_in_the_records(tmp_path: Path) -> None:
    fairlead.compare(["fedavg"], out=tmp_path, attack="scale:0.17:1e6", **SMALL | {"rounds": 2, "evaluate_every": 1})
    rounds = read_parts(tmp_path / "runs" / "fedavg-seed0" / "rounds.parquet").to_pydict()
    assert rounds["left_out"] == [1, 1]
    ((client, why),) = json.loads(rounds["reasons"][0]).items()
    assert int(client) in range(6)
    assert "far outside what the others send ('w' is 1e+06 times as long as usual)" in why
    notes = json.loads((tmp_path / "summary.json").read_text())["findings"]["ways"][-1]["notes"]
    assert any("hostile" in note for note in notes)
    assert any("2 replies of clients were left out" in note for note in notes)


@pytest.mark.parametrize("clients", [2, 3, 4])
def test_in_a_tiny_federation_nobody_is_called_unusual(clients: int) -> None:
    lengths = torch.tensor([1.0, 2.0, 3.0, 1e12])[-clients:]
    assert not far_out(lengths).any()
    attack = Attack("scale", 0.2, 1e3)
    assert not any(r.absent for r in trained("fedavg", digits(clients), attack, rounds=1))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep", "fedamp", "fedora"])
@pytest.mark.parametrize("clients", [3, 4])
def test_one_huge_reply_of_three_or_four_costs_its_sender(name: str, clients: int) -> None:
    attack = Attack("huge", 1 / clients, 1e12)
    (bad,) = attack.hostile(clients, 0)
    found = trained(name, digits(clients), attack, rounds=2)
    assert [list(r.absent) for r in found] == [[bad], [bad]]
    others = [k for k in range(clients) if k != bad]
    assert all(bool(s.values["loss"][others].isfinite().all()) for s in found[-1].scores)


def test_of_few_replies_a_long_one_takes_part_where_the_others_have_hardly_anything_to_learn() -> None:
    rows, message = {"w": torch.tensor([[1e-9], [1e-9], [1.0]])}, {"w": torch.tensor([[5.0]])}
    assert unsound(torch.arange(3), {}, rows, message) == {}
    rows["w"][2] = 1e3
    assert list(unsound(torch.arange(3), {}, rows, message)) == [2]


def test_numbers_whose_square_overflows_are_not_finite_even_from_one_of_two() -> None:
    attack = Attack("huge", 0.4, 1e30)
    (happened,) = trained("fedavg", digits(2), attack, rounds=1)
    assert list(happened.absent.values()) == [NOT_FINITE]


def test_far_out_needs_thirty_times_and_six_deviations() -> None:
    usual = torch.tensor([1.0, 1.1, 0.9, 1.0, 1.2, 1.0])
    for times, expected in ((27.0, False), (33.0, True)):
        assert bool(far_out(torch.cat([usual, torch.tensor([times])]))[-1]) is expected
    spread = torch.tensor([1e-4, 1e-2, 1.0, 1e2, 1e4])
    assert not far_out(spread).any()
    assert not far_out(torch.tensor([0.0] * 8 + [5.0, 1e9])).any(), "of two that are not zero nothing can be said"


def test_who_goes_over_many_more_batches_may_go_further() -> None:
    """Client 18 of imbalanced Rotated MNIST has 100 times the samples, and goes 800 times as far with momentum."""
    rows = {"w": torch.cat([torch.ones(8, 3), torch.full((1, 3), 800.0)])}
    work = torch.tensor([2] * 8 + [200])
    ids = torch.arange(9)
    assert unsound(ids, {}, rows, {}, work) == {}
    assert list(unsound(ids, {}, rows, {}, torch.full_like(work, 2))) == [8]
    # Who claims no end of batches may still not go anywhere.
    far = {"w": torch.cat([torch.ones(8, 3), torch.full((1, 3), 1e9)])}
    assert list(unsound(ids, {}, far, {}, torch.tensor([2] * 8 + [10**12]))) == [8]
    # Fewer batches than usual are no reason to suspect anybody.
    models = {"theta": torch.ones(9, 3)}
    assert unsound(ids, {}, models, {}, torch.tensor([1] + [500] * 8)) == {}


def test_an_honest_client_with_a_hundred_times_the_samples_takes_part() -> None:
    whole = digits(6)
    train = whole.train
    sizes = [4, 4, 4, 4, 4, 400]
    rows = [int(train.starts[k]) + torch.arange(n) % int(train.sizes[k]) for k, n in enumerate(sizes)]
    index, starts = torch.cat(rows), torch.tensor([0, *sizes]).cumsum(0)
    unequal = replace(whole, train=Split(train.x[index], train.y[index], starts))
    training = Training(lr=0.05, epochs=1, batch_size=4, momentum=0.9)
    for name in ("fedavg", "fedrep", "scaffold"):
        found = trained(name, unequal, rounds=2, training=training)
        assert not any(r.absent for r in found)


def test_a_greeting_that_is_not_finite_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    entry = parse("fedora")
    usual = entry.method.hello
    assert usual is not None

    def hello(task: Task) -> Named:
        subspace = usual(task)["subspace"].clone()
        subspace[[i for i, k in enumerate(task.ids) if k == 2]] = torch.nan
        return {"subspace": subspace}

    federation = digits(5)
    module = build("logistic", tuple(federation.train.x.shape[1:]), federation.outputs, 0)
    with InProcess(federation, Training(), engine("loop")) as clients:
        method = entry.method._replace(hello=hello)
        found = [r for r, _ in federate(method, clients, module, Plan(rounds=2, evaluate_every=2))]
    assert "greeting: clients [2] sent NaN or infinity as 'subspace'" in caplog.text
    assert bool(found[-1].scores[0].values["loss"].isfinite().all())


def test_faults_are_drawn_from_the_seed_and_said() -> None:
    faults = Faults.of("dropout=0.3,stragglers=0.4,late=0.25@3,crash=0.25@5")
    first = [faults.absent(list(range(8)), 8, t, seed=1) for t in range(1, 8)]
    assert first == [faults.absent(list(range(8)), 8, t, seed=1) for t in range(1, 8)]
    assert first != [faults.absent(list(range(8)), 8, t, seed=2) for t in range(1, 8)]
    reasons = [set(a.values()) for a in first]
    assert sum("has not joined yet" in why for why in first[0].values()) == 2
    assert not any("has not joined yet" in why for why in reasons[2])
    gone = {k for k, why in first[4].items() if "crashed" in why}
    assert len(gone) == 2
    assert all(gone <= set(a) for a in first[4:])
    assert any("after the deadline" in why for a in reasons for why in a)
    assert Faults.of("").absent(list(range(8)), 8, 1, 0) == {}


def test_a_round_that_nobody_answers_changes_nothing() -> None:
    rounds = trained("fedavg", digits(3), faults="crash=1@2", rounds=3)
    assert [len(r.absent) for r in rounds] == [0, 3, 3]
    assert rounds[1].bytes_up == 0


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fedbn"])
def test_every_method_goes_on_with_clients_that_fail(name: str) -> None:
    found = trained(name, digits(5), faults="dropout=0.4,crash=0.2@2,late=0.2@2", rounds=2)
    assert any(r.absent for r in found)
    assert bool(found[-1].scores[0].values["loss"].isfinite().all())


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"faults": "drop=0.1"}, "faults: 'drop' is unknown; did you mean 'dropout'"),
        ({"faults": "dropout=2"}, "expected a share from 0 to 1"),
        ({"faults": "crash=0.1"}, "say in which round"),
        ({"faults": "dropout=0.1@3"}, "expected NAME=SHARE"),
        ({"faults": "dropout=x"}, "is no number"),
        ({"attack": "sign-flop:0.1"}, "did you mean 'sign-flip'"),
        ({"attack": "sign-flip"}, "expected KIND:SHARE"),
        ({"attack": "sign-flip:1.5"}, "must lie in"),
        ({"attack": "sign-flip:0.1:2:3"}, "nothing after it"),
    ],
)
def test_a_misspelt_fault_or_attack_is_one_sentence(setting: dict[str, str], said: str) -> None:
    with pytest.raises(InputError) as error:
        fairlead.compare(["fedavg"], **SMALL, **setting)  # type: ignore[arg-type]
    assert said in str(error.value)


@pytest.mark.parametrize("kind", list(ATTACKS))
def test_attacks_change_what_hostile_clients_send_and_nothing_else(kind: str) -> None:
    federation = digits(4)
    attack = Attack(kind, 0.25, ATTACKS[kind])
    (bad,) = attack.hostile(4, 0)
    sent: dict[str, torch.Tensor] = {}
    for which in ("usual", "attacked"):
        method = parse("fedavg").method
        method = attacked(method, attack, 4, 0) if which == "attacked" else method
        given = poisoned(federation, attack, 0) if which == "attacked" else federation
        module = build("logistic", (1, 8, 8), 10, 0)
        with InProcess(given, Training(), engine("loop")) as clients:
            clients.start(method, module, Plan(rounds=1))
            pool = clients._running()
            params = Layout(module).read(module)
            sent[which] = pool.map(method.client, torch.arange(4), 1, {}, {"w": params})[1]["w"]
    others = [k for k in range(4) if k != bad]
    assert torch.equal(sent["usual"][others], sent["attacked"][others])
    assert not torch.equal(sent["usual"][bad], sent["attacked"][bad])


def test_the_control_is_neither_attacked_nor_failing(tmp_path: Path) -> None:
    plain = fairlead.compare(["fedavg"], **SMALL)
    hard = fairlead.compare(["fedavg"], attack="label-flip:0.3", faults="dropout=0.3", **SMALL)
    methods = plain.summary["methods"], hard.summary["methods"]
    assert methods[0]["local"]["clients"] == methods[1]["local"]["clients"]
    assert methods[0]["fedavg"]["clients"] != methods[1]["fedavg"]["clients"]


def test_attacks_on_labels_are_refused_where_the_labels_are_times() -> None:
    one = Split(torch.zeros(4, 2), torch.tensor([[1.0, 1.0]] * 4), torch.tensor([0, 2, 4]))
    times = Federation(one, one, one, (), target=Target(survival=True))
    with pytest.raises(InputError, match="attack 'label-flip' changes labels, and the target is a time until an event"):
        poisoned(times, Attack.of("label-flip:0.5"), 0)
    assert torch.equal(poisoned(times, Attack.of("wrong-unit:0.5"), 0).train.y, one.y)


def test_dp_covers_all_that_is_sent() -> None:
    federation = digits(3)
    module = build("mlp", (1, 8, 8), 10, 0)
    for name in COVERED:
        method = parse(name).method
        assert method.hello is None
        whole = module if method.wrap is None else method.wrap(build("mlp", (1, 8, 8), 10, 0))
        layout = Layout(whole)
        with InProcess(federation, Training(), engine("loop")) as clients:
            clients.start(method, whole, Plan(rounds=1))
            state, message = method.init(layout.read(whole), layout)
            del state
            answer = clients.train(torch.arange(3), 1, message)
        assert answer.rows.keys() == method.averaged(layout).keys(), name
    with pytest.raises(InputError, match=r"scaffold sends more than \+dp covers"):
        parse("scaffold+dp")


def test_dp_clips_all_entries_together_and_adds_the_noise_it_says() -> None:
    rows = {"a": torch.full((4, 3000), 5.0), "b": torch.full((4, 3000), -5.0)}
    cohort = Cohort(torch.arange(4), torch.full((4,), 0.25), 4, 1, 0)
    quiet = dp(bound=2.0, noise=1e-6).update({}, rows, cohort)[1]
    assert float(torch.cat([quiet["a"], quiet["b"]], 1).norm()) == pytest.approx(2.0, rel=1e-3)
    loud = dp(bound=2.0, noise=3.0).update({}, rows, cohort)[1]
    assert float((loud["a"] - quiet["a"]).std()) == pytest.approx(3.0 * 2.0 / 4, rel=0.05)
    again = dp(bound=2.0, noise=3.0).update({}, rows, cohort._replace(round=2))[1]
    assert not torch.equal(loud["a"], again["a"])


def test_the_privacy_budget_is_what_the_accountant_says() -> None:
    pytest.importorskip("dp_accounting")
    one = epsilon(noise=1.0, rounds=1, clients=12, cohort=12, delta=1e-5)
    assert 4.0 < one < 5.6  # Gaussian mechanism: 4.38 exactly, a little more by Rényi accounting
    assert epsilon(1.0, 40, 12, 12, 1e-5) > 5 * one
    assert epsilon(2.0, 100, 1000, 10, 1e-5) < epsilon(2.0, 100, 1000, 100, 1e-5)


@pytest.mark.parametrize(("stage", "option"), [("fedadam", {"tau": 1e-308}), ("scaled", {"factor": 1e308})])
def test_a_server_whose_last_step_overflows_is_one_sentence(stage: str, option: dict[str, float]) -> None:
    with pytest.raises(DivergedError, match="no client's model has a finite loss"):
        fairlead.compare([f"fedavg+{stage}"], set={stage: option}, **SMALL | {"rounds": 1, "evaluate_every": 1})
