"""A study's numbers beside the paper's: on the terminal, in Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.reproduce.study import Budget, Claim, Column, Key, Study

NONE = "–"
WIDE = 4  # with more columns than this in a group, each shows "ours (paper)" in one
LATEX = {mark: f"\\{mark}" for mark in "&%$#_{}"} | {"±": r"$\pm$", NONE: "--", "×": r"$\times$", "²": r"$^2$"}
LATEX |= {"β": r"$\beta$", "ρ": r"$\rho$", "α": r"$\alpha$"}


@dataclass(frozen=True)
class Number:
    """One entry: the paper's number and ours, or why we have none."""

    published: float | None
    ours: tuple[float, ...] = ()
    why: str | None = None

    @property
    def mean(self) -> float | None:
        """Over seeds."""
        return statistics.fmean(self.ours) if self.ours else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; one seed has none."""
        return statistics.stdev(self.ours) if len(self.ours) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.mean is None or self.published is None else self.mean - self.published


class Verdict(NamedTuple):
    """What became of a claim in our runs."""

    text: str
    status: Literal["holds", "does not hold", "not run"]
    held: int  # pairs in the claimed order
    measured: int  # pairs of which both were run
    pairs: int
    against: list[str]  # the pairs that contradict it, in words
    margin: float | None  # the smallest difference in the claimed direction; negative where it fails


Numbers = Mapping[Key, Number]


def numbers_of(study: Study, ours: Mapping[Key, list[float] | str]) -> dict[Key, Number]:
    """The paper's numbers and ours, entry by entry."""
    found = {}
    for key, entry in study.entries.items():
        got = ours[key]
        found[key] = Number(entry.published, why=got) if isinstance(got, str) else Number(entry.published, tuple(got))
    return found


ROUNDING = 1e-6  # relative; accuracies are single-precision means, and equal ones may differ in their last bits


def judge(claim: Claim, numbers: Numbers) -> Verdict:
    """Whether the claimed ordering is found in our means; pairs that were not run neither help nor hurt."""
    held, measured, against = 0, 0, []
    margin: float | None = None
    for high, low in claim.pairs:
        a, b = _mean(high, numbers), _mean(low, numbers)
        if a is None or b is None:
            continue
        measured += 1
        margin = a - b if margin is None else min(margin, a - b)
        rounding = ROUNDING * max(abs(a), abs(b))
        if a - b > (-claim.slack - rounding if claim.slack else rounding):
            held += 1
        else:
            against.append(_contrary(high, low, numbers))
    status: Literal["holds", "does not hold", "not run"] = "holds" if held == measured else "does not hold"
    if not measured:
        status = "not run"
    return Verdict(claim.text, status, held, measured, len(claim.pairs), against, margin)


def _mean(side: Key | float, numbers: Numbers) -> float | None:
    if isinstance(side, float):
        return side
    return numbers[side].mean if side in numbers else None


def _contrary(high: Key | float, low: Key | float, numbers: Numbers) -> str:
    """A pair that is not in the claimed order, in words; a column that both share is said once."""
    sides = [f"{s:g}" if isinstance(s, float) else f"{s[0]} {_mean(s, numbers):.4g}" for s in (high, low)]
    columns = list(dict.fromkeys(s[1] for s in (high, low) if not isinstance(s, float)))
    return f"{' against '.join(sides)} ({', '.join(columns)})"


def sentence(verdict: Verdict, most: int = 4) -> str:
    """A claim's fate in one line."""
    if verdict.status == "not run":
        return f"not run: {verdict.text}."
    count = f"{verdict.held} of {verdict.measured}"
    count += f" ({verdict.pairs - verdict.measured} not run)" if verdict.measured < verdict.pairs else ""
    told = f"{verdict.status}: {verdict.text} [{count}]"
    if verdict.against:
        rest = len(verdict.against) - most
        told += "; against it: " + ", ".join(verdict.against[:most]) + (f" and {rest} more" if rest > 0 else "")
    return told + "."


class Block(NamedTuple):
    """One group of columns as text: a heading, column names and rows."""

    title: str
    head: list[str]
    rows: list[list[str]]


def blocks(study: Study, numbers: Numbers) -> list[Block]:
    """The table's groups of columns, each a table of its own."""
    found = []
    for group, columns in study.groups.items():
        rows = [row for row in study.rows if any((row, c.key) in numbers for c in columns)]
        printed = [
            c
            for c in columns
            if any(numbers[row, c.key].published is not None for row in rows if (row, c.key) in numbers)
        ]
        head = [""]
        for column in columns:
            if len(columns) > WIDE:
                head.append(f"{column.title}, ours (paper)" if column in printed else column.title)
            else:
                heads = [f"{column.title}, paper", "ours", "difference"] if column in printed else [column.title]
                head += heads
        lines = [
            [row, *(text for c in columns for text in _cells(numbers.get((row, c.key)), c, columns, printed))]
            for row in rows
        ]
        found.append(Block(group, head, lines))
    return found + gains(study, numbers)


def gains(study: Study, numbers: Numbers) -> list[Block]:
    """How much one row is above another, seed by seed: a gain's spread is smaller than that of the two rows."""
    columns = [c for c in study.columns if any((row, c.key) in numbers for row, _ in study.gains)]
    rows = []
    for row, base in study.gains:
        pairs = [(numbers.get((row, c.key)), numbers.get((base, c.key))) for c in columns]
        if any(a and b and a.ours and b.ours for a, b in pairs):
            rows.append([f"{row} over {base}", *(_gain(a, b, c) for (a, b), c in zip(pairs, columns, strict=True))])
    return [Block("Gains, seed by seed", ["", *(c.group or c.title for c in columns)], rows)] if rows else []


def _gain(row: Number | None, base: Number | None, column: Column) -> str:
    if row is None or base is None or not row.ours or not base.ours:
        return NONE
    gain = Number(None, tuple(a - b for a, b in zip(row.ours, base.ours, strict=True)))
    assert gain.mean is not None
    spread = "" if gain.std is None else f" ± {_text(gain.std, column.decimals)}"
    return _text(gain.mean, column.decimals, "+") + spread


def _cells(number: Number | None, column: Column, columns: list[Column], printed: list[Column]) -> list[str]:
    if number is None:
        return [NONE] * (3 if column in printed and len(columns) <= WIDE else 1)
    places = column.decimals
    ours = "not run" if number.mean is None else _text(number.mean, places)
    if number.std is not None:
        ours += f" ± {_text(number.std, places)}"
    if column not in printed:
        return [ours]
    paper = NONE if number.published is None else _text(number.published, places)
    if len(columns) > WIDE:
        return [f"{ours} ({paper})"]
    return [paper, ours, NONE if number.difference is None else _text(number.difference, places, "+")]


def _text(value: float, places: int, sign: str = "") -> str:
    return f"{value:{sign},.{places}f}"


def reasons(numbers: Numbers) -> list[str]:
    """Why some entries were not run, each reason once."""
    return list(dict.fromkeys(f"not run: {n.why}" for n in numbers.values() if n.why))


def said(study: Study, budget: Budget, seeds: int) -> str:
    """One line on where the numbers come from."""
    spread = f"mean over {seeds} seeds ± their standard deviation" if seeds > 1 else "one seed"
    idle = " A quick budget shows that everything runs; nothing is trained long enough to compare or judge."
    return f"Paper: {study.source}. Ours: budget {budget}, {spread}." + (
        idle if study.trained and budget == "quick" else ""
    )


def terminal(study: Study, numbers: Numbers, verdicts: list[Verdict], budget: Budget, seeds: int) -> list[Table | Text]:
    """The tables and the claims' fate, for a console."""
    shown: list[Table | Text] = []
    for block in blocks(study, numbers):
        table = Table(title=block.title or study.title, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for i, name in enumerate(block.head):
            table.add_column(name, justify="right" if i else "left")
        for row in block.rows:
            table.add_row(*(Text(cell) for cell in row))
        shown.append(table)
    styles = {"holds": "green", "does not hold": "bold red", "not run": "dim"}
    shown += [Text(sentence(v), style=styles[v.status]) for v in verdicts]
    told = (*reasons(numbers), *study.notes, said(study, budget, seeds))
    return shown + [Text(line, style="dim") for line in told]


def markdown(study: Study, numbers: Numbers, verdicts: list[Verdict], budget: Budget, seeds: int) -> str:
    """The whole as a Markdown page."""
    parts = [f"# {study.title}", said(study, budget, seeds)]
    for block in blocks(study, numbers):
        lines = [block.head, ["---", *["---:"] * (len(block.head) - 1)], *block.rows]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        parts.append((f"## {block.title}\n\n" if block.title else "") + table)
    if verdicts:
        parts.append("## Claims\n\n" + "\n".join(f"- {sentence(v, most=8)}" for v in verdicts))
    rest = [*reasons(numbers), *study.notes]
    if rest:
        parts.append("## Notes\n\n" + "\n".join(f"- {line}" for line in rest))
    return "\n\n".join(parts) + "\n"


def latex(study: Study, numbers: Numbers, budget: Budget, seeds: int) -> str:
    """The tables as LaTeX `tabular`s for booktabs."""

    def line(cells: list[str]) -> str:
        return " & ".join("".join(LATEX.get(mark, mark) for mark in cell) for cell in cells) + r" \\"

    parts = [f"% {study.title}. {said(study, budget, seeds)}"]
    for block in blocks(study, numbers):
        rows = [line(row) for row in block.rows]
        opening = rf"\begin{{tabular}}{{l{'r' * (len(block.head) - 1)}}}"
        whole = [f"% {block.title}", opening, r"\toprule", line(block.head), r"\midrule", *rows, r"\bottomrule"]
        parts.append("\n".join([*whole, r"\end{tabular}"]))
    return "\n\n".join(parts) + "\n"


def plain(study: Study, numbers: Numbers, verdicts: list[Verdict], **facts: Any) -> dict[str, Any]:
    """Everything as plain values, for a JSON file."""
    titles = {c.key: c for c in study.columns}
    entries = [
        {
            "row": row,
            "column": column,
            "group": titles[column].group,
            "published": n.published,
            "ours": list(n.ours),
            "mean": n.mean,
            "std": n.std,
            "difference": n.difference,
            "not_run": n.why,
            "cell": study.entries[row, column].cell.key,
            "measure": study.entries[row, column].measure,
        }
        for (row, column), n in numbers.items()
    ]
    facts = {"name": study.name, "title": study.title, "source": study.source, **facts}
    return facts | {"entries": entries, "claims": [v._asdict() for v in verdicts], "notes": list(study.notes)}


def as_csv(page: Mapping[str, Any]) -> str:
    """The entries of `plain` as CSV, a line each."""
    names = ("row", "column", "published", "mean", "std", "difference", "not_run")
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(page["entries"])
    return text.getvalue()
