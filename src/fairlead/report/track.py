"""A finished comparison, logged to TensorBoard, MLflow or Weights & Biases; each is imported only when it is asked for.

One entry for each method and seed or fold: the mean over clients by round of what was scored, and at the end the score,
the gain over the bar, the number of owners by verdict, bytes and seconds. The page stays the place for owner by owner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.core.errors import InputError, nearest
from fairlead.report.read import read_records
from fairlead.report.tables import counts, ways
from fairlead.runs.summary import Summary, Way, read_summary


class Entry(NamedTuple):
    """One method with one seed or fold, as trackers know it."""

    name: str
    settings: dict[str, Any]
    by_round: dict[int, dict[str, float]]
    final: dict[str, float]


def track(folder: Path, tracker: str) -> str:
    """Log the folder's comparison; returns a sentence on where it went."""
    check_tracker(tracker)
    summary = read_summary(folder)
    return TRACKERS[tracker](Path(folder), list(_entries(folder, summary)))


def check_tracker(tracker: str) -> None:
    """Refuse one that is unknown or not installed, before anything is trained."""
    if tracker not in TRACKERS:
        raise InputError(f"--track {tracker}: unknown; {nearest(tracker, TRACKERS)}")
    try:
        import_module(MODULES[tracker])
    except ImportError as error:
        raise InputError(f"--track {tracker} needs a package that is missing: pip install {tracker}") from error


def _entries(folder: Path, summary: Summary) -> Iterator[Entry]:
    import pyarrow.compute as pc

    records = read_records(folder, summary)
    keys, columns = ["method", "seed", "round", "split", "model"], ("accuracy", "loss")
    for column in columns:  # a client without rows of a split has no score there
        known = pc.if_else(pc.is_finite(records[column]), records[column], None)
        records = records.set_column(records.column_names.index(column), column, known)
    means = records.group_by(keys).aggregate([(column, "mean") for column in columns]).to_pylist()
    by_run: dict[tuple[str, int], dict[int, dict[str, float]]] = {}
    for row in sorted(means, key=lambda row: row["round"]):
        scored = {f"{row['split']}/{row['model']}/{c}": row[f"{c}_mean"] for c in columns}
        by_round = by_run.setdefault((row["method"], row["seed"]), {})
        by_round.setdefault(row["round"], {}).update(_known(scored))
    plain = {**summary["scenario"], **summary["settings"]}
    part = "fold" if "folds" in summary["settings"] else "seed"
    for way in ways(summary):
        for seed in summary["settings"]["seeds"] if way["name"] in summary["methods"] else ():
            settings = {"method": way["name"], **plain, "seed": seed}
            scores = by_run.get((way["name"], seed), {})
            yield Entry(f"{way['name']}-{part}{seed}", settings, scores, _final(way, summary))


def _final(way: Way, summary: Summary) -> dict[str, float]:
    """A method's figures at the end."""
    entry: Any = summary["methods"][way["name"]]
    costs = {name: entry[name] for name in ("bytes_up", "bytes_down", "train_seconds")}
    verdicts = {f"owners {word}": float(n) for word, n in counts(way).items()} if way["verdicts"] else {}
    return _known({"score": way["score"], "gain": way["gain"], "lowest owner": way["lowest"], **costs}) | verdicts


def _known(values: dict[str, float | None]) -> dict[str, float]:
    return {name: float(x) for name, x in values.items() if x is not None and math.isfinite(x)}


def _tensorboard(folder: Path, entries: list[Entry]) -> str:
    writer: Any = import_module(MODULES["tensorboard"]).SummaryWriter
    for entry in entries:
        with writer(str(folder / "tensorboard" / entry.name)) as log:
            for number, values in entry.by_round.items():
                for name, value in values.items():
                    log.add_scalar(name, value, number)
            last = max(entry.by_round, default=0)
            for name, value in entry.final.items():
                log.add_scalar(f"final/{name}", value, last)
            log.add_text("settings", "\n".join(f"    {name}: {value}" for name, value in entry.settings.items()))
    return f"TensorBoard: tensorboard --logdir {folder / 'tensorboard'}"


def _mlflow(folder: Path, entries: list[Entry]) -> str:
    mlflow: Any = import_module("mlflow")
    mlflow.set_experiment("fairlead")
    for entry in entries:
        with mlflow.start_run(run_name=f"{folder.name}/{entry.name}"):
            mlflow.log_params({name: str(value)[:500] for name, value in entry.settings.items()})
            for number, values in entry.by_round.items():
                mlflow.log_metrics(values, step=number)
            mlflow.log_metrics({f"final/{name}": value for name, value in entry.final.items()})
            if (folder / "report.html").exists():
                mlflow.log_artifact(str(folder / "report.html"))
    return f"MLflow: experiment 'fairlead' at {mlflow.get_tracking_uri()}"


def _wandb(folder: Path, entries: list[Entry]) -> str:
    wandb: Any = import_module("wandb")
    for entry in entries:
        run = wandb.init(project="fairlead", group=folder.name, name=entry.name, config=entry.settings, dir=str(folder))
        for number, values in entry.by_round.items():
            run.log(values, step=number)
        run.summary.update({f"final/{name}": value for name, value in entry.final.items()})
        run.finish()
    return "Weights & Biases: project 'fairlead'"


MODULES = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
TRACKERS: dict[str, Callable[[Path, list[Entry]], str]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
