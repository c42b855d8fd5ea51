"""Every method through bytes, a federation of one and states on disk: the same bits as in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairlead import rounds
from fairlead.catalogue import Entry, parse
from fairlead.clients import Answer, Clients, InProcess, Node, Remote, engine, only, placed
from fairlead.clients.wire import Ask, Reply, pack, pack_ask, pack_reply, unpack_ask, unpack_reply
from fairlead.core import EngineError, Federation, Named, Plan, Split, Training
from fairlead.data import scenario
from fairlead.methods import METHODS
from fairlead.rounds import Round, Snapshot

SIZES = (26, 18, 13)
TRAINING = Training(lr=0.1, epochs=1, batch_size=8, momentum=0.5)
COMPOSED = ("fedrep+confree", "fedavg+ft", "fedavg+median")
Send = Callable[[dict[int, bytes]], Mapping[int, bytes]]


def digits(clients: int = len(SIZES)) -> Federation:
    times = {k: SIZES[k] / 12 for k in range(clients)}
    wanted = scenario("rotated-digits", split="iid", clients=clients, samples=(12, 6, 7), big=times, angle=60.0)
    return wanted.build(seed=0)


FEDERATION = digits()


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(64, 12), nn.LayerNorm(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 10)]
        return nn.Sequential(nn.Flatten(), *layers)


def made_up(clients: int) -> Federation:
    """A few samples that nobody has, as client 0's."""
    split = Split(torch.zeros(4, 1, 8, 8), torch.arange(4), torch.tensor([0, 4]))
    return placed(Federation(split, split, split, FEDERATION.classes), 0, clients)


def at_nodes(entry: Entry, plan: Plan, folder: Path, data: Federation = FEDERATION) -> dict[int, Node]:
    """A node for each client, each with its own samples alone."""
    return {
        k: Node(k, placed(only(data, k), k, data.clients), TRAINING, entry.method, network(), plan, folder / str(k))
        for k in range(data.clients)
    }


def remote(send: Send, clients: int = len(SIZES)) -> Remote:
    return Remote(send, made_up(clients), TRAINING, "test")


def directly(nodes: Mapping[int, Node]) -> Send:
    return lambda questions: {k: nodes[k].answer(question) for k, question in questions.items()}


def in_process(data: Federation = FEDERATION) -> InProcess:
    return InProcess(data, TRAINING, engine("loop"))


Happened = list[tuple[Round, Snapshot]]


def go(name: str, clients: Clients, plan: Plan, snapshot: Snapshot | None = None) -> Happened:
    entry = parse(name)
    return list(rounds.federate(entry.method, clients, network(), plan, average=entry.average, snapshot=snapshot))


def same_rows(a: Named, b: Named) -> None:
    assert a.keys() == b.keys()
    for n in a:
        assert torch.equal(a[n].nan_to_num(7e7), b[n].nan_to_num(7e7)), n


def same(a: Happened, b: Happened) -> None:
    """All that was reported, and the server's state and message, bit for bit; nodes do not tell their passes."""
    assert len(a) == len(b) > 0
    blank: dict[str, Any] = {"seconds": 0, "scores": [], "absent": {}, "passes": 0}
    for (one, now), (other, then) in zip(a, b, strict=True):
        assert one._replace(**blank) == other._replace(**blank)
        assert one.absent.keys() == other.absent.keys()
        assert len(one.scores) == len(other.scores)
        for x, y in zip(one.scores, other.scores, strict=True):
            assert (x.model, x.split) == (y.model, y.split)
            same_rows(x.values, y.values)
        same_rows(now.server, then.server)
        same_rows(now.message, then.message)
        assert now.best == then.best


def same_outputs(a: Clients, b: Clients) -> None:
    for x, y in zip(a.outputs("test"), b.outputs("test"), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("participation", [1.0, 2])
@pytest.mark.parametrize("name", [*METHODS, *COMPOSED])
def test_a_method_has_the_same_bits_on_nodes_as_in_one_process(name: str, participation: float, tmp_path: Path) -> None:
    """Every question is sent twice, as a transport that never saw the first answer would do."""
    plan = Plan(rounds=3, participation=participation, evaluate_every=2, select="validation", evaluate_global=True)
    nodes = at_nodes(parse(name), plan, tmp_path)

    def send(questions: dict[int, bytes]) -> dict[int, bytes]:
        first, second = ({k: nodes[k].answer(q) for k, q in questions.items()} for _ in range(2))
        assert first == second
        return second

    here, there = in_process(), remote(send)
    same(go(name, there, plan), go(name, here, plan))
    same_outputs(there, here)


@pytest.mark.parametrize("name", ["fedavg", "fedora", "fedfomo", "pfedhn", "ditto"])
def test_newcomers_have_the_same_bits_on_nodes(name: str, tmp_path: Path) -> None:
    plan = Plan(rounds=2, evaluate_every=2, unseen=0.34, newcomer_epochs=2)
    here, there = in_process(), remote(directly(at_nodes(parse(name), plan, tmp_path)))
    same(go(name, there, plan), go(name, here, plan))
    same_outputs(there, here)


@pytest.mark.parametrize("name", ["scaffold", "ditto", "local"])
def test_a_server_that_starts_again_from_an_old_checkpoint_changes_nothing(name: str, tmp_path: Path) -> None:
    plan = Plan(rounds=7, participation=2, evaluate_every=2, select="validation")
    entry = parse(name)
    nodes = at_nodes(entry, plan, tmp_path)
    expected = go(name, in_process(), plan)
    first = rounds.federate(entry.method, remote(directly(nodes)), network(), plan, average=entry.average)
    held: list[Snapshot] = []
    for happened, now in islice(first, 5):  # the server dies after five rounds; its last checkpoint is of the second
        if happened.round <= 2:
            saved = now.clients()
            held.append(replace(now, clients=lambda saved=saved: saved))  # type: ignore[misc]
    again, here = remote(directly(at_nodes(entry, plan, tmp_path))), in_process()
    same(go(name, again, plan, held[-1]), expected[2:])
    go(name, here, plan)
    same_outputs(again, here)


class Absent(InProcess):
    """Client 1 takes no part in round 2."""

    def train(self, ids: Tensor, round: int, message: Named) -> Answer:
        if round != 2:
            return super().train(ids, round, message)
        return super().train(ids[ids != 1], round, message)._replace(absent={1: "answer did not come"})


HOW = ["not asked", "answer lost", "not a number", "other shape", "old answer", "noise", "too large"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["scaffold", "ditto", "fedora"])
def test_a_client_without_a_sound_answer_is_as_if_it_had_not_been_asked(name: str, how: str, tmp_path: Path) -> None:
    plan = Plan(rounds=4, evaluate_every=4)
    nodes = at_nodes(parse(name), plan, tmp_path)
    last: dict[int, bytes] = {}

    def spoilt(reply: Reply) -> bytes:
        entry = next(iter(reply.rows))
        row = reply.rows[entry]
        changed = {
            "not a number": reply.rows | {entry: row * torch.nan},
            "other shape": reply.rows | {entry: torch.cat([row, row])},
        }
        sent = {"noise": b"noise", "too large": bytes(1_000_000)}
        return sent[how] if how in sent else pack_reply(reply._replace(rows=changed[how]))

    def send(questions: dict[int, bytes]) -> dict[int, bytes]:
        ask, _ = unpack_ask(next(iter(questions.values())))
        bad = ask.what == "train" and ask.round == 2
        came = {k: nodes[k].answer(q) for k, q in questions.items() if not (bad and how == "not asked" and k == 1)}
        if bad and how in ("not a number", "other shape", "noise", "too large"):
            came[1] = spoilt(unpack_reply(came[1]))
        elif bad and how == "old answer":
            came[1] = last[1]
        elif bad and how == "answer lost":
            del came[1]
        last.update(came)
        return came

    found = go(name, remote(send), plan)
    assert [list(r.absent) for r, _ in found] == [[], [1], [], []]
    same(found, go(name, Absent(FEDERATION, TRAINING, engine("loop")), plan))


def lying(nodes: Mapping[int, Node], what: str, **values: float) -> Send:
    """Client 1 answers a question with other values."""

    def send(questions: dict[int, bytes]) -> dict[int, bytes]:
        came = {k: nodes[k].answer(q) for k, q in questions.items()}
        reply = unpack_reply(came[1])
        if reply.ask.what == what:
            rows = {n: torch.full_like(x, values[n]) if n in values else x for n, x in reply.rows.items()}
            came[1] = pack_reply(reply._replace(rows=rows))
        return came

    return send


@pytest.mark.parametrize("count", [-50, 2**62])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_numbers_of_samples_that_cannot_be_are_refused(split: str, count: int, tmp_path: Path) -> None:
    plan = Plan(rounds=1)
    nodes = at_nodes(parse("fedavg"), plan, tmp_path)
    with pytest.raises(EngineError, match=f"client 1 says it has {count} {split} samples, expected 0 to"):
        go("fedavg", remote(lying(nodes, "greet", **{f"samples.{split}": count})), plan)


@pytest.mark.parametrize(("metric", "value"), [("accuracy", 1e30), ("accuracy", -0.5), ("loss", -1e30)])
def test_scores_that_cannot_be_are_set_aside_with_the_reason(metric: str, value: float, tmp_path: Path) -> None:
    plan = Plan(rounds=2, evaluate_every=2, select="loss")
    noticed: list[tuple[int, str]] = []
    send = lying(at_nodes(parse("fedavg"), plan, tmp_path), "score", **{metric: value})
    there = Remote(send, made_up(3), TRAINING, "test", lambda k, ask, why: noticed.append((k, why)))
    ((_, _), (last, _)) = go("fedavg", there, plan)
    assert last.scores[0].values[metric].isnan().tolist() == [False, True, False]
    ((client, why),) = noticed
    assert client == 1
    assert f"answer has a score that cannot be ({metric} {value:g}, expected 0" in why


def test_a_round_is_one_exchange_and_who_misses_it_misses_that_round_alone(tmp_path: Path) -> None:
    plan = Plan(rounds=4, evaluate_every=1)
    nodes = at_nodes(parse("ditto"), plan, tmp_path)
    asked: list[tuple[str, int, list[int]]] = []
    noticed: list[tuple[int, str, int, str]] = []

    def send(questions: dict[int, bytes]) -> dict[int, bytes | str]:
        ask, _ = unpack_ask(next(iter(questions.values())))
        asked.append((ask.what, ask.round, sorted(questions)))
        came: dict[int, bytes | str] = {k: nodes[k].answer(q) for k, q in questions.items()}
        return came | ({1: "node is gone"} if (ask.what, ask.round) == ("score", 2) else {})

    there = Remote(
        send, made_up(3), TRAINING, "test", lambda k, ask, why: noticed.append((k, ask.what, ask.round, why))
    )
    found = go("ditto", there, plan)
    everybody = [0, 1, 2]
    scores = [("score", t, everybody) for t in range(1, 5)]
    assert asked == [("greet", 0, everybody), ("train", 1, everybody), *scores]
    assert [list(r.absent) for r, _ in found] == [[], [], [1], []]
    assert noticed == [(1, "score", 2, "node is gone")]
    accuracies = [r.scores[0].values["accuracy"].isnan().tolist() for r, _ in found]
    assert accuracies[1] == [False, True, False]
    assert accuracies[3] == [False, False, False]


def test_a_client_that_diverges_on_its_node_is_left_out_as_in_one_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = FEDERATION.train.x.clone()
    x[: SIZES[0]] = torch.nan
    data = replace(FEDERATION, train=replace(FEDERATION.train, x=x))
    plan = Plan(rounds=3, evaluate_every=3)
    for name in ("ditto", "local"):
        found = go(name, remote(directly(at_nodes(parse(name), plan, tmp_path / name, data))), plan)
        expected = go(name, in_process(data), plan)
        if name == "ditto":
            same(found, expected)
            assert "left out clients [0], whose update is NaN or infinite" in caplog.text
        for a, b in zip(found[-1][0].scores, expected[-1][0].scores, strict=True):
            same_rows(a.values, b.values)


def test_local_trains_alone_between_evaluations(tmp_path: Path) -> None:
    plan = Plan(rounds=6, participation=2, evaluate_every=3)
    nodes, asked = at_nodes(parse("local"), plan, tmp_path), []

    def send(questions: dict[int, bytes]) -> Mapping[int, bytes]:
        asked.append(unpack_ask(next(iter(questions.values())))[0].what)
        return directly(nodes)(questions)

    here = in_process()
    same(go("local", remote(send), plan), go("local", here, plan))
    assert asked == ["greet", "score", "score"]


def test_a_node_keeps_no_more_files_than_it_may_need(tmp_path: Path) -> None:
    plan = Plan(rounds=8, evaluate_every=2)
    go("ditto", remote(directly(at_nodes(parse("ditto"), plan, tmp_path))), plan)
    names = sorted(path.name for path in (tmp_path / "0" / "test").iterdir())
    assert names == [f"model-{t:09d}.safetensors" for t in (6, 8)] + [f"state-{t:09d}.safetensors" for t in (7, 8)]


def test_a_node_says_what_is_wrong_with_a_question(tmp_path: Path) -> None:
    plan = Plan(rounds=2)
    node = at_nodes(parse("ditto"), plan, tmp_path)[1]

    def refused(ask: Ask) -> str:
        return unpack_reply(node.answer(pack_ask(ask, {}))).refused

    assert "a message for client 2 came to client 1" in refused(Ask("test", "greet", client=2))
    assert "this client has no state of round 9 of run test" in refused(Ask("test", "train", 10, client=1, base=9))
    assert "this client has no model of round 4" in refused(Ask("test", "outputs", 4, client=1))
    assert "run '../test' is no name for a folder" in refused(Ask("../test", "greet", client=1))
    with pytest.raises(EngineError, match="message of 5 bytes is none of fairlead's"):
        node.answer(b"noise")
    with pytest.raises(EngineError, match=r"has no question that fairlead knows.*what"):
        node.answer(pack({}, '[{"run": "test", "what": "dance"}, ""]'))


@pytest.mark.parametrize("without", [[1], [0, 1, 2]])
def test_clients_without_validation_samples_are_scored_as_in_one_process(without: list[int], tmp_path: Path) -> None:
    sizes = FEDERATION.validation.sizes
    chosen = torch.repeat_interleave(~torch.isin(torch.arange(3), torch.tensor(without)), sizes)
    sizes = sizes.index_fill(0, torch.tensor(without), 0)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    validation = Split(FEDERATION.validation.x[chosen], FEDERATION.validation.y[chosen], starts)
    data = replace(FEDERATION, validation=validation)
    plan = Plan(rounds=2, evaluate_every=1)
    found = go("ditto", remote(directly(at_nodes(parse("ditto"), plan, tmp_path, data))), plan)
    assert len(found[-1][0].scores) == (1 if len(without) == 3 else 2)
    same(found, go("ditto", in_process(data), plan))


def test_a_run_cannot_begin_without_somebody(tmp_path: Path) -> None:
    plan = Plan(rounds=2)
    nodes = at_nodes(parse("fedora"), plan, tmp_path)

    def send(questions: dict[int, bytes]) -> dict[int, bytes]:
        return {k: nodes[k].answer(q) for k, q in questions.items() if k != 2}

    with pytest.raises(EngineError, match="client 2 must answer before the run can go on, but its answer did not come"):
        go("fedora", remote(send), plan)
