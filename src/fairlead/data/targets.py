"""What is to be predicted: classes, a quantity, several yes/no labels or a time, from the label columns of a table."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fairlead.core.errors import InputError, nearest, require
from fairlead.data.columns import NO, YES, Column, as_keys, code, spellings
from fairlead.data.files import as_numbers, as_text, each

TASKS = ("auto", "classes", "quantity")
_PLAIN = ("yes", "no", "true", "false", "1", "0")  # y, n, t and f alone may be codes of something else
MANY = 20  # different whole numbers, above which they are taken for a quantity
_COMPARE = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
}


class Answers(NamedTuple):
    """The targets of all rows that have one."""

    y: Tensor  # (n,) int64 classes, (n,) float64 quantities, (n, L) float32 labels, or (n, 2) float64 times and events
    classes: tuple[str, ...]  # of classes, or the labels' names; empty for a quantity or a time
    notes: list[str]


def read_target(
    frame: pd.DataFrame,
    labels: Sequence[str],
    task: str = "auto",
    positive: str | None = None,
    classes: Sequence[str] | None = None,
) -> Answers:
    """The targets in the label columns, none of which may be empty.

    `classes` are those of all owners, where these rows are one owner's: it may lack some, and may have one alone.
    """
    require(task in TASKS, f"unknown task '{task}'; {nearest(task, TASKS)}")
    if len(labels) > 1:
        return _several(frame, labels)
    label = labels[0]
    if positive is not None:
        return _positive(label, frame[label], positive, alone=classes is None)
    numbers = _numbers_of(label, frame[label], task)
    notes: list[str] = []
    if numbers is not None and (task == "quantity" or (task == "auto" and _is_quantity(label, numbers, notes))):
        return Answers(torch.from_numpy(numbers.to_numpy(np.float64).copy()), (), notes)
    return _classes(label, frame[label] if numbers is None else numbers, notes, classes)


def found_classes(
    frame: pd.DataFrame, labels: Sequence[str], task: str, positive: str | None
) -> tuple[str, tuple[str, ...]]:
    """What one owner's label columns hold, before it has heard of the others': classes or a quantity, and the classes.

    Nothing is told of classes that the user named.
    """
    require(task in TASKS, f"unknown task '{task}'; {nearest(task, TASKS)}")
    if len(labels) > 1 or positive is not None:
        return "classes", ()
    numbers = _numbers_of(labels[0], frame[labels[0]], task)
    if numbers is not None and (task == "quantity" or (task == "auto" and _is_quantity(labels[0], numbers, []))):
        return "quantity", ()
    return "classes", spellings(frame[labels[0]] if numbers is None else numbers)


def _numbers_of(label: str, cells: pd.Series, task: str) -> pd.Series | None:
    """The label's cells as numbers, where all of them are."""
    numbers = cells.astype("float64") if cells.dtype.kind in "iuf" else None
    if numbers is None and (task == "quantity" or (task == "auto" and cells.dtype.kind == "O")):
        found = as_numbers(each(cells, as_text))
        if task == "quantity" and bool(found.isna().any()):
            odd = as_text(cells[found.isna()].iloc[0])
            raise InputError(f"'{label}' cannot be a quantity: a row holds '{odd}'; use --task classes")
        numbers = found if bool(found.notna().all()) else None
    if numbers is not None and not np.isfinite(numbers).all():
        raise InputError(f"'{label}' is infinite in a row; drop the row or mend it")
    return numbers


def _is_quantity(label: str, numbers: pd.Series, notes: list[str]) -> bool:
    """Whether numbers are amounts rather than the numbers of classes."""
    if bool((numbers != numbers.round()).any()):
        notes.append(f"'{label}' holds fractions, so it is predicted as a quantity; --task classes overrules")
        return True
    counts = numbers.value_counts()
    if len(counts) <= min(MANY, max(5, len(numbers) / 5)):
        return False
    listed = counts.index.min() in (0, 1) and len(counts) == counts.index.max() - counts.index.min() + 1
    if listed and counts.min() >= 10 and counts.max() <= 10 * counts.min():
        notes.append(f"'{label}' counts {len(counts)} classes of similar size; --task quantity takes it for an amount")
        return False
    notes.append(
        f"'{label}' holds {len(counts)} different whole numbers, which looks like a quantity and is predicted as one; "
        "--task classes overrules"
    )
    return True


def _classes(label: str, cells: pd.Series, notes: list[str], agreed: Sequence[str] | None) -> Answers:
    if agreed is not None:
        y = code(Column(label, "words", 0, "", "", values=tuple(agreed)), cells).astype(np.int64)
        require(bool((y >= 0).all()), f"'{label}' has a value that is not among the agreed classes {', '.join(agreed)}")
        return Answers(torch.from_numpy(y), tuple(agreed), notes)
    values, keys = spellings(cells), as_keys(cells)
    # Owners write yes and no in their own ways.
    if len(values) > 2 and {*_PLAIN} & set(keys) and set(keys) <= {*YES, *NO}:
        notes.append(f"'{label}' holds {', '.join(values)}, which count as no and yes")
        cells, values = keys.isin(YES).map({False: "no", True: "yes"}), ("no", "yes")
    most = max(MANY, len(cells) / 5)
    if len(values) > most:
        many = f"'{label}' has {len(values)} different values in {len(cells)} rows, too many for classes"
        odd = each(cells, as_text)[as_numbers(each(cells, as_text)).isna()]
        if 0 < len(odd) < len(cells) / 2:
            raise InputError(f"{many}; empty the {len(odd)} cells that are no numbers, such as '{odd.iloc[0]}'")
        raise InputError(f"{many}; use another label")
    require(len(values) > 1, f"'{label}' is {values[0]} in every row that has one; there is nothing to learn")
    y = code(Column(label, "words", 0, "", "", values=values), cells).astype(np.int64)
    return Answers(torch.from_numpy(y), values, notes)


def _positive(label: str, cells: pd.Series, positive: str, alone: bool) -> Answers:
    """Two classes: what `positive` describes ('>0', 'yes', 'a|b'), and the rest.

    Rows that stand `alone` must have both; one owner's among others' need not.
    """
    compared = re.fullmatch(r"\s*(>=|<=|!=|=|>|<)\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*", positive)
    if compared:
        numbers = as_numbers(each(cells, as_text)) if cells.dtype.kind not in "biuf" else cells.astype("float64")
        require(bool(numbers.notna().all()), f"positive '{positive}' needs numbers, and '{label}' holds words")
        yes = _COMPARE[compared[1]](numbers, float(compared[2]))
    else:
        keys, texts = as_keys(cells), pd.Series(positive.split("|"), dtype=object)
        wanted = as_keys(texts)
        for text in texts[~wanted.isin(keys)] if alone else ():
            raise InputError(f"positive '{text}' is no value of '{label}'; {nearest(str(text), spellings(cells))}")
        yes = keys.isin(wanted)
    require(
        not alone or (bool(yes.any()) and not bool(yes.all())), f"positive '{positive}' holds for all rows or for none"
    )
    return Answers(torch.from_numpy(yes.to_numpy(np.int64)), (f"not {positive}", positive), [])


def _several(frame: pd.DataFrame, labels: Sequence[str]) -> Answers:
    """Several yes/no labels, side by side."""
    y = np.stack([code(Column(label, "yes/no", 0, "", ""), frame[label]) for label in labels], axis=1)
    for i, label in enumerate(labels):
        bad = ~np.isin(y[:, i], (0.0, 1.0))
        if bad.any():
            odd = as_text(frame[label].iloc[int(bad.argmax())])
            raise InputError(
                f"of several labels each must be yes or no ({', '.join(YES)}; {', '.join(NO)}), "
                f"and '{label}' holds '{odd}'; write it as one of these, or leave the cell empty"
            )
    return Answers(torch.from_numpy(y.astype(np.float32)), tuple(labels), [])


def read_survival(frame: pd.DataFrame, time: str, event: str, positive: str | None = None) -> Answers:
    """Times, and whether the event came then (1) or the row was only watched until then (0); no cell may be empty."""
    times, cells = as_numbers(each(frame[time], as_text)), frame[event]
    for bad, what in ((times.isna(), "no number"), (~np.isfinite(times), "infinite"), (times < 0, "below 0")):
        if bool(bad.any()):
            odd = as_text(frame[time][bad].iloc[0])
            raise InputError(f"'{time}' cannot be a time until '{event}': a row holds '{odd}', which is {what}")
    if positive is not None:
        came = _positive(event, cells, positive, alone=True).y.numpy().astype(np.float64)
    else:
        came = code(Column(event, "yes/no", 0, "", ""), cells)
        bad = ~np.isin(came, (0.0, 1.0))
        if bad.any():
            odd = as_text(cells.iloc[int(bad.argmax())])
            raise InputError(
                f"event '{event}' must be yes or no ({', '.join(YES)}; {', '.join(NO)}), and it holds '{odd}'; "
                "--positive WORD says which word means that the event came"
            )
    require(bool(came.any()), f"event '{event}' came in no row; there is nothing to learn")
    notes: list[str] = []
    if positive is None and "cens" in event.casefold() and not bool(came.all()):
        yes, no = (as_text(cells[came == one].iloc[0]) for one in (1, 0))
        notes.append(
            f"the event is taken to have come where '{event}' is {yes} ({int(came.sum())} of {len(came)} rows); where "
            f"{yes} means censored, say --positive {no}"
        )
    return Answers(torch.from_numpy(np.stack([times.to_numpy(np.float64), came], axis=1)), (), notes)
