"""The summary of a published protocol's runs: every method's figures over seeds, client by client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from fairlead.catalogue import decision
from fairlead.comparison.asked import CONTROL
from fairlead.comparison.assess import judged
from fairlead.comparison.decisions import read_decision
from fairlead.comparison.findings import LEVEL, Finding, Findings
from fairlead.metrics import over_seeds, summarise
from fairlead.rounds import held_out
from fairlead.runs.identity import versions
from fairlead.runs.run import Job
from fairlead.runs.summary import Data, Entry, Found, RunSummary, Summary


def summarise_all(
    jobs: Mapping[tuple[str, int], Job], runs: Mapping[tuple[str, int], RunSummary], found: Findings, data: Data
) -> Summary:
    """The comparison's `summary.json`, from the runs' own and what was found."""
    seeds = list(dict.fromkeys(seed for _, seed in jobs))
    names = list(dict.fromkeys(name for name, _ in jobs))
    # What is decided after training has no rounds of its own to tell of.
    some = [jobs[name, seeds[0]] for name in names if decision(name) is None][-1]
    experiment = some.experiment
    newcomers = [held_out(experiment.unseen, some.federation.clients, seed)[1].tolist() for seed in seeds]
    for (name, seed), one in runs.items():
        one["accuracy"] = found.by_run[name][seeds.index(seed)]
    t = experiment.training
    settings = {
        "rounds": experiment.rounds,
        "seeds": seeds,
        "model": experiment.model,
        "parameters": sum(p.numel() for p in some.module.parameters()),
        "engine": some.engine.name,
        "participation": experiment.participation,
        "lr": t.lr,
        "epochs": t.epochs,
        "steps": t.steps,
        "batch_size": t.batch_size,
        "momentum": t.momentum,
        "weight_decay": t.weight_decay,
        "schedule": t.schedule,
        "select": experiment.select,
        "evaluate_every": experiment.evaluate_every,
        "unseen": experiment.unseen,
        "newcomer_epochs": experiment.newcomer_epochs,
        "options": experiment.options,
        "level": LEVEL,
    }
    return Summary(
        scenario={"name": experiment.name} | experiment.to_json()["scenario"],
        settings=settings,
        versions=versions(),
        control=CONTROL,
        methods={
            name: summarise_method(
                [runs[name, s] for s in seeds], [runs[found.bar, s] for s in seeds], newcomers, found[name]
            )
            | _decisions([jobs[name, s] for s in seeds])
            for name in names
        },
        findings=cast(Found, found.to_json()),
        data=data,
    )


def summarise_method(
    runs: list[RunSummary], controls: list[RunSummary], newcomers: list[list[int]], found: Finding
) -> Entry:
    """One method's entry: means over seeds, their spread, and each client against itself alone.

    `newcomers` are the clients held out under each seed; the headline figures leave them out.
    """
    scores = over_seeds(_summaries(runs, controls, newcomers, unseen=False))
    unseen = {"unseen": _means(_summaries(runs, controls, newcomers, unseen=True))} if newcomers[0] else {}
    clients = _clients(runs, controls, newcomers, found)
    plain: Any = runs
    costs = ("bytes_up", "bytes_down", "train_seconds", "samples_per_second")
    entry: Any = (
        {name: value["mean"] for name, value in scores.items()}
        | {name: float(np.mean([r[name] for r in plain])) for name in costs}
        | {"passes": float(np.mean([r["passes"] / max(sum(r["n_train"]), 1) for r in runs]))}
        | {
            "spread": {name: value["std"] for name, value in scores.items()},
            "model": "personal",
            "round": {"rule": runs[0]["round"]["rule"], "rounds": [r["round"]["round"] for r in runs]},
            "average": "clients",
            "worse": [c["id"] for c in clients if c["verdict"] == "worse"],
            "clients": clients,
            "runs": [f"runs/{r['method']}-seed{r['seed']}" for r in runs],
            "notes": [],
        }
        | unseen
    )
    return cast(Entry, entry)  # its shape is checked when it is written


def _clients(
    runs: list[RunSummary], controls: list[RunSummary], newcomers: list[list[int]], found: Finding
) -> list[dict[str, Any]]:
    """Each client against itself alone, means over seeds."""
    accuracy, alone = (np.array([_known(r) for r in group]) for group in (runs, controls))  # (seeds, N)
    n_test, n_train = np.array([r["n_test"] for r in runs]), np.array([r["n_train"] for r in runs])
    verdicts = {v.owner: v for v in found.verdicts}
    names = runs[0]["names"] or [str(k) for k in range(accuracy.shape[1])]
    return [
        {
            "id": k,
            "name": name,
            "n_train": round(float(n_train[:, k].mean())),
            "n_test": round(float(n_test[:, k].mean())),
            "accuracy": _finite(accuracy[:, k].mean()),
            "local_accuracy": _finite(alone[:, k].mean()),
            **judged(verdicts.get(name)),
            "newcomer": sum(k in held for held in newcomers) / len(runs),  # share of seeds in which it was one
        }
        for k, name in enumerate(names)
    ]


def _decisions(jobs: list[Job]) -> Any:
    """What clients deploy, where that is decided after training."""
    told = [read_decision(job.folder) for job in jobs]
    return {"decisions": told} if told[0] is not None else {}


def _known(run: RunSummary) -> list[float]:
    return [float("nan") if score is None else score for score in run["accuracy"]]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _summaries(
    runs: list[RunSummary], controls: list[RunSummary], newcomers: list[list[int]], *, unseen: bool
) -> list[dict[str, float]]:
    """Each seed in a few numbers, of its newcomers or of all others."""
    found = []
    for run, control, held in zip(runs, controls, newcomers, strict=True):
        chosen = np.isin(np.arange(len(run["accuracy"])), held) == unseen
        found.append(summarise(*(np.array(x)[chosen] for x in (_known(run), _known(control), run["n_test"]))))
    return found


def _means(summaries: list[dict[str, float]]) -> dict[str, float | None]:
    return {name: value["mean"] for name, value in over_seeds(summaries).items()}
