"""The round loop. It knows the clients by their answers alone."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairlead.clients.door import Answer, Clients, Greeting, Saved, payload
from fairlead.clients.exchange import NOT_FINITE, lengths, scored, scored_splits, wrapped
from fairlead.core import Cohort, DivergedError, FairleadError, Layout, Method, Named, Plan, Server, require, stream
from fairlead.core.device import to_device
from fairlead.core.errors import check_kind
from fairlead.core.fast.machine import recycling, threads
from fairlead.core.task import SplitName
from fairlead.servers import parameters_only, with_parts

logger = logging.getLogger(__name__)


class Score(NamedTuple):
    """How one model of every client did on one split."""

    model: str  # "personal": the one the client would deploy; "global": the server's, where there is one
    split: SplitName
    values: dict[str, Tensor]  # by metric, (N,); NaN for a client that did not answer


class Round(NamedTuple):
    """What happened in one round; `scores` is empty where nothing was evaluated."""

    round: int
    seconds: float  # training and aggregation, without evaluation
    samples: int  # over which gradients were taken, as the local epochs count them
    bytes_up: int
    bytes_down: int
    absent: Mapping[int, str]  # clients without a sound reply, and why; they keep their old state, the others go on
    scores: list[Score]
    stopped: bool = False  # whether training ends here, before the plan's last round, because patience ran out
    passes: int = 0  # samples over which the method took gradients, each time counted


class Best(NamedTuple):
    """Which models are to be deployed so far, and how long nothing has got better."""

    round: int  # whose models are kept
    value: float  # why: the mean validation score, or the round where the last is kept
    loss: float  # the lowest mean validation loss so far; infinite where there is none
    waited: int  # evaluations since then
    without: int = 0  # clients whose score was not finite then; fewer is better than any value


@dataclass(frozen=True)
class Snapshot:
    """All that the rest of a run depends on, besides its plan; later rounds do not change it. A checkpoint holds it."""

    round: int
    server: Named
    message: Named
    clients: Saved  # what the clients hold
    best: Best | None = None  # None before the first evaluation


def federate(
    method: Method,
    clients: Clients,
    module: nn.Module,
    plan: Plan,
    *,
    average: Server | None = None,
    snapshot: Snapshot | None = None,
) -> Generator[tuple[Round, Snapshot], None, None]:
    """Train round by round; after each, yield what happened and all that is needed to go on from there.

    `average` takes the place of the method's own averaging stage. A `snapshot` from an earlier run of the same plan
    goes on where that one stopped and ends with the same bits.
    """
    for what, given, kind in (("method", method, Method), ("module", module, nn.Module), ("plan", plan, Plan)):
        check_kind(what, given, kind)
    require(hasattr(clients, "greet"), f"clients must be fairlead.InProcess(...) or the like, got {type(clients)}")
    module = wrapped(method, module, plan.seed)
    clients.start(method, module, plan)
    greeting = finite_greeting(clients.greet(hello=snapshot is None))
    layout = Layout(module)
    loop = Loop.of(method, assemble(method, average, layout), clients, plan, layout, greeting)
    greeting_bytes = payload(greeting.rows) * clients.count if greeting.rows else 0
    if snapshot is None:
        with threads(1):
            snapshot = loop.begin(layout.read(module), greeting.rows)
    else:
        server, message = (to_device(rows, layout.device) for rows in (snapshot.server, snapshot.message))
        snapshot = replace(snapshot, server=server, message=message)
        clients.load(snapshot.clients(), snapshot.round, snapshot.message)
    with recycling():
        while snapshot.round < plan.rounds and not loop.stops(snapshot):
            # A product's last bits depend on how many threads share it, which is not the same everywhere. And the
            # workers have the cores: OpenMP's threads would wait for more, in a loop, on them.
            with threads(1):
                happened, snapshot = loop.round(snapshot)
            yield happened._replace(bytes_up=happened.bytes_up + greeting_bytes), snapshot
            greeting_bytes = 0


@dataclass(frozen=True)
class Loop:
    """What stays the same from round to round."""

    method: Method
    server: Server
    clients: Clients
    plan: Plan
    layout: Layout
    sizes: Tensor  # (N,) train samples
    validation: Tensor  # (N,) validation samples
    splits: tuple[SplitName, ...]  # on which models are scored
    scorable: bool  # whether clients have samples there; after a last training on all rows they have none
    seen: Tensor  # clients that take part, ascending
    newcomers: Tensor  # clients held out

    @staticmethod
    def of(method: Method, server: Server, clients: Clients, plan: Plan, layout: Layout, greeting: Greeting) -> Loop:
        """The loop over clients that have greeted."""
        validated = bool(greeting.samples["validation"].any())
        require(
            validated or (plan.select == "last" and plan.patience is None),
            "select 'validation' and patience need validation samples, and the clients have none; use select 'last'",
        )
        splits = scored_splits(plan, validated)
        seen, newcomers = held_out(plan.unseen, clients.count, plan.seed)
        sizes, validation = greeting.samples["train"], greeting.samples["validation"]
        scorable = any(bool(greeting.samples[split][seen].any()) for split in splits)
        return Loop(method, server, clients, plan, layout, sizes, validation, splits, scorable, seen, newcomers)

    def begin(self, params: Tensor, greetings: Named) -> Snapshot:
        """The snapshot before the first round."""
        _, message = self.method.init(params, self.layout)
        state, message = self.server.init(message, greetings, self.clients.count)
        return Snapshot(0, state, message, self.clients.save())

    def round(self, before: Snapshot) -> tuple[Round, Snapshot]:
        """One round: train, aggregate and, if the plan says so, score."""
        began, t = time.perf_counter(), before.round + 1
        ids = self.seen[draw(self.plan.participation, len(self.seen), self.plan.seed, t)]
        failing = self.plan.faults.absent(ids.tolist(), self.clients.count, t, self.plan.seed)
        asked = torch.tensor([k for k in ids.tolist() if k not in failing], dtype=torch.int64) if failing else ids
        answer = self.train(asked, t, before.message)
        state, message = before.server, before.message
        if len(answer.ids):
            state, message = self.server.update(before.server, answer.rows, self.cohort(answer.ids, t))
        seconds = time.perf_counter() - began
        scores: list[Score] = []
        best, passes = before.best, answer.passes
        if self.plan.evaluated(t):
            scores, ids_scored, tuning = self.score(t, state, message)
            best = self.judge(t, scores, ids_scored, best)
            if best.round == t:
                self.clients.keep(t)
            passes += tuning if t == self.plan.rounds else 0  # what it takes to make the models to deploy
        after = Snapshot(t, state, message, self.clients.save(), best)
        up, down = payload(answer.rows) * len(asked), payload(before.message, self.method.picks) * len(asked)
        stopped = t < self.plan.rounds and self.stops(after)
        absent = {**failing, **answer.absent}
        return Round(t, seconds, answer.samples, up, down, absent, scores, stopped, passes), after

    def train(self, asked: Tensor, round: int, message: Named) -> Answer:
        """What these clients answer; where all are left out, there is no sense in going on."""
        if not len(asked):
            return Answer(asked, {})
        answer = self.clients.train(asked, round, message)
        warn_of_absent(answer, round)
        if not len(answer.ids):
            reasons = set(answer.absent.values())
            error = DivergedError if reasons == {NOT_FINITE} else FairleadError
            raise error(f"round {round}: every client's {', '.join(sorted(reasons))}")
        return answer

    def cohort(self, ids: Tensor, round: int) -> Cohort:
        """Clients whose replies the server takes, weighted by their train samples."""
        sizes = self.sizes[ids].to(torch.get_default_dtype())
        # Clients without any train samples change nothing, whatever they weigh.
        return Cohort(ids, sizes / sizes.sum().clamp(min=1), self.clients.count, round, self.plan.seed)

    def score(self, round: int, server: Named, message: Named) -> tuple[list[Score], Tensor, int]:
        """Score exactly the models the clients would deploy now, newcomers among them.

        Also returns which of those that take part answered, and the passes that it took to make their models.
        """
        pairs = scored(self.plan, self.layout.size, message, self.splits)
        answers = [self.clients.score(self.seen, round, message)]
        losses = answers[0].rows.get("loss")
        if self.scorable and losses is not None and len(losses) and not losses.isfinite().any():
            raise DivergedError(
                f"round {round}: no client's model has a finite loss; try a smaller lr, or other options of the "
                "method and its stages"
            )
        if len(self.newcomers):
            answers.append(self.clients.newcomers(self.newcomers, round, self.welcome(round, server, message)))
        found: dict[str, Tensor] = {}
        for answer in answers:
            warn_of_absent(answer, round)
            for metric, rows in answer.rows.items():
                everyone = found.setdefault(metric, rows.new_full((self.clients.count, len(pairs)), torch.nan))
                everyone[answer.ids] = rows
        scores = [Score(*pair, {metric: x[:, j] for metric, x in found.items()}) for j, pair in enumerate(pairs)]
        return scores, answers[0].ids, answers[0].passes

    def welcome(self, round: int, server: Named, message: Named) -> Named:
        """The message that newcomers deploy from; where the method has a `join`, after their rounds with it."""
        join = self.method.join
        if join is None:
            return message
        for _ in range(self.plan.newcomer_epochs):
            ids, replies, *_ = self.clients.join(self.newcomers, round, message)
            cohort = Cohort(ids, torch.full((len(ids),), 1 / len(ids)), self.clients.count, round, seed=0)
            server, message = join(server, replies, cohort)
        return message

    def judge(self, round: int, scores: list[Score], ids: Tensor, best: Best | None) -> Best:
        """Whose models are to be deployed: the last, or those with the best mean validation score of these clients.

        Test data decides nothing. The score is the accuracy, or minus the loss where there is none; with select "loss"
        it is minus the loss. Patience looks at the loss, which changes even where the accuracy does not. The loss is
        the mean over samples: a client with a handful of them says little of a step size or a number of rounds.
        Scores that are not finite are left out, and the fewer clients have such, the better: one whose scores never are
        decides nothing, and models that diverge for some are not kept.
        """
        loss, value, without = math.inf, float(round), 0
        for s in scores:
            if (s.model, s.split) == ("personal", "validation"):
                named = {n: x for n, x in s.values.items() if n in ("loss", "accuracy")}
                with_samples = ids[self.validation[ids] > 0]
                finite = torch.stack([x[with_samples].isfinite() for x in named.values()]).all(0)
                without, counted = int((~finite).sum()), with_samples[finite]
                means = {metric: float(x[counted].to(torch.float64).mean()) for metric, x in named.items()}
                sizes = self.validation[counted].to(torch.float64)
                loss = float((s.values["loss"][counted].to(torch.float64) * sizes).sum() / sizes.sum())
                loss = loss if math.isfinite(loss) else math.inf
                if self.plan.select == "validation":
                    value = means.get("accuracy", -loss)
                    value = value if math.isfinite(value) else -math.inf
                elif self.plan.select == "loss":
                    value = -loss
        if best is None or without < best.without:
            return Best(round, value, loss, 0, without)
        worse = without > best.without
        newer = self.plan.select == "last" or (value > best.value and not worse)
        kept = (round, value) if newer else (best.round, best.value)
        lower = loss < best.loss and not worse
        return Best(*kept, *((loss, 0) if lower else (best.loss, best.waited + 1)), best.without)

    def stops(self, after: Snapshot) -> bool:
        """Whether patience has run out."""
        return ran_out(self.plan, after.best)


def ran_out(plan: Plan, best: Best | None) -> bool:
    """Whether patience has run out: nothing has got better for so many evaluations."""
    return plan.patience is not None and best is not None and best.waited >= plan.patience


def finite_greeting(greeting: Greeting) -> Greeting:
    """The greeting, with zeros in place of rows that are not finite: such a client then resembles no other."""
    rows = dict(greeting.rows)
    for name, x in rows.items():
        bad = ~lengths(x).isfinite() if x.is_floating_point() else torch.zeros(len(x), dtype=torch.bool)
        if bool(bad.any()):
            who = bad.nonzero()[:, 0].tolist()
            logger.warning("greeting: clients %s sent NaN or infinity as '%s', which counts as zeros", who, name)
            rows[name] = x.clone().index_fill_(0, bad.nonzero()[:, 0].to(x.device), 0.0)
    return greeting._replace(rows=rows)


def warn_of_absent(answer: Answer, round: int) -> None:
    """Say who was left out, and why."""
    for reason in dict.fromkeys(answer.absent.values()):
        who = [k for k, why in answer.absent.items() if why == reason]
        logger.warning("round %d: left out clients %s, whose %s", round, who, reason)


def assemble(method: Method, average: Server | None, layout: Layout) -> Server:
    """The method's server, around its own averaging stage or another."""
    check_mixed("this method", method, layout)
    if method.average is None:
        require(average is None, "this method averages nothing, so there is no stage to replace")
        return method.server(Server(lambda m, h, n: ({}, m), lambda s, r, c: (s, r)))
    parts = method.averaged(layout)
    return with_parts(method.server(parameters_only(average or method.average, parts)), parts)


def check_mixed(name: str, method: Method, layout: Layout) -> None:
    """Refuse to average bodies of which each client trains one and leaves the others as they were made.

    The layout is that of the module which the method trains.
    """
    bodies = {tensor for owner in layout.whose for tensor in layout.part(f"{owner}.bodies".removeprefix(".")).tensors}
    averaged = () if method.average is None else (n for p in method.averaged(layout).values() for n in p.tensors)
    apart = method.mixed if method.average is None else not bodies.intersection(averaged)
    require(
        not bodies or apart,
        f"the clients' models have different architectures, and {name} sends them to one another; use local, fedproto "
        "or lg-fedavg, or one architecture for all",
    )


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
