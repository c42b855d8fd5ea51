"""A chunk of clients' data, bound to the model and the loss: all a method needs to train."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fairlead.core.batches import Batch, gather, schedule
from fairlead.core.errors import InputError, require
from fairlead.core.gradient import Gradient, Piece
from fairlead.core.layout import Layout, Part
from fairlead.core.machine import blank_rows
from fairlead.core.network import Loss, MeanLoss, Network, Output
from fairlead.core.targets import CRITERIA, SCORES, Criterion, mean_over_samples
from fairlead.core.types import Federation, Named, Split

SplitName = Literal["train", "validation", "test"]

# Samples of a client evaluated at once: bounds the memory of activations, which convolutions fill the cache with.
EVALUATION_BLOCK = 128


@dataclass(frozen=True)
class Training:
    """How every client trains in a round; the same for all methods of a comparison, LOCAL included."""

    lr: float = 0.05
    epochs: int = 1
    steps: int | None = None  # exactly so many batches, in place of epochs; what a method counts as an epoch, too
    batch_size: int = 32
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "exponential"] = "constant"
    decay: float = 0.99  # per round, of the exponential schedule
    rounds: int = 1  # over which the cosine falls to zero
    criterion: Criterion | None = field(default=None, repr=False)  # left out, the one that suits the targets

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr must be > 0, got {self.lr}; try 0.01")
        require(self.epochs >= 1, f"epochs must be >= 1, got {self.epochs}")
        require(self.steps is None or self.steps >= 1, f"steps must be >= 1, got {self.steps}; leave it out for epochs")
        require(self.batch_size >= 1, f"batch_size must be >= 1, got {self.batch_size}")
        require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), got {self.momentum}; 0 is plain SGD")
        require(self.weight_decay >= 0, f"weight_decay must be >= 0, got {self.weight_decay}")
        require(0 < self.decay <= 1, f"decay must lie in (0, 1], got {self.decay}; 1 keeps the rate constant")

    def lr_at(self, round: int) -> float:
        """The learning rate of a round, counted from 1."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * (round - 1) / max(self.rounds, 1)))
        return self.lr * self.decay ** (round - 1) if self.schedule == "exponential" else self.lr


class Task:
    """What a method sees of a chunk of C clients in one round.

    `descend` is local SGD, `grad` one gradient, `loss` and `outputs` evaluate. All take rows (C, D), or one row that
    stands for everybody, and return fresh rows; nothing is changed in place.
    """

    def __init__(
        self, network: Network, federation: Federation, ids: list[int], training: Training, *, round: int, seed: int
    ) -> None:
        self.ids = ids
        self.layout: Layout = network.layout
        self.round = round
        self.seed = seed
        self.training = training
        self.lr = training.lr_at(round)
        self.classes = len(federation.classes)
        self.target_kind = federation.target_kind
        self.criterion = criterion = training.criterion or CRITERIA[self.target_kind]
        self._mean = MeanLoss(lambda module, batch, given: criterion(module(batch.x), batch.y))
        self._network = network
        self._federation = federation

    def __len__(self) -> int:
        return len(self.ids)

    def sizes(self, split: SplitName = "train") -> Tensor:
        """Samples of each client, (C, 1)."""
        return self._split(split).sizes[self.ids][:, None]

    def class_counts(self, split: SplitName = "train") -> Tensor:
        """How many samples of each class each client has, (C, K)."""
        data = self._split(split)
        return torch.stack([torch.bincount(data.client(k)[1], minlength=self.classes) for k in self.ids])

    def steps(self, epochs: int | None = None) -> Tensor:
        """How many gradients make up each client's displacement in a call of `descend`, (C, 1).

        With momentum m, the gradient of step s of K is applied (1 - m^(K-s+1)) / (1 - m) times over; the sum of these
        is what -displacement / lr must be divided by to give a mean gradient. Without momentum it is K.
        """
        t = self.training
        length = self._length(epochs, None)
        whole = (self.sizes() / t.batch_size).ceil()
        k = (t.epochs if epochs is None else epochs) * whole if length is None else torch.full_like(whole, length)
        m = t.momentum
        return (k - m * (1 - m**k) / (1 - m)) / (1 - m)

    def data(self, split: SplitName = "train") -> Iterator[tuple[Tensor, Tensor]]:
        """Each client's own samples and labels, as views."""
        return (self._split(split).client(k) for k in self.ids)

    def batches(
        self, *, epochs: int | None = None, steps: int | None = None, batch_size: int | None = None, start: int = 0
    ) -> Iterator[Batch]:
        """The round's training batches; at every call with the same `start`, passes to skip, the same ones.

        `epochs` are as long as the run's: all batches, or its `steps`. `steps` given here are exactly so many.
        """
        return schedule(
            self._federation.train,
            self.ids,
            batch_size=batch_size or self.training.batch_size,
            epochs=self.training.epochs if epochs is None else epochs,
            steps=self._length(epochs, steps),
            start=start,
            seed=self.seed,
            round=self.round,
            keyed=self._network.drops,
            pairs=self._network.pairs,
        )

    def grad(
        self,
        rows: Tensor,
        batch: Batch,
        *,
        only: Part | None = None,
        loss: Loss | None = None,
        given: Named | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Each row's gradient on its own client's batch, (C, D).

        `loss(module, batch, given)` replaces the usual loss; `given` are further rows it needs, one per client.
        """
        rows = rows.expand(len(self), -1)
        if out is None:
            out = blank_rows(rows)
            (out[:, self.layout.trainable :] if only is None else out).zero_()  # what the gradient does not write
        self._gradient(rows, batch, only, loss, given).write(out)
        return out

    def descend(
        self,
        rows: Tensor,
        *,
        lr: float | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        start: int = 0,
        momentum: float | None = None,
        weight_decay: float | None = None,
        only: Part | None = None,
        extra: Callable[[Tensor], Tensor] | None = None,
        tie: tuple[Tensor, Tensor | float] | None = None,
        towards: tuple[Tensor, Tensor | float] | None = None,
        grad: Callable[[Tensor, Batch], Tensor] | None = None,
        loss: Loss | None = None,
        given: Named | None = None,
    ) -> Tensor:
        """Local SGD from `rows` over each client's batches, (C, D).

        What is not given comes from the run's `Training`. `only` moves a part and leaves the rest; `extra(u)`, not u
        itself, is added to the gradient at u, and so is that of strength / 2 * ‖u - v‖² for `tie` = (v, strength), with
        one strength or one per client (C, 1); `towards` = (v, strength) draws u to v by as much, outside momentum;
        `grad(u, batch)` takes the gradient's place. Momentum starts from zero at every call. Rows with a leading axis,
        (M, C, D), are M models per client trained together, step by step; then `grad` gives the gradients of all.
        """
        plain = loss is None and grad is None and extra is None and tie is None and towards is None
        if only is not None and plain and self._settled(only, epochs, steps, batch_size):
            u = rows.expand(len(self), -1).clone()
            u[:, only.columns] = self.above(only, rows).descend(
                u[:, only.columns],
                lr=lr,
                epochs=epochs,
                steps=steps,
                batch_size=batch_size,
                start=start,
                momentum=momentum,
                weight_decay=weight_decay,
            )
            return u
        lr = self.lr if lr is None else lr
        momentum = self.training.momentum if momentum is None else momentum
        weight_decay = self.training.weight_decay if weight_decay is None else weight_decay
        moving = slice(0, self.layout.trainable) if only is None else self.layout.part(*only.names).columns
        rows = rows.expand(*rows.shape[:-2], len(self), -1)
        u = blank_rows(rows).copy_(rows)
        if towards is None and not momentum:
            tie, towards = None, tie  # the same step, in one pass over the rows
        # Terms are added to the rows themselves, unless there is more to do with their sum.
        total = blank_rows(u).zero_() if momentum or weight_decay else u
        for batch in self.batches(epochs=epochs, steps=steps, batch_size=batch_size, start=start):
            here = 1.0 if batch.active is None else batch.active  # nothing moves a client that has no batch
            term = partial(_Term, moving=moving, here=here)
            terms: list[Gradient | _Term] = [
                self._gradient(u, batch, only, loss, given) if grad is None else term(grad(u, batch))
            ]
            if extra is not None:
                terms.append(term(extra(u)))
            if tie is not None:
                v, strength = tie
                terms.append(term((u - v).mul_(strength)))
            if total is not u:
                total.mul_(momentum) if momentum else total.zero_()
                if weight_decay:
                    term(u).add(total, weight_decay)
                _put(terms, total, 1)
                terms = [term(total)]
            if towards is not None:
                _draw(u, towards, moving, lr * here)
            _put(terms, u, -lr)
        self._network.release()
        return u

    def _gradient(
        self, rows: Tensor, batch: Batch, only: Part | None, loss: Loss | None, given: Named | None
    ) -> Gradient:
        return self._network.gradient(rows, batch, loss or self._mean, only, given)

    def above(self, part: Part, rows: Tensor, inputs: Tensor | None = None) -> Task:
        """A part of the model as a task of its own, the rest held at `rows`; the part's columns are its rows, (C, P).

        Where the part is the last layers and those below are settled, what they make of the train samples is computed
        here, once, unless it is given: `inputs`, (C, n, ...). Only train samples can then be asked for.
        """
        tail = self._tail(part)
        if tail is None:
            return _Held(self, part, rows)
        network, below = tail
        _, y, real = self.whole("train")
        z = self.outputs(rows, "train", below) if inputs is None else inputs
        order = torch.tensor(self.ids).argsort()
        sizes = torch.zeros(len(self._federation.train.starts), dtype=torch.int64)
        sizes[torch.tensor(self.ids) + 1] = real.sum(1)
        train = Split(z[order][real[order]], y[order][real[order]], sizes.cumsum(0))
        data = replace(self._federation, train=train)
        return Task(network, data, self.ids, self.training, round=self.round, seed=self.seed)

    def _tail(self, part: Part) -> tuple[Network, Output] | None:
        # Who has no samples has none to compute anything of.
        return self._network.tail(part) if int(self.sizes().min()) else None

    def _settled(self, part: Part, epochs: int | None, steps: int | None, batch_size: int | None) -> bool:
        """Whether the layers below the part are better computed once, for all samples, than batch by batch."""
        if self._tail(part) is None:
            return False
        length = self._length(epochs, steps)
        if length is None:
            return (self.training.epochs if epochs is None else epochs) > 0
        return length * (batch_size or self.training.batch_size) >= int(self.sizes().max())

    def _length(self, epochs: int | None, steps: int | None) -> int | None:
        """How many batches these are for every client; None where they are whole passes over its samples."""
        if steps is not None or self.training.steps is None:
            return steps
        return self.training.steps * (1 if epochs is None else epochs)

    def loss(self, rows: Tensor, split: SplitName = "validation") -> Tensor:
        """The mean loss of each row on its client's whole split, evaluating, (C, 1)."""
        return self.evaluate(rows, split)["loss"]

    def losses(self, models: Tensor, which: Tensor, split: SplitName = "validation") -> Tensor:
        """The mean loss on client i's whole split of models[which[i, m]], evaluating, (N, D), (C, M) -> (C, M).

        Model by model: it passes over the samples of all who look at it at once, and is nowhere copied.
        """
        if not which.numel():
            return models.new_empty(which.shape)
        x, y, real = self.whole(split)
        names, counts = torch.unique(which, return_counts=True)
        order = which.flatten().argsort()
        who = order // which.shape[1]
        looks = zip(names.tolist(), torch.split(who, counts.tolist()), strict=True)
        out = torch.cat([self._apply(models[j : j + 1], x.index_select(0, some), None) for j, some in looks])
        found = self._mean_loss(out, y[who], real[who])
        return torch.empty_like(found).index_copy_(0, order, found).view_as(which)

    def evaluate(self, rows: Tensor, split: SplitName) -> Named:
        """The mean loss and the scores of each row on its client's whole split, (C, 1) each: see `core.targets`."""
        x, y, real = self.whole(split)
        out = self._apply(rows, x, None)
        scores = SCORES[self.target_kind]
        return {"loss": self._mean_loss(out, y, real)} | {name: f(out, y, real) for name, f in scores.items()}

    def _mean_loss(self, out: Tensor, y: Tensor, real: Tensor) -> Tensor:
        values = self.criterion(out.flatten(0, 1), y.flatten(0, 1)).view_as(real)
        return mean_over_samples(values, real)

    def whole(self, split: SplitName) -> tuple[Tensor, Tensor, Tensor]:
        """A whole split side by side: x (C, n, ...), y (C, n) and which entries are real samples (C, n)."""
        data = self._split(split)
        sizes = self.sizes(split)
        if int(sizes.min()) == 0:
            raise InputError(
                f"client {self.ids[int(sizes.argmin())]} has no {split} samples, which this method needs; "
                "give the scenario a share for them, e.g. --fractions 0.6,0.2,0.2"
            )
        n, last = int(sizes.max()), self.ids[-1]
        if int(sizes.min()) == n and self.ids == list(range(self.ids[0], last + 1)):  # they lie together: no copy
            mine = slice(int(data.starts[self.ids[0]]), int(data.starts[last + 1]))
            x, y = (z[mine].reshape(len(self), n, *z.shape[1:]) for z in (data.x, data.y))
            return x, y, torch.ones(len(self), n, dtype=torch.bool)
        position = torch.arange(n)
        real = position < sizes
        (batch,) = gather(data, self.ids, position.where(real, -1)[None], torch.zeros(1, len(self), dtype=torch.int64))
        return batch.x, batch.y, real

    def outputs(self, rows: Tensor, split: SplitName, f: Output | None = None) -> Tensor:
        """What each row's model (or `f(module, x)`) gives on its client's whole split, (C, n, ...), evaluating."""
        return self._apply(rows, self.whole(split)[0], f)

    def _apply(self, rows: Tensor, x: Tensor, f: Output | None) -> Tensor:
        blocks = torch.split(x, EVALUATION_BLOCK, dim=1)
        return torch.cat([self._network.outputs(rows, b, f) for b in blocks], dim=1)

    def _split(self, split: SplitName) -> Split:
        data: Split = getattr(self._federation, split)
        return data


class _Held(Task):
    """A part of another task's model, for networks whose other layers must be computed batch by batch."""

    def __init__(self, task: Task, part: Part, rows: Tensor) -> None:
        self.__dict__.update(task.__dict__)
        self._part, self._rows = part, rows.expand(len(task), -1).clone()
        self._buffer = torch.zeros_like(self._rows)

    def _whole(self, rows: Tensor) -> Tensor:
        self._rows[:, self._part.columns] = rows
        return self._rows

    def _gradient(
        self, rows: Tensor, batch: Batch, only: Part | None, loss: Loss | None, given: Named | None
    ) -> Gradient:
        super()._gradient(self._whole(rows), batch, self._part, loss, given).write(self._buffer)
        return Gradient([Piece(self._buffer[:, self._part.columns], [])], lambda rows: [rows])

    def losses(self, models: Tensor, which: Tensor, split: SplitName = "validation") -> Tensor:
        # No model is the same for two clients: what is held differs.
        return torch.cat([models.new_empty(len(self), 0), *(self.loss(models[n], split) for n in which.T)], 1)

    def _apply(self, rows: Tensor, x: Tensor, f: Output | None) -> Tensor:
        return super()._apply(self._whole(rows), x, f)


def _draw(u: Tensor, towards: tuple[Tensor, Tensor | float], moving: slice | Tensor, lr: Tensor | float) -> None:
    v, strength = towards
    nearer = u[..., moving].lerp_(v[..., moving], lr * strength)
    if not isinstance(moving, slice):  # then it is a copy
        u[..., moving] = nearer


def _put(terms: list[Gradient | _Term], to: Tensor, scale: float) -> None:
    """Add all, and let go of them: the next gradient then has their memory, which is still in the cache."""
    while terms:
        terms.pop().add(to, scale)


class _Term(NamedTuple):
    """Rows that are part of a step, in the columns that move, for the clients that are here."""

    rows: Tensor
    moving: slice | Tensor
    here: Tensor | float

    def add(self, to: Tensor, scale: float) -> None:
        """So many times the rows to others, in place."""
        mine = self.rows[..., self.moving]
        mine = mine if isinstance(self.here, float) else mine * self.here
        if isinstance(self.moving, slice):
            to[..., self.moving].add_(mine, alpha=scale)
        else:
            to[..., self.moving] += scale * mine
