"""Read a table as it is: CSV, TSV, Excel or Parquet, any separator, decimal mark and encoding; in one file or many.

Nothing is decided here about what a column means (see `columns`); but numbers are numbers afterwards, and every way of
writing nothing (`EMPTY`) is missing.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fairlead.core.errors import DataError, require

TEXT = (".csv", ".tsv", ".tab", ".txt", ".data", ".dat")
SUFFIXES = (*TEXT, ".xlsx", ".xlsm", ".parquet")
EMPTY = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "?", "-", "--", ".")  # whatever their case
OWNER = "owner"  # the column that holds the files' names, where each file is one owner's
_SEPARATORS = ("\t", ";", "|", ",")  # in the order of trust: a comma may also be a decimal mark or stand in a text
_BLANKS = " "  # one or several between two cells, as tables are printed
_SAMPLE = 50  # lines that are looked at to find the separator
_SPELLINGS = sorted({spelling for e in EMPTY for spelling in (e, e.upper(), e.capitalize(), "NaN", "<NA>")})
_WHOLE, _THOUSANDS = r"[+-]?\d+", r"[+-]?[1-9]\d{0,2}"
_POINT = re.compile(rf"(?:{_WHOLE}\.?\d*|[+-]?\.\d+)(?:[eE][+-]?\d+)?|{_THOUSANDS}(?:,\d{{3}})+(?:\.\d+)?")
_COMMA = re.compile(rf"(?:{_WHOLE},?\d*|[+-]?,\d+)(?:[eE][+-]?\d+)?|{_THOUSANDS}(?:\.\d{{3}})+(?:,\d+)?")
_UNIT = re.compile(r"^[$€£]\s*(?=[\d.,+-])|(?<=\d)\s*[%$€£]$")


def table_files(data: str | Path) -> list[Path]:
    """The files that a path, a folder, a pattern such as `sites/*.csv`, or several paths between commas stand for.

    Empty where these are no tables, such as a folder of images.
    """
    path = Path(data).expanduser()
    if path.is_dir():
        return sorted(p for p in path.iterdir() if is_table(p) and not p.name.startswith("."))
    if path.exists() or not re.search(r"[,*?\[]", str(data)):
        return [path] if is_table(path) else []
    found = [path for text in str(data).split(",") for path in _matches(Path(text.strip()).expanduser())]
    return found if all(is_table(p) for p in found) else []


def _matches(path: Path) -> list[Path]:
    """The files that a pattern stands for; a path without one is itself."""
    if path.exists() or not re.search(r"[*?\[]", str(path)):
        return [path]
    return [Path(match) for match in sorted(glob(str(path)))]


def is_table(path: Path) -> bool:
    """Whether a file's name ends like a table's."""
    return path.name.lower().removesuffix(".gz").endswith(SUFFIXES)


def read_frame(files: Sequence[Path], wanted: Iterable[str] = ()) -> pd.DataFrame:
    """All files in one table, rows in the order of the files; columns are matched by name, in any order.

    Of several files, each is one owner's: the column `OWNER` says whose a row is, by the file's name. `wanted` are
    columns that the caller will ask for: they tell a line of names from a line of data. `attrs["notes"]` of the table
    says what was not read.
    """
    wanted = [name for name in wanted if name != OWNER]
    frames = [_read(file, wanted) for file in files]
    if len(frames) == 1:
        return frames[0]
    spelling: dict[str, str] = {}
    for frame, name in zip(frames, owner_names(files), strict=True):
        known = [spelling.setdefault(column.casefold(), column) for column in frame.columns]
        if len(set(known)) == len(known):
            frame.columns = known
        if OWNER not in frame.columns:
            frame[OWNER] = name
    together = pd.concat(frames, ignore_index=True)
    together.attrs["notes"] = [note for frame in frames for note in frame.attrs["notes"]]
    return together


def owner_names(files: Sequence[Path]) -> list[str]:
    """What the owners are called: the files' names without what all have in common.

    >>> owner_names([Path("processed.cleveland.data"), Path("processed.va.data")])
    ['cleveland', 'va']
    """
    stems = [stem_of(file) for file in files]
    require(len(set(stems)) == len(stems), f"two files have one name: {', '.join(sorted(stems))}; rename one")
    pieces = [re.split(r"(?<=[._\-\s])|(?=[._\-\s])", stem) for stem in stems]
    start, end = _alike(pieces), _alike([piece[::-1] for piece in pieces])
    short = ["".join(piece[start : len(piece) - end]).strip("._- ") for piece in pieces]
    return short if len(files) > 1 and all(short) and len(set(short)) == len(short) else stems


# The first bytes of files that may have been given another's ending, and what to do with them.
_KINDS = {
    b"PK\x03\x04": "an Excel workbook or a zip archive; a workbook ends in .xlsx",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save it as .xlsx",
    b"\x1f\x8b": "packed by gzip; let its name end in .gz",
    b"PAR1": "Parquet; let its name end in .parquet",
}


def _looks_like(path: Path) -> str:
    """What a file that cannot be read may be, by its first bytes; empty where these tell nothing, or cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError:
        return ""
    said = next((what for sign, what in _KINDS.items() if start.startswith(sign)), "")
    return f"; by its first bytes it is {said}" if said else ""


def stem_of(file: Path) -> str:
    """A file's name without what its kind adds.

    >>> stem_of(Path("sites/patients.csv.gz")), stem_of(Path("va.xlsx"))
    ('patients', 'va')
    """
    return Path(re.sub(r"\.gz$", "", file.name, flags=re.IGNORECASE)).stem


def _alike(pieces: list[list[str]]) -> int:
    """How many first pieces all have in common."""
    return next((i for i, same in enumerate(zip(*pieces, strict=False)) if len(set(same)) > 1), min(map(len, pieces)))


def _read(path: Path, wanted: Sequence[str]) -> pd.DataFrame:
    """One file, with clean columns."""
    suffix, separator, notes = Path(path.name.lower().removesuffix(".gz")).suffix, ",", list[str]()
    try:
        if suffix == ".parquet":
            frame = pq.read_table(path).to_pandas(ignore_metadata=True)
        elif suffix in (".xlsx", ".xlsm"):
            cells, notes = _excel(path, wanted)
            frame = _named(path.name, cells, wanted)
        else:
            frame, separator, notes = _text(path, wanted)
    except FileNotFoundError as error:
        raise DataError(f"no file {path}; check the path") from error
    except (pa.ArrowException, OSError, BadZipFile, pd.errors.ParserError, csv.Error) as error:
        raise DataError(
            f"{path.name} cannot be read: {(str(error).splitlines() or [type(error).__name__])[0]}" + _looks_like(path)
        ) from error
    frame.columns = [str(name).strip() for name in frame.columns]
    _check_twice(path.name, frame.columns)
    require(len(frame) > 0, f"{path.name} has no rows")
    # Who separates by other signs than the comma often does so because a comma is the decimal mark; not who writes 1.5.
    comma = separator != "," and not any(_has_fractions(frame[name]) for name in frame.columns)
    cleaned = pd.DataFrame({name: clean(frame[name], comma) for name in frame.columns})
    cleaned.attrs["notes"] = notes
    return cleaned


def _has_fractions(values: pd.Series) -> bool:
    return values.dtype.kind == "f" and bool((values[np.isfinite(values)] % 1 != 0).any())


def _check_twice(file: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    require(not twice, f"{file}: two columns are called {', '.join(sorted(twice))}; rename one")


def _excel(path: Path, wanted: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """The table of a workbook, every cell as it is, without empty rows and columns; and what to know of it.

    It begins at the row that has the most names that are asked for; of several sheets with as many, it is the largest.
    """
    with pd.ExcelFile(path, engine="openpyxl") as book:
        shown = [sheet.title for sheet in book.book.worksheets if sheet.sheet_state == "visible"]
        names = shown or book.book.sheetnames[:1]
        sheets = pd.read_excel(
            book, sheet_name=names, header=None, dtype=object, na_values=_SPELLINGS, keep_default_na=False
        )
    found: list[tuple[int, str, pd.DataFrame]] = []
    for name, cells in sheets.items():
        table = cells.dropna(how="all").dropna(axis=1, how="all")
        head = table.head(_SAMPLE).map(lambda cell: str(cell).strip()).isin(wanted).sum(axis=1).to_numpy()
        most, start = (int(head.max()), int(head.argmax())) if len(head) else (-1, 0)
        found.append((most, name, table.iloc[start:].dropna(axis=1, how="all")))
    _, name, table = max(found, key=lambda one: (one[0], one[2].size))
    others = [f"'{other}'" for other in names if other != name]
    return table, [f"{path.name}: sheet '{name}' is read, and not {', '.join(others)}"] if others else []


def _named(file: str, cells: pd.DataFrame, wanted: Sequence[str]) -> pd.DataFrame:
    """Take the names from the first row, if it is one of names."""
    require(len(cells) > 0, f"{file} has no rows")
    first = ["" if pd.isna(cell) else str(cell).strip() for cell in cells.iloc[0]]
    body = cells.iloc[1:] if is_header(first, wanted) else cells
    body = body.reset_index(drop=True)
    body.columns = names_of(first, wanted)
    return body.infer_objects()


def _text(path: Path, wanted: Sequence[str]) -> tuple[pd.DataFrame, str, list[str]]:
    """A file of separated values, the separator, and what to know of it."""
    content = decode(gzip.decompress(path.read_bytes()) if path.name.lower().endswith(".gz") else path.read_bytes())
    if "\0" in content[:1000]:
        raise DataError(f"{path.name} cannot be read: it holds no text{_looks_like(path)}")
    content = content.replace("\r\n", "\n").replace("\r", "\n")  # as old Macs ended a line
    require(bool(content.strip()), f"{path.name} has no rows")
    separator = find_separator(content)
    rows = list(islice((row for row in _cells(content, separator) if any(row)), _SAMPLE))
    first = [cell.strip() for cell in rows[0]]
    frame = pd.read_csv(
        io.StringIO(content),
        sep=r"\s+" if separator == _BLANKS else separator,
        header=0 if is_header(first, wanted) else None,
        names=_names_of_all(path.name, first, rows, wanted),
        index_col=False,
        na_values=_SPELLINGS,
        keep_default_na=False,
        skipinitialspace=True,
        low_memory=False,
    )
    short = next((number for number, row in enumerate(rows, start=1) if len(row) < len(first)), None)
    if short is None:
        return frame, separator, []
    what = f"line {short} has fewer cells than the first line ({len(rows[short - 1])} for {len(first)})"
    return frame, separator, [f"{path.name}: {what}; those that lack count as empty"]


def _names_of_all(file: str, first: list[str], rows: list[list[str]], wanted: Sequence[str]) -> list[str]:
    """A name for every column of these rows, the first of which may be the names."""
    names = names_of(first, wanted)
    if is_header(first, wanted) and len(rows) > 1 and all(len(row) == len(first) + 1 for row in rows[1:]):
        names = ["row", *names]  # as R writes a table: names for all columns but that of the row's own name
    for number, row in enumerate(rows, start=1):
        if any(row[len(names) :]):
            raise DataError(f"{file} cannot be read: line {number} has {len(row)} cells, expected {len(names)}")
    # Lines that end in a separator have one more cell, and it is empty.
    names += [f"c{i + 1}" for i in range(len(names), max(map(len, rows)))]
    _check_twice(file, names)
    return names


def decode(content: bytes) -> str:
    """Text in whichever encoding it is: UTF-8, UTF-16, or what Western Europe's Windows writes.

    >>> decode("né;1".encode("utf-16")), decode("né;1".encode("latin-1")), decode("né;1".encode())
    ('né;1', 'né;1', 'né;1')
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    zeros = content[:1000:2].count(0), content[1:1000:2].count(0)
    if max(zeros) > len(content[:1000]) / 5:
        return content.decode("utf-16-be" if zeros[0] > zeros[1] else "utf-16-le", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def find_separator(content: str) -> str:
    """The separator that gives every line the same number of cells, or else the one that comes nearest to it.

    >>> find_separator("age;weight\\n40;71,5\\n"), find_separator("a,b\\n1,2\\n"), find_separator("a  b\\n1  2\\n")
    (';', ',', ' ')
    """
    head = "\n".join(islice((line for line in io.StringIO(content) if line.strip()), _SAMPLE))
    best, found = 0.0, ","
    for separator in (*_SEPARATORS, _BLANKS):
        counts = Counter(len(row) for row in _cells(head, separator) if row)
        cells, lines = max(counts.items(), key=lambda pair: pair[1])
        share = lines / counts.total() if cells > 1 else 0.0
        # Blanks also stand within texts: they separate cells where all lines, but perhaps the names, have as many.
        if share > best and (separator != _BLANKS or lines >= counts.total() - 1 > 0):
            best, found = share, separator
    return found


def _cells(text: str, separator: str) -> Iterator[list[str]]:
    """The cells of each line."""
    if separator != _BLANKS:
        return csv.reader(io.StringIO(text), delimiter=separator)
    lines = (line.replace("\t", " ").strip() for line in io.StringIO(text))
    return csv.reader(lines, delimiter=separator, skipinitialspace=True)


def is_header(first: Sequence[str], wanted: Sequence[str] = ()) -> bool:
    """Whether a first line names the columns: it holds one that is asked for, or no number.

    >>> is_header(["age", "sex"]), is_header(["63.0", "?"]), is_header(["0", "1"], ["1"]), is_header(["p", "x"], ["c2"])
    (True, False, True, False)
    """
    if any(name in first for name in wanted):
        return True
    if any(re.fullmatch(r"c\d+", name) for name in wanted):
        return False
    return not any(_POINT.fullmatch(cell) or _COMMA.fullmatch(cell) for cell in first)


def names_of(first: Sequence[str], wanted: Sequence[str] = ()) -> list[str]:
    """The columns' names by the first line; c1, c2, ... where it holds data or leaves one out."""
    header = is_header(first, wanted)
    return [name if header and name else f"c{i}" for i, name in enumerate(first, start=1)]


def clean(values: pd.Series, comma: bool = False) -> pd.Series:
    """A column with all ways of writing nothing missing, blanks around words gone, and numbers as numbers."""
    if values.dtype.kind == "m":
        return values.dt.total_seconds()
    if values.dtype.kind in "iuf" and not isinstance(values.dtype, np.dtype):  # pandas' own, with its own NA
        return values.astype("float64")
    if values.dtype.kind not in "OUT" and not isinstance(values.dtype, pd.StringDtype):
        return values
    if any(isinstance(v, list | tuple | dict | bytes) or hasattr(v, "__array__") for v in values.dropna().head(20)):
        return values.astype(object)  # nested: neither a number nor a word; what uses it raises the error
    text = each(values, _text_or_none)
    numbers = as_numbers(text, comma)
    return numbers if numbers.notna().sum() == text.notna().sum() > 0 else text


def each(values: pd.Series, change: Callable[[Any], Any]) -> pd.Series:
    """A column with every cell changed; what is in many cells is changed once, and what is missing is None."""
    places, different = pd.factorize(values)
    found = np.empty(len(different) + 1, dtype=object)
    found[:-1] = [change(value) for value in different]
    return pd.Series(found[places], index=values.index, dtype=object)


def _text_or_none(cell: object) -> str | None:
    text = as_text(cell)
    return None if text is None or text.lower() in EMPTY else text


def as_text(cell: object) -> str | None:
    """A cell as one would write it: whole numbers without a point, dates the ISO way."""
    if cell is None or cell is pd.NaT or (isinstance(cell, float) and cell != cell):
        return None
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    return cell.isoformat() if hasattr(cell, "isoformat") else str(cell).strip()


def as_numbers(text: pd.Series, comma: bool = False) -> pd.Series:
    """The cells that are numbers; the others missing. The decimal mark is the one by which more cells are numbers.

    `comma` decides where both make as many, as in 1,250.

    >>> as_numbers(pd.Series(["1,5", "2", "1.000,25"], dtype=object)).tolist()
    [1.5, 2.0, 1000.25]
    >>> as_numbers(pd.Series(["1,250", "2", "x"], dtype=object)).tolist()
    [1250.0, 2.0, nan]
    """
    places, different = pd.factorize(text)
    found = np.append(_numbers(pd.Series(different, dtype="str"), comma).to_numpy(), np.nan)
    return pd.Series(found[places], index=text.index)


def _numbers(known: pd.Series, comma: bool) -> pd.Series:
    known = known.str.replace(_UNIT, "", regex=True)
    if not known.str.contains(",", regex=False).any():
        return pd.to_numeric(known, errors="coerce").astype("float64")
    by_point, by_comma = known.str.fullmatch(_POINT), known.str.fullmatch(_COMMA)
    if int(by_comma.sum()) + comma > int(by_point.sum()):
        known = known.where(by_comma).str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
    else:
        known = known.where(by_point).str.replace(",", "", regex=False)
    return pd.to_numeric(known, errors="coerce").astype("float64")
