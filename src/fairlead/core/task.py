"""A chunk of clients' data, bound to the model and the loss: all a method needs to train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fairlead.core.batches import Batch, gather, schedule
from fairlead.core.descent import Term, Towards, descend
from fairlead.core.errors import InputError, NeedsValidationError
from fairlead.core.fast.machine import aligned_rows
from fairlead.core.gradient import Gradient, Network, Output, Rows
from fairlead.core.held import HeldNetwork
from fairlead.core.layout import Layout, Part
from fairlead.core.loss import CLASS_WEIGHTS, BatchLoss, SampleLosses
from fairlead.core.targets import KINDS, mean_over_samples
from fairlead.core.training import Sgd, Training
from fairlead.core.types import Federation, Named, Split

SplitName = Literal["train", "validation", "test"]

# Samples of a client evaluated at once: bounds the memory of activations, which convolutions fill the cache with.
EVALUATION_BLOCK = 128


@dataclass
class Work:
    """How much was computed."""

    passes: int = 0  # samples over which gradients were taken, each time counted
    private: list[Sgd] = field(default_factory=list)  # the steps taken with noise, see `core.private`


class Task:
    """What a method sees of a chunk of C clients in one round.

    `descend` is local SGD, `grad` one gradient, `loss` and `outputs` evaluate. All take rows (C, D), or one row that
    stands for everybody, and return fresh rows; nothing is changed in place.
    """

    def __init__(
        self,
        network: Network,
        federation: Federation,
        ids: list[int],
        training: Training,
        *,
        round: int,
        seed: int,
        secret: int | None = None,
    ) -> None:
        self.ids = ids
        self.layout: Layout = network.layout
        self.round = round
        self.seed = seed
        self.secret = seed if secret is None else secret  # what noise is drawn from that others must not know
        self.training = training
        self.sgd = training.sgd(round)
        self.classes = len(federation.classes)
        self.target_kind = federation.target_kind
        kind = KINDS[self.target_kind]
        self.criterion = training.criterion or kind.criterion
        self.losses_of = SampleLosses(self.criterion, kind.compares)
        self.work = Work()
        self._network = network
        self._federation = federation
        self.given: Named = {CLASS_WEIGHTS: self._class_weights()} if training.balance else {}
        self._loss = self.losses_of.mean(self.given)

    def __len__(self) -> int:
        return len(self.ids)

    def sizes(self, split: SplitName = "train") -> Tensor:
        """Samples of each client, (C, 1), on the host."""
        return self._split(split).sizes[self.ids][:, None]

    def _class_weights(self) -> Tensor:
        """What a sample of each class counts, (C, K): a client's classes weigh the same, a sample 1 on average."""
        split = self._split("train")
        counts = torch.stack([split.client(k)[1].bincount(minlength=self.classes) for k in self.ids])
        n, present = counts.sum(1, keepdim=True), (counts > 0).sum(1, keepdim=True)
        # A class that a client's train samples lack weighs as if one of them were of it.
        return n / (present.clamp(min=1) * counts.clamp(min=1))

    def class_counts(self, split: SplitName = "train") -> Tensor:
        """How many samples of each class each client has, (C, K)."""
        _, y, real = self._padded(split)
        return y.new_zeros(len(self), self.classes).scatter_add_(1, y, real.to(y.dtype))

    def steps(self, how: Sgd | None = None) -> Tensor:
        """How many gradients make up each client's displacement in a call of `descend`, (C, 1).

        With momentum m, the gradient of step s of K is applied (1 - m^(K-s+1)) / (1 - m) times over; the sum of these
        is what -displacement / lr must be divided by to give a mean gradient. Without momentum it is K.
        """
        how = how or self.sgd
        whole = (self.sizes() / how.batch_size).ceil()
        k = how.epochs * whole if how.batches is None else torch.full_like(whole, how.batches)
        m = how.momentum
        steps: Tensor = (k - m * (1 - m**k) / (1 - m)) / (1 - m)
        return steps.to(self.layout.device)

    def data(self, split: SplitName = "train") -> Iterator[tuple[Tensor, Tensor]]:
        """Each client's own samples and labels, as views."""
        return (self._split(split).client(k) for k in self.ids)

    def marks(self, split: SplitName = "train") -> Iterator[tuple[Tensor, Tensor]]:
        """The row numbers and the groups of each client's own samples, on the host; empty where there are none."""
        return (self._split(split).marks(k) for k in self.ids)

    def batches(self, how: Sgd | None = None) -> Iterator[Batch]:
        """The batches of local training; at every call with the same `how`, the same ones."""
        network = self._network
        return schedule(
            self._federation.train,
            self.ids,
            how or self.sgd,
            seed=self.seed,
            round=self.round,
            draw_keys=network.has_dropout,
            at_least_two=network.has_batch_norm,
        )

    def grad(
        self,
        rows: Tensor,
        batch: Batch,
        *,
        only: Part | None = None,
        loss: BatchLoss | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Each row's gradient on its own client's batch, (C, D); `loss` replaces the run's."""
        rows = self.layout.marked(rows, self.ids).expand(len(self), -1)
        if out is None:
            out = aligned_rows(rows)
            (out[:, self.layout.trainable :] if only is None else out).zero_()  # what the gradient does not write
        self.work.passes += batch.samples
        self._network.gradient(rows, batch, loss or self._loss, only).write(out)
        return out

    def descend(
        self,
        rows: Tensor,
        *terms: Term | Towards,
        only: Part | None = None,
        loss: BatchLoss | None = None,
        gradient: Callable[[Tensor, Batch], Tensor] | None = None,
        how: Sgd | None = None,
    ) -> Tensor:
        """Local SGD from `rows` over each client's batches, (C, D).

        `terms` are added to the gradient of the loss: `Tie(v, strength)`, `Plus(rows)`, `Towards(v, strength)`. `only`
        moves a part and leaves the rest. `loss` replaces the run's loss, `gradient(u, batch)` its gradient. `how` says
        how to step, `task.sgd.but(epochs=5)` say; left out, as the run does. Rows with a leading axis, (M, C, D), are M
        models per client trained together, step by step; then `gradient` gives the gradients of all.
        """
        how, rows = how or self.sgd, self.layout.marked(rows, self.ids)
        plain = not terms and loss is None and gradient is None
        if only is not None and plain and self._settled(only, how):
            u = rows.expand(len(self), -1).clone()
            u[:, only.columns] = self.above(only, rows).descend(u[:, only.columns], how=how)
            return u
        columns = slice(0, self.layout.trainable) if only is None else self.layout.part(*only.names).columns
        rows = rows.expand(*rows.shape[:-2], len(self), -1)
        u = aligned_rows(rows).copy_(rows)

        def at(u: Tensor, batch: Batch, active: Tensor | float) -> Gradient:
            if gradient is not None:
                return Rows(gradient(u, batch), columns, active)
            self.work.passes += batch.samples
            return self._network.gradient(u, batch, loss or self._loss, only)

        descend(u, self.batches(how), at, terms, columns, how)
        self._network.release()
        return u

    def above(self, part: Part, rows: Tensor, inputs: Tensor | None = None) -> Task:
        """A part of the model as a task of its own, the rest held at `rows`; the part's columns are its rows, (C, P).

        Where the part is the last layers and those below are settled, what they make of the train samples is computed
        here, once, unless it is given: `inputs`, (C, n, ...). Only train samples can then be asked for.
        """
        rows = self.layout.marked(rows, self.ids)
        tail = self._tail(part)
        if tail is None:
            held = HeldNetwork(self._network, part, rows.expand(len(self), -1))
            return self._of(held, self._federation)
        network, below = tail
        _, y, _ = self.padded("train")
        z = self.outputs(rows, "train", below) if inputs is None else inputs
        return self._of(network, replace(self._federation, train=self._unpadded(z, y)))

    def _of(self, network: Network, federation: Federation) -> Task:
        """The same clients with another network or other samples; what it computes counts here."""
        task = Task(network, federation, self.ids, self.training, round=self.round, seed=self.seed, secret=self.secret)
        task.work = self.work
        return task

    def _unpadded(self, x: Tensor, y: Tensor) -> Split:
        """Padded train samples (C, n, ...) as a split in which only these clients have samples."""
        ids, sizes, position = torch.tensor(self.ids), self.sizes(), torch.arange(y.shape[1])
        order = ids.argsort()
        real = (position < sizes)[order]
        index = (order[:, None] * len(position) + position)[real].to(x.device)
        counts = torch.zeros(len(self._federation.train.starts), dtype=torch.int64)
        counts[ids + 1] = sizes[:, 0]
        x, y = (z.flatten(0, 1).index_select(0, index) for z in (x, y))
        return Split(x, y, counts.cumsum(0))

    def _tail(self, part: Part) -> tuple[Network, Output] | None:
        # Who has no samples has none to compute anything of.
        return self._network.tail(part) if int(self.sizes().min()) else None

    def _settled(self, part: Part, how: Sgd) -> bool:
        """Whether the layers below the part are better computed once, for all samples, than batch by batch."""
        if self._tail(part) is None:
            return False
        if how.batches is None:
            return how.epochs > 0
        return how.batches * how.batch_size >= int(self.sizes().max())

    def loss(self, rows: Tensor, split: SplitName = "validation") -> Tensor:
        """The mean loss of each row on its client's whole split, evaluating, (C, 1)."""
        self._check_samples(split)
        return self.evaluate(rows, split)["loss"]

    def losses(self, models: Tensor, which: Tensor, split: SplitName = "validation") -> Tensor:
        """The mean loss on client i's whole split of models[which[i, m]], evaluating, (N, D), (C, M) -> (C, M).

        Model by model: it passes over the samples of all who look at it at once, and is nowhere copied. `which` is on
        the host.
        """
        if not which.numel():
            return models.new_empty(which.shape)
        if not self._network.same_for_all:
            return torch.cat([self.loss(models[n], split) for n in which.T], 1)
        x, y, real = self.padded(split)
        names, counts = torch.unique(which, return_counts=True)
        order = which.flatten().argsort()
        who = order // which.shape[1]
        order, who = order.to(x.device), who.to(x.device)
        looks = zip(names.tolist(), torch.split(who, counts.tolist()), strict=True)
        out = torch.cat([self._apply(models[j : j + 1], x.index_select(0, some), None) for j, some in looks])
        found = self._mean_loss(out, y[who], real[who], who)
        return torch.empty_like(found).index_copy_(0, order, found).view_as(which)

    def evaluate(self, rows: Tensor, split: SplitName) -> Named:
        """The mean loss and the scores of each row on its client's whole split, (C, 1) each: see `core.targets`.

        A client without samples has NaN.
        """
        x, y, real = self._padded(split)
        scores = KINDS[self.target_kind].scores
        if not x.shape[1]:
            return {name: x.new_full((len(self), 1), torch.nan, dtype=rows.dtype) for name in ("loss", *scores)}
        out = self._apply(self.layout.marked(rows, self.ids), x, None)
        return {"loss": self._mean_loss(out, y, real)} | {name: f(out, y, real) for name, f in scores.items()}

    def _mean_loss(self, out: Tensor, y: Tensor, real: Tensor, who: Tensor | None = None) -> Tensor:
        """The mean loss of each row's outputs, (C, 1)."""
        return mean_over_samples(self.sample_losses(out, y, real, who), real)

    def sample_losses(self, out: Tensor, y: Tensor, real: Tensor, who: Tensor | None = None) -> Tensor:
        """The run's loss of each sample, (C, n, ...) -> (C, n); `who` says whose they are if not all clients'."""
        values = self.losses_of.side_by_side(out, y, real)
        if CLASS_WEIGHTS not in self.given:
            return values
        weights = self.given[CLASS_WEIGHTS]
        return values * (weights if who is None else weights[who]).gather(1, y)

    def padded(self, split: SplitName) -> tuple[Tensor, Tensor, Tensor]:
        """A whole split, short clients padded: x (C, n, ...), y (C, n) and which entries are real samples (C, n)."""
        self._check_samples(split)
        return self._padded(split)

    def _check_samples(self, split: SplitName) -> None:
        sizes = self.sizes(split)
        if int(sizes.min()) == 0:
            error = NeedsValidationError if split == "validation" else InputError
            raise error(
                f"client {self.ids[int(sizes.argmin())]} has no {split} samples, which this method needs; "
                "give the scenario a share for them, e.g. --fractions 0.6,0.2,0.2"
            )

    def _padded(self, split: SplitName) -> tuple[Tensor, Tensor, Tensor]:
        data, sizes = self._split(split), self.sizes(split)
        n, last = int(sizes.max()), self.ids[-1]
        if int(sizes.min()) == n and self.ids == list(range(self.ids[0], last + 1)):  # they lie together: no copy
            mine = slice(int(data.starts[self.ids[0]]), int(data.starts[last + 1]))
            x, y = (z[mine].reshape(len(self), n, *z.shape[1:]) for z in (data.x, data.y))
            return x, y, torch.ones(len(self), n, dtype=torch.bool, device=x.device)
        position = torch.arange(n)
        real = position < sizes
        (batch,) = gather(data, self.ids, position.where(real, -1)[None], torch.zeros(1, len(self), dtype=torch.int64))
        return batch.x, batch.y, real.to(data.x.device)

    def outputs(self, rows: Tensor, split: SplitName, f: Output | None = None) -> Tensor:
        """What each row's model (or `f(module, x)`) gives on its client's whole split, (C, n, ...), evaluating."""
        x, _, _ = self._padded(split)
        if not x.shape[1]:
            return x.new_empty((len(self), 0, self._federation.outputs), dtype=rows.dtype)
        return self._apply(self.layout.marked(rows, self.ids), x, f)

    def _apply(self, rows: Tensor, x: Tensor, f: Output | None) -> Tensor:
        blocks = torch.split(x, EVALUATION_BLOCK, dim=1)
        return torch.cat([self._network.outputs(rows, b, f) for b in blocks], dim=1)

    def _split(self, split: SplitName) -> Split:
        data: Split = getattr(self._federation, split)
        return data
