"""The round loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fairlead.core import (
    Cohort,
    DivergedError,
    Federation,
    Layout,
    Method,
    Named,
    Plan,
    Server,
    States,
    StateStore,
    Task,
    Training,
    check_targets,
    require,
    stream,
)
from fairlead.core.machine import by_columns, recycling, threads
from fairlead.core.task import SplitName
from fairlead.engines import Engine, Pool
from fairlead.engines.pool import Work
from fairlead.servers import parameters_only, with_parts

logger = logging.getLogger(__name__)

BLOCK_BYTES = 2**28  # of models evaluated at a time
MODELS_BYTES = (
    2**32
)  # all clients' models are kept to be deployed if they take no more; else they are made when asked for


class Score(NamedTuple):
    """How one model of every client did on one split."""

    model: str  # "personal": the one the client would deploy; "global": the server's, where there is one
    split: SplitName
    accuracy: Tensor | None  # (N,); None where the targets are not classes
    loss: Tensor  # (N,)


class Round(NamedTuple):
    """What happened in one round; `scores` is empty where nothing was evaluated."""

    round: int
    seconds: float  # training and aggregation, without evaluation
    samples: int  # over which gradients were taken, as the local epochs count them
    bytes_up: int
    bytes_down: int
    dropped: list[int]  # clients whose reply was not finite; they keep their old state and nobody hears of it
    scores: list[Score]


@dataclass
class Snapshot:
    """All that the rest of a run depends on, besides its settings: what a checkpoint holds."""

    round: int
    states: StateStore
    server: Named
    message: Named
    best: Named = field(default_factory=dict)  # the models to deploy (N, D), their round and why they were chosen


def federate(
    method: Method,
    federation: Federation,
    module: nn.Module,
    training: Training,
    plan: Plan,
    *,
    engine: Engine,
    average: Server | None = None,
    store: Callable[[int, Named], StateStore] = States,
    snapshot: Snapshot | None = None,
) -> Generator[tuple[Round, Snapshot], None, None]:
    """Train round by round; after each, yield what happened and all that is needed to go on from there.

    `average` takes the place of the method's own averaging stage. `store` makes the place where states are kept between
    rounds. A `snapshot` from an earlier run of the same plan goes on where that one stopped and ends with the same
    bits.
    """
    check_targets("this method", method, federation)
    clients = federation.clients
    seen, newcomers = held_out(plan.unseen, clients, plan.seed)
    module = wrapped(method, module, plan.seed)
    layout = Layout(module)
    check_models(plan.select, clients, layout.size)
    server = assemble(method, average, layout)
    with engine.start(module, layout, federation, training, plan.seed) as pool, recycling():
        greeting_bytes = 0
        if snapshot is None:
            snapshot, greeting_bytes = begin(method, server, layout.read(module), layout, pool, clients, store)
        for t in range(snapshot.round + 1, plan.rounds + 1):
            began = time.perf_counter()
            ids = seen[draw(plan.participation, len(seen), plan.seed, t)]
            with threads(1):  # the workers have the cores; OpenMP's threads would wait for more, in a loop, on them
                before = snapshot.states.get(ids)
                states, replies = pool.map(method.client, ids, t, before, snapshot.message)
                sound = finite([*states.values(), *replies.values()], len(ids))
            up, down = payload(replies) * len(ids), payload(snapshot.message, method.picks) * len(ids)
            dropped = ids[~sound].tolist()
            if dropped:
                logger.warning("round %d: left out clients %s, whose update is not finite; lower lr?", t, dropped)
                ids, states, replies = ids[sound], rows_of(states, sound), rows_of(replies, sound)
            if len(ids) == 0:
                raise DivergedError(f"round {t}: every client's update is NaN or infinite; try a smaller lr")
            sizes = federation.train.sizes[ids].to(torch.get_default_dtype())
            cohort = Cohort(ids, sizes / sizes.sum(), clients, t, plan.seed)
            snapshot.states.put(ids, states)
            snapshot.server, snapshot.message = server.update(snapshot.server, replies, cohort)
            seconds = time.perf_counter() - began
            snapshot.round = t
            scores: list[Score] = []
            if plan.evaluated(t):
                scores, models = score(method, pool, seen, newcomers, plan, snapshot, layout.size)
                keep_best(snapshot, scores, seen, models, plan.select)
            samples = int(sizes.sum()) * training.epochs
            if training.steps:
                samples = len(ids) * training.steps * training.batch_size
            yield Round(t, seconds, samples, up + greeting_bytes, down, dropped, scores), snapshot
            greeting_bytes = 0


def check_models(select: str, clients: int, size: int) -> None:
    """Refuse to remember the best of more models than memory holds."""
    require(
        select == "last" or 4 * size * clients <= MODELS_BYTES,
        f"{clients} clients' models of {size:,} numbers are too many to remember the best; use --select last",
    )


def wrapped(method: Method, module: nn.Module, seed: int) -> nn.Module:
    """The module the method trains; what it adds is initialised from the seed."""
    if method.wrap is None:
        return module
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return method.wrap(module)


def assemble(method: Method, average: Server | None, layout: Layout) -> Server:
    """The method's server, around its own averaging stage or another."""
    if method.average is None:
        require(average is None, "this method averages nothing, so there is no stage to replace")
        return method.server(Server(lambda m, h, n: ({}, m), lambda s, r, c: (s, r)))
    parts = method.averaged(layout)
    return with_parts(method.server(parameters_only(average or method.average, parts)), parts)


def begin(
    method: Method,
    server: Server,
    params: Tensor,
    layout: Layout,
    pool: Pool,
    clients: int,
    store: Callable[[int, Named], StateStore],
) -> tuple[Snapshot, int]:
    """The snapshot before the first round, and the bytes of the clients' greetings."""
    state, message = method.init(params, layout)
    greetings: Named = {}
    if method.hello is not None:
        hello = method.hello
        greetings, _ = pool.map(lambda s, m, task: (hello(task), {}), torch.arange(clients), 0, {}, {})
    server_state, message = server.init(message, greetings, clients)
    return Snapshot(0, store(clients, state), server_state, message), payload(greetings) * clients


def draw(participation: float, clients: int, seed: int, round: int) -> Tensor:
    """Who takes part, ascending: a rate up to 1, or a number of clients above 1."""
    require(participation <= max(clients, 1), f"participation: {participation:g} of {clients} clients cannot take part")
    count = round_half_up(participation * clients) if participation <= 1 else int(participation)
    if count >= clients:
        return torch.arange(clients)
    chosen = stream(seed, "cohort", round).choice(clients, max(count, 1), replace=False)
    return torch.from_numpy(chosen).sort().values


def round_half_up(x: float) -> int:
    """To the nearest whole number; Python's own `round` takes halves to the even one."""
    return int(x + 0.5)


def held_out(unseen: float, clients: int, seed: int) -> tuple[Tensor, Tensor]:
    """The clients that train and those held out as newcomers, ascending."""
    count = min(round_half_up(unseen * clients), clients - 1)
    order = torch.from_numpy(stream(seed, "unseen").permutation(clients))
    return order[count:].sort().values, order[:count].sort().values


def score(
    method: Method,
    pool: Pool,
    seen: Tensor,
    newcomers: Tensor,
    plan: Plan,
    snapshot: Snapshot,
    size: int,
) -> tuple[list[Score], Named]:
    """Evaluate exactly the models the clients would deploy now; returns them too, (N, D), unless they are too many."""
    block = max(1, BLOCK_BYTES // (4 * size))
    keep = 4 * size * (len(seen) + len(newcomers)) <= MODELS_BYTES

    def own(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        return evaluate(method.personal(state, message, task), message, task)

    def fresh(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        given = (method.newcomer or method.personal)(state, message, task)
        how = task.sgd.but(epochs=plan.newcomer_epochs)
        return evaluate(given if method.join else task.descend(given, how=how), message, task)

    def evaluate(personal: Tensor, message: Named, task: Task) -> tuple[Named, Named]:
        models = {"personal": personal.expand(len(task), -1)}
        if plan.evaluate_global and "w" in message and message["w"].shape[1] == task.layout.size:
            models["global"] = message["w"]
        splits: list[SplitName] = ["test"] if int(task.sizes("validation").sum()) == 0 else ["validation", "test"]
        results = {
            f"{model}/{split}/{metric}": values
            for model, rows in models.items()
            for split in splits
            for metric, values in task.evaluate(rows, split).items()
        }
        return results, {"models": models["personal"]} if keep else {}

    def of(work: Work, ids: Tensor, message: Named) -> tuple[Named, Named]:
        # Some clients at a time: the memory of an evaluation does not grow with how many there are.
        pieces = [
            pool.map(work, some, snapshot.round, snapshot.states.get(some), message) for some in torch.split(ids, block)
        ]
        if len(pieces) == 1:
            return pieces[0]
        return {n: torch.cat([p[0][n] for p in pieces]) for n in pieces[0][0]}, {
            n: torch.cat([p[1][n] for p in pieces]) for n in pieces[0][1]
        }

    results, models = of(own, seen, snapshot.message)
    if len(newcomers):
        server, message = snapshot.server, snapshot.message
        for _ in range(plan.newcomer_epochs if method.join else 0):
            _, replies = of(method.client, newcomers, message)
            cohort = equals(newcomers, len(seen) + len(newcomers), snapshot.round)
            server, message = method.join.update(server, replies, cohort)  # type: ignore[union-attr]
        back = torch.cat([seen, newcomers]).argsort()
        more = of(fresh, newcomers, message)
        results = {n: torch.cat([x, more[0][n]])[back] for n, x in results.items()}
        models = {n: torch.cat([x, more[1][n]])[back] for n, x in models.items()}
    found: list[Score] = []
    for name, losses in results.items():
        model, split, metric = name.split("/")
        if metric == "loss":
            accuracy = results.get(f"{model}/{split}/accuracy")
            found.append(Score(model, split, None if accuracy is None else accuracy[:, 0], losses[:, 0]))  # type: ignore[arg-type]
    return found, models


def equals(ids: Tensor, clients: int, round: int) -> Cohort:
    """A cohort whose members count the same."""
    return Cohort(ids, torch.full((len(ids),), 1 / len(ids)), clients, round, seed=0)


def keep_best(
    snapshot: Snapshot, scores: list[Score], seen: Tensor, models: Named, select: Literal["validation", "last"]
) -> None:
    """Remember the models to deploy: the last, or those with the best mean validation score; test decides nothing."""
    value = torch.tensor([float(snapshot.round)], dtype=torch.float64)
    if select == "validation":
        (s,) = (s for s in scores if (s.model, s.split) == ("personal", "validation"))
        value = (-s.loss if s.accuracy is None else s.accuracy)[seen].to(torch.float64).mean()[None]
    if not snapshot.best or bool(value > snapshot.best["value"]):
        snapshot.best = {"round": torch.tensor([snapshot.round]), "value": value} | models


def payload(rows: Named, picks: Mapping[str, str] | None = None) -> int:
    """Bytes that one client's row of each name takes on the wire; of rows to pick from, those that are picked.

    >>> shelf = {"models": torch.zeros(1, 100, 7), "chosen": torch.tensor([[4, 50]])}
    >>> payload(shelf, {"models": "chosen"})  # two models of seven numbers; which they were is nobody's business
    56
    """
    picks = picks or {}
    sent = {n: x[0, : rows[picks[n]].shape[1]] if n in picks else x[0] for n, x in rows.items()}
    return sum(x.numel() * x.element_size() for n, x in sent.items() if n not in picks.values())


def finite(rows: list[Tensor], count: int) -> Tensor:
    """Which clients' rows hold no NaN and no infinity, (C,)."""
    sound = torch.ones(count, dtype=torch.bool)
    for x in {id(x): x for x in rows}.values():  # what is both kept and sent is looked at once
        flat = x.flatten(1)
        sums = by_columns(partial(_sums, flat), flat.shape[1])
        sound &= torch.stack(sums).sum(0).isfinite()
    return sound


def _sums(flat: Tensor, some: slice) -> Tensor:
    return flat[:, some].sum(1)


def rows_of(rows: Named, which: Tensor) -> Named:
    """The chosen clients' rows."""
    return {n: x[which] for n, x in rows.items()}
