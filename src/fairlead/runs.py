"""A run is a folder: one method, one seed, trained to the end however often it was interrupted.

settings.json           the experiment, the method, the seed, and fingerprints of all that made it
records.parquet         per round, client, split and model: accuracy, loss, samples
rounds.parquet          per round: seconds, samples, bytes up and down, clients left out
checkpoint.safetensors  what the rest of the run depends on; at the end, the models to deploy
summary.json            written last; a run without it is unfinished
"""

from __future__ import annotations

import logging
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
from fairlead.core.task import SplitName
from fairlead.identity import UNKNOWN
from fairlead.rounds import Round, Snapshot, federate
from fairlead.settings import Experiment
from fairlead.statefiles import StateFiles

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 20.0
RUN_FILES = ("settings.json", "records.parquet", "rounds.parquet", "checkpoint.safetensors", "summary.json")
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
    identity: dict[str, str]  # fingerprints of data, model and method, and the versions that bits depend on

    def plan(self) -> Plan:
        """The rounds of this run."""
        chosen = {f.name: getattr(self.experiment, f.name) for f in fields(Plan) if hasattr(self.experiment, f.name)}
        return Plan(**chosen, seed=self.seed)

    def settings(self) -> dict[str, Any]:
        """What makes this run this run."""
        plain = self.experiment.to_json() | {"engine": self.engine.name}
        # Options of other methods are no part of this run: one more method leaves it as it is.
        plain["options"] = {n: v for n, v in plain["options"].items() if n in self.name.split("+")}
        about = {"identity": self.identity, "versions": versions()}
        return {"method": self.name, "seed": self.seed, "experiment": plain} | about


def versions() -> dict[str, str]:
    """The versions that results depend on."""
    try:
        own = version("fairlead")
    except PackageNotFoundError:  # running from a source tree that is not installed
        own = "unknown"
    return {"fairlead": own, "torch": str(torch.__version__), "python": platform.python_version()}


def finished(job: Job, extend: bool = False) -> bool:
    """Whether the folder already holds this very run, done; one made from anything else is refused.

    With `extend`, a run of fewer rounds is an unfinished one.
    """
    path = job.folder / "settings.json"
    if not path.exists():
        return False
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("experiment"), dict):
        raise RunError(f"{path} has no experiment, expected a run that fairlead wrote; {ANEW}")
    there, rounds = found["experiment"].get("rounds", 0), job.experiment.rounds
    further = extend and there < rounds
    if further:
        found["experiment"] |= {"rounds": rounds}
        found["experiment"]["training"] |= {"rounds": rounds}
    changed = _changes(found, job)
    if changed:
        more = [c for c in changed if not c.startswith(("rounds:", "training.rounds:"))]
        longer = not more and there < rounds
        hint = f"`fairlead resume {job.folder} --rounds {rounds}` goes on from there, or " if longer else ""
        raise RunError(f"{job.folder} holds a run made from something else: {'; '.join(more or changed)}; {hint}{ANEW}")
    if further and job.experiment.training.schedule == "cosine":
        raise RunError(f"{job.folder}: the cosine schedule of {there} rounds has come to its end; {ANEW}")
    return not further and (job.folder / "summary.json").exists()


# What a path or a preset is called says nothing that the content does not.
UNCOMPARED = {"name", "data_dir"}
CHANGED = {
    "data": "the data changed",
    "model": "the model changed, its architecture or its initial weights",
    "method": "the method changed, its code or its options",
    "arithmetic": "this version of fairlead computes other numbers",
}
ANEW = "train anew with --fresh (from Python: fresh=True), or choose another --out"


def _changes(found: dict[str, Any], job: Job) -> list[str]:
    """What differs between the run in the folder and this one, in words."""
    wanted = job.settings()
    said = _differences(_compared(found), _compared(wanted))
    before = found.get("identity", {})
    for part, here in job.identity.items():
        there = str(before.get(part, f"{UNKNOWN}the folder does not say"))
        opaque = [x.removeprefix(UNKNOWN) for x in (here, there) if x.startswith(UNKNOWN)]
        if opaque:
            said.append(f"the {part} cannot be compared with the one that made it: {opaque[0]}")
        elif here != there:
            values = f"{part}: {there} there, {here} here"
            said.append(CHANGED.get(part, values) + (f" ({values})" if part == "arithmetic" else ""))
    return said


def _compared(settings: dict[str, Any]) -> dict[str, Any]:
    experiment = settings["experiment"]
    scenario = {k: v for k, v in experiment.get("scenario", {}).items() if k != "data"}
    of = {k: v for k, v in experiment.items() if k not in UNCOMPARED} | {"scenario": scenario}
    return {"method": settings.get("method"), "seed": settings.get("seed")} | of


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [k for k in {**a, **b} if a.get(k) != b.get(k)]
        return [d for k in keys for d in _differences(a.get(k), b.get(k), f"{path}.{k}" if path else str(k))]
    return [f"{path}: {a!r} there, {b!r} here"]


def train(job: Job, progress: Progress | None = None, extend: bool = False) -> None:
    """Train the run to its end, from its last checkpoint if it has one."""
    if finished(job, extend):
        logger.info("%s is done already", job.folder)
        return
    (job.folder / "summary.json").unlink(missing_ok=True)  # of fewer rounds
    write_json(job.folder / "settings.json", job.settings())
    checkpoint = job.folder / "checkpoint.safetensors"
    snapshot, records, rounds = None, Records(), Rounds()
    if checkpoint.exists():
        snapshot = load_snapshot(checkpoint, job.plan())
        # Records are written before the checkpoint: what is newer belongs to rounds that will be trained again.
        records = Records(read_table(job.folder / "records.parquet"), snapshot.round, job.plan())
        rounds = Rounds(read_table(job.folder / "rounds.parquet"), snapshot.round)
        logger.info("%s goes on after round %d", job.folder, snapshot.round)
    saved = time.monotonic()
    before, plan = snapshot or Snapshot(0, {}, {}, dict), job.plan()
    # A last round may be scored only because it is the last; more rounds then go on as if it had not been.
    decides = plan.select != "last" or plan.patience is not None
    odd = decides and plan.rounds % plan.evaluate_every != 0
    with clients_of(job) as clients:
        happened = federate(job.entry.method, clients, job.module, plan, average=job.entry.average, snapshot=snapshot)
        for round, now in happened:
            records.add(round, job.federation)
            rounds.add(round)
            last = round.round == plan.rounds or round.stopped
            if last or time.monotonic() - saved > CHECKPOINT_SECONDS:
                write_table(job.folder / "records.parquet", records.columns)
                write_table(job.folder / "rounds.parquet", rounds.columns)
                save_snapshot(checkpoint, now, before if odd and round.round == plan.rounds else None)
                saved = time.monotonic()
            before = now
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
        "accuracy": [_known(r["accuracy"]) for r in rows],
        "n_test": [r["n"] for r in rows],
        "n_train": job.federation.train.sizes.tolist(),
        "names": list(job.federation.names),
        "bytes_up": totals["bytes_up"],
        "bytes_down": totals["bytes_down"],
        "train_seconds": totals["seconds"],
        "samples_per_second": totals["samples"] / max(totals["seconds"], 1e-9),
        "left_out": sum(rounds.columns["left_out"]),
    }


def _known(value: float | None) -> float | None:
    """A number for a JSON file; one that is not finite is not known."""
    return value if value is not None and math.isfinite(value) else None


def rounds_in(folder: Path) -> int:
    """The rounds that the run in this folder was made for; 0 where there is none."""
    path = folder / "settings.json"
    found = read_json(path) if path.exists() else {}
    return int(found.get("experiment", {}).get("rounds", 0)) if isinstance(found, dict) else 0


def validation_losses(job: Job) -> dict[int, float]:
    """The mean validation loss over clients by round, of the models that clients would deploy."""
    found: dict[int, list[float]] = {}
    for r in Records(read_table(job.folder / "records.parquet"), job.experiment.rounds).rows():
        if (r["split"], r["model"]) == ("validation", "personal") and r["n"] > 0:
            found.setdefault(r["round"], []).append(r["loss"])
    return {round: sum(losses) / len(losses) for round, losses in found.items()}


def kept_outputs(job: Job, split: SplitName) -> list[Tensor]:
    """What each client's deployed model makes of its own samples, (n, outputs) by client."""
    method, now = job.entry.method, load_snapshot(job.folder / "checkpoint.safetensors")
    with clients_of(job) as clients:
        clients.start(method, wrapped(method, job.module, job.seed), job.plan())
        clients.load(now.clients(), now.round, now.message)
        return clients.outputs(split)


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

    def __init__(self, columns: dict[str, list[Any]] | None = None, until: int = 0, plan: Plan | None = None) -> None:
        names = ("round", "client", "split", "model", "accuracy", "loss", "n")
        self.columns = _until(columns, until, plan) if columns else {n: [] for n in names}

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


def _until(columns: dict[str, list[Any]], round: int, plan: Plan | None = None) -> dict[str, list[Any]]:
    """The rows up to a round; without those that were evaluated only because a shorter run ended there."""
    keep = [i for i, r in enumerate(columns["round"]) if r <= round and (plan is None or plan.evaluated(r))]
    return {n: [values[i] for i in keep] for n, values in columns.items()}
