"""All clients in this process: samples in memory, work on threads, like-sized clients stacked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairlead.clients.door import Answer, Greeting, Saved
from fairlead.clients.exchange import Exchange, batches, first_state, gradient_samples, outputs, scored_splits, unsound
from fairlead.clients.pool import Engine, Pool, Work
from fairlead.clients.states import States, StateStore
from fairlead.core.device import on_host, to_host
from fairlead.core.errors import InputError, RunError, check_kind, require
from fairlead.core.layout import Layout
from fairlead.core.plan import Plan
from fairlead.core.task import SplitName
from fairlead.core.training import Training
from fairlead.core.types import Federation, Method, Named, check_targets

BLOCK_BYTES = 2**28  # of models evaluated at a time
MODELS_BYTES = 2**32  # models to deploy are kept if all clients' take no more; else they are made when asked for

KEPT = "kept.models"  # where `save` puts the models to deploy, (N, D), if they are kept


class Hosted(NamedTuple):
    """Which of a federation's clients are in this process, where others are in other processes (see `shards`)."""

    ids: Tensor  # ascending
    validated: bool  # whether any client, in this process or another, has validation samples


class InProcess:
    """The first implementation of `Clients`. They work on the device of the module they are started with.

    `store` makes the place where states are kept between rounds. The worker threads end with the `with` block, or when
    nothing refers to this object any more. `hosted` says which clients are in this process; all, if it is left out.
    """

    def __init__(
        self,
        federation: Federation,
        training: Training,
        engine: Engine,
        store: Callable[[int, Named], StateStore] = States,
        hosted: Hosted | None = None,
    ) -> None:
        check_kind("federation", federation, Federation)
        check_kind("training", training, Training)
        check_kind("engine", engine, Engine)
        self.count = federation.clients
        self._hosted = hosted or Hosted(torch.arange(self.count), bool(len(federation.validation.y)))
        self._federation, self._training, self._engine, self._store = federation, training, engine, store
        self._pool: Pool | None = None

    def start(self, method: Method, module: nn.Module, plan: Plan) -> None:
        """Get ready for a run, from the clients' first states."""
        check_targets("this method", method, self._federation)
        layout = Layout(module)
        check_models(plan.select, self.count, layout.size)
        splits = scored_splits(plan, self._hosted.validated)
        keeps = _bytes(self.count, layout.size) <= MODELS_BYTES
        self._exchange = Exchange(method, plan, splits, keeps)
        self._size = layout.size
        self._block = max(1, BLOCK_BYTES // (4 * layout.size))
        self.close()
        samples = self._federation.to(layout.device)
        self._pool = self._engine.start(module, layout, samples, self._training, plan.seed)
        self._states = self._store(self.count, first_state(method, module))
        self._scored: list[tuple[Tensor, Named]] = []  # ids and models, as they were scored last
        self._kept: Tensor | None = None  # the models to deploy of the hosted clients, (N, D)
        self._last: tuple[int, Named] = 0, {}  # round and message that models were made of, where they are not kept

    def greet(self, hello: bool) -> Greeting:
        """How many samples each client has, and what the method's `hello` makes."""
        samples: dict[SplitName, Tensor] = {
            "train": self._federation.train.sizes,
            "validation": self._federation.validation.sizes,
            "test": self._federation.test.sizes,
        }
        if not hello or self._exchange.method.hello is None:
            return Greeting(samples, {})
        return Greeting(samples, self._ask(self._exchange.greet, self._hosted.ids, 0, {}, {})[1])

    def train(self, ids: Tensor, round: int, message: Named) -> Answer:
        """A round of these clients; one whose answer is not sound keeps its old state and its reply goes nowhere."""
        before = self._running().passes
        states, replies = self._ask(self._exchange.train, ids, round, self._states.get(ids), message)
        absent = unsound(ids, states, replies, message, batches(self._training, self._federation.train.sizes[ids]))
        if absent:
            sound = torch.tensor([k not in absent for k in ids.tolist()])
            ids, states, replies = ids[sound], _rows(states, sound), _rows(replies, sound)
        if len(ids):
            self._states.put(ids, states)
        samples = gradient_samples(self._training, self._federation.train.sizes[ids])
        return Answer(ids, replies, absent, samples, self._running().passes - before)

    def score(self, ids: Tensor, round: int, message: Named) -> Answer:
        """How well the models do that these clients would deploy now."""
        self._scored, self._last = [], (round, message)
        return self._score(self._exchange.score, ids, round, message)

    def newcomers(self, ids: Tensor, round: int, message: Named) -> Answer:
        """How well clients do that never took part."""
        return self._score(self._exchange.newcomers, ids, round, message)

    def join(self, ids: Tensor, round: int, message: Named) -> Answer:
        """Replies of clients that never took part."""
        return Answer(ids, self._in_blocks(self._exchange.join, ids, round, message)[1])

    def keep(self, round: int) -> None:
        """The models scored last are the ones to deploy from now on."""
        if not self._exchange.keeps:
            return
        models = [models["models"] for _, models in self._scored]
        if len(models) == 1:
            self._kept = models[0]
        else:
            self._kept = torch.cat(models)[torch.cat([ids for ids, _ in self._scored]).argsort()]

    def models(self, ids: Tensor) -> Tensor:
        """The models that these clients deploy, (C, D)."""
        if self._kept is not None:
            return self._kept[torch.searchsorted(self._hosted.ids, ids)]
        round, message = self._last
        return self._ask(_personal(self._exchange.method), ids, round, self._states.get(ids), message)[0]["models"]

    def outputs(self, split: SplitName) -> list[Tensor]:
        """What each client's model to deploy makes of its own samples."""
        sizes = getattr(self._federation, split).sizes.tolist()
        found: list[Tensor] = [torch.empty(0)] * self.count
        for ids in torch.split(self._hosted.ids, self._block):
            models = {"models": self.models(ids)}
            for chunk, (_, made) in self._running().chunks(partial(outputs, split), ids, self._last[0], models, {}):
                for k, rows in zip(ids[chunk].tolist(), made["outputs"], strict=True):
                    found[k] = on_host(rows[: sizes[k]]).clone()
        return found

    def save(self) -> Saved:
        """The clients' states and the models to deploy."""
        states, kept = self._states.save(), self._kept
        return lambda: {f"state.{n}": x for n, x in states().items()} | ({} if kept is None else {KEPT: kept})

    def load(self, saved: Named, round: int, message: Named) -> None:
        """Take back what `save` gave; anything else is refused."""
        kept, wanted = saved.get(KEPT), (len(self._hosted.ids), self._size)
        if kept is not None and tuple(kept.shape) != wanted:
            raise RunError(f"a checkpoint's models are {tuple(kept.shape)}, expected {wanted}; train the run anew")
        self._states.load({n.removeprefix("state."): x for n, x in saved.items() if n.startswith("state.")})
        self._kept, self._last = kept, (round, message)

    def close(self) -> None:
        """End the worker threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> InProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> Pool:
        if self._pool is None:
            raise InputError("these clients have not started a run, or ended it; call start first")
        return self._pool

    def _ask(self, work: Work, ids: Tensor, round: int, states: Named, message: Named) -> tuple[Named, Named]:
        return self._running().map(work, ids, round, states, message)

    def _in_blocks(self, work: Work, ids: Tensor, round: int, message: Named) -> tuple[Named, Named]:
        # Some clients at a time: the memory of an evaluation does not grow with how many there are.
        pieces = [
            self._ask(work, some, round, self._states.get(some), message) for some in torch.split(ids, self._block)
        ]
        if len(pieces) == 1:
            return pieces[0]
        stay, travel = ([piece[i] for piece in pieces] for i in (0, 1))
        return _cat(stay), _cat(travel)

    def _score(self, work: Work, ids: Tensor, round: int, message: Named) -> Answer:
        before = self._running().passes
        models, metrics = self._in_blocks(work, ids, round, message)
        self._scored.append((ids, models))
        return Answer(ids, to_host(metrics), passes=self._running().passes - before)


def check_models(select: str, clients: int, size: int) -> None:
    """Refuse to remember the best of more models than memory holds."""
    require(
        select == "last" or _bytes(clients, size) <= MODELS_BYTES,
        f"{clients} clients' models of {size:,} numbers are too many to remember the best; use --select last",
    )


def _bytes(clients: int, size: int) -> int:
    return 4 * clients * size


def _personal(method: Method) -> Work:
    return lambda state, message, task: ({"models": method.personal(state, message, task)}, {})


def _rows(rows: Named, which: Tensor) -> Named:
    return {n: x[which] for n, x in rows.items()}


def _cat(pieces: list[Named]) -> Named:
    return {n: torch.cat([piece[n] for piece in pieces]) for n in pieces[0]}
