"""A table as a source: what its columns are, what is to be predicted, and whose row each is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fairlead.core.errors import InputError, nearest, require
from fairlead.data.columns import PARTS as PART_NAMES
from fairlead.data.columns import Column, Overrule, Role, as_keys, code, find, spellings
from fairlead.data.files import OWNER, as_text, each, read_frame, stem_of
from fairlead.data.source import Source, Table
from fairlead.data.targets import Answers, read_survival, read_target


@dataclass(frozen=True)
class Reading:
    """How a table is to be read; what is left out is found by looking at it."""

    label: str | None = None  # the column to predict; several yes/no columns are separated by commas
    column: str | None = None  # the column that says whose row it is
    group: str | None = None  # the column that says whom a row is about, a patient say
    event: str | None = None  # makes the label a time: the column that says whether the event came then
    task: str = "auto"  # classes or quantity
    positive: str | None = None  # makes two classes of the label: ">0", "yes", "a|b"
    drop: tuple[str, ...] = ()  # columns to leave out
    numeric: tuple[str, ...] = ()  # columns that hold numbers
    words: tuple[str, ...] = ()  # columns that hold categories


def name_of(files: Sequence[Path]) -> str:
    """What a table is called in sentences."""
    return files[0].name if len(files) == 1 else f"{files[0].parent.name or 'the tables'}"


def frame_of(files: Sequence[Path], how: Reading) -> pd.DataFrame:
    """The table as it is; the columns that are asked for tell a line of names from a line of data."""
    first = how.label or "label"
    asked = [first, *first.split(","), *how.drop, *how.numeric, *how.words]
    asked += [name for name in (how.column, how.group, how.event) if name]
    return read_frame(files, asked)


def read_table(files: Sequence[Path], how: Reading | None = None) -> Source:
    """One table, or several that hold one owner's rows each, as a source of coded rows."""
    how = how or Reading()
    name, first, frame = name_of(files), how.label or "label", frame_of(files, how)
    drop, numeric, words = (tuple(whole_names(names, frame)) for names in (how.drop, how.numeric, how.words))
    how = replace(how, drop=drop, numeric=numeric, words=words)
    labels = label_columns(name, frame, first, how.event)
    owner = how.column or (OWNER if len(files) > 1 else None)
    _check_names(name, frame, labels, owner, how)
    notes: list[str] = [*frame.attrs["notes"]]
    by = [] if owner is None else [owner]
    rows = complete(name, frame, [*labels, *by], notes)
    frame = frame.iloc[rows].reset_index(drop=True)
    owners = {column: owner_values(frame[column]) for column in by}
    said = Overrule(how.drop, how.numeric, how.words)
    columns = columns_of(frame, labels, owner, next(iter(owners.values()), None), said, how.group)
    if len(files) > 1 and owner == OWNER:
        columns = tuple(replace(c, why="the name of the file") if c.name == owner else c for c in columns)
    kept = [column for column in columns if column.kept]
    require(bool(kept), f"{name} has no columns beside '{first}' to learn from" + _why_not(columns))
    answers = _answers(frame, labels, how)
    notes += [*_spelling_notes(frame, owners), *answers.notes]
    for column in with_role(columns, "id"):
        again = group_numbers(frame, column.name, owners.get(owner or ""))[column.name]
        notes.append(_id_sentence(column, int((np.bincount(again)[again] > 1).sum()) if how.group is None else 0))
    return Source(
        stem_of(files[0]) if len(files) == 1 else name,
        torch.from_numpy(np.stack([code(column, frame[column.name]) for column in kept], axis=1)),
        answers.y,
        answers.classes,
        _parts(columns, frame),
        owners | group_numbers(frame, how.group, owners.get(owner or "")),
        Table(columns, tuple(labels), owner, rows, tuple(notes)),
    )


def _answers(frame: pd.DataFrame, labels: list[str], how: Reading) -> Answers:
    """What is to be predicted."""
    if how.event is None:
        return read_target(frame, labels, how.task, how.positive)
    require(how.task == "auto", f"task '{how.task}' and an event column contradict each other; leave one out")
    return read_survival(frame, labels[0], how.event, how.positive)


def _spelling_notes(frame: pd.DataFrame, owners: Mapping[str, NDArray[Any]]) -> list[str]:
    """Say where several spellings count as one owner."""
    return [
        f"spellings of '{column}' that differ in case or blanks alone count as one owner"
        for column, values in owners.items()
        if each(frame[column], as_text).nunique() > len(np.unique(values))
    ]


def owner_values(cells: pd.Series) -> NDArray[Any]:
    """Who owns each row: numbers where all are, else names; spellings that differ in case or blanks alone are one."""
    if cells.dtype.kind in "iuf":
        values: NDArray[Any] = cells.to_numpy()
        # Beyond 2**53 numbers with a point stand for several whole ones, and int64 ends before uint64 does.
        whole = values.dtype.kind == "i" or bool(((values == np.round(values)) & (np.abs(values) < 2.0**53)).all())
        return values.astype(np.int64) if whole else values
    names = spellings(cells)
    if all(re.fullmatch(r"0|[1-9]\d*", name) for name in names):
        return np.array([int(as_text(cell) or 0) for cell in cells])  # so that 2 comes before 10
    place = {key: i for i, key in enumerate(as_keys(pd.Series(names, dtype=object)))}
    found: NDArray[Any] = np.array(names)[as_keys(cells).map(place).to_numpy(np.int64)]
    return found


def group_numbers(frame: pd.DataFrame, group: str | None, owners: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
    """Whom each row is about, as a number; equal names at different owners are different, an empty cell is nobody else.

    >>> group_numbers(pd.DataFrame({"id": ["a", "b", "a", None]}), "id", np.array([1, 1, 2, 2]))["id"].tolist()
    [0, 1, 3, 2]
    """
    if group is None:
        return {}
    cells = frame[group]
    keys = as_keys(cells).where(cells.notna(), [f"\0{i}" for i in range(len(cells))])
    by = [keys] if owners is None else [pd.Series(owners, index=keys.index), keys]
    return {group: keys.groupby(by).ngroup().to_numpy(np.int64)}


def label_columns(name: str, frame: pd.DataFrame, label: str, event: str | None = None) -> list[str]:
    """The column called so, or several with commas between their names; the time and the event of survival times."""
    labels = [label] if label in frame.columns else whole_names(label.split(","), frame)
    if event is not None:
        require(len(labels) == 1, f"with --event the label is one column of times, got {', '.join(labels)}")
        require(event in frame.columns, f"{name} has no column '{event}'; {nearest(event, map(str, frame.columns))}")
        require(event != label, f"{name}: '{event}' cannot be both the time and the event")
        labels = [label, event]
    for one in labels:
        if one not in frame.columns:
            raise InputError(
                f"{name} has no label column '{one}'; {nearest(one, map(str, frame.columns))}; use --label"
            )
    return labels


def whole_names(parts: Sequence[str], frame: pd.DataFrame) -> list[str]:
    """Names that commas stood between; parts of one name that holds commas itself are put together again.

    >>> whole_names(["age", "rate", " total"], pd.DataFrame(columns=["age", "rate, total"]))
    ['age', 'rate, total']
    """
    names, rest = list[str](), [part.strip() for part in parts]
    while rest:
        spelt = [(n, sign.join(rest[:n])) for n in range(len(rest), 1, -1) for sign in (", ", ",")]
        count, name = next(((n, name) for n, name in spelt if name in frame.columns), (1, rest[0]))
        names.append(name)
        rest = rest[count:]
    return names


def _check_names(name: str, frame: pd.DataFrame, labels: list[str], owner: str | None, how: Reading) -> None:
    known = [str(column) for column in frame.columns]
    if owner is not None and owner not in known:
        raise InputError(f"{name} has no column '{owner}'; {nearest(owner, known)}")
    require(owner not in labels, f"{name}: '{owner}' cannot be both the label and the column to split by")
    if how.group is not None:
        require(how.group in known, f"{name} has no column '{how.group}'; {nearest(how.group, known)}; check --group")
        require(how.group not in (*labels, owner), f"--group: '{how.group}' is the label or the owner of the rows")
    for option in ("drop", "numeric", "words"):
        for column in getattr(how, option):
            if column not in known:
                raise InputError(f"--{option}: {name} has no column '{column}'; {nearest(column, known)}")
            used = column in (*labels, owner, how.group)
            require(not used, f"--{option}: '{column}' is the label, the owner or the group, not a feature")


def complete(name: str, frame: pd.DataFrame, needed: list[str], notes: list[str]) -> NDArray[np.int64]:
    """The rows that have a label and an owner."""
    lost = frame[needed].isna()
    for column in needed:
        count = int(lost[column].sum())
        if count:
            first = int(lost[column].to_numpy().argmax()) + 1
            notes.append(f"rows left out because '{column}' is empty: {count}, the first of them row {first}")
    rows = np.flatnonzero(~lost.any(axis=1).to_numpy())
    require(len(rows) > 0, f"{name}: {' and '.join(needed)} are empty in every row")
    return rows.astype(np.int64)


def columns_of(
    frame: pd.DataFrame,
    labels: list[str],
    owner: str | None,
    owners: NDArray[Any] | None,
    said: Overrule,
    group: str | None = None,
) -> tuple[Column, ...]:
    """What every column is; where nothing else is there to learn from, numbers that look like an id are kept."""
    given: dict[str | None, tuple[Role, str]] = dict.fromkeys(labels, ("label", "predicted"))
    given |= {owner: ("owner", "says whose row it is"), group: ("group", "its rows stay together")}
    found = [_role(c, frame[c], given) or find(c, frame[c], owners, said) for c in map(str, frame.columns)]
    ids = [c.name for c in found if c.role == "id" and frame[c.name].dtype.kind in "iuf"]
    if ids and not any(c.kept for c in found):
        kept = columns_of(frame, labels, owner, owners, said._replace(numeric=ids), group)
        why = "numbers; perhaps an id, but there is nothing else to learn from"
        return tuple(replace(c, why=why) if c.name in ids else c for c in kept)
    return tuple(found)


def _role(name: str, cells: pd.Series, given: Mapping[str | None, tuple[Role, str]]) -> Column | None:
    """The roles that the user gave by name."""
    if name not in given:
        return None
    role, done = given[name]
    return Column(name, role, int(cells.isna().sum()), done, "you said so")


def with_role(columns: Sequence[Column], role: Role) -> list[Column]:
    """The columns of this role."""
    return [column for column in columns if column.role == role]


def _parts(columns: Sequence[Column], frame: pd.DataFrame) -> NDArray[np.str_]:
    """The published part of each row, where a column says it."""
    for column in with_role(columns, "part"):
        return np.array([PART_NAMES.get(key, "train") for key in as_keys(frame[column.name])])
    return np.full(len(frame), "train")


def _why_not(columns: Sequence[Column]) -> str:
    left = [f"'{c.name}' ({c.why})" for c in columns if c.done == "left out"]
    return f"; left out are {', '.join(left)}" if left else ""


def _id_sentence(column: Column, again: int) -> str:
    """What is done with an id; `again` rows share theirs with another row."""
    said = (
        f"'{column.name}' looks like an id or free text ({column.why}) and is left out of the features; "
        f"--numeric or --words {quote(column.name)} keeps it"
    )
    if not again:
        return said
    return (
        f"{said}. {again} rows share their '{column.name}' with another row, and such rows may fall into train and "
        f"test rows, which makes models look better than they are: --group {quote(column.name)} keeps them together"
    )
