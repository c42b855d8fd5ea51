"""Which method wins where: every method, LOCAL too, at the step size and the rounds that validation rows choose.

Where the tables of the papers give all methods one step size and so many rounds, LOCAL may be undertrained, and a gain
over it says little. Here each of them is tried as hard as the others (`fairlead.effort`), then trained again on train
and validation rows together, on tables and on images: `fairlead reproduce where`.
"""

from __future__ import annotations

import tempfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fairlead.catalogue import parse
from fairlead.comparison.compare import compare
from fairlead.core import Method, require
from fairlead.methods import fedres
from fairlead.methods.fedres import silenced
from fairlead.reproduce.study import Budget, Claim, Column, Computed, Entry, Key, Result, Study, in_order
from fairlead.runs.summary import Found
from fairlead.settings import check, resolve

LINEAR = "fedres, linear"
METHODS = {
    "FedAvg": "fedavg",
    "FedAvg+FT": "fedavg+ft",
    "FedAvg + ConFREE": "fedavg+confree",
    "FedPer": "fedper",
    "LG-FedAvg": "lg-fedavg",
    "Ditto": "ditto",
    "IFCA": "ifca",
    "FEDORA": "fedora",
    "FedRes": "fedres",
    "FedRes, linear local model": LINEAR,
}
ALONE, POOLED = "best alone", "pooled"

# Settings of `fairlead compare`; `table` is a file below the data folder's `tables`. `steps` keeps rounds short.
_IMAGES: dict[str, Any] = {"metric": "accuracy"}
PLACES: dict[str, dict[str, Any]] = {
    "table: heart disease, 4 hospitals, accuracy": {"data": "heart-disease", "metric": "accuracy"},
    "table: smartphone activity, 30 subjects, accuracy": {
        "table": "har_smartphones/har_features.csv",
        "label": "activity",
        "column": "subject",
        "metric": "accuracy",
    },
    "table: Beijing air, 12 stations, rmse": {
        "table": "beijing_air/beijing_air_daily.csv",
        "label": "PM2.5",
        "column": "station",
        "metric": "rmse",
        "steps": 20,
    },
    "table: exam scores, 65 schools, rmse": {
        "table": "schools/Exam.csv",
        "label": "normexam",
        "column": "school",
        "metric": "rmse",
    },
    "table: breast cancer survival, 6 regions, c-index": {
        "table": "tcga_brca/tcga_brca.csv",
        "label": "T",
        "event": "E",
        "column": "region",
        "metric": "c-index",
    },
    "images: Rotated MNIST, 36 clients, accuracy": {"scenario": "rotated-mnist", **_IMAGES},
    "images: Rotated Fashion-MNIST, 36 clients, accuracy": {"scenario": "rotated-fashion-mnist", **_IMAGES},
    "images: CIFAR-10 in Dirichlet(0.1) parts, 20 clients, accuracy": {
        "scenario": "cifar10-dirichlet",
        "model": "lenet",
        "samples": (200, 100, 100),
        "batch_size": 10,
        "steps": 10,
        **_IMAGES,
    },
    "images: Yearbook, 11 groups of years, accuracy": {
        "scenario": "yearbook",
        "model": "lenet",
        "steps": 10,
        **_IMAGES,
    },
    "images: PACS, 4 domains, accuracy": {
        "scenario": "pacs",
        "model": "lenet",
        "image_size": 32,
        "steps": 20,
        **_IMAGES,
    },
}
EFFORTS: dict[Budget, str] = {"quick": "quick", "standard": "quick", "full": "standard"}
BELOW = "owners below LOCAL"


def where(budget: Budget) -> Study:
    """Scores, gains over LOCAL and what was chosen, data set by data set."""
    columns: list[Column] = []
    entries: dict[Key, Entry] = {}
    rows = {"LOCAL": "local", ALONE: ALONE, **METHODS, POOLED: POOLED}
    for place, settings in PLACES.items():
        cell = searched(settings, list(METHODS.values()), budget)
        scale = 100.0 if place.endswith("accuracy") else 1.0
        found = {
            "score": Column(f"{place}: score", "score", place, scale, 2 if scale > 1 else 3),
            "gain": Column(f"{place}: gain", "gain over LOCAL, %", place, 100.0, 2),
            "below": Column(f"{place}: below", BELOW, place, 1.0, 1),
            "lr": Column(f"{place}: lr", "step size", place, 1.0, 3),
            "rounds": Column(f"{place}: rounds", "rounds", place, 1.0, 0),
            "improving": Column(f"{place}: improving", "still improving", place, 1.0, 0),
        }
        columns += found.values()
        for row, name in rows.items():
            of = ("score", "gain", "below") if row in (ALONE, POOLED) else tuple(found)
            of = ("score", "lr", "rounds", "improving") if row == "LOCAL" else of
            entries |= {(row, found[measure].key): Entry(cell, f"{name}.{measure}") for measure in of}
    ordered = in_order(entries, rows, columns)
    claims = tuple(
        Claim(f"{row} leaves no owner below LOCAL on {place}", ((0.5, (row, f"{place}: below")),))
        for place in PLACES
        for row in ("FedRes", "FedRes, linear local model")
    )
    notes = (
        "Every method, LOCAL too, searches its own step size and rounds on validation rows (`--effort "
        f"{EFFORTS[budget]}`), then trains again on train and validation rows together; FEDORA, which needs its "
        "validation rows while it trains, does not. A seed decides on the division of the rows as well.",
        "A gain is each owner's, in percent of its score alone (of its error, where the score is one), mean over "
        "owners. An owner below LOCAL may be so by one row: whether that is sure is what `fairlead compare` tells.",
        "best alone: of the network, boosted trees, a linear model and the most common answer, each owner alone, the "
        "one that is best on validation rows. pooled: all rows in one place.",
        "Owners, splits and models differ from the tables of the papers; options are the methods' defaults.",
    )
    title = "Which method wins where, against a LOCAL that is trained as hard"
    return Study(
        "where",
        title,
        "no table of the papers",
        tuple(columns),
        ordered,
        claims,
        notes,
        {"quick": 1, "standard": 1, "full": 3}[budget],
    )


def searched(settings: dict[str, Any], methods: list[str], budget: Budget) -> Computed:
    """A comparison in which every method searches its step size and rounds as hard as the budget allows."""
    given = settings | {"methods": methods, "effort": EFFORTS[budget], "folds": 1}
    return Computed("where", assessed, given | ({"rounds": 2} if budget == "quick" else {}), needs_data=True)


def assessed(
    methods: list[str], seed: int, data_dir: str | None = None, table: str | None = None, **settings: Any
) -> Result:
    """The scores of all ways to train on one data set, and what they chose."""
    if table is not None:
        require(data_dir is not None, f"{table} lies in no folder that is known; give --data-dir")
        settings["data"] = str(Path(str(data_dir)) / "tables" / table)
    elif data_dir is not None and "data" not in settings:
        settings["data_dir"] = data_dir
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        found = compare(_methods(methods, settings, seed), out=folder, seeds=[seed], **settings).summary
    values = _scores(found["findings"])
    for name, entry in found["methods"].items():
        for measure, key in (("lr", "lr"), ("rounds", "round"), ("improving", "improving")):
            values[f"{name}.{measure}"] = float(entry["search"][0][key])
    return {"values": values, "bar": found["findings"]["bar"]}


def _scores(found: Found) -> dict[str, float]:
    """Each way's mean score, its mean gain over LOCAL, and how many owners are below it."""
    ways = {way["name"]: way["scores"] for way in found["ways"]}
    ways[ALONE] = ways[found["bar"]]
    sign = 1.0 if found.get("higher", True) else -1.0
    values: dict[str, float] = {}
    for name, scores in ways.items():
        pairs = [(s, a) for s, a in zip(scores, ways["local"], strict=True) if s is not None and a is not None]
        values[f"{name}.score"] = float(np.mean([s for s, _ in pairs]))
        values[f"{name}.gain"] = float(np.mean([sign * (s - a) / abs(a) for s, a in pairs if a]))
        values[f"{name}.below"] = float(sum(sign * (s - a) < 0 for s, a in pairs))
    return values


def _methods(names: list[str], settings: dict[str, Any], seed: int) -> dict[str, Method]:
    """The methods by name; a linear local model needs to know the size of a sample."""
    experiment = resolve(check(settings))
    federation = experiment.scenario.build(seed, source=experiment.scenario.load(experiment.data_dir))
    inputs, outputs = prod(federation.train.x.shape[1:]), federation.outputs

    def linear(module: nn.Module) -> nn.Module:
        return silenced(nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs)))

    def made(name: str) -> Method:
        if name == LINEAR:
            return fedres(local=linear)
        entry = parse(name)
        return entry.method._replace(average=entry.average or entry.method.average)

    return {name: made(name) for name in names}


STUDIES = {"where": where}
