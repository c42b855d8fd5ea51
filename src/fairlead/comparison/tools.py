"""Yardsticks in files: fitted once, then read, and taken home like any other model.

A fold's tools are a folder: answers.safetensors has what they answer, and a folder of each tool has its models, one for
every owner, as a run's folder has them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import torch
from filelock import FileLock

from fairlead.clients import KEPT
from fairlead.comparison.bench import Bench, Fold
from fairlead.comparison.yardsticks import NAMES, VERSION, Yardstick, yardsticks
from fairlead.core import Named
from fairlead.core.files import private_folder
from fairlead.rounds import Best, Snapshot
from fairlead.runs.checkpoint import save_snapshot
from fairlead.runs.deployment import FILE as DEPLOYMENT
from fairlead.runs.files import read_tensors, write_json, write_tensors
from fairlead.runs.identity import digest
from fairlead.runs.run import deployment_of

ANSWERS = "answers.safetensors"


def tools(bench: Bench, fold: Fold, place: str = "") -> list[Yardstick]:
    """The yardsticks of a fold, from its folder where it was made from the same rows by the same software."""
    folder, balance = folder_of(bench, fold, place), bench.experiment.training.balance
    with FileLock(private_folder(folder.parents[1] / "locks") / folder.name):
        if not (folder / ANSWERS).exists():
            made = yardsticks(fold.chooses, fold.refit, balance)
            for tool in made:
                _keep(bench, fold, tool, private_folder(folder / tool.name))
            tensors, facts = packed(made)
            write_tensors(folder / ANSWERS, tensors, **facts)
    return unpacked(*read_tensors(folder / ANSWERS))


def folder_of(bench: Bench, fold: Fold, place: str = "") -> Path:
    """Where a fold's tools are; what is made from other rows, or by other software, is in another folder."""
    rows = [bench.material(federation).data for federation in (fold.chooses, fold.refit)]
    software = {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}
    made = digest([rows, bench.experiment.training.balance, VERSION, software])
    return bench.folder / "runs" / (place or f"fold{fold.number}") / "tools" / made


def _keep(bench: Bench, fold: Fold, tool: Yardstick, folder: Path) -> None:
    """Write a tool's models, and what it takes to use them."""
    job = bench.job("tools", "local", fold.refit, bench.seed)
    write_json(folder / "settings.json", job.settings() | {"method": tool.name})
    found = dataclasses.replace(deployment_of(job), method=tool.name, model=None, tool=tool.size)
    models = Snapshot(0, {}, {}, lambda: {KEPT: tool.models}, Best(0, 0.0, math.inf, 0))
    save_snapshot(folder / "checkpoint.safetensors", models)
    write_json(folder / DEPLOYMENT, found.to_json())


def packed(tools: Sequence[Yardstick]) -> tuple[Named, dict[str, str]]:
    """What yardsticks answer, as named tensors and texts for a file."""
    tensors = {
        f"{tool.name}.{part}.{k}": outputs
        for tool in tools
        for part in ("validation", "test")
        for k, outputs in enumerate(getattr(tool, part))
    }
    return tensors, {tool.name: json.dumps([tool.title, tool.settings, tool.size]) for tool in tools}


def unpacked(tensors: Named, facts: Mapping[str, str]) -> list[Yardstick]:
    """What `packed` gave; the models stay in their folders."""
    found = []
    for name in (name for name in NAMES if name in facts):
        title, settings, size = json.loads(facts[name])
        validation, test = ([tensors[f"{name}.{p}.{k}"] for k in range(len(settings))] for p in ("validation", "test"))
        found.append(Yardstick(name, title, validation, test, settings, torch.empty(0), size))
    return found
