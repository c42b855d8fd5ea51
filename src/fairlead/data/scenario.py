"""A scenario: which data, divided among whom and how, in plain values that can be saved and built again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike

from fairlead.core.errors import InputError, nearest, require
from fairlead.core.seeds import stream
from fairlead.core.types import Federation, Split
from fairlead.data import partition
from fairlead.data.partition import Index
from fairlead.data.shift import SHIFTS
from fairlead.data.source import PARTS, Source
from fairlead.data.sources import load

SPLITS = ("iid", "dirichlet", "pathological", "consecutive", "quantity", "column")
POOLS = ("all", "train")


@dataclass(frozen=True)
class Scenario:
    """Who has which data. Every field is a plain value; `build` turns it into a `Federation`.

    Images become float32 in [0, 1]; colour images are then centred to [-1, 1] (mean and deviation 0.5), as the ConFREE
    experiments do. A table's features are scaled by their smallest and largest value among all clients' train samples,
    which is all that clients would have to tell each other. Tensors of your own are taken as they are.

    >>> federation = Scenario(clients=3).build(seed=0)
    >>> federation.train.sizes.tolist()
    [299, 299, 299]
    """

    data: str = "digits"  # a name, or the path of a file or folder; see `fairlead.data.load`
    label: str | None = None  # the label column, where it is not called "label"
    column: str | None = None  # the column that names the owner, for split "column"
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", str(self.data))
        # JSON knows neither tuples nor whole-number keys; coming back from a file they are put right here.
        if self.samples is not None:
            object.__setattr__(self, "samples", tuple(self.samples))
        object.__setattr__(self, "fractions", tuple(self.fractions))
        if self.big is not None:
            object.__setattr__(self, "big", {int(client): times for client, times in self.big.items()})
        for field, valid in (("split", SPLITS), ("shift", tuple(SHIFTS)), ("pool", POOLS)):
            value = getattr(self, field)
            require(value in valid, f"unknown {field} '{value}'; {nearest(str(value), valid)}")
        if self.split == "column":
            require(self.column is not None, "split 'column' needs the name of a column")
        counted = isinstance(self.clients, int) and self.clients >= 1
        optional = self.split == "column" and self.clients is None
        require(counted or optional, f"clients must be a whole number of at least 1, got {self.clients}")
        require(_positive(self.beta), f"beta must be > 0, got {self.beta}; try 0.1 (strong skew) to 100 (mild)")
        require(self.classes_per_client >= 1, f"classes_per_client must be at least 1, got {self.classes_per_client}")
        require(self.skew == 0 or _positive(self.skew), f"skew must be >= 0, got {self.skew}; 0 gives equal sizes")
        require(math.isfinite(self.angle), f"angle must be a number of degrees, got {self.angle}")
        sized = self.image_size is None or (isinstance(self.image_size, int) and self.image_size >= 1)
        require(sized, f"image_size must be a whole number of pixels a side, got {self.image_size}")
        self._check_amounts()

    def _check_amounts(self) -> None:
        if self.samples is not None:
            whole = len(self.samples) == 3 and all(isinstance(s, int) for s in self.samples)
            good = whole and self.samples[0] >= 1 and self.samples[1] >= 0 and self.samples[2] >= 1
            require(
                good, f"samples must be whole train, validation and test counts like (128, 64, 277), got {self.samples}"
            )
            require(self.split != "quantity", "samples fixes every client's size, so split 'quantity' cannot vary it")
        f = self.fractions
        good = len(f) == 3 and f[0] > 0 and f[1] >= 0 and f[2] > 0 and math.isclose(sum(f), 1, abs_tol=1e-6)
        require(good, f"fractions must be train > 0, validation >= 0 and test > 0 with sum 1, got {f}")
        for client, times in (self.big or {}).items():
            known = self.clients is None or 0 <= client < self.clients
            require(known, f"big names client {client}, and clients count from 0 to {(self.clients or 0) - 1}")
            require(_positive(times), f"big: client {client} must have > 0 times the samples, got {times}")
        fits = self.big is None or self.split in ("iid", "quantity")
        require(fits, f"big changes sizes, which split '{self.split}' decides itself; use split 'iid' or 'quantity'")

    def build(
        self,
        seed: int,
        data_dir: Path | str | None = None,
        source: Source | None = None,
        parts: Sequence[ArrayLike] | None = None,
    ) -> Federation:
        """Give every client its train, validation and test samples; the same seed gives the same federation.

        `source` replaces the data set named here, and `parts` (sample indices per client, from `from_flwr` say) the
        split. Whatever cannot work raises `InputError` here, before any training.
        """
        require(seed >= 0, f"seed must be >= 0, got {seed}")
        source = load(self.data, data_dir, self.label, self.column) if source is None else source
        images = source.raw.dim() == 4
        require(self.shift == "none" or images, f"shift '{self.shift}' needs images, and {source.name} has features")
        require(self.image_size is None or images, f"image_size needs images, and {source.name} has features")
        test_part = source.parts == "test"
        if self.pool == "train" and not 0 < test_part.sum() < len(source):
            raise InputError(f"pool 'train' needs a published test part, and {source.name} has none; use pool 'all'")
        if parts is not None or self.split == "column":
            given = self._given(source, parts)
            owned = [[p] for p in given] if self.pool == "all" else [[p[~test_part[p]], p[test_part[p]]] for p in given]
        else:
            owned = self._divide(source, test_part, seed)
        return self._federation(source, self._cut(owned, seed))

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

    def _divide(self, source: Source, test_part: np.ndarray[Any, np.dtype[np.bool_]], seed: int) -> list[list[Index]]:
        """For each client, the samples it may use: one pool to cut in three, or one to train with and one to test."""
        need = self._need()
        if self.pool == "all":
            return [[part] for part in self._split(source.y.numpy(), need.sum(1), seed)]
        first, second = np.flatnonzero(~test_part), np.flatnonzero(test_part)
        labels = source.y.numpy()
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
        need = np.broadcast_to(self._need(), (len(owned), 3)) if self.clients is None else self._need()
        cut: list[list[Index]] = [[], [], []]
        for client, pools in enumerate(owned):
            kinds = [[0, 1], [2]] if len(pools) == 2 else [[0, 1, 2]]
            for pool, kind in zip(pools, kinds, strict=True):
                wanted = need[client, kind]
                if len(pool) < wanted.sum():
                    what = " and ".join(PARTS[i] for i in kind)
                    raise InputError(
                        f"client {client} has {len(pool)} samples for {what}, and needs {wanted.sum()}; "
                        "lower clients or the samples per client, or choose another split"
                    )
                sizes = wanted if self.samples is not None else _shares(len(pool), [self.fractions[i] for i in kind])
                pieces = np.split(rng.permutation(pool), np.cumsum(sizes))
                for i, piece in zip(kind, pieces, strict=False):
                    cut[i].append(piece)
        return cut

    def _federation(self, source: Source, cut: list[list[Index]]) -> Federation:
        shift = SHIFTS[self.shift]

        def gather(pieces: list[Index]) -> Split:
            starts = np.cumsum([0, *map(len, pieces)])
            index = np.concatenate(pieces)
            x = torch.from_numpy(source.raw.numpy()[index])
            if self.shift != "none":
                for client, (a, b) in enumerate(pairwise(starts)):
                    x[a:b] = shift(x[a:b], client * self.angle)
            if source.pixels:
                x = x.float().div_(255)
                if x.shape[1] == 3:
                    x.sub_(0.5).div_(0.5)
            if self.image_size is not None:
                x = F.adaptive_avg_pool2d(x, self.image_size)
            return Split(x, torch.from_numpy(source.y.numpy()[index]), torch.from_numpy(starts))

        train, validation, test = (gather(pieces) for pieces in cut)
        if source.measured:
            low, high = train.x.amin(0), train.x.amax(0)
            for split in (train, validation, test):
                split.x.sub_(low).div_((high - low).where(high > low, 1))
        return Federation(train, validation, test, source.classes, self._names(source, cut))

    def _names(self, source: Source, cut: list[list[Index]]) -> tuple[str, ...]:
        """What the column calls each client; the first and last value where several were joined."""
        if self.split != "column" or self.column not in source.columns:
            return ()
        values = np.asarray(source.columns[self.column])
        owned = [np.unique(values[np.concatenate(pieces)].astype(str)) for pieces in zip(*cut, strict=True)]
        return tuple(str(v[0]) if len(v) == 1 else f"{v[0]} to {v[-1]}" for v in owned)


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


def _shares(n: int, fractions: list[float]) -> Index:
    """Cut n in the given fractions, at least one for each fraction above zero."""
    sizes = partition.apportion(n, fractions)
    for i, fraction in enumerate(fractions):
        if fraction > 0 and sizes[i] == 0:
            sizes[sizes.argmax()] -= 1
            sizes[i] += 1
    return sizes


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
