"""Which samples a client sees, in which order, and clients of different size side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.errors import require
from fairlead.core.seeds import stream
from fairlead.core.training import Sgd
from fairlead.core.types import Split

Index = NDArray[np.int64]

LONGEST = 1 << 26  # samples that the clients trained together see in a round, each counted as often as it is seen


@dataclass(frozen=True)
class Batch:
    """One step's samples of every client in the chunk; inside a loss function, of one client."""

    x: Tensor  # (C, B, ...)
    y: Tensor  # (C, B)
    key: Tensor  # (C,) what dropout draws from, one number per client and step
    weight: Tensor | None = None  # (C, B) one over the count for a sample, 0 for padding; None where nothing is padded
    active: Tensor | None = None  # (C, 1) 0 where a client has run out of steps; None where nobody has
    clients: int = 1  # inside a loss function: whose samples lie here one after another, as many of each
    samples: int = 0  # real ones of all clients, where there is no padding among them

    def client(self, k: int) -> Batch:
        """The k-th client's own samples, as a loss function sees them."""
        return Batch(self.x[k], self.y[k], self.key[k], None if self.weight is None else self.weight[k])

    def mean(self, values: Tensor) -> Tensor:
        """The mean over this client's real samples of one value each, (B,) -> ()."""
        return values.mean() if self.weight is None else (values * self.weight).sum()

    def by_label(self, table: Tensor) -> Tensor:
        """Inside a loss function: each sample's entry in its own client's table, (K, ...) -> (B, ...)."""
        if self.clients == 1:
            return table[self.y]
        each = torch.arange(self.clients, device=self.y.device)
        first = each.repeat_interleave(len(self.y) // self.clients) * table.shape[1]
        return table.flatten(0, 1)[first + self.y]


def orders(
    size: int, batch_size: int, seed: int, round: int, client: int, at_least_two: bool = False
) -> Iterator[Index]:
    """Epoch after epoch, the client's samples in a fresh order, a batch per row; -1 fills up the last one.

    With `at_least_two`, for layers that cannot learn from one sample, a last batch of one takes another from the one
    before.
    """
    rng = stream(seed, "batches", round, client)
    steps = -(-size // batch_size)
    while True:
        order = np.full(steps * batch_size, -1)
        order[:size] = rng.permutation(size)
        batches = order.reshape(steps, batch_size)
        if at_least_two and steps > 1 and batch_size > 2 and size % batch_size == 1:
            batches[-1, 1], batches[-2, -1] = batches[-2, -1], -1
        yield batches


def schedule(
    split: Split,
    ids: list[int],
    how: Sgd,
    *,
    seed: int,
    round: int,
    draw_keys: bool = True,
    at_least_two: bool = False,
) -> Iterator[Batch]:
    """The batches of all clients in `ids`, step by step.

    Nothing is dropped or counted twice: a short batch is padded with weight zero, and a client that has fewer steps
    than its neighbours turns inactive.
    `draw_keys` is for models with dropout, `at_least_two` for models that cannot learn from one sample.
    """
    queues: list[Index] = []
    # A batch that is larger than every client's samples is all of them: memory for more would stay empty.
    width = max(1, min(how.batch_size, int(split.sizes[ids].max())))
    steps = [-(-n // width) for n in split.sizes[ids].tolist()]  # in a pass over a client's samples
    most = max((n * how.epochs if how.batches is None else how.batches) for n in steps)
    require(
        most * len(ids) * width <= LONGEST,
        f"a client would take {most:,} batches of {width} in one round, whose order does not fit into memory; "
        "lower epochs, steps or the method's own epochs, and train for more rounds",
    )
    for k, pass_steps in zip(ids, steps, strict=True):
        size = int(split.starts[k + 1]) - int(split.starts[k])
        wanted = how.epochs if how.batches is None else -(-how.batches // max(pass_steps, 1))
        passes = islice(orders(size, width, seed, round, k, at_least_two), how.start, how.start + wanted)
        queues.append(np.concatenate([np.empty((0, width), dtype=np.int64), *passes])[: how.batches])
    longest = max(map(len, queues), default=0)
    positions = np.full((longest, len(ids), width), -1)  # (T, C, B) among the client's own samples
    keys = np.zeros((longest, len(ids)), dtype=np.int64)
    for i, (k, queue) in enumerate(zip(ids, queues, strict=True)):
        positions[: len(queue), i] = queue
        if draw_keys:
            keys[: len(queue), i] = stream(seed, "dropout", round, k).integers(2**31, size=len(queue))
    return gather(split, ids, torch.from_numpy(positions), torch.from_numpy(keys))


def gather(split: Split, ids: list[int], positions: Tensor, keys: Tensor) -> Iterator[Batch]:
    """Step by step, the samples at these positions among each client's own: (T, C, B), padded with -1 at the end."""
    real = positions >= 0
    counts = real.sum(2)  # (T, C)
    widths, samples = counts.amax(1).tolist(), counts.sum(1).tolist()
    even, done = (counts == counts[:, :1]).all(1).tolist(), (counts == 0).any(1).tolist()
    # Padding repeats a sample of the client's own, if it has one: another's might be NaN, and 0 * NaN is NaN.
    index = (positions.clamp(min=0) + split.starts[ids][:, None]).clamp(max=len(split.y) - 1)
    weights = (real / counts.clamp(min=1)[..., None]).to(torch.get_default_dtype())
    active = (counts > 0).to(weights)[..., None]
    # Made on the host and moved at once: a step makes no tensor there and waits for nothing.
    index, keys, weights, active = (t.to(split.x.device) for t in (index, keys, weights, active))
    for t, width in enumerate(widths):
        chosen = index[t, :, :width].reshape(-1)
        x, y = (d.index_select(0, chosen).view(len(ids), width, *d.shape[1:]) for d in (split.x, split.y))
        weight = None if even[t] else weights[t, :, :width]
        running = active[t] if done[t] and not even[t] else None
        yield Batch(x, y, keys[t], weight, running, samples=samples[t])
