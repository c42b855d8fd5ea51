"""A run is a folder: one method, one seed, trained to the end however often it was interrupted.

settings.json           the experiment, the method, the seed, the versions: enough to run it again
records.parquet         per round, client, split and model: accuracy, loss, samples
rounds.parquet          per round: seconds, samples, bytes up and down, clients left out
checkpoint.safetensors  what the rest of the run depends on; at the end, the models to deploy
summary.json            written last; a run without it is unfinished
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fairlead.catalogue import Entry
from fairlead.checkpoint import (
    kept_round,
    load_snapshot,
    read_json,
    read_table,
    save_snapshot,
    write_json,
    write_table,
)
from fairlead.clients import KEPT, Engine, InProcess, States, StateStore, payload, wrapped
from fairlead.core import Federation, Layout, Named, Plan, RunError
from fairlead.rounds import Round, federate
from fairlead.settings import Experiment
from fairlead.statefiles import StateFiles

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 20.0
MEMORY_BYTES = 2**32  # of states; more live in files
Progress = Callable[[int], None]  # called with the number of the round just done


@dataclass(frozen=True)
class Job:
    """One method with one seed, and all it takes to train it."""

    folder: Path
    name: str
    entry: Entry
    experiment: Experiment
    federation: Federation
    module: nn.Module
    engine: Engine
    seed: int

    def plan(self) -> Plan:
        """The rounds of this run."""
        chosen = {f.name: getattr(self.experiment, f.name) for f in fields(Plan) if hasattr(self.experiment, f.name)}
        return Plan(**chosen, seed=self.seed)

    def settings(self) -> dict[str, Any]:
        """What makes this run this run."""
        plain = self.experiment.to_json() | {"engine": self.engine.name}
        return {"method": self.name, "seed": self.seed, "experiment": plain, "versions": versions()}


def versions() -> dict[str, str]:
    """The versions that results depend on."""
    try:
        own = version("fairlead")
    except PackageNotFoundError:  # running from a source tree that is not installed
        own = "unknown"
    return {"fairlead": own, "torch": str(torch.__version__), "python": platform.python_version()}


def finished(job: Job) -> bool:
    """Whether the folder already holds this very run, done; one with other settings is refused."""
    path = job.folder / "settings.json"
    if not path.exists():
        return False
    found = read_json(path)
    if found != job.settings():
        differing = ", ".join(_differences(found, job.settings())[:4])
        raise RunError(f"{job.folder} holds a run with other settings ({differing}); choose another --out or delete it")
    return (job.folder / "summary.json").exists()


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [k for k in {**a, **b} if a.get(k) != b.get(k)]
        return [d for k in keys for d in _differences(a.get(k), b.get(k), f"{path}.{k}" if path else str(k))]
    return [f"{path}: {a!r} there, {b!r} here"]


def train(job: Job, progress: Progress | None = None) -> None:
    """Train the run to its end, from its last checkpoint if it has one."""
    if finished(job):
        logger.info("%s is done already", job.folder)
        return
    write_json(job.folder / "settings.json", job.settings())
    checkpoint = job.folder / "checkpoint.safetensors"
    snapshot, records, rounds = None, Records(), Rounds()
    if checkpoint.exists():
        snapshot = load_snapshot(checkpoint)
        # Records are written before the checkpoint: what is newer belongs to rounds that will be trained again.
        records = Records(read_table(job.folder / "records.parquet"), snapshot.round)
        rounds = Rounds(read_table(job.folder / "rounds.parquet"), snapshot.round)
        logger.info("%s goes on after round %d", job.folder, snapshot.round)
    saved = time.monotonic()
    with clients_of(job) as clients:
        happened = federate(
            job.entry.method, clients, job.module, job.plan(), average=job.entry.average, snapshot=snapshot
        )
        for round, now in happened:
            records.add(round, job.federation)
            rounds.add(round)
            last = round.round == job.experiment.rounds or round.stopped
            if last or time.monotonic() - saved > CHECKPOINT_SECONDS:
                write_table(job.folder / "records.parquet", records.columns)
                write_table(job.folder / "rounds.parquet", rounds.columns)
                save_snapshot(checkpoint, now)
                saved = time.monotonic()
            if progress:
                progress(round.round)
    # A run resumed after its last round has nothing left to do but this.
    write_json(job.folder / "summary.json", summarise_run(job, records, rounds))


def clients_of(job: Job) -> InProcess:
    """The run's clients; their states live in memory, or in its folder if they are too many."""

    def store(clients: int, first: Named) -> StateStore:
        if clients * payload(first) > MEMORY_BYTES:
            return StateFiles(clients, first, job.folder / "states")
        return States(clients, first)

    return InProcess(job.federation, job.experiment.training, job.engine, store)


def summarise_run(job: Job, records: Records, rounds: Rounds) -> dict[str, Any]:
    """The run's own figures, on test data at the chosen round."""
    chosen = kept_round(job.folder / "checkpoint.safetensors")
    rows = [r for r in records.rows() if (r["round"], r["split"], r["model"]) == (chosen, "test", "personal")]
    rows.sort(key=lambda r: r["client"])
    totals = {name: sum(rounds.columns[name]) for name in ("seconds", "samples", "bytes_up", "bytes_down")}
    return {
        "method": job.name,
        "seed": job.seed,
        "model": "personal",
        "round": {"rule": job.experiment.select, "round": chosen, "of": job.experiment.rounds},
        "average": "clients",
        "accuracy": [r["accuracy"] for r in rows],
        "n_test": [r["n"] for r in rows],
        "n_train": job.federation.train.sizes.tolist(),
        "names": list(job.federation.names),
        "bytes_up": totals["bytes_up"],
        "bytes_down": totals["bytes_down"],
        "train_seconds": totals["seconds"],
        "samples_per_second": totals["samples"] / max(totals["seconds"], 1e-9),
        "left_out": sum(rounds.columns["left_out"]),
    }


def deployed(job: Job, client: int) -> nn.Module:
    """One client's own model at the chosen round, ready to use."""
    method, now = job.entry.method, load_snapshot(job.folder / "checkpoint.safetensors")
    module = wrapped(method, job.module, job.seed)
    saved = now.clients()
    if KEPT in saved:
        return Layout(module).write(saved[KEPT][client], module).eval()
    # Too many to keep: made now from the client's state and the last message, which is what `select` "last" deploys.
    with clients_of(job) as clients:
        clients.start(method, module, job.plan())
        clients.load(saved, now.round, now.message)
        row = clients.models(torch.tensor([client]))[0]
    return Layout(module).write(row, module).eval()


class Records:
    """Scores by round and client, as the columns of a table."""

    def __init__(self, columns: dict[str, list[Any]] | None = None, until: int = 0) -> None:
        names = ("round", "client", "split", "model", "accuracy", "loss", "n")
        self.columns = _until(columns, until) if columns else {n: [] for n in names}

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

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict per record."""
        return (dict(zip(self.columns, values, strict=True)) for values in zip(*self.columns.values(), strict=True))


class Rounds:
    """Cost by round, as the columns of a table."""

    def __init__(self, columns: dict[str, list[Any]] | None = None, until: int = 0) -> None:
        names = ("round", "seconds", "samples", "bytes_up", "bytes_down", "left_out")
        self.columns = _until(columns, until) if columns else {n: [] for n in names}

    def add(self, r: Round) -> None:
        """Append a round."""
        values = (r.round, r.seconds, r.samples, r.bytes_up, r.bytes_down, len(r.dropped))
        for name, value in zip(self.columns, values, strict=True):
            self.columns[name].append(value)


def _until(columns: dict[str, list[Any]], round: int) -> dict[str, list[Any]]:
    keep = [i for i, r in enumerate(columns["round"]) if r <= round]
    return {n: [values[i] for i in keep] for n, values in columns.items()}
