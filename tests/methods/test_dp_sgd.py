"""DP-SGD: single samples are clipped, the noise is as large as said, and nothing else of a sample gets out."""

import contextlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fairlead
from fairlead.catalogue import parse
from fairlead.clients import InProcess, Node, engine, only, placed
from fairlead.clients.wire import Ask, pack_ask, unpack_reply
from fairlead.core import FastNetwork, Federation, InputError, Layout, PlainNetwork, Plan, Sgd, Split, Task, Training
from fairlead.core.private import poisson, privately, rate, steps
from fairlead.functional.privacy import sample_epsilon
from fairlead.methods import METHODS
from fairlead.methods.dp_sgd import WORKS_WITH, dp_sgd
from fairlead.models import build
from fairlead.rounds import federate


def federation(*sizes: int, inputs: int = 3) -> Federation:
    draw = torch.Generator().manual_seed(0)
    n, starts = sum(sizes), torch.tensor([0, *sizes]).cumsum(0)
    split = Split(torch.randn(n, inputs, generator=draw), torch.arange(n) % 2, starts)
    return Federation(split, split, split, ("a", "b"))


def task_of(
    own: Federation,
    module: nn.Module,
    training: Training,
    network: type[FastNetwork] | type[PlainNetwork] = FastNetwork,
) -> Task:
    return Task(network(module, Layout(module)), own, list(range(own.clients)), training, round=1, seed=5)


def shortened(module: nn.Module, x: Tensor, y: Tensor, bound: float) -> Tensor:
    """The mean of the samples' gradients, each shortened: one after another, by autograd."""
    found = []
    for i in range(len(y)):
        loss = nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
        g = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
        found.append(g / max(1.0, float(g.norm()) / bound))
    return torch.stack(found).mean(0)


@pytest.mark.parametrize("network", [FastNetwork, PlainNetwork])
def test_a_step_is_the_mean_of_gradients_shortened_one_by_one(
    network: type[FastNetwork] | type[PlainNetwork],
) -> None:
    own = federation(6, 9)
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    bound, layout = 0.3, Layout(module)
    # A batch of all samples: each is drawn with chance one, so that the step is known.
    task = privately(task_of(own, module, Training(lr=0.5, batch_size=100), network), bound, noise=1e-9)
    w = layout.read(module)
    moved = (task.descend(w) - w) / -0.5
    for k in range(2):
        expected = shortened(module, *own.train.client(k), bound)
        assert torch.allclose(moved[k], expected, atol=1e-6)
        plain = shortened(module, *own.train.client(k), 1e9)
        assert not torch.allclose(moved[k], plain, atol=1e-3), "the bound must matter here"


def test_the_noise_is_as_large_as_said_and_new_in_every_step_round_and_client() -> None:
    own, module = federation(8, 8, inputs=2000), nn.Linear(2000, 2)
    w = Layout(module).read(module)
    training = Training(lr=1.0, batch_size=4)
    bound, noise = 0.01, 50.0
    one = Sgd(lr=1.0, steps=1, batch_size=4)
    task = privately(task_of(own, module, training), bound, noise)
    first, second = (task.descend(w, how=one) - w for _ in range(2))
    usual = noise * bound / 4  # on the sum, divided by the usual size of a batch
    assert float(first.std()) == pytest.approx(usual, rel=0.05)
    assert float((first - second).std()) == pytest.approx(usual * 2**0.5, rel=0.05)
    assert float((first[0] - first[1]).std()) == pytest.approx(usual * 2**0.5, rel=0.05)
    again = privately(task_of(own, module, training), bound, noise).descend(w, how=one) - w
    assert torch.equal(again, first), "the same secret, round and client draw the same"


def test_samples_come_by_chance_and_an_empty_batch_is_a_step_of_noise() -> None:
    own = federation(40, 3)
    how = Sgd(lr=1.0, epochs=50, batch_size=4)
    batches = list(poisson(own.train, [0, 1], how, secret=1, round=1, call=1))
    assert len(batches) == steps(how, 40) == 500
    counts = torch.stack(
        [(b.weight > 0).sum(1) if b.weight is not None else torch.tensor([b.y.shape[1]] * 2) for b in batches]
    )
    assert float(counts[:, 0].double().mean()) == pytest.approx(4.0, abs=0.3)
    assert float(counts[:, 0].double().var()) == pytest.approx(40 * 0.1 * 0.9, rel=0.2), "binomial, not a fixed size"
    assert rate(how, 3) == 1.0
    assert set(counts[:50, 1].tolist()) == {3}
    active = torch.stack([b.active for b in batches if b.active is not None])
    assert bool(active[:, 0].all()), "also where nothing was drawn"
    assert (counts[:, 0] == 0).any()
    assert active[:, 1, 0].tolist() == [1.0] * 50 + [0.0] * 450


def test_the_promise_is_the_accountants() -> None:
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting import pld, rdp

    event = accounting.PoissonSampledDpEvent(0.1, accounting.GaussianDpEvent(1.5))
    usual = rdp.RdpAccountant().compose(event, 400).get_epsilon(1e-5)
    assert usual <= sample_epsilon(1.5, {0.1: 400}, 1e-5) < 1.02 * usual
    assert sample_epsilon(1.5, {0.1: 400}, 1e-5) >= pld.PLDAccountant().compose(event, 400).get_epsilon(1e-5)
    assert sample_epsilon(1.5, {0.1: 200, 0.2: 100}, 1e-5) > sample_epsilon(1.5, {0.1: 200}, 1e-5)


def test_it_works_with_the_methods_that_it_names_and_no_other() -> None:
    digits = fairlead.scenario("rotated-digits", clients=2).build(0)
    worked = []
    for name in METHODS:
        if name in ("local", "fedbn"):  # sends nothing; needs other layers
            continue
        with contextlib.suppress(InputError):
            method = dp_sgd(parse(name).method, bound=1.0, noise=1.0)
            with InProcess(digits, Training(steps=1, batch_size=4), engine("loop")) as clients:
                assert len(list(federate(method, clients, build("mlp", (1, 8, 8), 10, 0), Plan(rounds=2)))) == 2
            worked.append(name)
    assert sorted(worked) == sorted(WORKS_WITH)
    with pytest.raises(InputError, match=r"fedpac uses samples in ways that \+dp-sgd does not cover"):
        parse("fedpac+dp-sgd")


def test_what_mixes_samples_is_refused() -> None:
    own = federation(6)
    for module, training, said in (
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), Training(), "BatchNorm"),
        (nn.Linear(3, 2), Training(balance=True), "balance"),
    ):
        with pytest.raises(InputError, match=said):
            privately(task_of(own, module, training), 1.0, 1.0)
    task = privately(task_of(own, nn.Linear(3, 2), Training()), 1.0, 1.0)
    w = torch.zeros(1, 8)
    for look in (task.data, task.class_counts, lambda: task.loss(w), lambda: task.outputs(w, "train")):
        with pytest.raises(InputError, match="samples themselves"):
            look()


def test_on_a_machine_of_its_own_the_noise_is_the_clients_secret(tmp_path: Path) -> None:
    own, module = federation(6, 6), nn.Linear(3, 2)
    w = Layout(module).read(module)

    def reply(name: str, folder: str) -> Tensor:
        method = parse(name).method
        node = Node(1, placed(only(own, 1), 1, 2), Training(), method, module, Plan(rounds=1), tmp_path / folder)
        answer = unpack_reply(node.answer(pack_ask(Ask("run", "train", 1, client=1), {"w": w})))
        node.close()
        return answer.rows["w"]

    assert torch.equal(reply("fedavg", "a"), reply("fedavg", "b"))
    first = reply("fedavg+dp-sgd", "a")
    assert torch.equal(first, reply("fedavg+dp-sgd", "a")), "a question that comes twice has the same answer"
    assert not torch.equal(first, reply("fedavg+dp-sgd", "b")), "the run's seed alone must not give the noise"
    assert (tmp_path / "a" / "secret").stat().st_mode & 0o077 == 0


def test_the_page_says_what_every_client_spends() -> None:
    pytest.importorskip("dp_accounting")
    own = {"clients": 3, "rounds": 2, "engine": "loop", "model": "logistic", "batch_size": 32}
    found = fairlead.compare(["fedavg+dp-sgd"], set={"dp-sgd": {"noise": 2.0}}, **own)  # type: ignore[arg-type]
    (note,) = [n for way in found.summary["findings"]["ways"] for n in way["notes"] if "of a sample" in n]
    size = int(fairlead.scenario("rotated-digits", clients=3).build(0).train.sizes[0])
    spent = sample_epsilon(2.0, {32 / size: 2 * 2 * -(-size // 32)}, 1e-5)  # two rounds of two epochs
    assert f"{spent:.3g} (0)" in note
