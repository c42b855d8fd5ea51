"""Clients in several processes or on several machines: Ray actors, each with a shard of the clients.

An actor for each core (or GPU) holds its clients' samples and states and stacks them as one process does. Numbers are
those of one process up to rounding, since a client's random numbers depend on its own number alone. A shard is sent its
rows of a message; a shared row goes to every machine once. States that a round leaves are kept in Ray's object store as
well, without travelling, so that an actor that dies is replaced and goes on from there.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fairlead.clients.door import Answer, Greeting, Saved
from fairlead.clients.inprocess import KEPT, Hosted, InProcess
from fairlead.clients.pool import engine
from fairlead.clients.states import States
from fairlead.core.errors import EngineError
from fairlead.core.fast.machine import cores, large_empty
from fairlead.core.layout import Layout
from fairlead.core.plan import Plan
from fairlead.core.task import SplitName
from fairlead.core.training import Training
from fairlead.core.types import Federation, Method, Named, Split

logger = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray[Any, Any]]  # what travels: Ray moves arrays without copying them into a stream
IDLE: list[Any] = []  # actors without clients
TOKEN: list[str] = []  # of the Ray that this process has started, none before
ATTEMPTS = 3  # to replace an actor, before the run ends with an error


class Reply(NamedTuple):
    """A shard's `Answer`, as it travels."""

    ids: Arrays
    rows: Arrays
    absent: dict[int, str]
    samples: int
    passes: int


class Shard:
    """What an actor holds: some of the clients. It knows nothing of Ray."""

    def take(self, given: tuple[list[int], Federation, Training, bool]) -> None:
        """Hold these clients, in place of any before."""
        self.drop()
        torch.set_num_threads(1)
        ids, federation, training, validated = given
        self._ids, self._clients = torch.tensor(ids), federation.clients
        store = partial(ShardStates, self._ids)
        hosted = Hosted(self._ids, validated)
        self._inside = InProcess(federation, training, engine("vectorised"), store, hosted)

    def drop(self) -> None:
        """Hold no clients any more."""
        if hasattr(self, "_inside"):
            self._inside.close()
            del self._inside

    def start(self, method: Method, module: nn.Module, plan: Plan) -> None:
        """Get ready for a run."""
        self._inside.start(method, module, plan)

    def load(self, states: Arrays, kept: Arrays, round: int, message: Arrays) -> None:
        """Take back states and models to deploy of these clients, among others' maybe."""
        saved = {f"state.{n}": x for n, x in came(states).items()} | came(kept)
        if KEPT in saved and len(saved[KEPT]) != len(self._ids):
            saved[KEPT] = saved[KEPT][self._ids]
        self._inside.load(saved, round, self._spread(message))

    def greet(self) -> Arrays:
        """What the method wants to know of these clients before the first round."""
        return sent(self._inside.greet(hello=True).rows)

    def train(self, ids: list[int], round: int, message: Arrays) -> tuple[Reply, Arrays]:
        """A round of these clients, and the states it leaves, which stay where they are until they are needed."""
        answer = self._inside.train(torch.tensor(ids), round, self._spread(message))
        return packed(answer), self.states()

    def ask(self, what: str, ids: list[int], round: int, message: Arrays) -> Reply:
        """Scores, or a newcomer's part."""
        return packed(getattr(self._inside, what)(torch.tensor(ids), round, self._spread(message)))

    def keep(self, round: int) -> Arrays:
        """The models scored last are to be deployed; these models."""
        self._inside.keep(round)
        return {n: x for n, x in sent(self._inside.save()()).items() if n == KEPT}

    def models(self, ids: list[int]) -> Arrays:
        """The models that these clients deploy."""
        return sent({"models": self._inside.models(torch.tensor(ids))})

    def outputs(self, split: SplitName) -> list[np.ndarray[Any, Any]]:
        """What these clients' models make of their own samples."""
        found = self._inside.outputs(split)
        return [found[k].numpy() for k in self._ids.tolist()]

    def pid(self) -> int:
        """The process that holds these clients."""
        return os.getpid()

    def states(self) -> Arrays:
        """The states of these clients, by their own numbers."""
        saved = self._inside.save()()
        return sent({n.removeprefix("state."): x for n, x in saved.items() if n.startswith("state.")})

    def _spread(self, message: Arrays) -> Named:
        """A slice of a message's rows, where clients look for them: by their own numbers."""
        rows = came({n: x for n, x in message.items() if not n.startswith(SLICED)})
        for n in (n for n in message if n.startswith(SLICED)):
            # Of the rows of others no memory is touched, so they take none.
            whole = empty(message[n], self._clients)
            whole.numpy()[self._ids[0] : self._ids[-1] + 1] = message[n]
            rows[n.removeprefix(SLICED)] = whole
        return rows


SLICED = "sliced."  # before the names of entries of which a shard has its own rows alone


class ShardStates:
    """The states of a shard, addressed by the clients' numbers among all."""

    def __init__(self, ids: Tensor, clients: int, first: Named) -> None:
        self._ids, self._inside = ids, States(len(ids), first)

    def get(self, ids: Tensor) -> Named:
        """The states of these clients."""
        return self._inside.get(torch.searchsorted(self._ids, ids))

    def put(self, ids: Tensor, states: Named) -> None:
        """Keep these clients' new states."""
        self._inside.put(torch.searchsorted(self._ids, ids), states)

    def save(self) -> Saved:
        """All that is kept now."""
        saved, ids = self._inside.save(), self._ids

        def named() -> Named:
            found = saved()
            return found | {"ids": ids[found["ids"]]}

        return named

    def load(self, saved: Named) -> None:
        """Take back what `save` gave, of these clients and maybe of others."""
        mine = torch.isin(saved["ids"], self._ids)
        own = {n: x[mine] for n, x in saved.items() if n != "ids" and bool(mine.any())}
        self._inside.load(own | {"ids": torch.searchsorted(self._ids, saved["ids"][mine])})


class Sharded:
    """The implementation of `Clients` in front of the actors. Ray must be installed: `fairlead[ray]`.

    `address` is that of a Ray cluster; without one, RAY_ADDRESS says it, or Ray is started on this machine.
    """

    def __init__(self, federation: Federation, training: Training, address: str = "") -> None:
        self.count = federation.clients
        self._federation, self._training = federation, training
        self._ray = connected(address)
        self._actors: list[Any] = []

    def start(self, method: Method, module: nn.Module, plan: Plan) -> None:
        """Get ready for a run: actors for all cores or GPUs, each with its clients."""
        self.close()
        self._run = (method, module, plan)
        self._hello = method.hello is not None
        gpus = Layout(module).device.type == "cuda"
        found = int(self._ray.cluster_resources().get("GPU" if gpus else "CPU", 1))
        # Cores are not reserved: an actor that waits for the next run takes none.
        self._resources = {"num_gpus": 1} if gpus else {}
        self._shards = shards(self._federation.train.sizes, found)
        validated = bool(len(self._federation.validation.y))
        self._given = [
            self._ray.put((ids, part_of(self._federation, ids), self._training, validated)) for ids in self._shards
        ]
        self._states: list[Any] = [None] * len(self._shards)  # references to what the last round left
        self._kept: list[Any] = [None] * len(self._shards)
        self._last: tuple[int, Named] = 0, {}
        self._actors = [self._actor(i) for i in range(len(self._shards))]
        self._each(lambda i: self._actors[i].start.remote(*self._run))

    def greet(self, hello: bool) -> Greeting:
        """How many samples each client has, and what the method's `hello` makes."""
        names: tuple[SplitName, ...] = ("train", "validation", "test")
        samples = {split: getattr(self._federation, split).sizes for split in names}
        if not hello or not self._hello:
            return Greeting(samples, {})
        made = self._each(lambda i: self._actors[i].greet.remote())
        return Greeting(samples, joined(list(made.values())))

    def train(self, ids: Tensor, round: int, message: Named) -> Answer:
        """A round of these clients."""
        asked, messages = self._of_shards(ids), self._messages(message)
        left: dict[int, Any] = {}

        def go(i: int) -> Any:
            reply, left[i] = self._actors[i].train.options(num_returns=2).remote(asked[i], round, messages(i))
            return reply

        replies = self._each(go, list(asked))
        for i in asked:
            self._states[i] = left[i]
        return unpacked(list(replies.values()))

    def score(self, ids: Tensor, round: int, message: Named) -> Answer:
        """Metrics of the models these clients would deploy now."""
        self._last = (round, message)
        return self._ask("score", ids, round, message)

    def join(self, ids: Tensor, round: int, message: Named) -> Answer:
        """Replies of clients that never took part."""
        return self._ask("join", ids, round, message)

    def newcomers(self, ids: Tensor, round: int, message: Named) -> Answer:
        """Metrics of what clients that never took part would deploy."""
        return self._ask("newcomers", ids, round, message)

    def keep(self, round: int) -> None:
        """The models scored last are to be deployed; they stay where they are."""
        self._kept = [actor.keep.remote(round) for actor in self._actors]

    def models(self, ids: Tensor) -> Tensor:
        """The models that these clients deploy, (C, D)."""
        asked = self._of_shards(ids)
        made = self._each(lambda i: self._actors[i].models.remote(asked[i]), list(asked))
        return joined(list(made.values()))["models"]

    def outputs(self, split: SplitName) -> list[Tensor]:
        """What each client's model to deploy makes of its own samples."""
        made = self._each(lambda i: self._actors[i].outputs.remote(split))
        return [torch.from_numpy(x.copy()) for rows in made.values() for x in rows]

    def save(self) -> Saved:
        """All that the clients hold now, in the form of one process."""
        states, kept, ray, actors = list(self._states), list(self._kept), self._ray, list(self._actors)

        def named() -> Named:
            held = [a.states.remote() if s is None else s for a, s in zip(actors, states, strict=True)]
            found = joined(ray.get(held))
            models = ray.get([k for k in kept if k is not None])
            return {f"state.{n}": x for n, x in found.items()} | (joined(models) if models else {})

        return named

    def load(self, saved: Named, round: int, message: Named) -> None:
        """Take back what `save` gave."""
        states = self._ray.put(sent({n.removeprefix("state."): x for n, x in saved.items() if n.startswith("state.")}))
        kept = self._ray.put(sent({n: x for n, x in saved.items() if n == KEPT}))
        self._last = (round, message)
        messages = self._messages(message)
        self._each(lambda i: self._actors[i].load.remote(states, kept, round, messages(i)))
        self._states = [a.states.remote() for a in self._actors]
        self._kept = [k if KEPT in saved else None for k in self._cut_kept(saved)]

    def pids(self) -> list[int]:
        """The processes that hold the clients, on machines that may be several."""
        return list(self._each(lambda i: self._actors[i].pid.remote()).values())

    def close(self) -> None:
        """Let the actors drop their clients; the next run takes them over, since to start one takes seconds."""
        for actor in self._actors:
            actor.drop.remote()
        IDLE.extend(self._actors)
        self._actors = []

    def __enter__(self) -> Sharded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, what: str, ids: Tensor, round: int, message: Named) -> Answer:
        asked, messages = self._of_shards(ids), self._messages(message)
        replies = self._each(lambda i: self._actors[i].ask.remote(what, asked[i], round, messages(i)), list(asked))
        return unpacked(list(replies.values()))

    def _cut_kept(self, saved: Named) -> list[Any]:
        whole = saved.get(KEPT)
        if whole is None:
            return [None] * len(self._shards)
        return [self._ray.put(sent({KEPT: whole[torch.tensor(ids)]})) for ids in self._shards]

    def _of_shards(self, ids: Tensor) -> dict[int, list[int]]:
        """The clients asked, by shard; shards of which nobody is asked are left out."""
        wanted = set(ids.tolist())
        asked = {i: [k for k in own if k in wanted] for i, own in enumerate(self._shards)}
        return {i: own for i, own in asked.items() if own}

    def _messages(self, message: Named) -> Callable[[int], Any]:
        """What each shard is sent of a message: shared rows, and its own of N rows."""
        shared = self._ray.put(sent({n: x for n, x in message.items() if len(x) == 1}))
        own = {n: x for n, x in message.items() if len(x) != 1}
        if not own:
            return lambda i: shared

        def of(i: int) -> Any:
            mine = slice(self._shards[i][0], self._shards[i][-1] + 1)  # neighbours, so that nothing is copied
            rows = {f"{SLICED}{n}": x[mine] for n, x in own.items()}
            return sent({n: x for n, x in message.items() if len(x) == 1} | rows)

        return of

    def _each(self, ask: Callable[[int], Any], which: list[int] | None = None) -> dict[int, Any]:
        """Ask these actors at once; one that died is replaced, restored to the last round, and asked again."""
        which = list(range(len(self._actors))) if which is None else which
        waiting = {i: ask(i) for i in which}
        found: dict[int, Any] = {}
        for attempt in range(ATTEMPTS):
            found |= self._answers(waiting)
            lost = [i for i in waiting if i not in found]
            if not lost:
                return {i: found[i] for i in which}
            if attempt < ATTEMPTS - 1:
                for i in lost:
                    self._replace(i)
            waiting = {i: ask(i) for i in lost}
        raise EngineError(f"shard {next(iter(waiting))} of {len(self._shards)} died {ATTEMPTS} times; see Ray's logs")

    def _answers(self, waiting: dict[int, Any]) -> dict[int, Any]:
        """What the actors that live answer."""
        found: dict[int, Any] = {}
        for i, reference in waiting.items():
            try:
                found[i] = self._ray.get(reference)
            except self._ray.exceptions.RayActorError as error:
                logger.warning("shard %d of %d died and is replaced: %s", i, len(self._shards), _first_line(error))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None
        return found

    def _actor(self, i: int) -> Any:
        actor = IDLE.pop() if IDLE else None
        if actor is None:
            actor = self._ray.remote(Shard).options(scheduling_strategy="SPREAD", **self._resources).remote()
        actor.take.remote(self._given[i])
        return actor

    def _replace(self, i: int) -> None:
        """A new actor in the place of a dead one, with its clients' states after the last round."""
        self._actors[i] = self._actor(i)
        self._actors[i].start.remote(*self._run)
        if self._states[i] is None:
            return
        round, message = self._last
        nothing = self._ray.put({})
        kept = nothing if self._kept[i] is None else self._kept[i]
        self._actors[i].load.remote(self._states[i], kept, round, self._messages(message)(i))


def connected(address: str) -> Any:
    """Ray, connected to a cluster, or started here: on loopback, for whoever has this process's token."""
    there = sys.modules.get("ray")
    if there is not None and there.is_initialized():
        return there
    address = address or os.environ.get("RAY_ADDRESS", "")
    with nullcontext() if address else private():
        try:
            import ray
        except ImportError as error:
            raise EngineError("engine ray needs Ray; pip install 'fairlead[ray]'") from error
        IDLE.clear()
        quiet: dict[str, Any] = {"logging_level": "warning", "log_to_driver": False}
        here = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
        try:
            host, _, port = address.rpartition(":")
            if host and port.isdecimal():  # Ray itself would try for a minute
                socket.create_connection((host, int(port)), timeout=5).close()
            ray.init(**quiet, **({"address": address} if address else here))
        except Exception as error:  # Ray raises plain ones, too
            what = f"no Ray cluster at '{address}'" if address else "Ray does not start on this machine"
            raise EngineError(f"{what}: {_first_line(error)}") from error
    return ray


@contextmanager
def private() -> Iterator[None]:
    """The environment in which Ray, as it is imported and started, lets nobody in but this process.

    As it comes, Ray listens on all interfaces and runs the code of whoever asks. Who has set RAY_AUTH_MODE has decided.
    """
    if "RAY_AUTH_MODE" in os.environ:
        yield
        return
    if not TOKEN and "ray" in sys.modules:
        raise EngineError(
            "Ray was imported before Fairlead started it, and would let in whoever reaches this machine; set "
            "RAY_AUTH_MODE=token in the environment, or leave the import to Fairlead"
        )
    TOKEN[:] = TOKEN or [secrets.token_hex(32)]
    # The last one is for desktop systems; what it does is that Ray listens on loopback alone.
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN[0], "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def shards(sizes: Tensor, count: int) -> list[list[int]]:
    """Neighbouring clients, as many shards as there are cores, with about as many samples each.

    >>> shards(torch.tensor([5, 5, 5, 5, 20]), 2)
    [[0, 1, 2, 3], [4]]
    """
    count = max(1, min(count, len(sizes)))
    ends = sizes.cumsum(0).double()
    place = ((ends - sizes / 2) / ends[-1].clamp(min=1) * count).long().clamp(0, count - 1)
    found = [[k for k, at in enumerate(place.tolist()) if at == i] for i in range(count)]
    return [ids for ids in found if ids]


def part_of(federation: Federation, ids: list[int]) -> Federation:
    """The same federation, of which only these clients have samples."""
    mine = torch.zeros(federation.clients, dtype=torch.bool)
    mine[torch.tensor(ids)] = True

    def cut(split: Split) -> Split:
        rows = mine.repeat_interleave(split.sizes)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), (split.sizes * mine).cumsum(0)])
        return split.take(rows, starts)

    train, validation, test = (cut(split) for split in (federation.train, federation.validation, federation.test))
    return Federation(train, validation, test, federation.classes, federation.names)


def sent(rows: Named) -> Arrays:
    """Named tensors as they travel."""
    return {n: x.detach().cpu().numpy() for n, x in rows.items()}


def came(arrays: Arrays) -> Named:
    """What came, as tensors of our own: Ray's arrays may only be read."""
    return {n: torch.from_numpy(np.array(x)) for n, x in arrays.items()}


def joined(pieces: list[Arrays]) -> Named:
    """The shards' rows one after another, which is the clients' order; of a shard without any there are none."""
    found: Named = {}
    for n in dict.fromkeys(n for piece in pieces for n in piece):
        rows = [piece[n] for piece in pieces if n in piece]
        found[n] = empty(rows[0], sum(map(len, rows)))
        np.concatenate(rows, out=found[n].numpy())
    return found


def empty(like: np.ndarray[Any, Any], count: int) -> Tensor:
    """So many uninitialised rows of the same kind."""
    return large_empty(torch.from_numpy(np.empty(0, like.dtype)), count, *like.shape[1:])


def packed(answer: Answer) -> Reply:
    """An answer as it travels."""
    return Reply({"ids": answer.ids.numpy()}, sent(answer.rows), dict(answer.absent), answer.samples, answer.passes)


def unpacked(replies: list[Reply]) -> Answer:
    """The shards' answers as one."""
    rows = [r.rows for r in replies if len(r.ids["ids"])]
    ids = torch.cat([came(r.ids)["ids"] for r in replies])
    absent = {k: why for r in replies for k, why in r.absent.items()}
    return Answer(
        ids, joined(rows) if rows else {}, absent, sum(r.samples for r in replies), sum(r.passes for r in replies)
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
