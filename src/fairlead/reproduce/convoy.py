"""Convoy beside its own tracks: `fairlead reproduce convoy`.

Everything here learns from train and validation rows together, LOCAL too. Seed 0 was for development: the first seed
that is reported is 1.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest

from fairlead.comparison.compare import FULLER, compare
from fairlead.methods.convoy import TRACKS
from fairlead.reproduce.study import Budget, Claim, Column, Computed, Entry, Key, Result, Study
from fairlead.runs.run import Job, kept_outputs

FIRST = 1  # of the reported seeds
LEVEL = 0.05
_SAME: dict[str, Any] = {"scenario": "rotated-digits", "shift": "none"}
_SHORT: dict[str, Any] = {"lr": 0.02}
_LENET: dict[str, Any] = {"model": "lenet", "batch_size": 20, "steps": 10, "lr": 0.05}
# Scenario and settings; rounds at the standard budget, which are fewer than the published ones.
COLUMNS: dict[str, tuple[dict[str, Any], int]] = {
    "Digits, 12 rotations": ({"scenario": "rotated-digits"}, 40),
    "Digits, alike": (_SAME | {"split": "iid"}, 40),
    "Digits, Dirichlet 0.3": (_SAME | {"split": "dirichlet", "beta": 0.3}, 40),
    "Rotated MNIST": ({"scenario": "rotated-mnist"} | _SHORT, 40),
    "Rotated Fashion-MNIST": ({"scenario": "rotated-fashion-mnist"} | _SHORT, 40),
    "CIFAR-10 labels": ({"scenario": "cifar10-labels"}, 30),
    "Rotated GTSRB": ({"scenario": "gtsrb-rotated", "samples": (128, 32, 96)} | _LENET, 20),
    "Rotated MNIST, one client with 100 times the rows": ({"scenario": "rotated-mnist-imbalanced"} | _SHORT, 15),
    "Yearbook": ({"scenario": "yearbook"} | _LENET, 20),
    "PACS": ({"scenario": "pacs", "image_size": 32} | _LENET, 20),
    "CIFAR-10, Dirichlet(0.1)": ({"scenario": "cifar10-dirichlet", "samples": (100, 50, 100)} | _LENET, 20),
}
ROWS = (*TRACKS, "convoy")
MEASURES = {"mean": "mean", "low5": "lowest 5%", "worse": "worse"}


def convoy(budget: Budget) -> Study:
    """Mean accuracy, that of the lowest 5% of clients, and how many are significantly worse than LOCAL."""
    entries: dict[Key, Entry] = {}
    columns, claims = [], []
    for title, (settings, rounds) in COLUMNS.items():
        given = settings | {"rounds": {"quick": 2, "standard": rounds, "full": 500}[budget]}
        cell = Computed("convoy", weigh, given, needs_data=not str(given["scenario"]).endswith("digits"))
        for measure, told in MEASURES.items():
            key = f"{title}, {told}"
            columns.append(Column(key, told, title, decimals=0 if measure == "worse" else 4))
            rows = ("convoy",) if measure == "worse" else ROWS
            entries |= {(row, key): Entry(cell, f"{row}.{measure}") for row in rows}
        best = tuple((("convoy", f"{title}, mean"), (row, f"{title}, mean")) for row in TRACKS)
        claims.append(Claim(f"{title}: Convoy's mean is at least that of each of its tracks", best, slack=1e-9))
        nobody = ((0.5, ("convoy", f"{title}, worse")),)
        claims.append(Claim(f"{title}: nobody is significantly worse with Convoy than with LOCAL", nobody))
    notes = (
        "All rows of the table learned from train and validation rows, LOCAL too; models are those of the last round.",
        f"worse: clients with an exact one-sided paired test (McNemar) below {LEVEL:g} against LOCAL, uncorrected.",
        f"The first seed is {FIRST}: seed 0 was for development.",
    )
    return Study(
        "convoy", "Convoy beside its tracks", "none: Fairlead's own", tuple(columns), entries, tuple(claims), notes
    )


def weigh(seed: int, data_dir: str | None = None, **settings: Any) -> Result:
    """Scores of Convoy and of each of its tracks, had everybody deployed it."""
    seed += FIRST
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        more: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
        found = compare(["convoy"], out=folder, seeds=[seed], **settings, **more)
        alone = right(found.jobs[FULLER, seed] if (FULLER, seed) in found.jobs else found.jobs["local", seed])
        ours = right(found.jobs["convoy", seed])
        (told,) = found.summary["methods"]["convoy"]["decisions"]
    values: dict[str, float] = {}
    scores = {name: [x or 0.0 for x in own] for name, own in told["test_scores"].items()}
    scores["convoy"] = [float(own.mean()) for own in ours]
    for name, each in scores.items():
        ordered = np.sort(np.array(each))
        values[f"{name}.mean"] = float(ordered.mean())
        values[f"{name}.low5"] = float(ordered[: -(-len(ordered) // 20)].mean())
    values["convoy.worse"] = float(sum(map(_worse, ours, alone)))
    return {"values": values, "weights": [client["weights"] for client in told["clients"]]}


def right(job: Job) -> list[np.ndarray[Any, Any]]:
    """For each client which of its test rows are answered rightly."""
    outputs, test = kept_outputs(job, "test"), job.federation.test
    return [(torch.argmax(out, 1) == test.client(k)[1]).numpy() for k, out in enumerate(outputs)]


def _worse(ours: np.ndarray[Any, Any], alone: np.ndarray[Any, Any]) -> bool:
    lost, won = int((alone & ~ours).sum()), int((ours & ~alone).sum())
    return lost > won and bool(binomtest(lost, lost + won, alternative="greater").pvalue < LEVEL)


STUDIES = {"convoy": convoy}
