"""A scenario: which data, divided among whom and how, in plain values that can be saved and built again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from fairlead.core.errors import InputError, nearest, require
from fairlead.core.seeds import stream
from fairlead.core.types import Federation, Split, Target
from fairlead.data import partition
from fairlead.data.folds import FEWEST, divide, group_means, in_folds, owner_stream, shares
from fairlead.data.partition import Index
from fairlead.data.preparation import EVERYBODY, SCALINGS, Preparation, learn, recode
from fairlead.data.shift import SHIFTS
from fairlead.data.source import PARTS, Source
from fairlead.data.sources import load, owner_column
from fairlead.data.targets import TASKS

SPLITS = ("iid", "dirichlet", "pathological", "consecutive", "quantity", "column")
POOLS = ("all", "train")


@dataclass(frozen=True)
class Scenario:
    """Who has which data. Every field is a plain value; `build` turns it into a `Federation`.

    Images become float32 in [0, 1]; colour images are then centred to [-1, 1] (mean and deviation 0.5), as the ConFREE
    experiments do. A table's rows are prepared by what its train rows teach (`Preparation`), quantities to predict are
    standardised. Tensors of your own are taken as they are.

    >>> federation = Scenario(clients=3).build(seed=0)
    >>> federation.train.sizes.tolist()
    [299, 299, 299]
    """

    data: str = "digits"  # a name, or the path of a file or folder; see `fairlead.data.load`
    label: str | None = None  # the label column, where it is not called "label"; several with commas between them
    column: str | None = None  # the column that names the owner, for split "column"
    group: str | None = None  # the column that says whom a row is about: rows of one stay in the same part and fold
    split: str = "iid"
    clients: int | None = 12  # None only with split "column": one client per value
    beta: float = 0.1  # for "dirichlet": the smaller, the fewer classes a client sees
    classes_per_client: int = 2  # for "pathological" and "consecutive"
    skew: float = 1.0  # for "quantity": 0 gives equal sizes
    samples: tuple[int, int, int] | None = None  # exact train, validation and test counts of every client, or None
    fractions: tuple[float, float, float] = (0.5, 0.2, 0.3)  # used when `samples` is None; they sum to one
    shift: str = "none"
    angle: float = 0.0  # for shift "rotation": degrees between client k and client k + 1
    image_size: int | None = None  # pixels a side that images are brought to by averaging; None leaves them as they are
    big: dict[int, float] | None = None  # clients with so many times the (train, if `samples`) samples
    pool: str = "all"  # "all" mixes the published parts; "train" keeps the published test part for testing
    event: str | None = None  # of a table: makes the label a time; the column that says whether the event came then
    task: str = "auto"  # of a table: whether the label is one of "classes" or a "quantity"
    positive: str | None = None  # of a table: makes two classes of the label, e.g. ">0", "yes" or "a|b"
    drop: tuple[str, ...] = ()  # columns of a table to leave out
    numeric: tuple[str, ...] = ()  # columns of a table that hold numbers, whatever they look like
    words: tuple[str, ...] = ()  # columns of a table that hold categories, whatever they look like
    scaling: str = "shared"  # of a table: by means and deviations of all owners' train rows, or of each owner's "own"

    def __post_init__(self) -> None:
        # JSON knows neither tuples nor whole-number keys; coming back from a file they are put right here.
        plain: dict[str, Callable[[Any], Any]] = {"data": str, "samples": tuple, "fractions": tuple}
        plain |= {"big": _by_number, "drop": _listed, "numeric": _listed, "words": _listed}
        for field, convert in plain.items():
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, convert(value))
        choices = {"split": SPLITS, "shift": tuple(SHIFTS), "pool": POOLS, "task": TASKS, "scaling": SCALINGS}
        for field, valid in choices.items():
            value = getattr(self, field)
            require(value in valid, f"unknown {field} '{value}'; {nearest(str(value), valid)}")
        if self.split == "column":
            object.__setattr__(self, "column", self.column or owner_column(self.data))
            require(self.column is not None, "split 'column' needs the name of a column")
        self._check_amounts()
        self._check_samples()

    def _check_amounts(self) -> None:
        counted = isinstance(self.clients, int) and self.clients >= 1
        optional = self.split == "column" and self.clients is None
        require(counted or optional, f"clients must be a whole number of at least 1, got {self.clients}")
        require(_positive(self.beta), f"beta must be > 0, got {self.beta}; try 0.1 (strong skew) to 100 (mild)")
        require(self.classes_per_client >= 1, f"classes_per_client must be at least 1, got {self.classes_per_client}")
        require(self.skew == 0 or _positive(self.skew), f"skew must be >= 0, got {self.skew}; 0 gives equal sizes")
        require(math.isfinite(self.angle), f"angle must be a number of degrees, got {self.angle}")
        sized = self.image_size is None or (isinstance(self.image_size, int) and 1 <= self.image_size <= 4096)
        require(sized, f"image_size must be a whole number of 1 to 4096 pixels a side, got {self.image_size}")

    def _check_samples(self) -> None:
        if self.samples is not None:
            good = all(isinstance(s, int) for s in self.samples) and _three_parts(self.samples)
            require(
                good, f"samples must be whole train, validation and test counts like (128, 64, 277), got {self.samples}"
            )
            require(self.split != "quantity", "samples fixes every client's size, so split 'quantity' cannot vary it")
        good = _three_parts(self.fractions) and math.isclose(sum(self.fractions), 1, abs_tol=1e-6)
        require(good, f"fractions must be train > 0, validation >= 0 and test > 0 with sum 1, got {self.fractions}")
        for client, times in (self.big or {}).items():
            known = self.clients is None or 0 <= client < self.clients
            require(known, f"big names client {client}, and clients count from 0 to {(self.clients or 0) - 1}")
            require(_positive(times), f"big: client {client} must have > 0 times the samples, got {times}")
        fits = self.big is None or self.split in ("iid", "quantity")
        require(fits, f"big changes sizes, which split '{self.split}' decides itself; use split 'iid' or 'quantity'")

    def load(self, data_dir: Path | str | None = None) -> Source:
        """The data set, before it is divided."""
        keys = ("group", "event", "task", "positive", "drop", "numeric", "words")
        reading = {key: getattr(self, key) for key in keys}
        return load(self.data, data_dir, self.label, self.column, **reading)

    def build(
        self,
        seed: int,
        data_dir: Path | str | None = None,
        source: Source | None = None,
        parts: Sequence[ArrayLike] | None = None,
        fold: tuple[int, int] | None = None,
        refit: bool = False,
    ) -> Federation:
        """Give every client its train, validation and test samples; the same seed gives the same federation.

        `source` replaces the data set named here, and `parts` (sample indices per client, from `from_flwr` say) the
        split. With `fold` (i, K) each client's rows are in K folds and fold i is its test part, so that i = 0 to K - 1
        test every row once. `refit` adds the validation samples to the train samples and changes nothing for the test
        samples. Whatever cannot work raises `InputError` here, before any training.
        """
        require(seed >= 0, f"seed must be >= 0, got {seed}")
        source = self.load(data_dir) if source is None else source
        self._check_source(source, fold)
        given = parts is not None or self.split == "column"
        owned = self._pools(source, self._given(source, parts)) if given else self._divide(source, seed)
        notes: list[str] = []
        if source.table is None and fold is None and self.group is None:
            cut = self._cut(owned, seed)
        else:
            # Of two folds the larger takes two of three rows, and one is left to train and choose with.
            owned = self._set_aside(source, owned, FEWEST + (fold is not None and fold[1] == 2), notes)
            cut = self._cut_by_owner(source, owned, seed, fold)
        if refit:
            learned = [np.concatenate(both) for both in zip(cut[0], cut[1], strict=True)]
            cut = [learned, [part[:0] for part in cut[1]], cut[2]]
        return replace(self._federation(source, cut), notes=tuple(notes))

    def cut_own(self, source: Source, seed: int) -> list[Index]:
        """One owner's train, validation and test rows, where `source` has its rows alone; of a table the same ones
        that `build` gives it among others.
        """
        self._check_source(source, None)
        (rows,) = self._given(source, None)
        require(len(rows) >= FEWEST, f"{source.name} has {len(rows)} rows, too few to train, choose and test with")
        return [part[0] for part in self._cut_by_owner(source, [[rows]], seed, None)]

    def build_own(self, source: Source, seed: int, preparation: Preparation | None) -> Federation:
        """One owner's federation of one, prepared by what all owners agreed on."""
        return self._federation(source, [[part] for part in self.cut_own(source, seed)], preparation)

    def _check_source(self, source: Source, fold: tuple[int, int] | None) -> None:
        """Refuse what does not fit the data."""
        images = source.raw.dim() == 4
        require(self.shift == "none" or images, f"shift '{self.shift}' needs images, and {source.name} has features")
        require(self.image_size is None or images, f"image_size needs images, and {source.name} has features")
        tested = int((source.parts == "test").sum())
        if self.pool == "train" and not 0 < tested < len(source):
            raise InputError(f"pool 'train' needs a published test part, and {source.name} has none; use pool 'all'")
        table = source.table is not None
        require(self.scaling == "shared" or table, f"scaling '{self.scaling}' needs a table, and {source.name} is none")
        by_class = self.split in ("dirichlet", "pathological", "consecutive")
        one = source.y.dim() == 1 and bool(source.classes)
        require(one or not by_class, f"split '{self.split}' needs classes, and {source.name} has none; use split 'iid'")
        if self.group is not None:
            known = self.group in source.columns
            require(known, f"{source.name} has no column '{self.group}'; {nearest(self.group, source.columns)}")
            require(self.samples is None, "samples fixes how many rows each part has, and group keeps rows together")
        if fold is not None:
            number, count = fold
            require(0 <= number < count and count >= 2, f"fold must be (i, K) with 0 <= i < K and K >= 2, got {fold}")
            require(self.samples is None, "folds use all rows, and samples fixes how many; leave out one of the two")
            require(self.pool == "all", "folds test every row once, and pool 'train' tests a published part alone")

    def _given(self, source: Source, parts: Sequence[ArrayLike] | None) -> list[Index]:
        """The partition that a column or the caller decided."""
        if parts is None:
            assert self.column is not None
            if self.column not in source.columns:
                raise InputError(f"{source.name} has no column '{self.column}'; {nearest(self.column, source.columns)}")
            return partition.by_column(source.columns[self.column], self.clients)
        given = [np.asarray(part, dtype=np.int64) for part in parts]
        require(len(given) == self.clients, f"{len(given)} parts were given for {self.clients} clients")
        used = np.concatenate(given)
        inside = bool(((used >= 0) & (used < len(source))).all())
        require(inside and len(np.unique(used)) == len(used), "parts must name each sample of the source at most once")
        return given

    def _pools(self, source: Source, given: list[Index]) -> list[list[Index]]:
        """Each client's samples as `_divide` gives them."""
        if self.pool == "all":
            return [[part] for part in given]
        tested = source.parts == "test"
        return [[part[~tested[part]], part[tested[part]]] for part in given]

    def _divide(self, source: Source, seed: int) -> list[list[Index]]:
        """For each client, the samples it may use: one pool to cut in three, or one to train with and one to test."""
        few = (self.clients or 1) <= len(source)  # more would also overflow, or fill the memory
        require(few, f"{self.clients} clients cannot share {len(source):,} samples; lower --clients")
        need = self._need()
        one_class_each = source.y.dim() == 1 and bool(source.classes)
        labels = source.y.numpy() if one_class_each else np.zeros(len(source), dtype=np.int64)
        if self.pool == "all":
            return [[part] for part in self._split(labels, need.sum(1), seed)]
        first, second = (np.flatnonzero((source.parts == "test") == tested) for tested in (False, True))
        learn = self._split(labels[first], need[:, :2].sum(1), seed)
        rng = stream(seed, "test pool")
        test = partition.like(labels[second], learn, labels[first], rng, minimum=need[:, 2])
        return [[first[a], second[b]] for a, b in zip(learn, test, strict=True)]

    def _split(self, labels: Index, need: Index, seed: int) -> list[Index]:
        """Divide one pool as `split` says, so that client k gets at least need[k] samples."""
        rng, clients = stream(seed, "split"), len(need)
        if self.split == "dirichlet":
            return partition.dirichlet(labels, clients, rng, beta=self.beta, minimum=need)
        if self.split == "pathological":
            return partition.pathological(labels, clients, rng, k=self.classes_per_client, minimum=need)
        if self.split == "consecutive":
            return partition.consecutive(labels, clients, rng, k=self.classes_per_client, minimum=need)
        if self.samples is not None:
            sizes = need.astype(float)
        else:
            ranks = np.arange(1.0, clients + 1)
            sizes = (
                rng.permutation(np.maximum(ranks**-self.skew, 1e-300)) if self.split == "quantity" else np.ones(clients)
            )
            for client, times in (self.big or {}).items():
                sizes[client] *= times
        return partition.quantity(len(labels), clients, rng, proportions=sizes, minimum=need)

    def _need(self) -> Index:
        """The train, validation and test samples that each client must have, (N, 3)."""
        least = self.samples or tuple(int(fraction > 0) for fraction in self.fractions)
        need = np.tile(np.array(least, dtype=np.int64), (self.clients or 1, 1))
        if self.samples is not None:
            for client, times in (self.big or {}).items():
                need[client, 0] = max(1, round(self.samples[0] * times))
        return need

    def _cut(self, owned: list[list[Index]], seed: int) -> list[list[Index]]:
        """Each client's pools, shuffled and cut into train, validation and test."""
        rng = stream(seed, "cut")
        cut: list[list[Index]] = [[], [], []]
        for client, pools in enumerate(owned):
            kinds = [[0, 1], [2]] if len(pools) == 2 else [[0, 1, 2]]
            for pool, kind in zip(pools, kinds, strict=True):
                pieces = np.split(rng.permutation(pool), np.cumsum(self._sizes(client, len(pool), kind, strict=True)))
                for i, piece in zip(kind, pieces, strict=False):
                    cut[i].append(piece)
        return cut

    def _sizes(self, client: int, n: int, kind: list[int], strict: bool = False) -> Index:
        """How many of a client's n samples go to these parts; `strict` refuses a part that remains empty."""
        need = self._need()
        wanted: Index = need[client if len(need) > 1 else 0, kind]
        if n < wanted.sum() and (strict or self.samples is not None):
            what = " and ".join(PARTS[i] for i in kind)
            raise InputError(
                f"client {client} has {n} samples for {what}, and needs {wanted.sum()}; "
                "lower clients or the samples per client, or choose another split"
            )
        return wanted if self.samples is not None else shares(n, [self.fractions[i] for i in kind])

    def _set_aside(self, source: Source, owned: list[list[Index]], fewest: int, notes: list[str]) -> list[list[Index]]:
        """Leave out owners with too few rows to train, choose and test, unless that is everybody."""
        if self.samples is not None or self.split != "column":
            return owned
        counts = [len(self._units(source, pools[0])) for pools in owned]
        small = [k for k, pools in enumerate(owned) if counts[k] < fewest - len(pools) + 1]
        if not small:
            return owned
        if len(small) == len(owned):
            notes.append(
                f"every owner has fewer than {fewest} rows, too few to train, choose and test with; check that "
                f"'{self.column}' is the column that says whose a row is"
            )
            return owned
        names = self._names(source, [[np.concatenate(pools) for pools in owned]])
        said = ", ".join(f"{names[k]} ({sum(len(self._units(source, pool)) for pool in owned[k])})" for k in small)
        what = f"rows of different '{self.group}'" if self.group else "rows"
        notes.append(f"too few {what} to train, choose and test with, so they take no part: {said}")
        return [pools for k, pools in enumerate(owned) if k not in small]

    def _cut_by_owner(
        self, source: Source, owned: list[list[Index]], seed: int, fold: tuple[int, int] | None
    ) -> list[list[Index]]:
        """Each owner's rows, cut by its own random numbers into parts with a like mix of classes."""
        names = self._names(source, [[np.concatenate(pools) for pools in owned]]) or _numbered(len(owned))
        targets = source.y.double().numpy()
        if source.kind == "survival":  # so that events are spread evenly over the parts, and times within these
            targets = targets[:, 1] * (targets[:, 0].max() + 1) + targets[:, 0]
        if self.group is not None:
            targets = group_means(source.columns[self.group].astype(np.int64), targets)
        cut: list[list[Index]] = [[], [], []]
        for client, (name, rows) in enumerate(zip(names, owned, strict=True)):
            pools = [self._units(source, pool) for pool in rows]
            if fold is not None:
                test = in_folds(pools[0], targets, fold[1], owner_stream(seed, name))[fold[0]]
                rest = np.setdiff1d(pools[0], test)
                sizes = shares(len(rest), list(self.fractions[:2]))
                pieces = [*divide(rest, targets, sizes, owner_stream(seed, name, *fold)), test]
            else:
                rng, kinds = owner_stream(seed, name), [[0, 1], [2]] if len(pools) == 2 else [[0, 1, 2]]
                sizes_of = [self._sizes(client, len(pool), kind) for pool, kind in zip(pools, kinds, strict=True)]
                pieces = [p for pool, s in zip(pools, sizes_of, strict=True) for p in divide(pool, targets, s, rng)]
            for part, piece in zip(cut, pieces, strict=True):
                part.append(self._rows_of(source, piece, np.concatenate(rows)))
        return cut

    def _units(self, source: Source, rows: Index) -> Index:
        """What is divided: the rows, or the groups that they belong to."""
        return rows if self.group is None else np.unique(source.columns[self.group][rows]).astype(np.int64)

    def _rows_of(self, source: Source, units: Index, rows: Index) -> Index:
        """Those of an owner's rows that belong to these units."""
        return units if self.group is None else rows[np.isin(source.columns[self.group][rows], units)]

    def _federation(self, source: Source, cut: list[list[Index]], preparation: Preparation | None = None) -> Federation:
        names = self._names(source, cut)
        if preparation is None and source.table is not None:
            preparation = self._preparation(source, cut[0], names)
        target = self._target(source, cut[0], names, preparation)
        numbers = None if source.table is None else source.table.rows
        splits: list[Split] = []
        for pieces in cut:
            starts, index = np.cumsum([0, *map(len, pieces)]), np.concatenate(pieces)
            if preparation is None:
                x = self._samples(source, index, starts)
            else:
                x = _prepared(source, preparation, pieces, names)
            y = torch.from_numpy(source.y.numpy()[index])
            if target.sd:
                each = torch.from_numpy(starts).diff()
                mean, sd = (
                    torch.tensor(v, dtype=torch.float64).repeat_interleave(each) for v in (target.mean, target.sd)
                )
                y = ((y - mean) / sd).float()
            elif y.is_floating_point():
                y = y.float()
            rows = torch.from_numpy(index if numbers is None else numbers[index])
            groups = index[:0] if self.group is None else source.columns[self.group][index].astype(np.int64)
            splits.append(Split(x, y, torch.from_numpy(starts), rows, torch.from_numpy(groups)))
        return Federation(splits[0], splits[1], splits[2], source.classes, names, target, preparation)

    def _samples(self, source: Source, index: Index, starts: Index) -> Tensor:
        """Images and tensors as they are trained on."""
        x = torch.from_numpy(source.raw.numpy()[index])
        if self.shift != "none":
            for client, (a, b) in enumerate(pairwise(starts)):
                x[a:b] = SHIFTS[self.shift](x[a:b], client * self.angle)
        if source.pixels:
            x = x.float().div_(255)
            if x.shape[1] == 3:
                x.sub_(0.5).div_(0.5)
        return x if self.image_size is None else F.adaptive_avg_pool2d(x, self.image_size)

    def _preparation(self, source: Source, train: list[Index], names: tuple[str, ...]) -> Preparation:
        """What the owners' train rows teach of a table's columns."""
        assert source.table is not None
        table, codes = source.table, source.raw.numpy()
        y = [source.y.numpy()[rows] for rows in train] if source.kind == "quantity" else None
        found = learn(table.columns, [codes[rows] for rows in train], y, names or _numbered(len(train)), self.scaling)
        ignored = tuple(column.name for column in table.columns if not column.kept)
        return replace(found, labels=table.labels, classes=source.classes, ignored=ignored)

    def _target(
        self, source: Source, train: list[Index], names: tuple[str, ...], preparation: Preparation | None
    ) -> Target:
        """What is predicted; for quantities with the mean and deviation of each client's unit."""
        labels = () if source.table is None else source.table.labels
        if source.kind != "quantity":
            return Target(labels, survival=source.kind == "survival")
        if preparation is not None:
            scales = [preparation.scale(name) for name in names or _numbered(len(train))]
            return Target(labels, tuple(s.target_mean for s in scales), tuple(s.target_sd for s in scales))
        y = source.y[torch.from_numpy(np.concatenate(train))]
        sd = float(y.std(correction=0))
        return Target(labels, (float(y.mean()),) * len(train), (sd if sd > 0 else 1.0,) * len(train))

    def _names(self, source: Source, cut: list[list[Index]]) -> tuple[str, ...]:
        """What the column calls each client; the first and last value where several were joined."""
        if self.split != "column" or self.column not in source.columns:
            return ()
        values = np.asarray(source.columns[self.column])
        owned = [np.unique(values[np.concatenate(pieces)].astype(str)) for pieces in zip(*cut, strict=True)]
        return tuple(str(v[0]) if len(v) == 1 else f"{v[0]} to {v[-1]}" for v in owned)


def _prepared(source: Source, preparation: Preparation, pieces: list[Index], names: tuple[str, ...]) -> Tensor:
    """A table's rows as samples, client after client."""
    assert source.table is not None
    codes = source.raw.numpy()
    columns = [column for column in source.table.columns if column.kept]
    codes = np.stack(
        [recode(c, f, codes[:, i]) for i, (c, f) in enumerate(zip(columns, preparation.features, strict=True))], axis=1
    )
    if EVERYBODY in preparation.scales:
        return torch.from_numpy(preparation.numbers(codes[np.concatenate(pieces)]))
    own = [preparation.numbers(codes[p], name) for p, name in zip(pieces, names or _numbered(len(pieces)), strict=True)]
    return torch.from_numpy(np.concatenate(own))


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def describe(federation: Federation) -> list[dict[str, Any]]:
    """What each client holds: its id, its sample counts, and the classes among its samples."""
    splits = (federation.train, federation.validation, federation.test)
    return [
        {
            "id": client,
            **{f"n_{part}": int(split.sizes[client]) for part, split in zip(PARTS, splits, strict=True)},
            "classes": np.unique(torch.cat([split.client(client)[1] for split in splits]).numpy()).tolist(),
        }
        for client in range(federation.clients)
    ]


def _by_number(big: Mapping[Any, float]) -> dict[int, float]:
    return {int(client): times for client, times in big.items()}


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names))


def _three_parts(amounts: Sequence[float]) -> bool:
    """Whether there is something to train and to test with; there may be nothing to choose with."""
    return len(amounts) == 3 and amounts[0] > 0 and amounts[1] >= 0 and amounts[2] > 0


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
