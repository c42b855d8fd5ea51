"""What each column of a table is, and its cells as numbers: a measurement, a category's place in a list, days.

A role is found by looking at the cells, and the user may overrule it. `code` is the one way from cells to numbers, for
the rows that are trained on and for those that come to be predicted later.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairlead.core.errors import require
from fairlead.data.files import as_numbers, as_text, each

Role = Literal[
    "number", "words", "yes/no", "date", "id", "constant", "empty", "part", "owner", "group", "label", "unused"
]
Codes = NDArray[np.float64]

YES, NO = ("yes", "y", "true", "t", "1"), ("no", "n", "false", "f", "0")
PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("validation", "valid", "val", "dev"), "validation"
)
_UNKNOWN = ("none", "unknown", "missing", "not available", "not reported")  # among numbers; among words they are words
_DAYS: tuple[str, ...] = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y")
_DAYS += ("%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%b %d %Y", "%d %B %Y", "%B %d, %Y", "%B %d %Y")
_DAYS += ("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y", "%d %b %y", "%d-%b-%y")  # 69 is 1969, 68 is 2068
_DATES = tuple(day + time for time in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p") for day in _DAYS)
_LIKE_A_DATE = re.compile(
    r"(?:\d{1,4}[-/. ](?:\d{1,2}|[A-Za-z]{3,9})[-/. ]\d{2,4}|[A-Za-z]{3,9} \d{1,2},? \d{4})(?:[ T].*)?"
)
_LIKE_AN_ID = re.compile(
    r"(?:.*[_\s.-])?(?:(?:id|pid|uid)(?:[_\s.-]?(?:no|nr|num|number))?|ids|uuid|guid|index|idx)|id[_\s.-].*|unnamed.*|"
    r"(?:row|record|patient|student|pupil|subject|person|customer|client|user|account|case|sample|visit|seq|serial)"
    r"(?:[_\s.-]?(?:no|nr|num|number|names?))?",
    re.IGNORECASE,
)
# Names of those whom rows are about, and who may have several: numbers in such a column measure nothing.
_LIKE_A_PERSON = re.compile(
    r"(?:.*[_\s.-])?(?:(?:id|pid|uid)(?:[_\s.-]?(?:no|nr|num|number))?|mrn)|(?:patient|student|pupil|subject|person|customer|client|user|woman|man|child)"
    r"(?:[_\s.-]?(?:id|no|nr|num|number))?",
    re.IGNORECASE,
)
_A_PLAIN_NUMBER = re.compile(r"-?(?=.{1,15}$)\d+(?:\.\d+)?")  # longer ones lose digits as numbers
_WITH_A_UNIT = re.compile(r"[+-]?\d[\d.,]*\s*([^\W\d_][^\d]*)")
_A_NAME = re.compile(r"(?:.*[_\s.-])?(?:(?:first|last|given|middle|maiden)[_\s.-]?|sur|fore)names?", re.IGNORECASE)
_MOSTLY = 0.9  # of a column's cells decide what it is
_MANY = 20  # different values, from which on a column may be an id
MOST = 50  # categories of a column, beyond which the less common are among the others


class Overrule(NamedTuple):
    """What the user says of columns, by name."""

    drop: Collection[str] = ()
    numeric: Collection[str] = ()
    words: Collection[str] = ()


@dataclass(frozen=True)
class Column:
    """A column: what it was found to be, what is done with it, and why."""

    name: str
    role: Role
    missing: int  # empty cells
    done: str
    why: str
    kept: bool = False  # whether it is a feature
    values: tuple[str, ...] = ()  # of words: the categories, in the order of their codes
    form: str = ""  # of dates: how they are written, empty is the ISO way; of numbers: the unit behind them

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the page and the terminal."""
        return {key: getattr(self, key) for key in ("name", "role", "missing", "done", "why", "kept")}


def find(name: str, cells: pd.Series, owners: NDArray[Any] | None = None, said: Overrule | None = None) -> Column:
    """What a column is."""
    said, missing = said or Overrule(), int(cells.isna().sum())
    known = cells.dropna()
    if name in said.drop:
        return Column(name, "unused", missing, "left out", "you said so")
    if name in said.words:
        return _words(name, known, missing, "you said so")
    if name in said.numeric:
        numbers = known if known.dtype.kind in "biuf" else as_numbers(each(known, as_text))
        rest = known[numbers.isna()]
        odd = ", ".join(sorted(set(rest.map(str)))[:3])
        require(len(rest) < len(known) or not len(rest), f"--numeric: '{name}' holds no number, but {odd}; use --words")
        return _number(name, missing + len(rest), "you said so" + _odd(len(rest), odd))
    return _found(name, known, missing, None if owners is None else owners[cells.notna().to_numpy()])


def _found(name: str, known: pd.Series, missing: int, owners: NDArray[Any] | None) -> Column:
    """What a column looks like, by the cells that are not empty, and whose these are."""
    if not len(known):
        return Column(name, "empty", missing, "left out", "all its cells are empty")
    if any(isinstance(v, list | dict | bytes | np.ndarray) for v in known.head(20)):
        return Column(
            name, "unused", missing, "left out", "its cells hold lists; fairlead.data.from_tensors takes such"
        )
    if known.nunique() == 1 and not missing:
        return Column(name, "constant", missing, "left out", f"it is {as_text(known.iloc[0])} in every row")
    if known.dtype.kind == "M":
        return _date(name, missing + int(_as_days(known, "").isna().sum()), "", "dates")
    if known.dtype.kind in "biuf":
        return _of_numbers(name, known, missing, owners)
    return _of_text(name, known, missing)


def _of_numbers(name: str, known: pd.Series, missing: int, owners: NDArray[Any] | None) -> Column:
    values = known.to_numpy(np.float64)
    if ((values == 0) | (values == 1)).all():
        return _yes_no(name, missing, "it holds 0 and 1")
    likely = ((values > 18_000_000) & (values < 21_000_000)) | (values == 99_991_231)
    if likely.all() and _as_times(known, "").notna().all():
        ends = int(_as_days(known, "").isna().sum())
        return _date(name, missing + ends, "", f"dates, such as {as_text(known.iloc[0])}")
    found = _why_id(name, values, owners)
    return Column(name, "id", missing, "left out", found) if found else _number(name, missing, "numbers")


def _why_id(name: str, values: Codes, owners: NDArray[Any] | None) -> str:
    """Why whole numbers look like an id; empty if they do not."""
    if len(values) < _MANY or not np.isfinite(values).all() or (values != np.round(values)).any():
        return ""
    groups = [values] if owners is None else [values[owners == who] for who in np.unique(owners)]
    if _counts(values, gaps=True) or (all(map(_counts, groups)) and len(values) > 2 * len(groups)):
        return "it counts the rows"
    different = sum(len(np.unique(g)) for g in groups)
    if owners is not None and _rises(values, owners) and different > max(2 * len(groups), _MANY, len(values) / 20):
        return "its numbers rise from row to row, owner after owner"
    if _LIKE_AN_ID.fullmatch(name) and different > _MOSTLY * len(values):
        return "by its name and values it says whose row this is"
    several = _LIKE_A_PERSON.fullmatch(name) and different >= max(_MANY, len(values) / 20)
    return f"by its name it says whom a row is about; {len(values)} rows are about {different}" if several else ""


def _counts(values: Codes, gaps: bool = False) -> bool:
    """Whether these are 0, 1, 2, ... or 1, 2, 3, ...; with `gaps`, whether they are such numbers of which some lack."""
    steps = np.diff(values)
    if gaps:
        return values[0] >= 0 and values[-1] <= 1.5 * len(values) and bool((steps >= 1).all())
    return values[0] in (0, 1) and bool((steps == 1).all())


def _rises(values: Codes, owners: NDArray[Any]) -> bool:
    """Whether numbers never fall in a table that has one owner's rows after another's; what is measured does."""
    changes = int((owners[1:] != owners[:-1]).sum())
    return changes > 0 and changes + 1 == len(np.unique(owners)) and bool((np.diff(values) >= 0).all())


def _of_text(name: str, known: pd.Series, missing: int) -> Column:
    if _A_NAME.fullmatch(name):
        return Column(name, "unused", missing, "left out", "names of people; --words keeps it")
    keys = as_keys(known)
    different = set(keys.unique())
    if {"train", "test"} <= {PARTS.get(key) for key in different} <= {"train", "validation", "test"}:
        return Column(name, "part", missing, "left out", "it divides the rows: --pool train tests on its test rows")
    if different <= {*YES, *NO}:
        return _yes_no(name, missing, "it holds " + " and ".join(sorted(set(known.map(str)))[:4]))
    numbers = as_numbers(keys)
    rest = keys[numbers.isna()]
    if set(rest) <= set(_UNKNOWN) or (numbers.notna().mean() >= _MOSTLY and numbers.nunique() >= _MANY / 2):
        return _number(name, missing + len(rest), "numbers" + _odd(len(rest), ", ".join(sorted(set(rest))[:3])))
    unit = _unit(keys)
    if unit:
        return replace(_number(name, missing, f"numbers in {unit}, such as {known.iloc[0]}"), form=unit)
    form = _date_form(known)
    if form is not None:
        return _date(name, missing + int(_as_days(known, form).isna().sum()), form, _why_date(known, form))
    if len(known) >= _MANY and (
        len(different) > _MOSTLY * len(known)
        or (_LIKE_AN_ID.fullmatch(name) and len(different) >= max(_MANY, len(known) / 20))
    ):
        return Column(name, "id", missing, "left out", f"{len(different)} different texts in {len(known)} rows")
    why = "words"
    if numbers.notna().mean() > 1 / 2 and numbers.nunique() >= _MANY / 2:
        why += f", but {int(numbers.notna().sum())} of {len(known)} are numbers: --numeric takes the others for empty"
    return _words(name, known, missing, why)


def _unit(keys: pd.Series) -> str:
    """What stands behind each of many different numbers; empty if nothing does, or not always the same."""
    found = [_WITH_A_UNIT.fullmatch(key) for key in keys.unique()]
    units = {match[1] if match else "" for match in found}
    unit = units.pop() if len(units) == 1 else ""
    if not unit:
        return ""
    values = _without(keys, unit)
    # 1001a, 1002a, ... name something; a blank or a fraction says that the letters are a unit.
    measured = values.nunique() <= _MOSTLY * len(keys) or bool(keys.str.contains(r"\s|\d[.,]\d").any())
    return unit if measured and values.nunique() >= _MANY / 2 else ""


def _without(keys: pd.Series, unit: str) -> pd.Series:
    """The numbers in front of a unit, or without one; the others missing."""
    return as_numbers(each(keys, lambda key: str(key).removesuffix(unit).strip()))


def _odd(count: int, such: str) -> str:
    """What is said of cells that are no numbers."""
    return f"; {count} cells ({such}) count as empty" if count else ""


def _number(name: str, missing: int, why: str) -> Column:
    return Column(name, "number", missing, _filled("standardised", missing), why, kept=True)


def _date(name: str, missing: int, form: str, why: str) -> Column:
    return Column(name, "date", missing, _filled("days and the time of year", missing), why, kept=True, form=form)


def _yes_no(name: str, missing: int, why: str) -> Column:
    return Column(name, "yes/no", missing, _filled("0 or 1", missing), why, kept=True)


def _filled(done: str, missing: int) -> str:
    return f"{done}; empty cells get the mean" if missing else done


def _words(name: str, known: pd.Series, missing: int, why: str) -> Column:
    """Categories; spellings that differ in case and blanks alone are one, called by the most common spelling."""
    values = spellings(known)
    merged = each(known, as_text).nunique() - len(values)
    why += f"; spellings that differ in case, blanks or zeros alone count as the same ({merged} more)" if merged else ""
    done = f"one of {len(values)} categories" if len(values) > 1 else "this word or none"
    done += f"; only the {MOST} most common are told apart" if len(values) > MOST else ""
    return Column(name, "words", missing, done, why, kept=True, values=values)


def as_keys(cells: pd.Series) -> pd.Series:
    """Cells as they are compared: without case and surplus blanks, numbers as one would write them.

    A file in which all cells are numbers has 12 where one with words among them has 12.0 or 012.

    >>> as_keys(pd.Series(["12.0", " A  b", "012", "1.50", 12, "1.2.3"], dtype=object)).tolist()
    ['12', 'a b', '12', '1.5', '12', '1.2.3']
    """
    return each(cells, _key)


def _key(cell: object) -> str:
    text = " ".join(str(as_text(cell)).split()).casefold()
    return str(as_text(float(text))) if _A_PLAIN_NUMBER.fullmatch(text) else text


def spellings(known: pd.Series) -> tuple[str, ...]:
    """The different values of a column, each in its most common spelling, numbers in their order, words in theirs."""
    text = each(known, as_text)
    counts = pd.DataFrame({"key": as_keys(known), "text": text}).value_counts(sort=False).reset_index()
    counts = counts.sort_values(["key", "count", "text"], ascending=[True, False, False]).drop_duplicates("key")
    numbers = pd.to_numeric(counts["key"], errors="coerce")
    if numbers.notna().all():
        counts = counts.iloc[numbers.argsort()]
    return tuple(counts["text"])


def _date_form(known: pd.Series) -> str | None:
    """How most cells are written as dates: a form of `strptime`, empty for the ISO way, or None."""
    sample = known.head(200)
    if not sample.astype("str").str.fullmatch(_LIKE_A_DATE).mean() >= _MOSTLY:
        return None
    likely = [form for form in ("", *_DATES) if _fits(sample, form) >= _MOSTLY / 2]
    best = max(likely, key=lambda form: _fits(known, form), default="")
    return best if _fits(known, best) >= _MOSTLY else None


def _fits(known: pd.Series, form: str) -> float:
    """The share of cells that are written so, or the ISO way."""
    return float(_as_times(known, form).notna().mean())


def _why_date(known: pd.Series, form: str) -> str:
    """An example, and how it is read where that is not written in it."""
    if not form:
        return f"dates, such as {as_text(known.iloc[0])}"
    days = _as_days(known, form)
    first = int(days.notna().argmax())
    why = f"dates, such as {known.iloc[first]} ({np.datetime64(int(days.iloc[first] // 1), 'D')})"
    turned = form.replace("%d", "%%").replace("%m", "%d").replace("%%", "%m")
    if "%m" not in form or "." in form or _as_days(known, turned).notna().sum() < days.notna().sum():
        return why
    return f"{why}; no cell tells the day from the month: the day is taken to come first"


def _as_days(cells: pd.Series, form: str) -> pd.Series:
    """Dates as days since 1970; missing are what is no date, and the year 9999, by which registers write "no end"."""
    times = _as_times(cells, form)
    begin = pd.Timestamp("1970-01-01", tz="UTC").as_unit("us")
    return (times.where(times.dt.year < 9999) - begin) / pd.Timedelta(days=1)


def _as_times(cells: pd.Series, form: str) -> pd.Series:
    """Cells that are dates, written in this form or the ISO way (20200131 too); what is no date is missing."""
    cells = each(cells, as_text) if cells.dtype.kind in "iuf" else cells
    times = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
    if form:
        times = pd.to_datetime(cells, format=form, errors="coerce", utc=True).fillna(times)
    return times.astype("datetime64[us, UTC]")  # nanoseconds end in 2262


def code(column: Column, cells: pd.Series) -> Codes:
    """A column's cells as numbers: NaN where missing, -1 for words that are not among the categories."""
    if column.role == "words":
        place = {key: i for i, key in enumerate(as_keys(pd.Series(column.values, dtype=object)))}
        keys = as_keys(cells)
        return np.asarray(each(keys, lambda key: place.get(key, -1)), dtype=np.float64)
    if column.role == "yes/no" and cells.dtype.kind not in "biuf":
        answers = dict.fromkeys(YES, 1.0) | dict.fromkeys(NO, 0.0)
        return np.asarray(each(as_keys(cells), answers.get), dtype=np.float64)
    if column.role == "date":
        return np.asarray(_as_days(cells, "" if cells.dtype.kind == "M" else column.form), dtype=np.float64)
    if cells.dtype.kind in "biuf":
        numbers = cells
    else:
        numbers = _without(as_keys(cells), column.form) if column.form else as_numbers(each(cells, as_text))
    values = np.array(numbers, dtype=np.float64)
    values[~np.isfinite(values)] = np.nan
    return values
