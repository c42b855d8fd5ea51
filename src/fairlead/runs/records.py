"""Scores and costs of every round, as tables that grow by what is new."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import torch

from fairlead.core import Federation, Plan, RunError
from fairlead.rounds import Round
from fairlead.runs.files import append_part, read_part, table_parts

SCORES = ("round", "client", "split", "model", "accuracy", "loss", "n")
COSTS = ("round", "seconds", "samples", "passes", "bytes_up", "bytes_down", "left_out", "reasons")


class Records:
    """Scores by round and client that are not on the disk yet, as the columns of a table."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {n: [] for n in SCORES}

    def add(self, round: Round, federation: Federation) -> None:
        """Append the scores of a round; a metric that no earlier round had is a new column."""
        count, before = federation.clients, len(self.columns["round"])
        for s in round.scores:
            constant = {"round": round.round, "split": s.split, "model": s.model}
            new: dict[str, list[Any]] = {n: [v] * count for n, v in constant.items()}
            new |= {"client": list(range(count)), "n": getattr(federation, s.split).sizes.tolist()}
            new |= {metric: values.to(torch.float64).tolist() for metric, values in s.values.items()}
            for name in {**self.columns, **new}:
                column = self.columns.setdefault(name, [None] * before)
                column += new.get(name, [None] * count)
            before += count

    def save(self, folder: Path, round: int) -> None:
        """Bring what was added to the disk, and begin anew."""
        if self.columns["round"]:
            append_part(folder, round, self.columns)
        self.columns = {n: [] for n in SCORES}


class Rounds:
    """Cost by round that is not on the disk yet, as the columns of a table."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {n: [] for n in COSTS}

    def add(self, r: Round) -> None:
        """Append a round; the reasons are a JSON object of the clients that were left out, each with its own."""
        reasons = json.dumps({str(k): why for k, why in sorted(r.absent.items())}) if r.absent else ""
        values = (r.round, r.seconds, r.samples, r.passes, r.bytes_up, r.bytes_down, len(r.absent), reasons)
        for name, value in zip(COSTS, values, strict=True):
            self.columns[name].append(value)

    def save(self, folder: Path, round: int) -> None:
        """Bring what was added to the disk, and begin anew."""
        if self.columns["round"]:
            append_part(folder, round, self.columns)
        self.columns = {n: [] for n in COSTS}


def rows_of(folder: Path, **wanted: object) -> Iterator[dict[str, Any]]:
    """The rows of a table that grew which have these values, one dict each, file by file."""
    for path in table_parts(folder):
        table = read_part(path)
        lacking = sorted({"round", *wanted} - set(table.column_names))
        if lacking:
            raise RunError(f"{path} has no column {', '.join(lacking)}; train the run anew with --fresh")
        for name, value in wanted.items():
            table = table.filter(pc.equal(table[name], value))
        yield from table.to_pylist()


def validation_losses(records: Path, clients: Collection[int] | None = None) -> dict[int, float]:
    """The mean loss over validation samples of all or these clients by round, of the models that they would deploy."""
    found: dict[int, list[tuple[float, int]]] = {}
    for r in rows_of(records, split="validation", model="personal"):
        if r["n"] > 0 and (clients is None or r["client"] in clients):
            found.setdefault(r["round"], []).append((r["loss"], r["n"]))
    return {round: sum(loss * n for loss, n in all_) / sum(n for _, n in all_) for round, all_ in found.items()}


def finite_clients(records: Path) -> set[int]:
    """Clients with a finite loss on validation samples in some round, of the models that they would deploy."""
    rows = rows_of(records, split="validation", model="personal")
    return {r["client"] for r in rows if r["n"] > 0 and math.isfinite(r["loss"])}


def go_back(folder: Path, round: int, plan: Plan | None = None) -> None:
    """Forget rows after a round, and rows that were evaluated only because a shorter run ended there.

    A file with rows of both kinds is replaced by one with those that stay. A kill in between leaves both; the next
    call makes the same file again and deletes the other.
    """
    if not folder.is_dir():
        return
    for path in table_parts(folder):
        table = read_part(path)
        rounds = table["round"].to_pylist()
        stays = [r <= round and (plan is None or plan.evaluated(r)) for r in rounds]
        if all(stays):
            continue
        if any(stays):
            kept = table.filter(stays).to_pydict()
            append_part(folder, max(kept["round"]), kept)
        path.unlink()
