"""One client on a machine of its own: its samples, states and models stay there, in a folder of its own.

A node is asked with bytes and answers with bytes; it does not know what carries them. It holds the state of
the round that the server stands on and its newest one, so that a message that comes twice, a reply that is lost and a
server that starts again from its checkpoint change nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fairlead.clients.exchange import Exchange, first_state, outputs, unsound, wrapped
from fairlead.clients.pool import Work, engine
from fairlead.clients.wire import AHEAD, Ask, Reply, pack, pack_reply, unpack_ask
from fairlead.core.errors import FairleadError, RunError, require
from fairlead.core.files import atomically
from fairlead.core.layout import Layout
from fairlead.core.plan import Plan
from fairlead.core.task import SplitName
from fairlead.core.training import Training
from fairlead.core.types import Federation, Method, Named, Split

SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


class Node:
    """A client's side of the door.

    `federation` has as many clients as take part, of which only `client` has samples (see `placed`). The method, the
    module, the training and the plan are the same on all nodes and at the server.
    """

    def __init__(
        self,
        client: int,
        federation: Federation,
        training: Training,
        method: Method,
        module: nn.Module,
        plan: Plan,
        folder: Path,
    ) -> None:
        require(0 <= client < federation.clients, f"client must lie in 0..{federation.clients - 1}, got {client}")
        module = wrapped(method, module, plan.seed)
        self._client, self._federation, self._folder = client, federation, folder
        self._exchange = Exchange(method, plan, ("test",))
        self._first = first_state(method, module)
        self._pool = engine("loop").start(module, Layout(module), federation, training, plan.seed, secret_of(folder))

    def answer(self, request: bytes) -> bytes:
        """The answer to a question of the server; the same again if the question comes again."""
        ask, message = unpack_ask(request)
        try:
            require(ask.client == self._client, f"a message for client {ask.client} came to client {self._client}")
            plain = Path(ask.run).name == ask.run and ask.run not in ("", "..")
            require(plain, f"run '{ask.run}' is no name for a folder; use letters, digits, - and _")
            return pack_reply(self._answer(ask, message))
        except FairleadError as error:
            return pack_reply(Reply(ask, {}, f"answer is an error: {error}"))

    def close(self) -> None:
        """End the worker thread."""
        self._pool.close()

    def _answer(self, ask: Ask, message: Named) -> Reply:
        if ask.what == "greet":
            return Reply(ask, self._greet(ask))
        if ask.what == "outputs":
            models = self._read(ask, "model", ask.round)
            return Reply(ask, self._do(partial(outputs, ask.split), 0, models, {})[1])
        if ask.what == "join":
            return Reply(ask, self._do(self._exchange.join, ask.round, self._first, message)[1])
        if ask.what == "train":
            return self._train(ask, message)
        state = self._first if ask.what == "newcomers" else self._caught_up(ask)
        exchange = replace(self._exchange, splits=ask.splits)
        work = exchange.newcomers if ask.what == "newcomers" else exchange.score
        models, metrics = self._do(work, ask.round, state, message)
        self._write(ask, "model", ask.round, models, {ask.round, *ask.models})
        return Reply(ask, metrics | (self._ahead(ask, message) if ask.ahead else {}))

    def _ahead(self, ask: Ask, message: Named) -> Named:
        """The reply of the next round, so that it takes no message of its own; nothing where training fails."""
        try:
            rows = self._train(replace(ask, what="train", round=ask.round + 1), message).rows
        except FairleadError:
            return {}  # the server asks again, and is told why
        return {f"{AHEAD}{n}": x for n, x in rows.items()}

    def _greet(self, ask: Ask) -> Named:
        sizes = {
            f"samples.{split}": getattr(self._federation, split).sizes[[self._client]][:, None] for split in SPLITS
        }
        hello = self._do(self._exchange.greet, 0, {}, {})[1] if ask.hello else {}
        return sizes | {f"hello.{n}": x for n, x in hello.items()}

    def _train(self, ask: Ask, message: Named) -> Reply:
        state, reply = self._do(self._exchange.train, ask.round, self._state(ask, ask.base), message)
        bad = unsound(torch.tensor([self._client]), state, reply, {})
        if bad:
            return Reply(ask, {}, bad[self._client])
        self._write(ask, "state", ask.round, state, {ask.base, ask.round, *ask.states})
        return Reply(ask, reply)

    def _caught_up(self, ask: Ask) -> Named:
        """The state after the rounds that the server left to the client alone; one that diverges counts for nothing."""
        state = self._state(ask, ask.base)
        for round in ask.alone:
            after, _ = self._do(self._exchange.train, round, state, {})
            state = state if unsound(torch.tensor([self._client]), after, {}, {}) else after
        if ask.alone:
            self._write(ask, "state", ask.alone[-1], state, {ask.base, ask.alone[-1], *ask.states})
        return state

    def _do(self, work: Work, round: int, state: Named, message: Named) -> tuple[Named, Named]:
        return self._pool.map(work, torch.tensor([self._client]), round, state, message)

    def _state(self, ask: Ask, round: int) -> Named:
        return self._read(ask, "state", round) if round else self._first

    def _path(self, ask: Ask, kind: str, round: int) -> Path:
        return _path(self._folder, ask.run, kind, round)

    def _read(self, ask: Ask, kind: str, round: int) -> Named:
        return _read(self._folder, ask.run, kind, round)

    def _write(self, ask: Ask, kind: str, round: int, rows: Named, needed: set[int]) -> None:
        """Keep the rows, and forget what neither this answer nor the server needs any more."""
        data = pack(rows)
        atomically(self._path(ask, kind, round), lambda path: path.write_bytes(data))
        for path in self._path(ask, kind, round).parent.glob(f"{kind}-*.safetensors"):
            if int(path.stem.removeprefix(f"{kind}-")) not in needed:
                path.unlink()


def model_of(folder: Path, run: str, round: int) -> Tensor:
    """The model of the node in this folder that was scored in this round of a run, (D,)."""
    return _read(folder, run, "model", round)["models"][0]


def _path(folder: Path, run: str, kind: str, round: int) -> Path:
    return folder / run / f"{kind}-{round:09d}.safetensors"


def _read(folder: Path, run: str, kind: str, round: int) -> Named:
    try:
        return load_file(_path(folder, run, kind, round))
    except (SafetensorError, OSError) as error:
        # Without the reason: the server need not know this machine's paths.
        raise RunError(f"this client has no {kind} of round {round} of run {run}") from error


def secret_of(folder: Path) -> int:
    """A number that only this machine knows, made once: the server knows the run's seed and what is drawn from it."""
    path = folder / "secret"
    if not path.exists():
        atomically(path, lambda p: p.write_text(secrets.token_hex(16), encoding="ascii"))
    try:
        return int(path.read_text(encoding="ascii"), 16)
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} cannot be read as a number of 32 hexadecimal digits; delete it for a new one"
        ) from error


def placed(own: Federation, client: int, clients: int) -> Federation:
    """One client's samples, `own`, as those of client number `client` among `clients`, of whom the others have none.

    >>> one = Split(torch.zeros(3, 2), torch.zeros(3), torch.tensor([0, 3]))
    >>> placed(Federation(one, one, one, ()), 1, 4).train.sizes.tolist()
    [0, 3, 0, 0]
    """
    require(own.clients == 1, f"a node holds the samples of one client, got those of {own.clients}")
    names = own.names and tuple(own.names[0] if k == client else "" for k in range(clients))
    target = own.target._replace(names=(), mean=(), sd=())

    def moved(split: Split) -> Split:
        after = torch.arange(clients + 1) > client
        return replace(split, starts=after * len(split.y))

    return Federation(moved(own.train), moved(own.validation), moved(own.test), own.classes, names, target)


def only(federation: Federation, client: int) -> Federation:
    """One client's samples out of a federation's, as a federation of one."""

    def taken(split: Split) -> Split:
        a, b = int(split.starts[client]), int(split.starts[client + 1])
        return split.take(torch.arange(a, b), torch.tensor([0, b - a]))

    names = federation.names[client : client + 1]
    return Federation(
        taken(federation.train),
        taken(federation.validation),
        taken(federation.test),
        federation.classes,
        names,
        federation.target._replace(names=(), mean=(), sd=()),
    )
