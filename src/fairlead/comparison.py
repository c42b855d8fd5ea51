"""Several methods on the same clients, and the verdict against training alone.

LOCAL is always among them: trained once per seed on the same split, model, batches and budget, it is the control that
every other method's clients are measured against.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fairlead.catalogue import Entry, check_options, parse
from fairlead.checkpoint import read_json, write_json
from fairlead.clients import Engine, check_models, choose, engine
from fairlead.core import Federation, InputError, Layout, Method, RunError, check_targets, require
from fairlead.data import Source
from fairlead.metrics import difference_interval, over_seeds, summarise
from fairlead.models import build
from fairlead.report import markdown_table
from fairlead.rounds import held_out
from fairlead.runs import Job, deployed, finished, train, versions
from fairlead.settings import Experiment, check, resolve

CONTROL = "local"
LEVEL = 0.95  # of the interval around a client's gain
Factory = Callable[[tuple[int, ...], int], nn.Module]  # sample shape, classes -> module
Progress = Callable[[str, int, int, int], None]  # method, seed, round done, rounds


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: its summary, its folder, and every client's model."""

    folder: Path
    summary: dict[str, Any]
    jobs: dict[tuple[str, int], Job]

    def table(self) -> str:
        """The verdict, as a Markdown table."""
        return markdown_table(self.summary)

    def model(self, method: str, client: int, seed: int = 0) -> nn.Module:
        """The model that the client would deploy, at the chosen round."""
        job = self.jobs.get((method, seed))
        if job is None:
            known = ", ".join(f"{m} (seed {s})" for m, s in self.jobs)
            raise InputError(f"no run of method '{method}' with seed {seed}; there are {known}")
        count = job.federation.clients
        require(0 <= client < count, f"client must lie in 0..{count - 1}, got {client}")
        return deployed(job, client)


def compare(
    methods: Sequence[str] | Mapping[str, Method],
    *,
    seeds: int | Iterable[int] = 1,
    out: Path | str | None = None,
    model: str | Factory | None = None,
    source: Source | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Train the methods and LOCAL on the same clients, for every seed, and compare client by client.

    `settings` are the names of the command line: scenario, clients, rounds, lr ... (`fairlead.Settings`). `methods` are
    names, or a dict of your own `Method`s under names of yours. `model` may be a function of sample shape and number of
    classes; `source` your own samples (`fairlead.data.from_tensors`). Without `out`, the folder lives as long as the
    result. Finished runs found in `out` are reused, unfinished ones go on.
    """
    if isinstance(model, str):
        settings["model"] = model
    experiment = resolve(check(settings))
    return _compare(methods, experiment, seeds, out, None if isinstance(model, str) else model, source, progress)


def resume(folder: Path | str, progress: Progress | None = None) -> Comparison:
    """Finish a comparison, or a single run, that was interrupted; it ends with the bits it would have had."""
    folder = Path(folder)
    plan = read_json(folder / "settings.json")
    if "method" in plan:  # a single run: its comparison is two folders up
        folder = folder.parent.parent
        plan = read_json(folder / "settings.json")
    if not {"methods", "seeds", "experiment"} <= plan.keys():
        raise RunError(f"{folder / 'settings.json'} lacks methods, seeds or experiment; expected a comparison's folder")
    if plan.get("made_in") != "names":
        raise RunError(f"{folder} used a {plan['made_in']} of your own program; call fairlead.compare there to go on")
    experiment = Experiment.from_json(plan["experiment"])
    return _compare(plan["methods"], experiment, plan["seeds"], folder, None, None, progress)


def _compare(
    methods: Sequence[str] | Mapping[str, Method],
    experiment: Experiment,
    seeds: int | Iterable[int],
    out: Path | str | None,
    factory: Factory | None,
    source: Source | None,
    progress: Progress | None,
) -> Comparison:
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    require(len(chosen) >= 1, "seeds must be at least 1; with 3 the table shows a spread")
    entries = _entries(methods, experiment)
    # All that can be wrong with the input shows here, before the first file is written.
    source = source or experiment.scenario.load(experiment.data_dir)
    federations = {seed: experiment.scenario.build(seed, source=source) for seed in chosen}
    for name, entry in entries.items():
        check_targets(name, entry.method, federations[chosen[0]])
    modules = {seed: _module(experiment, factory, f, seed) for seed, f in federations.items()}
    first = chosen[0]
    check_models(experiment.select, federations[first].clients, Layout(modules[first]).size)
    fast = _engine(experiment, modules[first], federations[first])
    folder = Path(tempfile.mkdtemp(prefix="fairlead-") if out is None else out)
    # Nobody is unseen to a client that trains alone: a newcomer's control has its full time.
    plans = {CONTROL: dataclasses.replace(experiment, unseen=0.0)}
    jobs = {
        (name, seed): Job(
            folder / "runs" / f"{name}-seed{seed}",
            name,
            entry,
            plans.get(name, experiment),
            federations[seed],
            modules[seed],
            fast,
            seed,
        )
        for seed in chosen
        for name, entry in entries.items()
    }
    made_in = "model" if factory else "method" if isinstance(methods, Mapping) else "names"
    plan = {
        "methods": list(entries),
        "seeds": chosen,
        "experiment": experiment.to_json() | {"engine": fast.name},
        "made_in": made_in,
    }
    for job in jobs.values():
        finished(job)  # refuses a folder that holds something else
    write_json(folder / "settings.json", plan)
    for (name, seed), job in jobs.items():
        train(job, (lambda r, n=name, s=seed: progress(n, s, r, experiment.rounds)) if progress else None)  # type: ignore[misc]
    summary = summarise_all(jobs, entries, chosen, experiment, fast)
    write_json(folder / "summary.json", summary)
    result = Comparison(folder, summary, jobs)
    if out is None:
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    return result


def _entries(methods: Sequence[str] | Mapping[str, Method], experiment: Experiment) -> dict[str, Entry]:
    """The methods by name, LOCAL first and always."""
    check_options(experiment.options)
    require(len(methods) >= 1, "no method given; try local fedavg fedrep+confree")
    if isinstance(methods, Mapping):
        named = {name: Entry(method, None) for name, method in methods.items()}
    else:
        named = {name: parse(name, experiment.options) for name in methods}
    return {CONTROL: parse(CONTROL, experiment.options)} | named


def _module(experiment: Experiment, factory: Factory | None, federation: Federation, seed: int) -> nn.Module:
    shape, outputs = tuple(federation.train.x.shape[1:]), federation.outputs
    if factory is not None:
        return factory(shape, outputs)
    name = experiment.model
    if name == "auto":
        name = "cnn" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"
    return build(name, shape, outputs, seed)


def _engine(experiment: Experiment, module: nn.Module, federation: Federation) -> Engine:
    if experiment.engine != "auto":
        chosen = engine(experiment.engine)
        with chosen.start(module, Layout(module), federation, experiment.training, seed=0):
            return chosen  # an engine that cannot run the model has refused by now
    p, n = experiment.participation, federation.clients
    return choose(module, federation, experiment.training, max(1, int(p * n) if p <= 1 else int(p)))


def summarise_all(
    jobs: Mapping[tuple[str, int], Job],
    entries: Mapping[str, Entry],
    seeds: list[int],
    experiment: Experiment,
    fast: Engine,
) -> dict[str, Any]:
    """The comparison's `summary.json`, from the runs' own."""
    count = next(iter(jobs.values())).federation.clients
    newcomers = [held_out(experiment.unseen, count, seed)[1].tolist() for seed in seeds]
    runs = {key: read_json(job.folder / "summary.json") for key, job in jobs.items()}
    t = experiment.training
    settings = {
        "rounds": experiment.rounds,
        "seeds": seeds,
        "model": experiment.model,
        "parameters": sum(p.numel() for p in next(iter(jobs.values())).module.parameters()),
        "engine": fast.name,
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
    return {
        "scenario": {"name": experiment.name} | experiment.to_json()["scenario"],
        "settings": settings,
        "versions": versions(),
        "control": CONTROL,
        "methods": {
            name: summarise_method([runs[name, s] for s in seeds], [runs[CONTROL, s] for s in seeds], newcomers)
            for name in entries
        },
    }


def summarise_method(
    runs: list[dict[str, Any]], controls: list[dict[str, Any]], newcomers: list[list[int]]
) -> dict[str, Any]:
    """One method's entry: means over seeds, their spread, and each client against itself alone.

    `newcomers` are the clients held out under each seed; the headline figures leave them out.
    """
    triples = list(zip(runs, controls, newcomers, strict=True))
    scores = over_seeds([_summarise(r, c, ~_is_in(r, new)) for r, c, new in triples])
    unseen = {"unseen": _means([_summarise(r, c, _is_in(r, new)) for r, c, new in triples])} if newcomers[0] else {}
    accuracy, alone = (np.array([r["accuracy"] for r in group]) for group in (runs, controls))  # (seeds, N)
    n_test, n_train = (np.array([r[key] for r in runs]) for key in ("n_test", "n_train"))
    correct, right_alone = ((a * n_test).round().sum(0) for a in (accuracy, alone))
    gain = difference_interval(correct, right_alone, n_test.sum(0), level=LEVEL)
    difference = (accuracy - alone).mean(0)
    clients: list[dict[str, Any]] = [
        {
            "id": k,
            "name": runs[0]["names"][k] if runs[0]["names"] else str(k),
            "n_train": round(float(n_train[:, k].mean())),
            "n_test": round(float(n_test[:, k].mean())),
            "accuracy": float(accuracy[:, k].mean()),
            "local_accuracy": float(alone[:, k].mean()),
            "difference": float(difference[k]),
            "interval": [float(gain.lower[k]), float(gain.upper[k])],
            "verdict": str(gain.verdict[k]),
            "newcomer": sum(k in held for held in newcomers) / len(runs),  # share of seeds in which it was one
        }
        for k in range(accuracy.shape[1])
    ]
    costs = ("bytes_up", "bytes_down", "train_seconds", "samples_per_second")
    return (
        {name: value["mean"] for name, value in scores.items()}
        | {name: float(np.mean([r[name] for r in runs])) for name in costs}
        | {
            "spread": {name: value["std"] for name, value in scores.items()},
            "model": "personal",
            "round": {"rule": runs[0]["round"]["rule"], "rounds": [r["round"]["round"] for r in runs]},
            "average": "clients",
            "worse": [c["id"] for c in clients if c["difference"] < 0],
            "clients": clients,
        }
        | unseen
    )


def _is_in(run: dict[str, Any], ids: list[int]) -> NDArray[np.bool_]:
    return np.isin(np.arange(len(run["accuracy"])), ids)


def _summarise(run: dict[str, Any], control: dict[str, Any], chosen: NDArray[np.bool_]) -> dict[str, float]:
    """Some of the clients in a few numbers."""
    return summarise(*(np.array(x)[chosen] for x in (run["accuracy"], control["accuracy"], run["n_test"])))


def _means(summaries: list[dict[str, float]]) -> dict[str, float | None]:
    return {name: value["mean"] for name, value in over_seeds(summaries).items()}


def run(
    method: str, *, out: Path | str | None = None, seed: int = 0, progress: Progress | None = None, **settings: Any
) -> Comparison:
    """One method and its control, with one seed."""
    return compare([method], seeds=[seed], out=out, progress=progress, **settings)
