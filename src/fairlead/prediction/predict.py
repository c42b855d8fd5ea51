"""A run's models on raw rows, without the training data.

A `Predictor` is one owner's model with all that `deployment.json` says about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fairlead.clients import KEPT
from fairlead.core import InputError, Layout, RunError, nearest, require
from fairlead.core.targets import KINDS
from fairlead.data.columns import as_keys
from fairlead.data.files import read_frame, table_files
from fairlead.data.preparation import Preparation
from fairlead.runs.checkpoint import load_snapshot
from fairlead.runs.deployment import Deployment, read_deployment
from fairlead.runs.summary import Summary, read_summary

CONTROL = "local"
BALANCED = (
    "every class weighs the same in training (--balance): probabilities are as if all classes were equally common, "
    "so those of rare classes are higher than in truth"
)


@dataclass(frozen=True)
class RawRows:
    """Lets an owner's module take raw rows: what comes before its forward function."""

    preparation: Preparation
    owner: str

    def __call__(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Samples in place of raw rows; a tensor holds samples already."""
        return tuple(x if isinstance(x, Tensor) else self.preparation.transform(x, self.owner) for x in given)


class Predictor:
    """One owner's model, which takes raw rows.

    `rows` are a path to a table, a data frame, a dict of columns, or a list of dicts; columns may come in any order. A
    model of images or tensors takes a tensor of samples as it was trained on.
    """

    def __init__(self, deployment: Deployment, owner: str | int, module: nn.Module) -> None:
        self.deployment, self.client = deployment, deployment.client(owner)
        self.owner, self.module = deployment.owners[self.client], module.eval()

    def __call__(self, rows: Any, notes: list[str] | None = None) -> pd.DataFrame:
        """A line for each row: the answers of its kind of target (`core.targets`), quantities in their own unit.

        What was not as in training is said in `notes`, or logged.
        """
        d, out = self.deployment, self.outputs(rows, notes).double()
        if d.balanced and notes is not None:
            notes.append(BALANCED)
        if d.sd:
            out = out * d.sd[self.client] + d.mean[self.client]
        return pd.DataFrame(KINDS[d.kind].answers(out, d.labels, d.classes))

    def outputs(self, rows: Any, notes: list[str] | None = None) -> Tensor:
        """What the network itself gives for the rows, (n, outputs), before probabilities and units."""
        with torch.no_grad():
            made: Tensor = self.module(self.samples(rows, notes))
            return made

    def samples(self, rows: Any, notes: list[str] | None = None) -> Tensor:
        """The rows as the network takes them."""
        if isinstance(rows, Tensor):
            return rows
        if self.deployment.preparation is None:
            raise InputError("this model was trained on images or tensors; give a tensor of samples as in training")
        return self.deployment.preparation.transform(rows, self.owner, notes)


def load_run(run: Path, owner: str | int, module: nn.Module | None = None) -> Predictor:
    """An owner's model from a run's folder; `module` is the network where it cannot be built by its name."""
    deployment = read_deployment(run)
    module = module or deployment.network()
    kept, layout = load_snapshot(run / "checkpoint.safetensors").clients(), Layout(module)
    if KEPT not in kept:
        raise RunError(f"{run} has too many models to keep them; from Python result.model(method, client) makes one")
    row = kept[KEPT][deployment.client(owner)]
    if len(row) != layout.size:
        raise RunError(
            f"{run}: a model has {len(row)} numbers and the network {layout.size}; it was made by another program, "
            "use result.predictor(method, owner) there"
        )
    return Predictor(deployment, owner, layout.write(row, module))


class Choice(NamedTuple):
    """Which run's models to use, and a sentence that says so."""

    run: Path
    method: str
    said: str


def choose_run(folder: Path, owner: str, method: str | None = None, fold: int | None = None) -> Choice:
    """The run whose model an owner should use: of the method recommended to it, else of the best alone."""
    summary, said = read_summary(folder), ""
    kept: dict[str, Mapping[str, Any]] = {**summary["methods"], **summary.get("tools", {})}
    if method is None:
        method, said = recommended(summary, owner), "as recommended to it"
    if method is None:
        alone = summary["findings"].get("alone", CONTROL)
        method = alone if alone in kept else CONTROL
        said = "the best that owners do alone, as no method is recommended to it"
    if method not in kept:
        ways = [way["name"] for way in summary["findings"]["ways"]]
        why = "has no models for an owner" if method in ways else "is not in this comparison"
        raise InputError(f"{method} {why}; {nearest(method, kept)}")
    one = kept[method]
    folds = [runs[0] for runs in one.get("final", [])]
    if fold is not None:
        require(0 <= fold < len(folds), f"--fold must be 0 to {len(folds) - 1}, got {fold}")
        path, which = folds[fold], f"the model of fold {fold}"
    elif last := one.get("all_rows"):
        path, which = last, "the model trained on all rows after the folds"
    elif len(folds) > 1:
        path, which = folds[0], "the model of fold 0"
    else:
        path, which = folds[0] if folds else one["runs"][0], "the model of the page"
    return Choice(folder / path, method, f"{owner}: {method}{', ' * bool(said)}{said}; {which}")


def recommended(summary: Summary, owner: str) -> str | None:
    """The method that the comparison recommends to an owner, if any."""
    advice = (summary["findings"]["recommendation"] or {}).get("owners", [])
    return next((one["method"] for one in advice if one["owner"] == owner and one["method"]), None)


def owners_in(folder: Path) -> Deployment:
    """What a comparison's runs have in common: the owners and the column that names them."""
    summary = read_summary(folder)
    if CONTROL not in summary.get("methods", {}):
        raise RunError(f"{folder / 'summary.json'} has no methods; expected the folder of a finished comparison")
    return read_deployment(choose_run(folder, "", CONTROL).run)


def predict(
    folder: Path,
    rows: Path,
    owner: str | None = None,
    method: str | None = None,
    fold: int | None = None,
    notes: list[str] | None = None,
) -> pd.DataFrame:
    """Predictions for a table of raw rows; without `owner`, each row's is in the column that said so in training."""
    notes, common = [] if notes is None else notes, owners_in(folder)
    if common.preparation is None:
        raise InputError(f"{folder} was trained on images or tensors; from Python result.model(method, client) is one")
    files = table_files(rows)
    require(len(files) == 1, f"{rows} is no table; expected a .csv, .tsv, .xlsx or .parquet file")
    frame = read_frame(files, [feature.name for feature in common.preparation.features])
    clients = _whose(common, frame, owner)
    found = []
    for client in np.unique(clients).tolist():
        name = common.owners[client]
        choice = choose_run(folder, name, method, fold)
        notes.append(choice.said)
        mine = frame[clients == client]
        said: list[str] = []
        answers = load_run(choice.run, client)(mine, said)
        notes.extend(sentence for sentence in said if sentence not in notes)
        answers.index = mine.index
        if owner is None:
            answers.insert(0, str(common.column), name)
        found.append(answers)
    return pd.concat(found).sort_index()


def _whose(common: Deployment, frame: pd.DataFrame, owner: str | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The number of each row's owner."""
    if owner is not None:
        return np.full(len(frame), common.client(owner))
    if common.column is None or common.column not in frame.columns:
        where = f"and the file has no column '{common.column}'" if common.column else "and no column names the owners"
        raise InputError(f"--owner is not given {where}; give one of {', '.join(common.owners)}")
    keys = as_keys(frame[common.column])
    if bool(keys.isna().any()):
        first = int(keys.isna().to_numpy().argmax()) + 1
        raise InputError(f"'{common.column}' is empty in row {first}; fill it, or say --owner for all rows")
    numbers = {key: common.client(str(key)) for key in keys.unique()}
    return np.array([numbers[key] for key in keys], dtype=np.int64)
