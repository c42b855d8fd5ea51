"""Owners on machines of their own agree on how rows become samples, without showing each other a row.

It takes two questions. First every owner says what its columns are and which classes and categories it has (`look`),
and `agree` makes one list of columns of it. Then every owner codes its rows by that list (`read_own`) and tells counts,
means and squared deviations of its train rows (`tell_own`), of which `fairlead.data.preparation.agreed` makes the
preparation that all use. A category that fewer than three rows of an owner have is not named by it, and of a column
with fewer than three known cells nothing is told, nor of quantities to predict where there are fewer than three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fairlead.core.errors import InputError, require
from fairlead.data.columns import Column, Overrule, Role, as_keys, code, find, spellings
from fairlead.data.files import OWNER, as_text, each, table_files
from fairlead.data.partition import Index
from fairlead.data.preparation import Told, tell
from fairlead.data.source import Source, Table
from fairlead.data.sources import load
from fairlead.data.tables import Reading, complete, frame_of, group_numbers, label_columns, name_of
from fairlead.data.targets import found_classes, read_target

FEW = 3  # rows; what fewer have is not told
FEATURES: tuple[Role, ...] = ("number", "words", "yes/no", "date")


@dataclass(frozen=True)
class OwnColumn:
    """What an owner says of a column."""

    name: str
    role: Role
    text: bool  # whether its cells are words rather than numbers
    values: tuple[str, ...] = ()  # categories that at least `FEW` of its rows have
    form: str = ""  # how dates are written; the unit behind numbers


@dataclass(frozen=True)
class Look:
    """What an owner says of its data before anything is agreed."""

    columns: tuple[OwnColumn, ...]  # none for images and arrays
    labels: tuple[str, ...]  # the columns to predict
    task: str  # "classes" or "quantity"
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of a sample, for images and arrays


@dataclass(frozen=True)
class Agreed:
    """What all owners' columns and classes are."""

    columns: tuple[Column, ...]
    labels: tuple[str, ...]
    task: str
    classes: tuple[str, ...]  # empty for a quantity
    shape: tuple[int, ...]  # of a sample, for images and arrays


def look(data: str | Path, how: Reading) -> Look:
    """What one owner's data is, by looking at its rows alone."""
    files = table_files(data)
    if not files:
        source = load(data)
        require(bool(source.classes), f"{source.name} holds no classes; quantities are for tables")
        return Look((), (), "classes", source.classes, tuple(source.raw.shape[1:]))
    frame, labels, _ = _rows(files, how)
    said = Overrule(*([n for n in names if n in frame] for names in (how.drop, how.numeric, how.words)))
    columns = tuple(
        _own_column(find(name, frame[name], None, said), frame[name])
        for name in frame.columns
        if name not in labels and name not in (how.column, how.group)
    )
    task, classes = found_classes(frame, labels, how.task, how.positive)
    return Look(columns, tuple(labels), task, classes, ())


def _rows(files: Sequence[Path], how: Reading) -> tuple[pd.DataFrame, list[str], Index]:
    """The rows that have a label, the label columns, and the rows' numbers in the file; all rows are one owner's."""
    frame = frame_of(files, how)
    if len(files) > 1:
        frame = frame.drop(columns=OWNER)
    name = name_of(files)
    labels = label_columns(name, frame, how.label or "label")
    known = how.group is None or how.group in frame
    require(known, f"{name} has no column '{how.group}', whose rows the study keeps together (--group)")
    rows = complete(name, frame, labels, [])
    return frame.iloc[rows].reset_index(drop=True), labels, rows


def _own_column(column: Column, cells: pd.Series) -> OwnColumn:
    known = cells.dropna()
    text = known.dtype.kind not in "biufM"
    named = column.role == "words" or (text and column.role in ("yes/no", "constant"))
    values: tuple[str, ...] = ()
    if named and len(known):
        common = each(known, as_text).groupby(as_keys(known).to_numpy()).transform("size") >= FEW
        values = spellings(known[common.to_numpy()]) if common.any() else ()
    return OwnColumn(column.name, column.role, text, values, column.form)


def agree(looks: Mapping[str, Look], positive: str | None = None) -> Agreed:
    """One list of columns and classes for all owners; what they differ in too much is refused with what to do."""
    require(bool(looks), "nobody said what its data is")
    first = next(iter(looks.values()))
    for owner, one in looks.items():
        table = bool(one.labels)
        require(bool(one.columns) or not table, f"{owner} has no column beside {', '.join(one.labels)} to learn from")
        like = (one.labels, one.task, one.shape) == (first.labels, first.task, first.shape)
        require(
            like and bool(one.columns) == bool(first.columns),
            f"{owner} has other data than {next(iter(looks))}: {_kind(one)} against {_kind(first)}; give all sites "
            "data of one kind, and say task 'classes' or 'quantity' where they differ in that",
        )
    classes = _classes(looks, first, positive)
    require(
        first.task == "quantity" or len(classes) > 1, f"all rows of all sites are of one class: {', '.join(classes)}"
    )
    named: dict[str, dict[str, OwnColumn]] = {}
    for owner, one in looks.items():
        for column in one.columns:
            named.setdefault(column.name.casefold(), {})[owner] = column
    for owner in looks:
        own = [told[owner].name for told in named.values() if owner in told]
        shared = len(looks) == 1 or not own or any(owner in told and len(told) > 1 for told in named.values())
        require(shared, f"{owner} has no column in common with another site; it has {', '.join(own)[:200]}")
    columns = tuple(_agreed_column(told) for told in named.values())
    kept = any(column.kept for column in columns)
    require(kept or not first.columns, "the sites have no column in common that a model could learn from")
    return Agreed(columns, first.labels, first.task, classes, first.shape)


def lacking(looks: Mapping[str, Look], agreed: Agreed) -> dict[str, list[str]]:
    """The columns that models learn from and an owner does not have, by owner; they count as missing there."""
    used = [column.name for column in agreed.columns if column.kept]
    own = {owner: {column.name.casefold() for column in one.columns} for owner, one in looks.items()}
    found = {owner: [name for name in used if name.casefold() not in names] for owner, names in own.items()}
    return {owner: names for owner, names in found.items() if names}


def _kind(one: Look) -> str:
    what = f"samples of shape {one.shape}" if one.shape else "a table"
    return f"{what} with the label {', '.join(one.labels) or 'class'} ({one.task})"


def _classes(looks: Mapping[str, Look], first: Look, positive: str | None) -> tuple[str, ...]:
    if first.task == "quantity":
        return ()
    if len(first.labels) > 1:
        return first.labels
    _check_spelling(looks)
    return (f"not {positive}", positive) if positive is not None else _union([one.classes for one in looks.values()])


def _check_spelling(looks: Mapping[str, Look]) -> None:
    """Refuse a site that writes words where the others write numbers, or numbers where they write words."""
    numbers = {owner: all(_is_number(name) for name in one.classes) for owner, one in looks.items()}
    if len(set(numbers.values())) > 1:
        few = sorted(numbers, key=lambda owner: sum(kind == numbers[owner] for kind in numbers.values()))[0]
        other = next(owner for owner in looks if numbers[owner] != numbers[few])
        one, two = (f"{owner} writes the classes as {', '.join(looks[owner].classes)}" for owner in (few, other))
        raise InputError(f"{one}, and {two}; all sites must write them alike")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _union(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """All values, in the order and the spelling that all rows in one table would give them."""
    every = [value for values in lists for value in values]
    return spellings(pd.Series(every, dtype=object)) if every else ()


def _agreed_column(told: Mapping[str, OwnColumn]) -> Column:
    name = next(iter(told.values())).name
    role = _role(name, told)
    forms = {c.form for c in told.values() if c.role == role} if role in ("date", "number") else {""}
    if len(forms - {""}) > 1:
        what = "dates" if role == "date" else "numbers"
        raise InputError(
            f"the sites write the {what} in '{name}' in different ways ({', '.join(sorted(forms))}); drop it"
        )
    values = _union([c.values for c in told.values()]) if role == "words" else ()
    kept = role in FEATURES and (role != "words" or bool(values))
    return Column(name, role, 0, "used" if kept else "left out", "agreed by the sites", kept, values, max(forms))


def _role(name: str, told: Mapping[str, OwnColumn]) -> Role:
    """What a column is for all; where it is empty or the same in every row of a site, the others decide."""
    roles = {c.role for c in told.values()}
    for decides in ("unused", "id", "part"):
        if decides in roles:
            return decides
    telling = roles - {"empty", "constant"} or roles - {"empty"} or roles
    if len(telling) == 1:
        return telling.pop()
    if telling == {"yes/no", "words"}:
        return "words"
    if telling == {"yes/no", "number"} and not any(c.text and c.role == "yes/no" for c in told.values()):
        return "number"
    said = ", ".join(f"{c.role} at {owner}" for owner, c in told.items())
    raise InputError(f"the sites differ on what '{name}' is ({said}); say numeric, words or drop for it")


def read_own(data: str | Path, how: Reading, agreed: Agreed, owner: str, column: str) -> Source:
    """One owner's rows, coded by what all agreed on; `column` then says for every row that it is the owner's."""
    files = table_files(data)
    if not files:
        source = load(data)
        place = {name: i for i, name in enumerate(agreed.classes)}
        y = torch.tensor([place[name] for name in source.classes])[source.y]
        return replace(source, y=y, classes=agreed.classes, columns={column: np.full(len(y), owner)})
    frame, labels, rows = _rows(files, how)
    spelling = {name.casefold(): name for name in frame.columns}
    empty = pd.Series(np.nan, index=frame.index)
    kept = [c for c in agreed.columns if c.kept]
    cells = [frame[spelling[c.name.casefold()]] if c.name.casefold() in spelling else empty for c in kept]
    codes = np.stack([code(c, cell) for c, cell in zip(kept, cells, strict=True)], axis=1)
    answers = read_target(frame, labels, agreed.task, how.positive, agreed.classes)
    table = Table(agreed.columns, agreed.labels, column, rows)
    who: dict[str, Any] = {column: np.full(len(frame), owner)} | group_numbers(frame, how.group, None)
    parts = np.full(len(frame), "train")
    return Source(owner, torch.from_numpy(codes), answers.y, answers.classes, parts, who, table)


def tell_own(source: Source, train: Index, scaling: str) -> Told:
    """What an owner tells of its train rows; with scaling "own" neither means nor deviations."""
    assert source.table is not None
    target = None if source.classes else source.y.numpy()[train]
    told = tell(source.table.columns, source.raw.numpy()[train], target)
    few = np.array(told.known) < FEW
    hidden = few | (scaling == "own")
    aim = (0.0, 0.0, 0.0) if told.target is not None and told.target[0] < FEW else told.target
    return replace(
        told,
        known=tuple(np.where(few, 0.0, told.known).tolist()),
        mean=tuple(np.where(hidden, 0.0, told.mean).tolist()),
        squares=tuple(np.where(hidden, 0.0, told.squares).tolist()),
        words=tuple(tuple(0 for _ in w) if hide else w for w, hide in zip(told.words, few, strict=True)),
        target=None if scaling == "own" else aim,
    )
