"""Score a comparison's test rows again, from the raw file through what the run folders hold.

Raw rows, the saved preparation and the saved models must give the scores of the page, to the last bit: the outputs are
computed by the engine that computed them before. A model used alone adds up the same numbers in another order, and the
largest difference that makes is told as well.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from fairlead.catalogue import parse
from fairlead.clients import engine
from fairlead.comparison.assess import answered
from fairlead.comparison.findings import Answers, by_owner
from fairlead.core import Federation, InputError, RunError
from fairlead.data import Source
from fairlead.data.files import read_frame
from fairlead.data.sources import files_of
from fairlead.metrics import metric
from fairlead.prediction.predict import load_run
from fairlead.runs.deployment import Deployment, read_deployment
from fairlead.runs.files import read_object
from fairlead.runs.identity import fingerprint
from fairlead.runs.run import Job, kept_outputs
from fairlead.runs.summary import read_summary
from fairlead.settings import Experiment


class Again(NamedTuple):
    """One owner's score with one method, as the page says and computed again."""

    method: str
    owner: str
    metric: str
    before: float | None
    now: float | None

    @property
    def equal(self) -> bool:
        """Whether every bit is the same."""
        return self.before == self.now


class Rechecked(NamedTuple):
    """All scores again, and how far the models used alone are from the engine's outputs."""

    scores: list[Again]
    apart: float


def recheck(folder: Path, data: Path | str | None = None) -> Rechecked:
    """Score all methods of a comparison on a table again; `data` is where the table lies now, if elsewhere."""
    plan, summary = read_object(folder / "settings.json"), read_summary(folder)
    if plan.get("own"):
        raise InputError(f"{folder} was made with {' and '.join(plan['own'])} of your own program, which is in no file")
    experiment = Experiment.from_json(plan.get("experiment"), folder / "settings.json")
    scenario = experiment.scenario if data is None else dataclasses.replace(experiment.scenario, data=str(data))
    source = scenario.load(experiment.data_dir)
    if source.table is None:
        raise InputError(f"{scenario.data} is no table; only tables have raw rows to score again")
    raw = read_frame(files_of(scenario.data), [column.name for column in source.table.columns])
    rounds = _Divisions(dataclasses.replace(experiment, scenario=scenario), source, plan["seeds"][0])
    ways = {way["name"]: way["scores"] for way in summary["findings"]["ways"]}
    chosen, found, apart = metric(summary["findings"]["metric"]), [], 0.0
    for name, one in {**summary["methods"], **summary.get("tools", {})}.items():
        answers = []
        for fold, repeat, run in _runs(one):
            count = summary["settings"].get("folds", 1)
            again, far = _answers(folder / run, raw, rounds.of(folder / run, fold, count))
            answers.append(dataclasses.replace(again, fold=fold, repeat=repeat))
            apart = max(apart, far)
        now = by_owner(answers, chosen)
        owners = summary["findings"]["owners"]
        found += [Again(name, *both) for both in zip(owners, [chosen.name] * len(owners), ways[name], now, strict=True)]
    return Rechecked(found, apart)


def _runs(one: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Fold, repeat and folder of the runs that a method was judged by."""
    if "final" in one:
        return [(fold, repeat, run) for fold, runs in enumerate(one["final"]) for repeat, run in enumerate(runs)]
    return [(0, repeat, run) for repeat, run in enumerate(one["runs"])]


class _Divisions:
    """The rows that runs were trained and tested on, built when they are asked for."""

    def __init__(self, experiment: Experiment, source: Source, seed: int) -> None:
        self._experiment, self._source, self._seed = experiment, source, seed
        self._built: dict[tuple[int, bool], tuple[Federation, str]] = {}

    def of(self, run: Path, fold: int, count: int) -> Federation:
        """The division that made the run, by its fingerprint: with or without validation rows."""
        wanted = read_object(run / "settings.json")["identity"]["data"]
        for refit in (True, False):
            if (fold, refit) not in self._built:
                folds = None if count == 1 else (fold, count)
                scenario = self._experiment.scenario
                built = scenario.build(self._seed, source=self._source, fold=folds, refit=refit)
                self._built[fold, refit] = built, fingerprint(built)
            built, made = self._built[fold, refit]
            if made == wanted:
                return built
        raise RunError(f"{run} was made from other data than {self._source.name} holds; give the old file as --data")


def _answers(run: Path, raw: pd.DataFrame, federation: Federation) -> tuple[Answers, float]:
    """What a run's models answer for the test rows of the raw table; how far the models used alone are from it."""
    deployment, test = read_deployment(run), federation.test
    assert deployment.preparation is not None
    pieces = []
    for name, rows in zip(deployment.owners, torch.split(test.rows, test.sizes.tolist()), strict=True):
        pieces.append(deployment.preparation.transform(raw.iloc[rows.numpy()], name, []) if len(rows) else test.x[:0])
    federation = dataclasses.replace(federation, test=dataclasses.replace(test, x=torch.cat(pieces)))
    module = deployment.network()
    alone = [load_run(run, k, copy.deepcopy(module)).outputs(x) for k, x in enumerate(pieces)]
    # No engine has a part in a standard tool.
    tool = deployment.tool is not None
    outputs = alone if tool else kept_outputs(_job(run, deployment, federation), "test")
    return answered(federation, federation.test, outputs), _apart(alone, outputs)


def _apart(alone: list[Tensor], outputs: list[Tensor]) -> float:
    return max((float((a - b).abs().max()) for a, b in zip(alone, outputs, strict=True) if len(a)), default=0.0)


def _job(run: Path, deployment: Deployment, federation: Federation) -> Job:
    """The run as it was trained, on the given rows."""
    settings = read_object(run / "settings.json")
    experiment = Experiment.from_json(settings.get("experiment"), run / "settings.json")
    name = settings["method"]
    return Job(
        folder=run,
        name=name,
        entry=parse(name, experiment.options),
        experiment=experiment,
        federation=federation,
        module=deployment.bare(),
        engine=engine(experiment.engine),
        seed=settings["seed"],
        made=settings["identity"],
    )
