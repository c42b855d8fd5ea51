"""What a published table or figure is made of: cells to run, numbers to stand beside them, orderings to check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

from fairlead.core import InputError, nearest
from fairlead.runs.identity import digest

Budget = Literal["quick", "standard", "full"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
Result = dict[str, Any]  # plain values, as they are kept in a file
Key = tuple[str, str]  # row, column


@dataclass(frozen=True)
class Cell:
    """A training run, but for its seed: a method of the catalogue, and settings by the names of `Settings`.

    Two names go beyond `Settings`: `big` (of the scenario) and `evaluate_global`. Options in `set` are those of this
    method alone, so that every method of a scenario shares one control.
    """

    method: str
    settings: Mapping[str, Any]

    @property
    def where(self) -> str:
        """The folder shared by all methods with these settings, options aside."""
        plain = {k: v for k, v in self.settings.items() if k != "set"}
        return f"{self.settings.get('scenario', 'data')}-{digest(plain)}"

    @property
    def key(self) -> str:
        """The run's folder, but for its seed."""
        options = self.settings.get("set")
        return f"{self.where}/{self.method}" + (f"-{digest(options)}" if options else "")

    @property
    def control(self) -> Cell:
        """Training alone, with the same settings."""
        return Cell("local", {k: v for k, v in self.settings.items() if k not in ("set", "evaluate_global")})

    @property
    def rounds(self) -> int:
        """How much there is to do."""
        return int(self.settings["rounds"])


@dataclass(frozen=True)
class Computed:
    """A function in place of a training run; its answer is kept in a file all the same."""

    name: str
    compute: Callable[..., Result] = field(compare=False)  # called with the settings and `seed`
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs_data: bool = False  # then it is called with `data_dir` too

    @property
    def key(self) -> str:
        """The answer's file, but for its seed."""
        return f"{self.name}-{digest(self.settings)}"

    @property
    def rounds(self) -> int:
        """How much there is to do."""
        return 1


class Entry(NamedTuple):
    """One number of a table: where ours comes from, and the paper's, if it is printed."""

    cell: Cell | Computed
    measure: str
    published: float | None = None


class Column(NamedTuple):
    """A column of numbers; those of one group stand side by side under its name."""

    key: str
    title: str
    group: str = ""
    scale: float = 1.0
    decimals: int = 4


class Gain(NamedTuple):
    """How much a row is above another in a column, seed by seed."""

    row: str
    base: str
    column: str


Side = Key | Gain | float


class Claim(NamedTuple):
    """An ordering that the paper states: in each pair, the first is above the second; either may be a plain number.

    `slack` is how far below still counts as equal.
    """

    text: str
    pairs: tuple[tuple[Side, Side], ...]
    slack: float = 0.0


def keys_of(side: Side) -> list[Key]:
    """The numbers that a side of a claim is made of.

    >>> keys_of(Gain("FedRep + ConFREE", "FedRep", "CIFAR-10"))
    [('FedRep + ConFREE', 'CIFAR-10'), ('FedRep', 'CIFAR-10')]
    """
    if isinstance(side, float):
        return []
    return [(side.row, side.column), (side.base, side.column)] if isinstance(side, Gain) else [side]


def keys_of_pair(pair: tuple[Side, Side]) -> set[Key]:
    """The numbers that both sides are made of."""
    return {key for side in pair for key in keys_of(side)}


class Picture(NamedTuple):
    """A figure to draw from the results."""

    kind: Literal["rounds", "clients", "columns"]  # what runs along the axis
    title: str
    y: str
    x: str = "round"


@dataclass(frozen=True)
class Study:
    """A published table or figure, at one budget."""

    name: str
    title: str
    source: str
    columns: tuple[Column, ...]
    entries: Mapping[Key, Entry]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    seeds: int = 1
    picture: Picture | None = None
    gains: tuple[tuple[str, str], ...] = ()  # pairs of rows whose difference is shown too

    @property
    def rows(self) -> list[str]:
        """Row names in order."""
        return list(dict.fromkeys(row for row, _ in self.entries))

    @property
    def trained(self) -> bool:
        """Whether any number comes from training on a data set."""
        return any(isinstance(e.cell, Cell) or e.cell.needs_data for e in self.entries.values())

    @property
    def groups(self) -> dict[str, list[Column]]:
        """Columns by group, in order."""
        found: dict[str, list[Column]] = {}
        for column in self.columns:
            found.setdefault(column.group, []).append(column)
        return found


def in_order(entries: Mapping[Key, Entry], rows: Iterable[str], columns: Sequence[Column]) -> dict[Key, Entry]:
    """The entries row by row, and in the order of the columns."""
    return {key: entries[key] for key in product(rows, (column.key for column in columns)) if key in entries}


def narrowed(study: Study, only: Sequence[str]) -> Study:
    """The study with fewer rows or groups of columns: those that contain one of the texts.

    A text that occurs in the name of a group chooses groups, one that occurs in a row's name chooses rows; after an
    equals sign it must be the whole name. Claims are cut to what is left.
    """
    groups: set[str] = set()
    rows: set[str] = set()
    for text in only:
        in_groups, in_rows = set(_named(text, study.groups)), set(_named(text, study.rows))
        if not in_groups and not in_rows:
            names = [*study.groups, *study.rows]
            raise InputError(f"--only '{text}': {study.name} has no such row or column; {nearest(text, names)}")
        groups |= in_groups
        rows |= set() if in_groups else in_rows
    keys = {c.key for c in study.columns if c.group in (groups or study.groups)}
    rows = rows or set(study.rows)
    return restricted(study, {(row, column) for row, column in study.entries if column in keys and row in rows})


def restricted(study: Study, keys: Collection[Key]) -> Study:
    """The study with these entries alone; claims are cut to what is left."""
    entries = {k: e for k, e in study.entries.items() if k in keys}
    used = {column for _, column in entries}
    columns = tuple(c for c in study.columns if c.key in used)
    kept = [c._replace(pairs=tuple(p for p in c.pairs if keys_of_pair(p) <= entries.keys())) for c in study.claims]
    return replace(study, columns=columns, entries=entries, claims=tuple(claim for claim in kept if claim.pairs))


def _named(text: str, names: Iterable[str]) -> list[str]:
    """The names that the text occurs in; after an equals sign it must be the whole name."""
    if text.startswith("="):
        return [name for name in names if name.lower() == text[1:].lower()]
    return [name for name in names if text.lower() in name.lower()]


def above(text: str, row: str, others: list[str], columns: list[str], slack: float = 0.0) -> Claim:
    """The claim that one row is above others in these columns."""
    return Claim(text, tuple(((row, c), (other, c)) for c in columns for other in others), slack)


def numbers(text: str) -> list[list[float | None]]:
    """A printed table's numbers, a list per line; a lone dash is a gap.

    >>> numbers("0.7642 - -\\n0.6889 -0.0976 0")
    [[0.7642, None, None], [0.6889, -0.0976, 0.0]]
    """
    lines = [line.split() for line in text.strip().splitlines()]
    return [[None if word == "-" else float(word) for word in line] for line in lines]
