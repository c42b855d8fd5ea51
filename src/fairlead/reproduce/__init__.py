"""The published tables and figures of four papers, run again, and Convoy's: `fairlead reproduce NAME`.

A file per paper holds its printed numbers, the cells they take and the orderings it claims; `cells` runs the cells,
`table` and `figures` show what came out beside what was printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.core import InputError, nearest, require
from fairlead.core.files import write_text
from fairlead.reproduce import confree, convoy, fedora, fedora_costs, fedora_released, fedres, plgu, public, where
from fairlead.reproduce import table as tables
from fairlead.reproduce.cells import Found, Progress, collect, commits, table_of
from fairlead.reproduce.processes import side_by_side
from fairlead.reproduce.study import BUDGETS, Budget, Key, Study, keys_of_pair, narrowed, restricted
from fairlead.reproduce.table import Number, Verdict
from fairlead.runs.files import read_json, write_json
from fairlead.runs.identity import versions

STUDIES: dict[str, Callable[[Budget], Study]] = {
    **fedora.STUDIES,
    **fedora_costs.STUDIES,
    **fedora_released.STUDIES,
    **confree.STUDIES,
    **fedres.STUDIES,
    **plgu.STUDIES,
    **public.STUDIES,
    **where.STUDIES,
    **convoy.STUDIES,
}

__all__ = ["BUDGETS", "STUDIES", "Reproduction", "across", "reproduce", "rewrite", "study"]


@dataclass(frozen=True)
class Reproduction:
    """A table that was run: the paper's numbers, ours, and what became of its claims."""

    study: Study
    numbers: dict[tuple[str, str], Number]
    verdicts: list[Verdict]
    found: Found
    budget: Budget
    seeds: int
    folder: Path


def study(name: str, budget: str = "standard") -> Study:
    """A published table or figure by its name, at a budget."""
    if name not in STUDIES:
        raise InputError(f"nothing published is called '{name}'; {nearest(name, STUDIES)}")
    return STUDIES[name](budget_of(budget))


def budget_of(name: str) -> Budget:
    """A budget by its name."""
    for budget in BUDGETS:
        if budget == name:
            return budget
    raise InputError(f"budget '{name}' is unknown; {nearest(name, BUDGETS)}")


def reproduce(
    name: str,
    *,
    budget: str = "standard",
    data_dir: Path | str | None = None,
    out: Path | str = "runs/reproduce",
    seeds: int | None = None,
    only: Sequence[str] = (),
    jobs: int = 1,
    progress: Progress | None = None,
) -> Reproduction:
    """Run a published table again and write it to `out`/`name`/`budget`.

    `only` leaves rows and columns out: see `narrowed`. The cells are run folders in `out`/cells, shared by all tables:
    those already done are read, one that was stopped goes on. Columns whose data set is not to be had say so, and the
    others are run. With `jobs`, so many cells train side by side, each in a process on its share of the cores and with
    the data in memory of its own; a script that asks for it needs the usual `if __name__ == "__main__"`.
    """
    chosen = narrowed(study(name, budget), only)
    count = chosen.seeds if seeds is None else seeds
    require(count >= 1, f"seeds must be at least 1, got {count}")
    where = None if data_dir is None else str(Path(data_dir).resolve())
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}")
    if jobs > 1:
        side_by_side(chosen, Path(out), data_dir=where, seeds=count, jobs=jobs, progress=progress)
    found = collect(chosen, Path(out), data_dir=where, seeds=count, progress=progress)
    numbers = tables.numbers_of(chosen, table_of(chosen, found, count))
    # After a round or two an ordering says nothing, so that a quick budget judges computed studies alone.
    judged = budget != "quick" or not chosen.trained
    verdicts = [tables.judge(claim, numbers) for claim in chosen.claims] if judged else []
    result = Reproduction(chosen, numbers, verdicts, found, budget_of(budget), count, Path(out) / name / budget)
    write(result, only)
    return result


def write(result: Reproduction, only: Sequence[str] = ()) -> None:
    """The table as table.md, table.tex, numbers.json and numbers.csv, and the figure as PNG and SVG."""
    from fairlead.reproduce.figures import draw  # drawing takes half a second to load, a list of names none

    chosen, numbers, verdicts, folder = result.study, result.numbers, result.verdicts, result.folder
    budget, seeds = result.budget, result.seeds
    command = f"fairlead reproduce {chosen.name} --budget {budget} --seeds {seeds}"
    command += "".join(f" --only '{text}'" for text in only)
    page = tables.plain(chosen, numbers, verdicts, budget=budget, seeds=seeds, command=command, versions=versions())
    for entry in page["entries"]:
        entry["commits"] = commits(chosen.entries[entry["row"], entry["column"]], result.found)
    write_texts(chosen, numbers, verdicts, page, folder)
    draw(chosen, result.found, seeds, folder)


def write_texts(
    chosen: Study, numbers: dict[Key, Number], verdicts: list[Verdict], page: dict[str, Any], folder: Path
) -> None:
    """Everything but the figure."""
    write_json(folder / "numbers.json", page)
    texts = {
        "numbers.csv": tables.as_csv(page),
        "table.md": tables.markdown(chosen, numbers, verdicts, page["budget"], page["seeds"]),
        "table.tex": tables.latex(chosen, numbers, page["budget"], page["seeds"]),
    }
    for name, text in texts.items():
        write_text(folder / name, text)


def rewrite(folder: Path) -> dict[str, Any]:
    """Judge a table's claims anew from its saved numbers, and write its texts; nothing is trained.

    Claims are those of this version, on the rows and columns that were run; notes are those of the run. Returns what
    numbers.json then says.
    """
    saved = read_json(folder / "numbers.json")
    found = saved_numbers(saved)
    chosen = replace(restricted(study(saved["name"], saved["budget"]), found), notes=tuple(saved["notes"]))
    lost = [key for key in found if key not in chosen.entries]
    require(not lost, f"{folder}: this version of {saved['name']} has no row and column {lost[:1]}; run it again")
    numbers = {key: found[key] for key in chosen.entries}
    judged = saved["budget"] != "quick" or not chosen.trained
    verdicts = [tables.judge(claim, numbers) for claim in chosen.claims] if judged else []
    page = saved | {"claims": [v._asdict() for v in verdicts]}
    write_texts(chosen, numbers, verdicts, page, folder)
    return dict(page)


def saved_numbers(page: dict[str, Any]) -> dict[Key, Number]:
    """The numbers of a saved numbers.json."""
    entries = page["entries"]
    return {(e["row"], e["column"]): Number(e["published"], tuple(e["ours"]), e["not_run"]) for e in entries}


def across(pages: Sequence[dict[str, Any]]) -> list[Verdict]:
    """What becomes of claims that compare numbers of several parts of one table, each saved by itself."""
    parts = [{k: n for k, n in saved_numbers(page).items() if n.ours} for page in pages]
    numbers = {k: n for part in reversed(parts) for k, n in part.items()}  # the first that has it
    chosen = restricted(study(pages[0]["name"], pages[0]["budget"]), numbers)
    found = []
    for claim in chosen.claims:
        apart = tuple(p for p in claim.pairs if not any(keys_of_pair(p) <= part.keys() for part in parts))
        if apart:
            found.append(tables.judge(claim._replace(pairs=apart), numbers))
    return found
