"""Twins: a method, LOCAL say, trained again and again with another seed, on real tables and images.

A twin's true difference from its twin is zero, so every verdict on a pair of them is false. Owners who train alone are
lucky or unlucky each for itself; those who share a model are so together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import fairlead
from fairlead.catalogue import parse
from fairlead.clients import InProcess, engine
from fairlead.comparison.assess import answered
from fairlead.comparison.bench import FOLD
from fairlead.comparison.findings import Answers
from fairlead.core import Federation, Plan, Training
from fairlead.data import Source
from fairlead.rounds import federate
from fairlead.runs.material import Material
from fairlead.settings import check, resolve


class Kind(NamedTuple):
    """A data set, as settings of `fairlead.compare`, and the metrics of its verdicts."""

    settings: dict[str, Any]
    metrics: tuple[str, ...]


def kinds(data: Path) -> dict[str, Kind]:
    """The data sets by name; `data` holds tables/ and mnist/."""
    tables = data / "tables"

    def table(path: str, label: str, column: str, **more: Any) -> dict[str, Any]:
        return {"data": tables / path, "label": label, "column": column} | more

    images = {"split": "iid", "clients": 6, "samples": (150, 50, 277), "shift": "rotation", "angle": 30.0}
    return {
        "heart": Kind({"data": "heart-disease"}, ("accuracy", "auroc")),
        "har": Kind(table("har_smartphones/har_features.csv", "activity", "subject"), ("accuracy", "log-loss")),
        "exam": Kind(table("schools/Exam.csv", "normexam", "school"), ("rmse",)),
        "nlschools": Kind(table("schools/nlschools.csv", "lang", "class"), ("rmse",)),
        "beijing": Kind(table("beijing_air/beijing_air_daily.csv", "PM2.5", "station"), ("rmse",)),
        "digits": Kind({"scenario": "rotated-digits"}, ("accuracy",)),
        "mnist": Kind(images | {"data": "mnist", "data_dir": data, "model": "mlp"}, ("accuracy",)),
    }


@dataclasses.dataclass(frozen=True)
class Twins:
    """A method on one data set, ready to be trained with any seed."""

    method: str
    kind: Kind
    source: Source
    training: Training
    rounds: int

    @staticmethod
    def of(method: str, kind: Kind) -> Twins:
        """The step size and rounds are the preset's, or the method's own search with a quick effort, made once."""
        experiment = resolve(check(kind.settings))
        training, rounds = experiment.training, experiment.rounds
        if experiment.effort is not None:
            done = fairlead.compare([method], **kind.settings, folds=1, effort="quick").summary["methods"]
            found = done[method]["search"][0]
            training, rounds = dataclasses.replace(training, lr=found["lr"]), found["round"]
        return Twins(method, kind, experiment.scenario.load(experiment.data_dir), training, rounds)

    def single(self, division: int, count: int) -> tuple[Sequence[str], list[list[Answers]]]:
        """Twins on one division of the rows into train and test; each has one run."""
        return self._trained([None], division, count)

    def folded(self, division: int, count: int, folds: int) -> tuple[Sequence[str], list[list[Answers]]]:
        """Cross-validated twins; each has a run for every fold."""
        return self._trained([(i, folds) for i in range(folds)], division, count)

    def _trained(
        self, folds: list[tuple[int, int]] | list[None], division: int, count: int
    ) -> tuple[Sequence[str], list[list[Answers]]]:
        experiment = resolve(check(self.kind.settings))
        federations = [experiment.scenario.build(division, source=self.source, fold=fold, refit=True) for fold in folds]
        materials = [Material(experiment, federation) for federation in federations]
        runs = [
            [
                dataclasses.replace(
                    trained(self.method, m.federation, self.training, self.rounds, m.module(own), own), fold=i
                )
                for i, (m, own) in enumerate((m, seed + FOLD * i) for i, m in enumerate(materials))
            ]
            for seed in range(1000 * division, 1000 * division + count)
        ]
        return federations[0].owners, runs


def trained(
    method: str, federation: Federation, training: Training, rounds: int, module: nn.Module, seed: int
) -> Answers:
    """The method's answers for the test rows of every client."""
    plan, entry = Plan(rounds=rounds, evaluate_every=rounds, seed=seed), parse(method)
    with InProcess(federation, training, engine("vectorised")) as clients:
        for _ in federate(entry.method, clients, module, plan, average=entry.average):
            pass
        return answered(federation, federation.test, clients.outputs("test"))


def small_network(hidden: int) -> Callable[[tuple[int, ...], int], nn.Module]:
    """One hidden layer."""

    def made(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    return made


def planted(answers: Answers, gain: float, rng: np.random.Generator) -> Answers:
    """The same with wrong answers put right, at random, so that each owner's accuracy rises by `gain` on average."""
    outputs = []
    for y, out in zip(answers.y, answers.outputs, strict=True):
        wrong = out.argmax(1) != y
        mended = wrong & (rng.random(len(y)) * wrong.mean() < gain)
        right = np.eye(out.shape[1])[y.astype(int)] * (1 + np.abs(out).max(initial=0))
        outputs.append(np.where(mended[:, None], right, out))
    return dataclasses.replace(answers, outputs=outputs)


def cross_validated_losses(x: np.ndarray, y: np.ndarray, sets: np.ndarray, hidden: int, folds: int) -> np.ndarray:
    """Losses (data sets, rows of a fold, folds) of LOCAL with a small network; `sets` are the rows of each data set.

    Every data set is a client.
    """
    owner, rows = np.repeat(np.arange(len(sets)), sets.shape[1]), sets.ravel()
    source = fairlead.data.from_tensors(torch.tensor(x[rows]), torch.tensor(y[rows]), {"set": owner}, name="sets")
    scenario = fairlead.Scenario(data="sets", split="column", column="set", clients=None)
    losses = []
    for i in range(folds):
        federation = scenario.build(0, source=source, fold=(i, folds), refit=True)
        torch.manual_seed(i)
        module = small_network(hidden)(tuple(federation.train.x.shape[1:]), federation.outputs)
        found = trained("local", federation, Training(lr=0.03, batch_size=16, momentum=0.9), 15, module, i)
        losses.append(np.stack([_losses(target, out) for target, out in zip(found.y, found.outputs, strict=True)]))
    return np.stack(losses, axis=-1)


def _losses(y: np.ndarray, out: np.ndarray) -> np.ndarray:
    if out.ndim == 1:
        return np.asarray((out - y) ** 2)
    shifted = out - out.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return np.asarray(-np.maximum(logs[np.arange(len(y)), y.astype(int)], -16))
