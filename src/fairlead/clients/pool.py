"""Chunks of clients, handed to worker threads."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType

import torch
from torch import Tensor, nn

from fairlead.core.device import to_device
from fairlead.core.errors import EngineError, FairleadError, InputError, nearest, require
from fairlead.core.fast.machine import cores, large_empty, one_thread
from fairlead.core.fast.network import FastNetwork, check_stackable
from fairlead.core.layout import Layout
from fairlead.core.task import Task
from fairlead.core.training import Training
from fairlead.core.types import Federation, Named

Work = Callable[[Named, Named, Task], tuple[Named, Named]]  # states, messages, data -> two dicts of rows

Piece = tuple[Tensor, list[int], Tensor]  # rows of the cohort, positions there, and what belongs in them

# Clients stacked together pass over the longest one's batches; beyond this ratio the waste outweighs the gain.
LIKE_SIZED = 1.5

# Unless a step of all of them together is little work beside what any step costs, about a millisecond of Python: then
# many steps with few clients are the waste. In parameters times samples.
LITTLE_WORK = 3e6

# Models stacked together, in bytes: more would fall out of the processor's cache between one layer and the next.
STACK_BYTES = 16 * 2**20
DEVICE_STACK_BYTES = 2**30  # on another device, which has no such cache; not measured, for lack of one
MOST_STACKED = 256  # clients, however small their models: their samples take memory too


@dataclass(frozen=True)
class Engine:
    """A choice of workers and of how many clients are stacked."""

    name: str
    workers: int
    stacked: bool
    address: str = ""  # of a Ray cluster, where clients are in its processes (see `shards`)

    def plan(self, sizes: Tensor, most: int = 2**31, work: float = math.inf) -> list[list[int]]:
        """Positions in the cohort, in chunks of at most so many to be worked on together, the heaviest first.

        `work` is what a client's step costs, in parameters times samples.
        """
        order = sizes.argsort(descending=True, stable=True).tolist()
        if not self.stacked:
            return [[i] for i in order]
        groups = [order[:1]]
        for i in order[1:]:
            ratio = int(sizes[groups[-1][0]]) / max(int(sizes[i]), 1)
            if ratio <= LIKE_SIZED or ratio * (len(groups[-1]) + 1) * work <= LITTLE_WORK:
                groups[-1].append(i)
            else:
                groups.append([i])
        chunks: list[list[int]] = []
        for group in groups:
            # Every worker gets as many shares of every group, so that none waits for the heaviest; of little work, one
            # worker gets all: Python runs one thread at a time.
            workers = max(1, int(min(self.workers, len(group) * work / LITTLE_WORK)))
            shares = min(len(group), workers * -(-len(group) // (workers * most)))
            if int(sizes[group[0]]) == int(sizes[group[-1]]):
                # Neighbours, where all are alike: their rows and samples lie together and need no copy.
                ends = [len(group) * i // shares for i in range(shares + 1)]
                chunks += [group[a:b] for a, b in pairwise(ends)]
            else:
                chunks += [group[i::shares] for i in range(shares)]
        return chunks

    def start(
        self,
        module: nn.Module,
        layout: Layout,
        federation: Federation,
        training: Training,
        seed: int,
        secret: int | None = None,
    ) -> Pool:
        """Workers ready to train this module on these clients; `secret` is what noise is drawn from, else the seed."""
        return Pool(self, module, layout, federation, training, seed, secret)


RAY = "ray"
ENGINES: dict[str, Callable[[], Engine]] = {
    "loop": lambda: Engine("loop", 1, stacked=False),
    "vectorised": lambda: Engine("vectorised", 1, stacked=True),
    "threads": lambda: Engine("threads", cores(), stacked=False),
    "threads+vectorised": lambda: Engine("threads+vectorised", cores(), stacked=True),
}


def engine(name: str) -> Engine:
    """The engine of that name ('auto' is chosen for a model, by `choose`); 'ray:ADDRESS' is 'ray' at an address."""
    kind, _, address = name.partition(":")
    if kind == RAY:
        return Engine(RAY, cores(), stacked=True, address=address)
    if name not in ENGINES:
        raise InputError(f"engine '{name}' is unknown; {nearest(name, [*ENGINES, RAY, 'auto'])}")
    return ENGINES[name]()


def check_loss(module: nn.Module, federation: Federation, training: Training) -> None:
    """Refuse class weights without classes, and a loss of the user's own that does not give one number per sample."""
    require(
        not training.balance or federation.target_kind == "class",
        "balance weighs classes, and these samples do not have one class each; leave it out",
    )
    if training.criterion is None or len(federation.train.y) < 2:
        return
    module = copy.deepcopy(module).eval()
    with torch.no_grad():
        out = module(federation.train.x[:2])
        try:
            found: object = training.criterion(out, federation.train.y[:2])
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = f"outputs {tuple(out.shape)} and targets {tuple(federation.train.y[:2].shape)}"
            raise InputError(f"the loss function fails on {shapes} of two samples: {error}") from error
    came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    require(came == (2,), f"the loss function must give one number per sample, (2,) for two samples, got {came}")


def check_batches(module: nn.Module, federation: Federation, training: Training) -> None:
    """Refuse a batch of one sample where a layer needs two, before the round in which it would come."""
    layer = next((n for n, m in module.named_modules() if isinstance(m, nn.BatchNorm1d)), None)
    sizes, b = federation.train.sizes, training.batch_size
    # A lone last sample takes a partner from the batch before, where there is one that can spare it.
    alone = ((sizes == 1) | (sizes % b == 1) & (b <= 2) | (b == 1)).nonzero()
    if layer is not None and len(alone):
        k = int(alone[0])
        count = int(federation.train.sizes[k])
        raise InputError(
            f"BatchNorm1d '{layer}' cannot train on a single sample, and client {k} with {count} samples "
            f"ends in a batch of one at batch_size {training.batch_size}; use another batch_size or LayerNorm"
        )


class Pool:
    """Worker threads, each with its own copy of the module and one intra-op thread."""

    def __init__(
        self,
        engine: Engine,
        module: nn.Module,
        layout: Layout,
        federation: Federation,
        training: Training,
        seed: int,
        secret: int | None = None,
    ) -> None:
        self.engine = engine
        self._module, self._layout = module, layout
        self._federation, self._training, self._seed = federation, training, seed
        self._secret = secret
        self._local = threading.local()
        self._counting = threading.Lock()
        self.passes = 0  # samples over which gradients were taken so far
        if engine.stacked:
            check_stackable(module)
        check_batches(module, federation, training)
        check_loss(module, federation, training)
        # One thread each: two OpenMP teams on the same cores collapse to a fraction of the speed.
        self._threads = ThreadPoolExecutor(engine.workers, initializer=one_thread)

    def map(self, work: Work, ids: Tensor, round: int, states: Named, messages: Named) -> tuple[Named, Named]:
        """Run `work` on every client in `ids` (ascending), a chunk at a time; rows come back in the order of ids.

        `states` are rows of these clients, `messages` rows addressed by client id.
        """
        done = self.chunks(work, ids, round, states, messages)
        chunks, results = [chunk for chunk, _ in done], [result for _, result in done]
        made: dict[tuple[int, ...], Tensor] = {}
        pieces: list[Piece] = []
        states, replies = (_assemble([r[i] for r in results], chunks, made, pieces) for i in (0, 1))
        # By the workers: a team of OpenMP threads would go on to wait in a loop, on cores that others need.
        list(self._threads.map(_place, [pieces[i :: self.engine.workers] for i in range(self.engine.workers)]))
        return states, replies

    def chunks(
        self, work: Work, ids: Tensor, round: int, states: Named, messages: Named
    ) -> list[tuple[list[int], tuple[Named, Named]]]:
        """As `map`, but chunk by chunk: positions in `ids`, and what `work` made for these clients."""
        room = STACK_BYTES if self._layout.device.type == "cpu" else DEVICE_STACK_BYTES
        fitting = room // (self._layout.size * torch.get_default_dtype().itemsize)
        most = max(1, min(fitting, MOST_STACKED))
        work_of_step = float(self._layout.size * self._training.batch_size)
        chunks = self.engine.plan(self._federation.train.sizes[ids], most, work_of_step)

        def run(chunk: list[int]) -> tuple[Named, Named]:
            if not hasattr(self._local, "network"):
                self._local.network = FastNetwork(self._module, self._layout)
            mine = ids[chunk].tolist()
            task = Task(
                self._local.network,
                self._federation,
                mine,
                self._training,
                round=round,
                seed=self._seed,
                secret=self._secret,
            )
            try:
                with torch.no_grad():
                    device = self._layout.device
                    made = work(to_device(take(states, chunk), device), to_device(take(messages, mine), device), task)
            except FairleadError:
                raise
            except Exception as error:
                # A model of the user's own fails in its own words; who was training, and when, is ours to add.
                who = f"client {mine[0]}" if len(mine) == 1 else f"clients {mine[0]} to {mine[-1]}"
                reason = f"{who}, round {round}: {type(error).__name__}: {error}".rstrip().replace("\n", " ")
                raise EngineError(f"{reason}; the model or the method failed on this client's data") from error
            with self._counting:
                self.passes += task.work.passes
            return made

        return list(zip(chunks, self._threads.map(run, chunks), strict=True))

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def take(rows: Named, chunk: list[int]) -> Named:
    """These rows of each; a single row is for everybody and stays single.

    >>> take({"w": torch.zeros(1, 2), "h": torch.arange(6.0).view(3, 2)}, [2])["h"].tolist()
    [[4.0, 5.0]]
    """
    return {n: x if len(x) == 1 else x[among(chunk)] for n, x in rows.items()}


def among(chunk: list[int]) -> slice | Tensor:
    """The chunk as an index: a slice, which copies nothing, where its positions follow one another."""
    first, last = chunk[0], chunk[-1]
    return slice(first, last + 1) if chunk == list(range(first, last + 1)) else torch.tensor(chunk)


def _assemble(
    results: list[Named], chunks: list[list[int]], made: dict[tuple[int, ...], Tensor], pieces: list[Piece]
) -> Named:
    """Room for the chunks' rows as one, in the cohort's order, and the `pieces` to put there.

    A shared row is written out, a copy for each of its clients. `made` remembers what has room already: a model that a
    client both keeps and sends is one tensor.
    """
    whole: Named = {}
    for n, first in results[0].items():
        parts = [result[n] for result in results]
        key = tuple(map(id, parts))
        if key not in made:
            like = first if first.is_floating_point() else first.new_empty(0, device="cpu")  # steers the server
            made[key] = large_empty(like, sum(map(len, chunks)), *first.shape[1:])
            pieces += [(made[key], chunk, part) for chunk, part in zip(chunks, parts, strict=True)]
        whole[n] = made[key]
    return whole


def _place(pieces: list[Piece]) -> None:
    for rows, chunk, part in pieces:
        rows[among(chunk)] = part
