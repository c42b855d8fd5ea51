"""A tiny federation, and runs on it that watch the method while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from fairlead.catalogue import Entry, parse
from fairlead.clients import InProcess, States, engine, first_state, wrapped
from fairlead.clients.pool import Engine
from fairlead.core import Cohort, Federation, Layout, Method, Named, Plan, Server, Split, Task, Training, stream
from fairlead.data import scenario
from fairlead.rounds import Round, Snapshot, federate
from fairlead.runs.checkpoint import load_snapshot, save_snapshot

ROUNDS = 3
SIZES = (40, 30, 28, 21, 12)  # three like-sized clients are stacked together and run out of batches one by one
SEED = 71  # with half of the clients a round, client 0 first takes part in the last one and client 2 never
TRAINING = Training(lr=0.1, epochs=1, batch_size=8)


def federation(clients: int) -> Federation:
    """Digits, each client's turned 60 degrees further; too few to hold every class everywhere."""
    times = {k: SIZES[k] / 24 for k in range(clients)}
    return scenario("rotated-digits", split="iid", clients=clients, samples=(24, 10, 12), big=times, angle=60.0).build(
        seed=0
    )


FEDERATION = federation(len(SIZES))


def mlp(*middle: nn.Module) -> nn.Module:
    """64-16-10, with further layers before the last one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), *middle, nn.Linear(16, 10))


def with_dropout() -> nn.Module:
    """What most of the exam trains, so that every engine has to drop the same units."""
    return mlp(nn.Dropout(0.2))


def with_norm_and_dropout() -> nn.Module:
    """For fedbn, which keeps normalisation layers at home and is fedavg without any."""
    return mlp(nn.LayerNorm(16), nn.Dropout(0.2))


def with_batch_norm() -> nn.Module:
    """Running statistics travel with the parameters."""
    return mlp(nn.BatchNorm1d(16))


def changed(split: Split, x: Tensor | None = None, y: Tensor | None = None) -> Split:
    """The split with other inputs or labels."""
    return Split(split.x if x is None else x, split.y if y is None else y, split.starts)


def poisoned(f: Federation) -> Federation:
    """The test split's labels shuffled, its inputs noise."""
    rng = stream(0, "poison")
    noise = torch.from_numpy(rng.normal(size=f.test.x.shape)).to(f.test.x) * 100
    return replace(f, test=changed(f.test, noise, f.test.y[torch.from_numpy(rng.permutation(len(f.test.y)))]))


def broken(f: Federation, client: int) -> Federation:
    """The federation with one client whose train inputs are all NaN."""
    x = f.train.x.clone()
    x[f.train.starts[client] : f.train.starts[client + 1]] = torch.nan
    return replace(f, train=changed(f.train, x))


Shapes = tuple[tuple[str, tuple[int, ...], str], ...]  # name, row shape and dtype of each entry
Third = TypeVar("Third")
Out = TypeVar("Out")


@dataclass
class Watch:
    """What went through a method's hands."""

    up: dict[int, int] = field(default_factory=dict)  # bytes by round
    down: dict[int, int] = field(default_factory=dict)
    hello: int = 0
    shapes: dict[str, set[Shapes]] = field(
        default_factory=dict
    )  # each kind of rows -> the names and row shapes it has had
    touched: set[str] = field(default_factory=set)  # functions that changed an input in place

    def method(self, method: Method) -> Method:
        """The method, watched."""

        def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
            parcel = message
            for shelf, numbers in method.picks.items():
                # Over a wire only the rows picked would come, counted from 0: the method must do with these.
                (rows,) = message[numbers]
                parcel = parcel | {shelf: message[shelf][:, rows], numbers: torch.arange(len(rows))[None]}
            out = self.call("client", method.client, state, parcel, task)
            self.note(state=state, message=message, reply=out[1])
            self.note(state=out[0])
            sent = {n: x for n, x in parcel.items() if n not in method.picks.values()}
            self.down[task.round] = self.down.get(task.round, 0) + size(sent)
            self.up[task.round] = self.up.get(task.round, 0) + size(out[1])
            return out

        def personal(state: Named, message: Named, task: Task) -> Tensor:
            return self.call("personal", method.personal, state, message, task)

        def hello(task: Task) -> Named:
            assert method.hello is not None
            out = method.hello(task)
            self.hello += size(out)
            return out

        def server(average: Server) -> Server:
            inner = method.server(average)

            def init(message: Named, greetings: Named, clients: int) -> tuple[Named, Named]:
                return self.call("server.init", inner.init, message, greetings, clients)

            def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
                out = self.call("server.update", inner.update, state, rows, cohort)
                self.note(server=state)
                self.note(server=out[0])
                return out

            return Server(init, update)

        return method._replace(
            client=client, personal=personal, server=server, hello=hello if method.hello is not None else None
        )

    def call(
        self, name: str, f: Callable[[Named, Named, Third], Out], first: Named, second: Named, third: Third
    ) -> Out:
        """Call `f` and see whether its inputs survive."""
        before = [{n: x.clone() for n, x in rows.items()} for rows in (first, second)]
        out = f(first, second, third)
        for old, rows in zip(before, (first, second), strict=True):
            if old.keys() != rows.keys() or not all(same(old[n], rows[n]) for n in old):
                self.touched.add(name)
        return out

    def note(self, **kinds: Named) -> None:
        """Remember names and row shapes."""
        for kind, rows in kinds.items():
            shapes = tuple(sorted((n, tuple(x.shape[1:]), str(x.dtype)) for n, x in rows.items()))
            self.shapes.setdefault(kind, set()).add(shapes)


@dataclass
class Run:
    """What a run leaves behind."""

    records: list[Round]
    snapshot: Snapshot
    models: torch.Tensor  # (N, D), from `personal` on the last snapshot
    initial: torch.Tensor  # (1, D)
    module: nn.Module
    federation: Federation
    watch: Watch

    @property
    def scores(self) -> list[Tensor]:
        """Every score of every round, in order."""
        return [x for r in self.records for s in r.scores for x in s.values.values()]

    def outputs(self, k: int, row: Tensor | None = None) -> Tensor:
        """What client k's deployed model makes of its test inputs, through a plain module."""
        Layout(self.module).write(self.models[k] if row is None else row, self.module)
        with torch.no_grad():
            out: Tensor = self.module.eval()(self.federation.test.client(k)[0])
            return out


def two_at_most(name: str) -> Engine:
    """The engine with two workers on any machine; with more, nobody would be left to stack."""
    return replace(engine(name), workers=2) if name.startswith("threads") else engine(name)


def run(
    name: str,
    *,
    on: str = "loop",
    data: Federation = FEDERATION,
    build: Callable[[], nn.Module] | None = None,
    participation: float = 1.0,
    seed: int = SEED,
    pause: tuple[int, Path] | None = None,
    watch: bool = False,
) -> Run:
    """Three rounds of a method; with `pause` = (round, path), saved, loaded and gone on from there."""
    seen = Watch()
    build = build or (with_norm_and_dropout if name == "fedbn" else with_dropout)

    def fresh() -> Entry:
        entry = parse(name)
        return entry._replace(method=seen.method(entry.method)) if watch else entry

    method = fresh().method
    module = wrapped(method, build(), seed)
    layout = Layout(module)
    initial = layout.read(module)

    def go(until: int, snapshot: Snapshot | None = None) -> tuple[list[Round], Snapshot]:
        entry = fresh()  # as a new process would build it: nothing may be remembered outside the snapshot
        happened = federate(
            entry.method,
            InProcess(data, TRAINING, two_at_most(on)),
            build(),
            Plan(rounds=ROUNDS, participation=participation, evaluate_every=2, seed=seed),
            average=entry.average,
            snapshot=snapshot,
        )
        records, snapshots = zip(*islice(happened, until), strict=True)
        return list(records), snapshots[-1]

    records, snapshot = go(pause[0] if pause else ROUNDS)
    if pause:
        save_snapshot(pause[1], snapshot)
        later, snapshot = go(ROUNDS, load_snapshot(pause[1]))
        records += later
    models = deployed(fresh().method, data, module, layout, snapshot, two_at_most(on), seed)
    return Run(records, snapshot, models, initial, module, data, seen)


def deployed(
    method: Method, data: Federation, module: nn.Module, layout: Layout, snapshot: Snapshot, on: Engine, seed: int
) -> Tensor:
    """The models the clients would deploy, (N, D), straight from `personal`."""

    def work(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        return {"model": method.personal(state, message, task)}, {}

    states = States(data.clients, first_state(method, module))
    states.load({n.removeprefix("state."): x for n, x in snapshot.clients().items() if n.startswith("state.")})
    everyone = torch.arange(data.clients)
    with on.start(module, layout, data, TRAINING, seed) as pool:
        rows, _ = pool.map(work, everyone, snapshot.round, states.get(everyone), snapshot.message)
    return rows["model"]


class Case:
    """One name's runs, each made when first asked for and shared by the questions."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def full(self) -> Run:
        """Everybody in every round."""
        return run(self.name, watch=True)

    @cached_property
    def partial(self) -> Run:
        """Half of the clients in every round."""
        return run(self.name, participation=0.5, watch=True)

    @cached_property
    def normed(self) -> Run:
        """A model with BatchNorm."""
        return run(self.name, build=with_batch_norm, participation=0.5, watch=True)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit the same, NaN included."""
    return a.shape == b.shape and torch.equal(a.nan_to_num(nan=7e7), b.nan_to_num(nan=7e7))


def size(rows: Named) -> int:
    """Bytes of the rows."""
    return sum(x.numel() * x.element_size() for x in rows.values())
