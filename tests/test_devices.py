"""Every method, stage and evaluation on the `meta` device, where a stray CPU tensor or a read of a value raises.

No GPU is needed: a tensor on `meta` has a shape and no values. What reads values on purpose goes through
`fairlead.core.device.on_host`; who may do so, and why, is listed here.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import fairlead
from fairlead.clients import InProcess, engine, wrapped
from fairlead.core import Cohort, FastNetwork, Federation, InputError, Layout, Named, Plan, Split, Task, Training
from fairlead.core.device import find_device
from fairlead.methods import METHODS
from fairlead.rounds import assemble, federate
from fairlead.servers import STAGES

META = torch.device("meta")
SIZES = (9, 5, 7)

# Clients that read values on the host, and why.
CLIENT_READS = {
    "fedala": "the search for weights stops by its own losses",
    "fedfomo": "whether a client has anything to mix decides what is computed",
}
# Greetings, before the first round.
GREETING_READS = dict.fromkeys(("fedora", "neighbours"), "a decomposition of the samples, once")
# Servers that do, once a round or less.
SERVER_READS = {
    "fedpac": "small least-squares problems",
    "fedamp": "attention from the Gram matrix",
    "fesem": "k-means, and the cluster of every client",
    "fedfomo": "whose models a client is sent next",
    "pfedhn": "the hypernetwork is drawn by the content of the first model",
    "plgu-ghn": "as pfedhn",
    "cfl": "whether a cluster is settled and divides",
}
FIRST_READS = {"ifca": "further initial models are drawn on the host"}
STAGE_READS = {
    "confree": "a quadratic problem of the clients",
    "pcgrad": "projections in the Gram matrix",
    "cagrad": "a small convex problem",
    "krum": "distances from the Gram matrix",
}


class Reads:
    """Counts reads on the host and answers with ones; within local training a read is an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self._training = 0, False
        descend = Task.descend

        def cpu(x: Tensor) -> Tensor:
            if x.device != META:
                return x
            assert not self._training, "local training waits for the device"
            self.count += 1
            return torch.ones(x.shape, dtype=x.dtype)

        def watched(task: Task, *args: object, **more: object) -> Tensor:
            self._training = True
            try:
                return descend(task, *args, **more)  # type: ignore[arg-type]
            finally:
                self._training = False

        monkeypatch.setattr(Tensor, "cpu", cpu)
        monkeypatch.setattr(Task, "descend", watched)

    def taken(self) -> bool:
        """Whether there were any since the last call."""
        found, self.count = self.count > 0, 0
        return found


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 3, 2), nn.Flatten(), nn.ReLU(), nn.Linear(3, 5), nn.Linear(5, 3)
    )


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.Linear(5, 3))


def federation(device: torch.device = META) -> Federation:
    n = sum(SIZES)
    split = Split(torch.zeros(n, 8), torch.arange(n) % 3, torch.tensor([0, *SIZES]).cumsum(0))
    return Federation(split, split, split, ("a", "b", "c")).to(device)


def on_device(*groups: Named) -> None:
    for rows in groups:
        for name, x in rows.items():
            assert x.device == META or not x.is_floating_point(), f"{name} is on {x.device}"


# The search for weights would take all of its passes here, where losses have no values.
FEWER_STEPS: dict[str, dict[str, int]] = {"fedala": {"passes": 3, "window": 2}}


@pytest.mark.parametrize(
    ("build", "ids"),
    [(mlp, [0, 1, 2]), (mlp, [1]), (convolution, [0, 2]), (convolution, [2]), (normalised, [0])],
    ids=["stack", "one", "vmap", "image", "batch norm"],
)
@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str, build: Callable[[], nn.Module], ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    reads, method = Reads(monkeypatch), METHODS[name](**FEWER_STEPS.get(name, {}))
    plain = build()
    if name == "fedbn" and build is not normalised:  # which is fedavg, and refused, without a normalisation layer
        *below, head = plain.children()
        assert isinstance(head, nn.Linear)
        plain = nn.Sequential(*below, nn.LayerNorm(head.in_features), head)
    module = wrapped(method, plain, 0).to(META)
    layout = Layout(module)
    training = Training(batch_size=4, momentum=0.5, weight_decay=0.1)
    network = FastNetwork(module, layout)
    everybody = Task(network, federation(), [0, 1, 2], training, round=1, seed=0)
    state, message = method.init(layout.read(module), layout)
    assert reads.taken() == (name in FIRST_READS)
    greetings = method.hello(everybody) if method.hello else {}
    assert reads.taken() == (name in GREETING_READS)
    server = assemble(method, None, layout)
    kept, message = server.init(message, greetings, 3)
    client_reads, server_reads = False, reads.taken()
    cohort = Cohort(torch.tensor(ids), torch.full((len(ids),), 1 / len(ids)), clients=3, round=1, seed=0)
    for t in (1, 2, 3):
        task = Task(network, federation(), ids, training, round=t, seed=0)
        sent = {n: x if len(x) == 1 else x[ids] for n, x in message.items()}
        state, replies = method.client(state, sent, task)
        models = method.personal(state, sent, task)
        client_reads |= reads.taken()
        on_device(state, replies, {"models": models})
        steering = {n: torch.zeros(x.shape, dtype=x.dtype) for n, x in replies.items() if not x.is_floating_point()}
        kept, message = server.update(kept, replies | steering, cohort._replace(round=t))
        server_reads |= reads.taken()
        on_device(message)
        for scores in (task.evaluate(models, "test"), task.evaluate(models[:1], "validation")):
            on_device(scores)
        assert not reads.taken()
    sent = {n: x if len(x) == 1 else x[ids] for n, x in message.items()}
    if method.newcomer is not None:
        on_device({"model": method.newcomer(state, sent, task)})
    if method.join is not None:
        on_device(method.join(kept, replies, cohort)[1])
    assert (client_reads, server_reads) == (name in CLIENT_READS, name in SERVER_READS)


@pytest.mark.parametrize("on", ["loop", "vectorised", "threads"])
@pytest.mark.parametrize("name", ["local", "fedavg", "ditto", "fedrep", "fedcp"])
def test_rounds(name: str, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the module's device alone, everything follows: samples, states, messages."""
    reads, method = Reads(monkeypatch), METHODS[name]()
    clients = InProcess(federation(torch.device("cpu")), Training(batch_size=4), engine(on))
    plan = Plan(rounds=3, participation=0.7, evaluate_every=2, select="validation", unseen=0.3)
    for round, snapshot in federate(method, clients, mlp().to(META), plan):
        on_device(snapshot.message)
        assert all(x.device.type == "cpu" for s in round.scores for x in s.values.values())  # where files begin
    assert reads.taken()
    *_, (last, _) = federate(method, clients, mlp().to(META), replace(plan, rounds=4), snapshot=snapshot)
    assert last.round == 4


@pytest.mark.parametrize("name", STAGES)
def test_stages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, stage = Reads(monkeypatch), STAGES[name]()
    rows = {"w": torch.empty(4, 50, device=META)}
    state, _ = stage.init({"w": rows["w"][:1]}, {}, 4)
    for t in (1, 2):
        cohort = Cohort(torch.arange(4), torch.full((4,), 0.25), clients=4, round=t, seed=0)
        state, out = stage.update(state, rows, cohort)
        on_device(out)
    assert reads.taken() == (name in STAGE_READS)


def test_a_read_on_meta_raises() -> None:
    """Or the tests above would see nothing."""
    x = torch.empty(2, device=META)
    for read in (lambda: x.cpu(), lambda: bool(x.any()), lambda: x.tolist(), lambda: x + torch.ones(2)):
        with pytest.raises((RuntimeError, NotImplementedError)):
            read()


def test_devices_are_found_or_refused() -> None:
    assert find_device("cpu").type == "cpu"
    assert find_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(InputError, match=r"device 'gpu' is unknown.*cuda"):
        find_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="'cuda' is not available"):
            fairlead.compare(["fedavg"], device="cuda", rounds=1)
        with pytest.raises(InputError, match="'cuda' is not available to PyTorch on this machine; use --device auto"):
            find_device("cuda")
