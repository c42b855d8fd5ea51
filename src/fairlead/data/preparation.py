"""How rows of a table become samples: learned from train rows alone, and saved as plain data with the run.

Numbers and days are brought to mean 0 and deviation 1 and filled with the mean where they are missing; words become
one column per category, rare ones share the column "other"; where missing cells are not rare, a column of 0 and 1 tells
them. What owners tell each other for it are counts, means, sums of squared deviations and the lists of categories; with
scaling "own" means and deviations stay with each owner.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.errors import InputError, nearest, require
from fairlead.data.columns import MOST, Codes, Column, Role, code
from fairlead.data.files import clean, read_frame, table_files

log = logging.getLogger(__name__)

SCALINGS = ("shared", "own")
EVERYBODY = ""  # the key of scales that all owners share
_RARE = 3  # train rows, below which a category is among the others
_SOME = 0.01  # share of missing train cells, from which on they are told
_YEAR = 365.2425
_FAR = 10.0  # deviations from the mean, beyond which a number is no further: long tails make training diverge


@dataclass(frozen=True)
class Feature:
    """How one column becomes one or more numbers."""

    name: str
    role: Role
    categories: tuple[str, ...] = ()  # of words: those with a column each
    other: bool = False  # whether rare and unknown words have a column; else they are 0 in all
    tell_missing: bool = False  # whether a column of 0 and 1 tells that the cell was empty
    form: str = ""  # how dates are written; the unit behind numbers

    @property
    def outputs(self) -> tuple[str, ...]:
        """What each of its numbers is."""
        if self.role == "words":
            own = tuple(f"{self.name} = {value}" for value in (*self.categories, *["other"] * self.other))
        else:
            own = (self.name,)
            own += (
                (f"{self.name} (sine of the year)", f"{self.name} (cosine of the year)") if self.role == "date" else ()
            )
        return (*own, *[f"{self.name} is missing"] * self.tell_missing)


@dataclass(frozen=True)
class Scale:
    """Means and factors (1 / deviation; 0 where all train values are equal) of the features.

    Yes and no are brought to mean 0 alone, so that a rare yes does not become a large number; words are left as they
    are.
    """

    mean: tuple[float, ...]
    factor: tuple[float, ...]
    target_mean: float = 0.0
    target_sd: float = 1.0


@dataclass(frozen=True)
class Preparation:
    """Everything that is needed to make samples of raw rows, and quantities of a model's outputs."""

    features: tuple[Feature, ...]
    scales: Mapping[str, Scale]  # by owner, or one for everybody
    labels: tuple[str, ...] = ()  # the label columns
    classes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()  # columns of the table that are no features
    limit: float | None = None  # of numbers and dates, in deviations; None in folders from before there was one

    @property
    def outputs(self) -> tuple[str, ...]:
        """What each number of a sample is."""
        return tuple(output for feature in self.features for output in feature.outputs)

    def transform(self, rows: Any, owner: str = EVERYBODY, notes: list[str] | None = None) -> Tensor:
        """Raw rows as samples (n, features), in float32, as the owner's model was trained on.

        `rows` is a path to a table, a data frame, a dict of columns, or a list of dicts; columns may come in any order.
        What was not as in training is said in `notes`, or logged.
        """
        said: list[str] = []
        frame = self._frame(rows, said)
        codes = np.empty((len(frame), len(self.features)))
        for i, feature in enumerate(self.features):
            column = Column(feature.name, feature.role, 0, "", "", values=feature.categories, form=feature.form)
            cells = frame[feature.name]
            codes[:, i] = code(column, cells)
            self._note(feature, cells, codes[:, i], said)
            if self.limit is not None and feature.role in ("number", "date"):
                scale = self.scale(owner)
                far = np.abs((codes[:, i] - scale.mean[i]) * scale.factor[i]) > self.limit
                if far.any():
                    rows = f"{far.sum()} {'row' if far.sum() == 1 else 'rows'}, such as '{cells[far].iloc[0]}'"
                    said.append(
                        f"'{feature.name}' is further from the train rows' mean than {self.limit:g} deviations in "
                        f"{rows}; they count as that far"
                    )
        if notes is None:
            for sentence in said:
                log.warning("%s", sentence)
        else:
            notes.extend(said)
        return torch.from_numpy(self.numbers(codes, owner))

    def numbers(self, codes: Codes, owner: str = EVERYBODY) -> NDArray[np.float32]:
        """Coded cells (n, columns) as samples; -1 codes a word that has no column of its own."""
        scale = self.scale(owner)
        pieces: list[NDArray[Any]] = []
        for feature, value, mean, factor in zip(self.features, codes.T, scale.mean, scale.factor, strict=True):
            empty = np.isnan(value)
            if feature.role == "words":
                places = [*range(len(feature.categories)), *[-1] * feature.other]
                pieces += [value == place for place in places]
            else:
                far = np.inf if self.limit is None else self.limit
                pieces.append(np.where(empty, 0.0, np.clip((value - mean) * factor, -far, far)))
            if feature.role == "date":
                turn = np.where(empty, 0.0, value) * (2 * np.pi / _YEAR)
                pieces += [np.where(empty, 0.0, np.sin(turn)), np.where(empty, 0.0, np.cos(turn))]
            if feature.tell_missing:
                pieces.append(empty)
        return np.stack([np.asarray(piece, dtype=np.float32) for piece in pieces], axis=1)

    def restore(self, y: Tensor, owner: str = EVERYBODY) -> Tensor:
        """Predicted quantities in their own unit, in float64; the opposite of `standardise`."""
        scale = self.scale(owner)
        return y.double() * scale.target_sd + scale.target_mean

    def standardise(self, y: Tensor, owner: str = EVERYBODY) -> Tensor:
        """Quantities as they are trained on."""
        scale = self.scale(owner)
        return ((y.double() - scale.target_mean) / scale.target_sd).float()

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return asdict(self)

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Preparation:
        """Back from a file."""
        features = tuple(Feature(**_tuples(feature)) for feature in plain["features"])
        scales = {owner: Scale(**_tuples(scale)) for owner, scale in plain["scales"].items()}
        labels, classes, ignored = (tuple(plain[key]) for key in ("labels", "classes", "ignored"))
        return Preparation(features, scales, labels, classes, ignored, plain.get("limit"))

    def scale(self, owner: str) -> Scale:
        """The owner's means and factors."""
        if EVERYBODY in self.scales:
            return self.scales[EVERYBODY]
        if owner not in self.scales:
            raise InputError(f"no owner '{owner}' in the training data; {nearest(owner, self.scales)}")
        return self.scales[owner]

    def _frame(self, rows: Any, said: list[str]) -> pd.DataFrame:
        """Rows of any kind as a clean data frame with all the features' columns."""
        wanted = [feature.name for feature in self.features]
        frame = _as_frame(rows, wanted)
        lost = [name for name in wanted if name not in frame.columns]
        if lost:
            raise InputError(
                f"the rows lack {_list(lost)}, which the model was trained with; add it, with empty cells where "
                f"nothing is known (the rows have: {', '.join(map(str, frame.columns))})"
            )
        more = [name for name in frame.columns if name not in (*wanted, *self.ignored, *self.labels)]
        if more:
            said.append(f"{_list(more)} was not in the training data and is not used")
        return frame

    def _note(self, feature: Feature, cells: pd.Series, codes: Codes, said: list[str]) -> None:
        """Say which cells mean nothing to the model."""
        lost = cells.notna().to_numpy() & np.isnan(codes)
        if lost.any():
            said.append(
                f"'{feature.name}' is no {feature.role} in {lost.sum()} rows, such as "
                f"'{cells[lost].iloc[0]}'; they count as empty"
            )
        if feature.role == "words" and (codes == -1).any():
            strange = sorted(set(cells[codes == -1].map(str)))
            said.append(f"'{feature.name}' has words that were rare or unknown in training ({', '.join(strange[:5])})")


def _as_frame(rows: Any, wanted: list[str]) -> pd.DataFrame:
    """A table of cleaned cells, from a file or from Python."""
    if isinstance(rows, str | Path):
        files = table_files(rows)
        require(bool(files), f"{rows} is no table; expected a .csv, .tsv, .xlsx or .parquet file")
        return read_frame(files, wanted)
    one = isinstance(rows, Mapping) and all(np.isscalar(v) or v is None for v in rows.values())
    frame = pd.DataFrame([rows] if one else rows)
    return pd.DataFrame({str(name).strip(): clean(frame[name]) for name in frame.columns})


def recode(column: Column, feature: Feature, codes: Codes) -> Codes:
    """A column's codes by the feature's categories, where they were by the column's."""
    if feature.role != "words":
        return codes
    place = {value: i for i, value in enumerate(feature.categories)}
    table = np.array([*(place.get(value, -1) for value in column.values), np.nan])
    return table[np.where(np.isnan(codes), len(column.values), codes).astype(np.int64)]


@dataclass(frozen=True)
class Told:
    """What an owner tells of its train rows, so that all can prepare theirs alike; lists are by column."""

    rows: int
    known: tuple[float, ...]  # cells that are not empty
    mean: tuple[float, ...]  # of these
    squares: tuple[float, ...]  # the sum of their squared deviations from the mean
    words: tuple[tuple[int, ...], ...]  # rows of each category; empty for columns without
    target: tuple[float, float, float] | None = None  # count, mean and squares of the quantities to predict

    @property
    def moments(self) -> Moments:
        """Counts, means and squared deviations of the columns."""
        return np.array(self.known), np.array(self.mean), np.array(self.squares)

    @property
    def aim(self) -> Moments | None:
        """The same of the quantities to predict."""
        if self.target is None:
            return None
        count, mean, squares = self.target
        return np.array([count]), np.array([mean]), np.array([squares])


def learn(
    table: Sequence[Column],
    codes: Sequence[Codes],
    targets: Sequence[NDArray[np.float64]] | None,
    owners: Sequence[str],
    scaling: str,
) -> Preparation:
    """A preparation from train rows: `codes` and (for quantities) `targets` of each owner."""
    told = [tell(table, c, None if targets is None else targets[k]) for k, c in enumerate(codes)]
    return agreed(table, dict(zip(owners, told, strict=True)), scaling)


def tell(table: Sequence[Column], codes: Codes, target: NDArray[np.float64] | None) -> Told:
    """What an owner tells of its train rows: the codes of the columns that are kept, and quantities to predict."""
    count, mean, squares = _moments(codes)
    aim = None if target is None else _moments(target[:, None])
    words = tuple(
        tuple(np.bincount(value[value >= 0].astype(np.int64), minlength=len(column.values)).tolist())
        if column.role == "words"
        else ()
        for column, value in zip([c for c in table if c.kept], codes.T, strict=True)
    )
    return Told(
        rows=len(codes),
        known=tuple(count.tolist()),
        mean=tuple(mean.tolist()),
        squares=tuple(squares.tolist()),
        words=words,
        target=None if aim is None else (float(aim[0][0]), float(aim[1][0]), float(aim[2][0])),
    )


def agreed(table: Sequence[Column], told: Mapping[str, Told], scaling: str) -> Preparation:
    """The preparation that all owners use, from what each of them told."""
    require(scaling in SCALINGS, f"unknown scaling '{scaling}'; {nearest(scaling, SCALINGS)}")
    kept = [column for column in table if column.kept]
    features = tuple(
        _feature(column, [(t.rows, t.known[i], t.words[i]) for t in told.values()]) for i, column in enumerate(kept)
    )
    if scaling == "own":
        scales = {owner: scale_of(features, t.moments, t.aim) for owner, t in told.items()}
        return Preparation(features, scales, limit=_FAR)
    aims = [t.aim for t in told.values() if t.aim is not None]
    together = scale_of(features, _join([t.moments for t in told.values()]), _join(aims) if aims else None)
    return Preparation(features, {EVERYBODY: together}, limit=_FAR)


Moments = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]  # counts, means, squared deviations


def _moments(values: Codes) -> Moments:
    """Counts, means and sums of squared deviations of columns, of the cells that are there."""
    there = ~np.isnan(values)
    count = there.sum(0).astype(np.float64)
    mean = np.where(there, values, 0.0).sum(0) / np.maximum(count, 1)
    return count, mean, (np.where(there, values - mean, 0.0) ** 2).sum(0)


def _join(told: Sequence[Moments]) -> Moments:
    """The same of all owners' rows together."""
    count, mean, squares = (np.stack(part) for part in zip(*told, strict=True))
    total = count.sum(0)
    middle = (count * mean).sum(0) / np.maximum(total, 1)
    return total, middle, (squares + count * (mean - middle) ** 2).sum(0)


def scale_of(features: Sequence[Feature], values: Moments, target: Moments | None) -> Scale:
    """Means and factors from what rows told."""
    count, mean, squares = values
    sd = np.sqrt(squares / np.maximum(count, 1))
    # Rounding leaves a deviation of a few last digits where all values are equal.
    factor = np.where(sd > 1e-9 * np.maximum(np.abs(mean), 1e-9), 1 / np.where(sd > 0, sd, 1), 0.0)
    words = np.array([feature.role == "words" for feature in features])
    plain = words | np.array([feature.role == "yes/no" for feature in features])
    scale = Scale(tuple(np.where(words, 0.0, mean).tolist()), tuple(np.where(plain, 1.0, factor).tolist()))
    if target is None:
        return scale
    spread = float(np.sqrt(target[2][0] / max(target[0][0], 1)))
    return replace(scale, target_mean=float(target[1][0]), target_sd=spread if spread > 0 else 1.0)


def _feature(column: Column, told: Sequence[tuple[int, float, tuple[int, ...]]]) -> Feature:
    """How a column becomes numbers, from its owners' rows, known cells and rows of each category."""
    rows, known = sum(t[0] for t in told), sum(t[1] for t in told)
    missing = rows > 0 and (rows - known) / rows >= _SOME
    if column.role != "words":
        return Feature(column.name, column.role, tell_missing=missing, form=column.form)
    counts = np.array([t[2] for t in told]).sum(0).astype(np.int64)
    common = np.flatnonzero(counts >= min(_RARE, counts.max(initial=0)))
    common = np.sort(common[np.argsort(-counts[common], kind="stable")][:MOST])
    other = bool(known > counts[common].sum())
    return Feature(column.name, "words", tuple(column.values[i] for i in common), other, missing)


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}


def _list(names: Sequence[str]) -> str:
    return ("column " if len(names) == 1 else "columns ") + ", ".join(f"'{name}'" for name in names)
