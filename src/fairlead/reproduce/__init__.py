"""The published tables and figures of four papers, run again: `fairlead reproduce NAME`.

A file per paper holds its printed numbers, the cells they take and the orderings it claims; `cells` runs the cells,
`table` and `figures` show what came out beside what was printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.core import InputError, nearest, require
from fairlead.core.files import atomically
from fairlead.reproduce import confree, fedora, fedora_costs, fedora_released, fedres, plgu
from fairlead.reproduce import table as tables
from fairlead.reproduce.cells import Found, Progress, collect, table_of
from fairlead.reproduce.processes import side_by_side
from fairlead.reproduce.study import BUDGETS, Budget, Study, narrowed
from fairlead.reproduce.table import Number, Verdict
from fairlead.runs.files import write_json
from fairlead.runs.identity import versions

STUDIES: dict[str, Callable[[Budget], Study]] = {
    **fedora.STUDIES,
    **fedora_costs.STUDIES,
    **fedora_released.STUDIES,
    **confree.STUDIES,
    **fedres.STUDIES,
    **plgu.STUDIES,
}

__all__ = ["BUDGETS", "STUDIES", "Reproduction", "reproduce", "study"]


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
    write_json(folder / "numbers.json", page)
    texts = {
        "numbers.csv": tables.as_csv(page),
        "table.md": tables.markdown(chosen, numbers, verdicts, budget, seeds),
        "table.tex": tables.latex(chosen, numbers, budget, seeds),
    }
    for name, text in texts.items():
        atomically(folder / name, lambda path, text=text: path.write_text(text, encoding="utf-8"))  # type: ignore[misc]
    draw(chosen, result.found, seeds, folder)
