"""Run the cells of a study: every one is a folder or file that a stopped table takes up again.

The folders are shared by all tables under the same `out`, so that a cell which two tables need is trained once, and
LOCAL once per scenario and seed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

from fairlead.catalogue import check_options, parse
from fairlead.core import FairleadError
from fairlead.metrics import summarise
from fairlead.reproduce.study import Cell, Computed, Entry, Key, Result, Study
from fairlead.runs.files import read_json, read_parts, write_json
from fairlead.runs.identity import checkout
from fairlead.runs.material import Materials
from fairlead.runs.run import Run, result
from fairlead.settings import Experiment, check, resolve

logger = logging.getLogger(__name__)

Progress = Callable[[float, float, str], None]  # work done, work in all, what is running
# Work of a round next to that of an MLP, to guess the time left; only the order of size matters.
WORK = {"mlp": 1.0, "logistic": 0.2, "lenet": 2.0, "cnn": 15.0, "mlp-norm": 1.5, "cnn-norm": 18.0, "mixed": 3.0}


class Wanted(NamedTuple):
    """One cell with one seed."""

    cell: Cell | Computed
    seed: int


@dataclass(frozen=True)
class Found:
    """What came of the cells: results by key and seed, and why some have none."""

    results: dict[tuple[str, int], Result] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def collect(study: Study, out: Path, *, data_dir: str | None, seeds: int, progress: Progress | None = None) -> Found:
    """Run what is not there yet, and gather all results; what cannot run says why, and the rest goes on."""
    plan = list(runs_of(study, seeds))
    weights = [work(run.cell) for run in plan]
    total, done = sum(weights), 0.0
    found, workshop = Found(), Workshop(out / "cells", data_dir)
    for run, weight in zip(plan, weights, strict=True):
        label = run.cell.method if isinstance(run.cell, Cell) else run.cell.name

        def tell(share: float, at: float = done, weight: float = weight, what: str = label) -> None:
            if progress:
                progress(at + share * weight, total, what)

        if run.cell.key not in found.missing:
            try:
                found.results[run.cell.key, run.seed] = workshop.result(run, tell)
            except FairleadError as error:
                logger.info("%s is not run: %s", run.cell.key, error)
                found.missing[run.cell.key] = str(error)
        tell(1.0)
        done += weight
    return found


def runs_of(study: Study, seeds: int) -> Iterator[Wanted]:
    """Every run the study needs, once; those on the same federation follow one another."""
    cells: dict[str, Cell | Computed] = {}
    for entry in study.entries.values():
        cells.setdefault(entry.cell.key, entry.cell)
        if isinstance(entry.cell, Cell):
            cells.setdefault(entry.cell.control.key, entry.cell.control)
    groups: dict[str, list[Cell | Computed]] = {}
    for cell in cells.values():
        groups.setdefault(_federation(cell), []).append(cell)
    for group in groups.values():
        for seed in range(seeds):
            yield from (Wanted(cell, seed) for cell in group)


def _federation(cell: Cell | Computed) -> str:
    if isinstance(cell, Computed):
        return cell.name
    training = ("set", "evaluate_global", "rounds", "participation", "epochs", "steps", "lr", "batch_size")
    return str(sorted((k, str(v)) for k, v in cell.settings.items() if k not in training))


def work(cell: Cell | Computed) -> float:
    """How much there is to do, next to other cells."""
    if isinstance(cell, Computed):
        return 1.0
    experiment = experiment_of(cell, None)
    training, clients = experiment.training, experiment.scenario.clients or 1
    share = experiment.participation if experiment.participation <= 1 else experiment.participation / clients
    # Steps are taken by every client, where an epoch is as long as the samples among all of them.
    length = training.steps * clients if training.steps else training.epochs
    return experiment.rounds * share * length * WORK[experiment.model]


def experiment_of(cell: Cell, data_dir: str | None) -> Experiment:
    """The cell's settings with nothing left open."""
    given = dict(cell.settings)
    big, evaluate_global = given.pop("big", None), bool(given.pop("evaluate_global", False))
    if data_dir is not None and "data" not in given:  # what comes with the package lies in no folder
        given["data_dir"] = data_dir
    experiment = resolve(check(given))
    check_options(experiment.options)
    scenario = experiment.scenario if big is None else replace(experiment.scenario, big=big)
    return replace(experiment, scenario=scenario, evaluate_global=evaluate_global)


class Workshop:
    """Trains cells, or reads what is there; neighbours share data and model."""

    def __init__(self, folder: Path, data_dir: str | None) -> None:
        self.folder, self.data_dir = folder, data_dir
        self._materials = Materials()

    def result(self, wanted: Wanted, tell: Callable[[float], None]) -> Result:
        """The cell's result, from its file if it is there; the data are loaded only to train."""
        cell, seed = wanted
        if isinstance(cell, Computed):
            return self._computed(cell, seed)
        experiment = experiment_of(cell, self.data_dir)
        entry = parse(cell.method, experiment.options)
        run = Run(self.folder / f"{cell.key}-seed{seed}", cell.method, entry, experiment, seed)
        found = result(
            run,
            lambda: self._materials.get(experiment, seed).job(run),
            lambda r: tell(r / experiment.rounds),
            keep_models=False,  # a table needs the numbers; the models of a hundred cells would fill a disk
        )
        commit = read_json(run.folder / "settings.json").get("versions", {}).get("commit")
        return _read(run.folder, experiment, dict(found)) | {"commit": commit}

    def _computed(self, cell: Computed, seed: int) -> Result:
        path = self.folder / "computed" / f"{cell.key}-seed{seed}.json"
        lock = path.parent / "locks" / path.stem
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            if not path.exists():
                where = {"data_dir": self.data_dir} if cell.needs_data else {}
                write_json(path, cell.compute(**cell.settings, seed=seed, **where) | {"commit": checkout()})
        return dict(read_json(path))


def _read(folder: Path, experiment: Experiment, result: Result) -> Result:
    """A run's figures: the summary, the curve of mean test accuracy, and the global model's accuracies."""
    found: dict[tuple[str, str, int], list[float]] = {}  # the clients' accuracies by split, model and round
    for r in sorted(read_parts(folder / "records.parquet").to_pylist(), key=lambda r: r["client"]):
        found.setdefault((r["split"], r["model"], r["round"]), []).append(r["accuracy"])
    chosen = result["round"]["round"]
    rounds = sorted(round for split, model, round in found if (split, model) == ("test", "personal"))
    result["curve"] = [[round, float(np.mean(found["test", "personal", round]))] for round in rounds]
    if ("validation", "personal", chosen) in found:
        result["validation"] = float(np.mean(found["validation", "personal", chosen]))
    if experiment.evaluate_global and ("test", "global", chosen) in found:
        result["global"] = found["test", "global", chosen]
    return result


def values(entry: Entry, found: Found, seeds: int) -> list[float] | str:
    """The entry's number for every seed, or why there is none."""
    cell = entry.cell
    control = cell.control.key if isinstance(cell, Cell) else cell.key
    for key in (cell.key, control):
        if key in found.missing:
            return found.missing[key]
    pairs = [(found.results[cell.key, s], found.results[control, s]) for s in range(seeds)]
    return [measure(entry.measure, result, alone) for result, alone in pairs]


def measure(name: str, result: Result, alone: Result) -> float:
    """A number of a run.

    accuracy, r_accuracy, ptr, low5, top5 ...   as in `fairlead.metrics.summarise`; `global.` before them for the
                                                server's model
    validation                                  mean accuracy on validation samples, for tables that choose
    client.K, gain.K, gain.K+L                  accuracy of client K, and its gain relative to training alone, or the
                                                mean gain of several
    worse                                       how many clients are below training alone
    anything else                               the value of that name which a function computed
    """
    if "values" in result:
        return float(result["values"][name])
    if name == "validation":
        return float(result["validation"])
    kind, _, rest = name.partition(".")
    if kind == "client":
        return float(result["accuracy"][int(rest)])
    if kind == "gain":
        pairs = [(result["accuracy"][int(k)], alone["accuracy"][int(k)]) for k in rest.split("+")]
        return float(np.mean([(own - base) / base if base else 0.0 for own, base in pairs]))
    if name == "worse":
        return float(sum(own < base for own, base in zip(result["accuracy"], alone["accuracy"], strict=True)))
    accuracy = result["global"] if kind == "global" else result["accuracy"]
    return summarise(accuracy, alone["accuracy"], result["n_test"])[rest if kind == "global" else name]


def commits(entry: Entry, found: Found) -> list[str]:
    """The commits of the source tree that trained the entry's cell and its control."""
    control = entry.cell.control.key if isinstance(entry.cell, Cell) else entry.cell.key
    results = [result for (key, _), result in found.results.items() if key in (entry.cell.key, control)]
    return sorted({str(r["commit"]) for r in results if r.get("commit")})


def table_of(study: Study, found: Found, seeds: int) -> dict[Key, list[float] | str]:
    """Every entry's numbers in the table's own units."""
    scales: Mapping[str, float] = {c.key: c.scale for c in study.columns}
    table: dict[Key, list[float] | str] = {}
    for key, entry in study.entries.items():
        got = values(entry, found, seeds)
        table[key] = got if isinstance(got, str) else [scales[key[1]] * x for x in got]
    return table
