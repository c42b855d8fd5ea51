"""Which samples a client sees, in which order, and clients of different size side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from fairlead.core.seeds import stream
from fairlead.core.types import Split


@dataclass(frozen=True)
class Batch:
    """One step's samples of every client in the chunk; inside a loss function, of one client."""

    x: Tensor  # (C, B, ...)
    y: Tensor  # (C, B)
    key: Tensor  # (C,) what dropout draws from, one number per client and step
    weight: Tensor | None = None  # (C, B) one over the count for a sample, 0 for padding; None where nothing is padded
    active: Tensor | None = None  # (C, 1) 0 where a client has run out of steps; None where nobody has

    def mean(self, values: Tensor) -> Tensor:
        """The mean over this client's real samples of one value each, (B,) -> ()."""
        return values.mean() if self.weight is None else (values * self.weight).sum()


def orders(size: int, batch_size: int, seed: int, round: int, client: int) -> Iterator[list[np.ndarray]]:
    """Epoch after epoch, the client's samples in a fresh order, cut into batches; the last may be smaller."""
    rng = stream(seed, "batches", round, client)
    while True:
        order = rng.permutation(size)
        yield [order[i : i + batch_size] for i in range(0, size, batch_size)]


def schedule(
    split: Split,
    ids: list[int],
    *,
    batch_size: int,
    epochs: int,
    steps: int | None,
    start: int,
    seed: int,
    round: int,
) -> Iterator[Batch]:
    """The batches of all clients in `ids`, step by step: `steps` of them, or else `epochs` whole passes.

    Nothing is dropped or counted twice: a short batch is padded with weight zero, and a client that has fewer steps
    than its neighbours turns inactive. `start` skips that many epochs, for a second solver that wants other orders.
    """
    queues: list[list[np.ndarray]] = []
    for k in ids:
        first = int(split.starts[k])
        size = int(split.starts[k + 1]) - first
        passes = islice(orders(size, batch_size, seed, round, k), start, None if steps else start + epochs)
        flat = (first + piece for one_pass in passes for piece in one_pass)
        queues.append(list(islice(flat, steps)) if steps else list(flat))
    keys = [stream(seed, "dropout", round, k).integers(2**31, size=len(q)) for k, q in zip(ids, queues, strict=True)]
    for t in range(max(map(len, queues), default=0)):
        pieces = [q[t] if t < len(q) else q[0][:0] for q in queues]
        key = torch.tensor([int(keys[i][t]) if t < len(keys[i]) else 0 for i in range(len(ids))])
        yield gather(split, ids, pieces, key)


def gather(split: Split, ids: list[int], pieces: list[np.ndarray], key: Tensor) -> Batch:
    """The samples at these positions, one array per client, padded to the longest."""
    counts = torch.tensor([len(p) for p in pieces])
    longest = int(counts.max())
    # Padding repeats a sample of the client's own: another's might be NaN, and 0 * NaN is NaN.
    index = split.starts[ids].numpy()[:, None].repeat(longest, axis=1)
    for row, piece in zip(index, pieces, strict=True):
        row[: len(piece)] = piece
    flat = torch.from_numpy(index)
    x, y = (t[flat.view(-1)].view(*flat.shape, *t.shape[1:]) for t in (split.x, split.y))
    if bool((counts == longest).all()):
        return Batch(x, y, key)
    real = torch.arange(longest) < counts[:, None]
    weight = real / counts.clamp(min=1)[:, None]
    return Batch(x, y, key, weight.to(torch.get_default_dtype()), (counts > 0).to(torch.get_default_dtype())[:, None])
