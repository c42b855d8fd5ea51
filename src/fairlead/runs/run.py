"""A run is a folder: one method, one seed, trained to the end however often it was interrupted.

settings.json           the experiment, the method, the seed, and fingerprints of all that made it
records.parquet         per round, client, split and model: accuracy, loss, samples; a folder, each file adds rounds
rounds.parquet          per round: seconds, samples, bytes up and down, clients left out and why; as records.parquet
checkpoint.safetensors  what the rest of the run depends on; at the end, the models to deploy
deployment.json         what it takes to use these models on raw rows
decision.json           what each client decided to deploy, where that is decided after training
summary.json            written last; a run without it is unfinished
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn

from fairlead.catalogue import Entry, parts_of
from fairlead.clients import KEPT, RAY, Clients, Engine, InProcess, Sharded, States, StateStore, payload, wrapped
from fairlead.core import FairleadError, Federation, Layout, Named, Plan, RunError
from fairlead.core.device import find_device, module_on
from fairlead.core.faults import Faults
from fairlead.core.files import clear_partial, private_folder
from fairlead.core.task import SplitName
from fairlead.rounds import Round, Snapshot, federate
from fairlead.runs.checkpoint import kept_round, load_snapshot, save_snapshot
from fairlead.runs.deployment import FILE as DEPLOYMENT
from fairlead.runs.deployment import Deployment, describe
from fairlead.runs.files import read_object, read_part, table_parts, write_json
from fairlead.runs.identity import UNKNOWN, arithmetic, fingerprint, versions
from fairlead.runs.records import Records, Rounds, go_back, rows_of
from fairlead.runs.statefiles import StateFiles
from fairlead.runs.summary import RunSummary, read_run_summary, write_run_summary
from fairlead.settings import Experiment

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 20.0
DECISION = "decision.json"
FILES = ("settings.json", "checkpoint.safetensors", "summary.json")
FILES_TO_USE = (DEPLOYMENT, DECISION)
TABLES = ("records.parquet", "rounds.parquet")
MEMORY_BYTES = 2**32  # of states; more live in files
Progress = Callable[[int], None]  # called with the number of the round just done


@dataclass(frozen=True)
class Run:
    """One method with one seed, in plain values, and the folder that keeps it."""

    folder: Path
    name: str
    entry: Entry
    experiment: Experiment
    seed: int

    def plan(self) -> Plan:
        """The rounds of this run."""
        chosen = {f.name: getattr(self.experiment, f.name) for f in fields(Plan) if hasattr(self.experiment, f.name)}
        return Plan(**chosen | {"seed": self.seed, "faults": Faults.of(self.experiment.faults)})

    @cached_property
    def identity(self) -> dict[str, str]:
        """Fingerprints of what makes this run, as far as they are known, and the versions that bits depend on."""
        return {"method": fingerprint(self.entry), "loss": self._loss()} | arithmetic()

    def _loss(self) -> str:
        own = self.experiment.training.criterion
        return USUAL if own is None else fingerprint(own)

    def settings(self) -> dict[str, Any]:
        """What makes this run this run, for its file."""
        plain = self.experiment.to_json()
        # Options of other methods are no part of this run: one more method leaves it as it is.
        plain["options"] = {n: v for n, v in plain["options"].items() if n in parts_of(self.name)}
        about = {"identity": self.identity, "versions": versions()}
        return {"method": self.name, "seed": self.seed, "experiment": plain} | about


@dataclass(frozen=True)
class Job(Run):
    """A run with all it takes to train it."""

    federation: Federation
    module: nn.Module  # with its initial weights
    engine: Engine
    made: dict[str, str]  # fingerprints of data and model; of the method too, where many runs share one

    @cached_property
    def identity(self) -> dict[str, str]:
        """Fingerprints of what makes this run, and the versions that bits depend on."""
        method = self.made.get("method") or fingerprint(self.entry)
        return self.made | {"method": method, "loss": self._loss()} | arithmetic()

    def settings(self) -> dict[str, Any]:
        """What makes this run this run, for its file."""
        plain = super().settings()
        return plain | {"experiment": plain["experiment"] | {"engine": self.engine.name}}


def result(
    run: Run,
    prepare: Callable[[], Job] | None = None,
    progress: Progress | None = None,
    *,
    extend: bool = False,
    keep_models: bool = True,
    by: Callable[[Job, Progress | None], None] | None = None,
) -> RunSummary:
    """The run's summary: read, where its folder holds it, else trained.

    What it takes to train comes from `prepare`, where `run` is no `Job` itself. A run that another process is at is
    waited for. With `extend`, a run of fewer rounds goes on. `by` makes the folder's files in place of a training.
    """
    if not finished(run, extend):
        private_folder(run.folder)
        with FileLock(private_folder(run.folder.parent / "locks") / run.folder.name):
            clear_partial(run.folder)
            if not finished(run, extend):
                (by or train)(prepare() if prepare else _job(run), progress)
                if not keep_models:
                    (run.folder / "checkpoint.safetensors").unlink(missing_ok=True)
    else:
        for table in (run.folder / name for name in TABLES):
            for path in table_parts(table) if table.exists() else ():  # a decision has no rounds
                read_part(path)  # damage shows here, rather than in a figure
    return read_run_summary(run.folder)


def _job(run: Run) -> Job:
    assert isinstance(run, Job), "a run that is no job needs `prepare`"
    return run


def finished(run: Run, extend: bool = False) -> bool:
    """Whether the folder already holds this very run, done; one made from anything else is refused.

    With `extend`, a run of fewer rounds is an unfinished one.
    """
    there, rounds = rounds_in(run.folder), run.experiment.rounds
    further = extend and 0 < there < rounds
    check_same(run, ROUNDS if further else ())
    if further and run.experiment.training.schedule == "cosine":
        raise RunError(f"{run.folder}: the cosine schedule of {there} rounds has come to its end; {ANEW}")
    return not further and (run.folder / "summary.json").exists()


def check_same(run: Run, ignoring: Sequence[str] = ()) -> None:
    """Refuse a folder that holds a run made from anything else, but for these settings."""
    path = run.folder / "settings.json"
    if not path.exists():
        return
    found = read_object(path)
    if not isinstance(found.get("experiment"), dict):
        raise RunError(f"{path} has no experiment, expected a run that fairlead wrote; {ANEW}")
    changed = [c for c in _changes(found, run) if c.partition(":")[0] not in ignoring]
    if changed:
        rounds = run.experiment.rounds
        more = [c for c in changed if c.partition(":")[0] not in ROUNDS]
        longer = not more and rounds_in(run.folder) < rounds
        longer_run = f"`fairlead resume {comparison_of(run.folder)} --rounds {rounds}` goes on from there, or "
        hint = longer_run if longer else ""
        raise RunError(f"{run.folder} holds a run made from something else: {'; '.join(more or changed)}; {hint}{ANEW}")


def comparison_of(run: Path) -> Path:
    """The folder of the comparison that a run belongs to; a run that belongs to none is its own."""
    above = (p.parent for p in run.parents if p.name == "runs")
    return next((folder for folder in above if (folder / "settings.json").exists()), run)


# What a path or a preset is called says nothing that the content does not.
UNCOMPARED = {"name", "data_dir"}
USUAL = "as the targets want it"  # a loss that is not the user's own
ROUNDS = ("rounds", "training.rounds")
CHANGED = {
    "data": "the data changed",
    "model": "the model changed, its architecture or its initial weights",
    "method": "the method changed, its code or its options",
    "loss": "the loss changed, its code or what it uses",
    "arithmetic": "this version of fairlead computes other numbers",
}
ANEW = "train anew with --fresh (from Python: fresh=True), or choose another --out"


def _changes(found: dict[str, Any], run: Run) -> list[str]:
    """What differs between the run in the folder and this one, in words."""
    before, wanted = _compared(found), _compared(run.settings())
    if wanted["engine"] == "auto":  # any that made the folder
        before["engine"] = "auto"
    wanted["engine"] = wanted["engine"].partition(":")[0]  # wherever the Ray cluster is
    said = _differences(before, wanted)
    prints = _mapping(found.get("identity"))
    for part, here in run.identity.items():
        there = str(prints.get(part, USUAL if part == "loss" else f"{UNKNOWN}the folder does not say"))
        opaque = [x.removeprefix(UNKNOWN) for x in (here, there) if x.startswith(UNKNOWN)]
        if opaque:
            said.append(f"the {part} cannot be compared with the one that made it: {opaque[0]}")
        elif here != there:
            values = f"{part}: {there} there, {here} here"
            said.append(CHANGED.get(part, values) + (f" ({values})" if part == "arithmetic" else ""))
    return said


def _compared(settings: dict[str, Any]) -> dict[str, Any]:
    experiment = settings["experiment"]
    scenario = {k: v for k, v in _mapping(experiment.get("scenario")).items() if k != "data"}
    of = {k: v for k, v in experiment.items() if k not in UNCOMPARED} | {"scenario": scenario}
    return {"method": settings.get("method"), "seed": settings.get("seed")} | of


def _mapping(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [k for k in {**a, **b} if a.get(k) != b.get(k)]
        return [d for k in keys for d in _differences(a.get(k), b.get(k), f"{path}.{k}" if path else str(k))]
    return [f"{path}: {a!r} there, {b!r} here"]


def train(job: Job, progress: Progress | None = None) -> None:
    """Train the run to its end, from its last checkpoint if it has one."""
    (job.folder / "summary.json").unlink(missing_ok=True)  # of fewer rounds
    write_json(job.folder / "settings.json", job.settings())
    checkpoint, plan = job.folder / "checkpoint.safetensors", job.plan()
    snapshot = load_snapshot(checkpoint, plan) if checkpoint.exists() else None
    # Records are written before the checkpoint: what is newer belongs to rounds that will be trained again.
    done = 0 if snapshot is None else snapshot.round
    go_back(job.folder / "records.parquet", done, plan)
    go_back(job.folder / "rounds.parquet", done)
    if snapshot is not None:
        logger.info("%s goes on after round %d", job.folder, snapshot.round)
    saved, records, rounds = time.monotonic(), Records(), Rounds()
    before = snapshot or Snapshot(0, {}, {}, dict)
    with clients_of(job) as clients:
        for round, now in going_on(job, clients, snapshot):
            records.add(round, job.federation)
            rounds.add(round)
            last = round.round == plan.rounds or round.stopped
            if last or time.monotonic() - saved > CHECKPOINT_SECONDS:
                records.save(job.folder / "records.parquet", round.round)
                rounds.save(job.folder / "rounds.parquet", round.round)
                save_snapshot(checkpoint, now, before if _to_go_on_from(round.round, plan) else None)
                saved = time.monotonic()
            before = now
            if progress:
                progress(round.round)
    # A run resumed after its last round has nothing left to do but this.
    write_json(job.folder / DEPLOYMENT, deployment_of(job).to_json())
    write_run_summary(job.folder, summarise_run(job))


def _to_go_on_from(round: int, plan: Plan) -> bool:
    """Whether more rounds must start before this one: it is scored only because it is the last, and scores decide."""
    decides = plan.select != "last" or plan.patience is not None
    return round == plan.rounds and decides and plan.rounds % plan.evaluate_every != 0


def going_on(job: Job, clients: Clients, snapshot: Snapshot | None) -> Iterator[tuple[Round, Snapshot]]:
    """The run's rounds, after those of the snapshot; one that does not fit the run is refused in a sentence."""
    method, average = job.entry.method, job.entry.average
    rounds = federate(method, clients, on_device(job), job.plan(), average=average, snapshot=snapshot)
    if snapshot is not None:
        try:
            first = next(rounds, None)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, FairleadError):
                raise
            path, reason = job.folder / "checkpoint.safetensors", " ".join(str(error).split())
            raise RunError(f"{path} does not fit this run ({reason}); {ANEW}") from error
        if first is None:
            return
        yield first
    yield from rounds


def deployment_of(job: Job) -> Deployment:
    """What it takes to use the run's models on raw rows."""
    e, method = job.experiment, job.entry.method
    column, balanced = e.scenario.column, e.training.balance
    return describe(job.federation, job.module, job.name, method, e.options, column=column, balanced=balanced)


def on_device(job: Job) -> nn.Module:
    """The run's module on its device: samples, messages and models go where it is."""
    return module_on(job.module, find_device(job.experiment.device))


def clients_of(job: Job) -> InProcess | Sharded:
    """The run's clients; their states live in memory, or in its folder if they are too many."""
    if job.engine.name == RAY:
        return Sharded(job.federation, job.experiment.training, job.engine.address)

    def store(clients: int, first: Named) -> StateStore:
        if clients * payload(first) > MEMORY_BYTES:
            return StateFiles(clients, first, job.folder / "states")
        return States(clients, first)

    return InProcess(job.federation, job.experiment.training, job.engine, store)


def summarise_run(job: Job) -> RunSummary:
    """The run's own figures, on test data at the chosen round."""
    chosen = kept_round(job.folder / "checkpoint.safetensors")
    rows = list(rows_of(job.folder / "records.parquet", round=chosen, split="test", model="personal"))
    rows.sort(key=lambda r: r["client"])
    names = ("seconds", "samples", "passes", "bytes_up", "bytes_down", "left_out")
    totals = dict.fromkeys(names, 0)
    for row in rows_of(job.folder / "rounds.parquet"):
        totals |= {name: totals[name] + row[name] for name in names}
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
        "passes": totals["passes"],
        "train_seconds": totals["seconds"],
        "samples_per_second": totals["samples"] / max(totals["seconds"], 1e-9),
        "left_out": totals["left_out"],
    }


def _known(value: float | None) -> float | None:
    """A number for a JSON file; one that is not finite is not known."""
    return value if value is not None and math.isfinite(value) else None


def rounds_in(folder: Path) -> int:
    """The rounds that the run in this folder was made for; 0 where there is none."""
    path = folder / "settings.json"
    experiment = read_object(path).get("experiment") if path.exists() else None
    rounds = experiment.get("rounds") if isinstance(experiment, dict) else None
    return rounds if isinstance(rounds, int) else 0


def kept_outputs(job: Job, split: SplitName) -> list[Tensor]:
    """What each client's deployed model makes of its own samples, (n, outputs) by client."""
    method, now = job.entry.method, load_snapshot(job.folder / "checkpoint.safetensors")
    with clients_of(job) as clients:
        clients.start(method, wrapped(method, on_device(job), job.seed), job.plan())
        clients.load(now.clients(), now.round, now.message)
        return clients.outputs(split)


def deployed(job: Job, client: int) -> nn.Module:
    """One client's own model at the chosen round, ready to use."""
    method, now = job.entry.method, load_snapshot(job.folder / "checkpoint.safetensors")
    # A copy: the job's own module begins other runs, and each client's model is one of its own.
    module = wrapped(method, copy.deepcopy(job.module), job.seed)
    saved = now.clients()
    if KEPT in saved:
        return Layout(module).write(saved[KEPT][client], module).eval()
    # Too many to keep: made now from the client's state and the last message, which is what `select` "last" deploys.
    with clients_of(job) as clients:
        clients.start(method, wrapped(method, on_device(job), job.seed), job.plan())
        clients.load(saved, now.round, now.message)
        row = clients.models(torch.tensor([client]))[0]
    return Layout(module).write(row, module).eval()
