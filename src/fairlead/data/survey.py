"""What to know of the data before training: owners, columns, and what looks wrong, as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fairlead.core.surroundings import unchanged
from fairlead.core.targets import KINDS
from fairlead.core.types import Federation
from fairlead.data.files import as_numbers
from fairlead.data.pairs import find_pair
from fairlead.data.partition import Index
from fairlead.data.scenario import Scenario
from fairlead.data.source import Source

COPIES = "rows are the same, cell by cell, as a row of another owner"
BY_CHANCE = "; with so few different values this can be chance"
_FEW = 20  # rows, below which hardly anything can be said about an owner
_EVENTS = 10  # below which hardly anything can be said about an owner's survival times
_RARE = 0.05  # share of a class's rows
_LOPSIDED = 0.9  # share of an owner's rows in one class
_SURE = 0.98  # score by which a single column gives the label away
_LOOK = 3000  # rows that are looked at for it
_OFTEN = 0.5  # share of an id's values that several owners have
_ENOUGH = 30  # rows without which nothing is said about it


@dataclass(frozen=True)
class Survey:
    """The data in plain values, for the terminal and the page."""

    name: str
    rows: int
    target: str  # what is predicted, in words
    owners: tuple[dict[str, Any], ...]  # name, rows, what they hold of the target, and empty cells by column
    columns: tuple[dict[str, Any], ...]  # name, role, missing, done, why, kept; empty if the data is no table
    notes: tuple[str, ...]  # sentences: what to know before training

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file: `fairlead.runs.summary.Data`."""
        return {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(self).items()}

    def column_groups(self) -> list[tuple[str, dict[str, Any]]]:
        """Columns for a table that people read: four or more neighbours that are treated alike make one line."""
        lines: list[tuple[str, dict[str, Any]]] = []
        for _, group in groupby(self.columns, key=lambda c: (c["role"], c["missing"], c["done"], c["why"])):
            alike = list(group)
            if len(alike) > 3:
                lines.append((f"{alike[0]['name']} to {alike[-1]['name']} ({len(alike)} columns)", alike[0]))
            else:
                lines += [(column["name"], column) for column in alike]
        return lines


def survey(scenario: Scenario, source: Source, federation: Federation | None = None) -> Survey:
    """Look at a scenario's data; `federation` is what it builds, if that is at hand."""
    federation = scenario.build(0, source=source) if federation is None else federation
    names = federation.names or tuple(str(k) for k in range(federation.clients))
    owned = _owned(source, federation)
    columns = () if source.table is None else tuple(column.to_json() for column in source.table.columns)
    notes = [*(source.table.notes if source.table else ()), *federation.notes]
    if scenario.split == "iid" and source.table is not None and len(owned) > 1:
        notes.append(
            f"rows are dealt to {len(owned)} owners at random, since nobody said whose they are; --column NAME names "
            "the column that does"
        )
    notes += _few_rows(names, owned)
    if source.kind == "class":
        notes += [*_one_class(source, names, owned), *_rare_classes(source)]
    if source.kind == "survival":
        notes += _few_events(source, names, owned)
    if source.table is not None:
        notes += [
            *_empty_columns(source, names, owned),
            *_apart(source, names, owned),
            *_twice(source, names, owned),
            *_giveaways(source),
        ]
        notes += [*_together(source), *_recurring(source, owned)]
    return Survey(
        source.name,
        sum(map(len, owned)),
        _target(source),
        tuple(
            {"name": name, "rows": len(rows)} | _mix(source, rows) | _missing(source, rows)
            for name, rows in zip(names, owned, strict=True)
        ),
        columns,
        tuple(notes),
    )


def _owned(source: Source, federation: Federation) -> list[Index]:
    """The samples of each client, whatever part they are in."""
    splits = (federation.train, federation.validation, federation.test)
    owned = []
    for k in range(federation.clients):
        rows = torch.cat([s.rows[s.starts[k] : s.starts[k + 1]] for s in splits]).numpy()
        owned.append(rows if source.table is None else np.searchsorted(source.table.rows, rows))
    return owned


def _target(source: Source) -> str:
    if source.kind == "survival" and source.table is not None:
        time, event = source.table.labels
        return f"'{time}', the time until '{event}'"
    label = "" if source.table is None else f"'{', '.join(source.table.labels)}', "
    if not source.classes:
        return label + KINDS[source.kind].words
    count, listing = len(source.classes), ", ".join(source.classes[:10]) + (", ..." if len(source.classes) > 10 else "")
    many = f"one of {count} classes" if source.kind == "class" else f"yes or no for each of {count}"
    return f"{label}{many}: {listing}"


def _mix(source: Source, rows: Index) -> dict[str, Any]:
    y = source.y.numpy()[rows]
    if source.kind == "survival":
        return {"events": int(y[:, 1].sum()), "median_time": float(np.median(y[:, 0]))}
    if not source.classes:
        return {"mean": float(y.mean()), "sd": float(y.std())}
    counts = np.bincount(y, minlength=len(source.classes)) if y.ndim == 1 else y.sum(0).astype(np.int64)
    return {"classes": dict(zip(source.classes, counts.tolist(), strict=True))}


def _missing(source: Source, rows: Index) -> dict[str, Any]:
    """How many cells are empty, of the columns that are learned from and have any."""
    if source.table is None:
        return {}
    kept = [column.name for column in source.table.columns if column.kept]
    empty = np.isnan(source.raw.numpy()[rows]).sum(0)
    return {"missing": {kept[i]: int(empty[i]) for i in np.flatnonzero(empty)}}


def _few_rows(names: Sequence[str], owned: Sequence[Index]) -> list[str]:
    few = [f"{name} ({len(rows)})" for name, rows in zip(names, owned, strict=True) if len(rows) < _FEW]
    if not few:
        return []
    who = _count(len(few), "owner has", "owners have")
    return [f"{who} fewer than {_FEW} rows, too few to be sure of much: {_some(few)}"]


def _few_events(source: Source, names: Sequence[str], owned: Sequence[Index]) -> list[str]:
    counts = [int(source.y[torch.from_numpy(rows), 1].sum()) for rows in owned]
    few = [f"{name} ({count})" for name, count in zip(names, counts, strict=True) if count < _EVENTS]
    if not few:
        return []
    who = _count(len(few), "owner has", "owners have")
    return [f"{who} fewer than {_EVENTS} events, too few to be sure of much: {_some(few)}"]


def _one_class(source: Source, names: Sequence[str], owned: Sequence[Index]) -> list[str]:
    y = source.y.numpy()
    single, lopsided = [], []
    for name, rows in zip(names, owned, strict=True):
        counts = np.bincount(y[rows], minlength=len(source.classes))
        share, most = counts.max() / max(counts.sum(), 1), source.classes[int(counts.argmax())]
        if share == 1:
            single.append(f"{name} (all '{most}')")
        elif share >= _LOPSIDED:
            lopsided.append(f"{name} ({share:.0%} '{most}')")
    said = []
    if single:
        said.append(f"{_count(len(single), 'owner has', 'owners have')} rows of one class alone: {_some(single)}")
    if lopsided:
        said.append(
            f"{_count(len(lopsided), 'owner has', 'owners have')} nearly all rows in one class, so that accuracy says "
            f"little there: {_some(lopsided)}"
        )
    return said


def _rare_classes(source: Source) -> list[str]:
    counts = np.bincount(source.y.numpy(), minlength=len(source.classes))
    share = counts / counts.sum()
    rare = [f"'{source.classes[i]}' ({share[i]:.1%}, {counts[i]} rows)" for i in np.flatnonzero(share < _RARE)]
    if not rare or len(source.classes) > 1 / _RARE:
        return []
    return [
        f"rare: {_some(rare)}; accuracy says little about such a class, balanced accuracy and AUROC do, and --balance "
        "gives every class the same weight in training"
    ]


def _empty_columns(source: Source, names: Sequence[str], owned: Sequence[Index]) -> list[str]:
    """Columns that an owner never fills."""
    assert source.table is not None
    kept = [column.name for column in source.table.columns if column.kept]
    empty = np.isnan(source.raw.numpy())
    never = np.stack([empty[rows].all(0) for rows in owned])
    return [
        f"'{kept[i]}' is empty in all rows of {_some([names[k] for k in np.flatnonzero(never[:, i]).tolist()])}"
        for i in np.flatnonzero(never.any(0))
    ]


def _apart(source: Source, names: Sequence[str], owned: Sequence[Index]) -> list[str]:
    """Words, or classes, that some owners write as numbers alone and others without any: perhaps the same."""
    assert source.table is not None
    written = [
        (column.name, column.values, source.raw.numpy()[:, i])
        for i, column in enumerate(column for column in source.table.columns if column.kept)
        if column.role == "words"
    ]
    if source.kind == "class":
        written.append((source.table.labels[0], source.classes, source.y.numpy()))
    said = []
    for name, values, codes in written:
        number = as_numbers(pd.Series(values, dtype=object)).notna().to_numpy()
        if number.all() or not number.any():
            continue
        held = [np.unique(codes[rows][codes[rows] >= 0]).astype(np.int64) for rows in owned]
        ways = [[k for k, own in enumerate(held) if len(own) and (number[own] == one).all()] for one in (True, False)]
        if all(ways):
            words = [[values[i] for i in np.unique(np.concatenate([held[k] for k in way]))] for way in ways]
            who = [f"{_some([names[k] for k in way])} ({_some(w)})" for way, w in zip(ways, words, strict=True)]
            said.append(
                f"'{name}' is written as numbers by {who[0]} and as words by {who[1]}, which count as different: if "
                "they mean the same, write them alike"
            )
    return said


def _twice(source: Source, names: Sequence[str], owned: Sequence[Index]) -> list[str]:
    """Rows that are the same in every cell: with another owner's, and with one's own."""
    codes = source.raw.numpy()
    values = max(len(np.unique(column)) for column in codes.T)
    if values <= _FEW:
        return []  # with so few values, rows are equal by chance
    chance = BY_CHANCE if values < len(codes) / 10 else ""
    rows = np.concatenate(owned)
    frame = pd.DataFrame(np.column_stack([codes[rows], source.y.numpy().reshape(len(codes), -1)[rows]]))
    owner = np.repeat(np.arange(len(owned)), [len(part) for part in owned])
    same = frame.groupby(list(frame.columns), dropna=False, sort=False).ngroup().to_numpy()
    owners_of = pd.Series(owner).groupby(same).transform("nunique").to_numpy()
    across = owners_of > 1
    said = []
    if across.any():
        who = [names[k] for k in np.unique(owner[across])]
        equal = f"{int(across.sum())} {COPIES} ({_some(who)})"
        said.append(equal + (chance or ": who trains together learns from rows that it is tested on, and looks better"))
    within = pd.DataFrame({"same": same, "owner": owner}).duplicated(keep=False).to_numpy()
    if within.any():
        said.append(
            f"{int(within.sum())} rows occur more than once with their owner; copies may fall into train and test rows"
            + chance
        )
    return said


def _recurring(source: Source, owned: Sequence[Index]) -> list[str]:
    """Whole numbers that each owner has once and others have, too: perhaps whom rows are about, at several owners.

    So is a year, which comes in equal steps.
    """
    assert source.table is not None
    kept, said = [column for column in source.table.columns if column.kept], []
    for i, column in enumerate(kept):
        each = [source.raw.numpy()[rows, i] for rows in owned if len(rows) >= _FEW]
        if column.role != "number" or len(each) < 2 or any(len(np.unique(v)) < len(v) for v in each):
            continue
        different, owners = np.unique(np.concatenate(each), return_counts=True)
        whole = bool(np.isfinite(different).all() and (different == np.round(different)).all())
        if whole and (owners > 1).mean() >= _OFTEN and len(np.unique(np.diff(different))) > 1:
            said.append(
                f"'{column.name}' is another number in each row of an owner, and most of these numbers are at several "
                "owners: if it says whom a row is about, gains of training together may come from rows about the same "
                f"at another owner, so take owners who share nobody, and leave it out with --drop {quote(column.name)}"
            )
    return said


def _giveaways(source: Source) -> list[str]:
    """Columns that predict a label almost without error all by themselves."""
    assert source.table is not None
    if len(source) < _ENOUGH:
        return []
    rows = np.random.default_rng(0).permutation(len(source))[:_LOOK]
    kept = [column.name for column in source.table.columns if column.kept]
    codes, said = source.raw.numpy()[rows], []
    for label, y, classes in _labels(source):
        measure = "balanced accuracy" if classes else "R2 of ranks"
        for i in np.flatnonzero(_orderly(codes, y[rows], bool(classes))).tolist():
            score = _alone(codes[:, i], y[rows], bool(classes))
            if score.max() >= _SURE:
                said.append(
                    f"'{kept[i]}' alone {_what(label, classes, score)} almost without error ({measure} "
                    f"{score.max():.3f} in cross-validation): if it is made from '{label}' or only known after it, "
                    f"leave it out with --drop {quote(kept[i])}; if it is known before, keep it"
                )
    return said


def _together(source: Source) -> list[str]:
    """Two columns that give a quantity or a time away as its parts do, a start and an end, or an amount and a share."""
    assert source.table is not None
    if source.kind not in ("quantity", "survival"):
        return []
    rows = np.random.default_rng(0).permutation(len(source))[:_LOOK]
    kept = [column for column in source.table.columns if column.kept]
    numbers = [i for i, column in enumerate(kept) if column.role != "words"]
    y = source.y.numpy().reshape(len(source), -1)[rows, 0].astype(np.float64)
    pair = find_pair(source.raw.numpy()[rows][:, numbers], y)
    if pair is None:
        return []
    one, two = (kept[numbers[i]].name for i in (pair.first, pair.second))
    label = source.table.labels[0]
    return [
        f"'{one}' and '{two}' together give '{label}' almost exactly, as {pair.how}: if one of them is made from "
        f"'{label}' or only known after it, leave it out with --drop {quote(one)} or --drop {quote(two)}; if both "
        "are known before, keep them"
    ]


def _labels(source: Source) -> list[tuple[str, NDArray[Any], Sequence[str]]]:
    """What is predicted, one by one: name, targets (n,), and the classes.

    Of quantities, which have none, the ranks: a few large values hide what predicts all others.
    """
    assert source.table is not None
    y, labels = source.y.numpy(), source.table.labels
    if source.kind == "survival":
        return [(labels[0], _ranks(y[:, 0]), ()), (labels[1], y[:, 1].astype(np.int64), ("no", "yes"))]
    if y.ndim > 1:
        return [(name, y[:, j].astype(np.int64), ("no", "yes")) for j, name in enumerate(labels)]
    return [(labels[0], y if source.classes else _ranks(y), source.classes)]


def _ranks(y: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(pd.Series(y).rank())


def _what(label: str, classes: Sequence[str], score: NDArray[np.float64]) -> str:
    """What a column does by itself, by how well it tells each class from all others, or predicts a quantity."""
    told = [f"'{classes[int(i)]}'" for i in np.flatnonzero(score >= _SURE)] if len(score) > 2 else []
    some = 0 < len(told) < len(score)
    return f"tells {_some(told)} from every other '{label}'" if some else f"predicts '{label}'"


def _orderly(codes: NDArray[np.float64], y: NDArray[Any], classes: bool) -> NDArray[np.bool_]:
    """The columns that are worth a closer look: along them, targets change much less than in random order."""
    along = y[np.argsort(codes, axis=0, kind="stable")]
    if classes:
        changes, by_chance = (along[1:] != along[:-1]).mean(0), 1 - float(((np.bincount(y) / len(y)) ** 2).sum())
    else:
        changes, by_chance = (np.diff(along, axis=0) ** 2).mean(0), 2 * y.var()
    return np.asarray(changes < by_chance / 2)


def _alone(values: NDArray[np.float64], y: NDArray[Any], classes: bool) -> NDArray[np.float64]:
    """How well a small tree predicts from one column, on rows it has not seen.

    For classes the balanced accuracy with which each is told from all others: a column that is made from the label may
    know one class and not the rest. A class of fewer than three rows has 0.
    """
    # Here, since it takes a second to import, and whoever imports fairlead would wait for it.
    with unchanged():
        from sklearn.metrics import r2_score
        from sklearn.model_selection import KFold, StratifiedKFold
        from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    x = values[:, None]
    if classes:
        counts = np.bincount(y)
        known = counts[y] >= 3
        x, y = x[known], y[known]
        if len(np.unique(y)) < 2:
            return np.zeros(1)
        tree: Any = DecisionTreeClassifier(max_leaf_nodes=max(8, 2 * len(counts)), random_state=0)
        folds: Any = StratifiedKFold(3)

        def score(y: NDArray[Any], guessed: NDArray[Any]) -> NDArray[np.float64]:
            table = np.zeros((len(counts), len(counts)))
            np.add.at(table, (y, guessed), 1)
            right, of, said = table.diagonal(), table.sum(1), table.sum(0)
            others = len(y) - of
            found = (right / np.maximum(of, 1) + (others - said + right) / np.maximum(others, 1)) / 2
            return np.where(of > 0, found, 0.0)
    else:
        tree, folds = DecisionTreeRegressor(min_samples_leaf=3, random_state=0), KFold(3)

        def score(y: NDArray[Any], guessed: NDArray[Any]) -> NDArray[np.float64]:
            return np.array([r2_score(y, guessed)])

    found = []
    for train, test in folds.split(x, y):
        found.append(score(y[test], tree.fit(x[train], y[train]).predict(x[test])))
        if found[-1].max() < _SURE - 0.03:
            break  # most columns are far from it, and one look tells
    return np.asarray(np.mean(found, axis=0))


def _count(n: int, one: str, more: str) -> str:
    return f"{n} {one if n == 1 else more}"


def _some(items: Sequence[str]) -> str:
    return ", ".join(items[:8]) + (f" and {len(items) - 8} more" if len(items) > 8 else "")
