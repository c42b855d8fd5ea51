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
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fairlead.assess import Bench, Fold, answered, assess, judged, owners_of, summarise_assessment
from fairlead.catalogue import Entry, check_options, parse
from fairlead.checkpoint import read_json, write_json
from fairlead.clients import ENGINES, Engine, check_models, choose, engine
from fairlead.core import Federation, InputError, Layout, Method, RunError, check_targets, require
from fairlead.data import Source
from fairlead.findings import LEVEL, Finding, Findings, Kind, Way, find
from fairlead.identity import arithmetic, fingerprint
from fairlead.metrics import Metric, default_metric, metric, over_seeds, summarise
from fairlead.metrics.measures import Target
from fairlead.models import build
from fairlead.report import markdown_table
from fairlead.rounds import held_out
from fairlead.runs import RUN_FILES, Job, deployed, finished, kept_outputs, train, versions
from fairlead.settings import Experiment, check, resolve, shown

CONTROL = "local"
FULLER = "local-all-rows"  # LOCAL on train and validation rows together, beside a published protocol
SMALL_TABLE = 2500  # rows, below which every row is tested once, in folds
FOLDS = 5
Factory = Callable[[tuple[int, ...], int], nn.Module]  # sample shape, classes -> module
Progress = Callable[[str, int, int, int], None]  # method, seed, round done, rounds


@dataclass(frozen=True, repr=False)
class Comparison:
    """A finished comparison: its summary, its folder, and every client's model."""

    folder: Path
    summary: dict[str, Any]
    jobs: dict[tuple[str, int], Job]

    def __str__(self) -> str:
        return self.table()

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
        fits = isinstance(client, int) and 0 <= client < count
        require(fits, f"client must be a number from 0 to {count - 1}, got {shown(client)}")
        return deployed(job, client)


def compare(
    methods: Sequence[str] | Mapping[str, Method],
    *,
    seeds: int | Iterable[int] = 1,
    out: Path | str | None = None,
    model: str | Factory | None = None,
    source: Source | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Train the methods and LOCAL on the same clients, for every seed, and compare client by client.

    `settings` are the names of the command line: scenario, clients, rounds, lr ... (`fairlead.Settings`). `methods` are
    names, or a dict of your own `Method`s under names of yours. `model` may be a function of sample shape and number of
    classes; `source` your own samples (`fairlead.data.from_tensors`), divided at random unless the settings say
    otherwise. Without `out`, the folder lives as long as the result. Finished runs found in `out` are reused if they
    were made from the same data, model and method, unfinished ones go on; `fresh` deletes them first.
    """
    _check_source(source)
    if isinstance(model, str):
        settings["model"] = model
    own = None if source is None else source.name
    asked = Asked(methods, resolve(check(settings), own), _seeds(seeds), _factory(model), source)
    return _compare(asked, _folder(out), progress, "fresh" if fresh else "reuse")


def resume(
    folder: Path | str,
    *,
    rounds: int | None = None,
    methods: Mapping[str, Method] | None = None,
    model: Factory | None = None,
    source: Source | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Finish a comparison, or a single run, that was interrupted; it ends with the bits it would have had.

    With `rounds`, a finished one goes on to so many. One that was made with methods, a model or a source of your own
    program needs them here as well.
    """
    require(folder is not None, "a folder must be a path, got None")
    folder = _folder(folder) or Path()
    plan = read_json(folder / "settings.json")
    if "method" in plan:  # a single run: its comparison is two folders up
        folder = folder.parent.parent
        plan = read_json(folder / "settings.json")
    if not {"methods", "seeds", "experiment"} <= plan.keys():
        raise RunError(f"{folder / 'settings.json'} lacks methods, seeds or experiment; expected a comparison's folder")
    given = {"methods": methods, "model": model, "source": source}
    lacking = [name for name in plan.get("own", []) if given[name] is None]
    if lacking:
        needs = ", ".join(f"{name}=..." for name in lacking)
        raise RunError(
            f"{folder} was made with {' and '.join(lacking)} of your own program; "
            f"go on from there with fairlead.resume({str(folder)!r}, {needs})"
        )
    _check_source(source)
    experiment = Experiment.from_json(plan["experiment"])
    if rounds is not None:
        experiment = _further(folder, experiment, rounds)
    asked = Asked(methods or plan["methods"], experiment, _seeds(plan["seeds"]), _factory(model), source)
    return _compare(asked, folder, progress, "extend")


def _further(folder: Path, experiment: Experiment, rounds: int) -> Experiment:
    """The experiment with more rounds."""
    require(
        isinstance(rounds, int) and rounds >= experiment.rounds,
        f"rounds must be a whole number of at least the {experiment.rounds} of {folder}, got {shown(rounds)}",
    )
    effort = experiment.effort and dataclasses.replace(experiment.effort, rounds=rounds)
    training = dataclasses.replace(experiment.training, rounds=rounds)
    return dataclasses.replace(experiment, rounds=rounds, training=training, effort=effort)


@dataclass(frozen=True)
class Asked:
    """A comparison as it is asked for, each part checked for its kind."""

    methods: Sequence[str] | Mapping[str, Method]
    experiment: Experiment
    seeds: list[int]
    factory: Factory | None
    source: Source | None

    def own(self) -> list[str]:
        """What comes from the caller's program and cannot be had from a file."""
        named = {"methods": isinstance(self.methods, Mapping), "model": self.factory, "source": self.source}
        return [name for name, given in named.items() if given]


def _compare(
    asked: Asked, out: Path | None, progress: Progress | None, old: Literal["reuse", "extend", "fresh"]
) -> Comparison:
    experiment, seeds = asked.experiment, asked.seeds
    entries = _entries(asked.methods, experiment)
    # All that can be wrong with the input shows here, before the first file is written.
    source = asked.source or experiment.scenario.load(experiment.data_dir)
    if experiment.effort is not None:
        return _assessed(asked, entries, source, out, progress, old)
    # Owners and their rows are the same under every seed; a seed decides on weights and batches.
    federation = experiment.scenario.build(seeds[0], source=source)
    for name, entry in entries.items():
        check_targets(name, entry.method, federation)
    modules = {seed: _module(experiment, asked.factory, federation, seed) for seed in seeds}
    first = seeds[0]
    check_models(experiment.select, federation.clients, Layout(modules[first]).size)
    made_with = None if out is None or old == "fresh" else _engine_of(out)
    fast = _engine(experiment, modules[first], federation, made_with)
    folder = Path(tempfile.mkdtemp(prefix="fairlead-")) if out is None else out
    jobs = _jobs(folder, entries, experiment, federation, modules, fast)
    if len(federation.validation.y):
        whole = experiment.scenario.build(seeds[0], source=source, refit=True)
        last = dataclasses.replace(experiment, select="last")
        more = _jobs(folder, {CONTROL: entries[CONTROL]}, last, whole, modules, fast, FULLER)
        jobs |= {(FULLER, seed): job for (_, seed), job in more.items()}
    if old == "fresh":
        clear(folder)
    for job in jobs.values():
        finished(job, old == "extend")  # refuses a folder that holds something else
    plan = {
        "methods": list(entries),
        "seeds": seeds,
        "experiment": experiment.to_json() | {"engine": fast.name},
        "own": asked.own(),
    }
    write_json(folder / "settings.json", plan)
    for (name, seed), job in jobs.items():
        tell = (lambda r, n=name, s=seed: progress(n, s, r, experiment.rounds)) if progress else None
        train(job, tell, old == "extend")
    found = _findings(jobs, entries, seeds)
    summary = summarise_all({k: j for k, j in jobs.items() if k[0] != FULLER}, entries, seeds, experiment, fast, found)
    write_json(folder / "summary.json", summary)
    return _result(folder, summary, jobs, temporary=out is None)


def _assessed(
    asked: Asked,
    entries: Mapping[str, Entry],
    source: Source,
    out: Path | None,
    progress: Progress | None,
    old: Literal["reuse", "extend", "fresh"],
) -> Comparison:
    """The comparison on a user's own data: searched, refitted, in folds, beside what owners would do alone."""
    experiment, seed = asked.experiment, asked.seeds[0]
    assert experiment.effort is not None
    count = experiment.folds or (FOLDS if source.table is not None and len(source) < SMALL_TABLE else 1)
    folds = [_fold(experiment, source, seed, i, count) for i in range(count)]
    first = folds[0].chooses
    for name, entry in entries.items():
        check_targets(name, entry.method, first)
    chosen, why = _metric(experiment.metric, first)
    module = _module(experiment, asked.factory, first, seed)
    check_models("loss", first.clients, Layout(module).size)
    fast = _engine(experiment, module, first, None if out is None or old == "fresh" else _engine_of(out))
    folder = Path(tempfile.mkdtemp(prefix="fairlead-")) if out is None else out
    if old == "fresh":
        clear(folder)
    repeats = max(experiment.effort.repeats, len(asked.seeds))
    bench = Bench(
        folder=folder,
        entries=entries,
        experiment=experiment,
        engine=fast,
        module=lambda federation, seed: _module(experiment, asked.factory, federation, seed),
        effort=dataclasses.replace(experiment.effort, repeats=repeats),
        seed=seed,
        tell=lambda name, rounds: (lambda r: progress(name, seed, r, rounds)) if progress else None,
    )
    plan = {"methods": list(entries), "seeds": asked.seeds, "own": asked.own()}
    write_json(folder / "settings.json", plan | {"experiment": experiment.to_json() | {"engine": fast.name}})
    done = assess(bench, folds, chosen)
    found = find(done.ways, owners_of(first), chosen, why, done.twins)
    summary = summarise_assessment(bench, found, done, folds, sum(p.numel() for p in module.parameters()))
    write_json(folder / "summary.json", summary)
    jobs = {(name, seed): runs[0].final[0] for name, runs in done.runs.items()}
    return _result(folder, summary, jobs, temporary=out is None)


def _findings(jobs: Mapping[tuple[str, int], Job], entries: Mapping[str, Entry], seeds: Sequence[int]) -> Findings:
    """The runs of a published protocol, judged against its own LOCAL."""
    federation = jobs[CONTROL, seeds[0]].federation
    usual = {"class": "accuracy", "labels": "label-accuracy", "quantity": "rmse"}
    chosen, why = _metric(usual[federation.target_kind], federation)

    def way(name: str, title: str, kind: Kind) -> Way:
        runs = [jobs[name, seed] for seed in seeds]
        found = [answered(job.federation, job.federation.test, kept_outputs(job, "test")) for job in runs]
        return Way(name, title, kind, [dataclasses.replace(a, repeat=i) for i, a in enumerate(found)], [])

    ways = [way(CONTROL, CONTROL, "alone")]
    if (FULLER, seeds[0]) in jobs:
        ways.append(way(FULLER, "local on train and validation rows", "alone"))
    ways += [way(name, name, "method") for name in entries if name != CONTROL]
    return find(ways, owners_of(federation), chosen, why)


def _fold(experiment: Experiment, source: Source, seed: int, number: int, count: int) -> Fold:
    fold = None if count == 1 else (number, count)
    chooses, whole = (experiment.scenario.build(seed, source=source, fold=fold, refit=r) for r in (False, True))
    return Fold(number, chooses, whole)


def _metric(name: str | None, federation: Federation) -> tuple[Metric, str]:
    """What the verdict is about, and why."""
    kinds: dict[str, Target] = {"class": "classes", "labels": "labels", "quantity": "quantity"}
    target = kinds[federation.target_kind]
    if name is not None:
        chosen = metric(name)
        fits = chosen.target == target
        require(
            fits, f"metric '{name}' is for {chosen.target}, and the label is a {target}; leave it out for a default"
        )
        return chosen, f"{chosen.title}, as published or asked for"
    owners = {name: federation.train.client(k)[1].numpy() for k, name in enumerate(owners_of(federation))}
    choice = default_metric(target, owners)
    return choice.metric, choice.why


def _result(folder: Path, summary: dict[str, Any], jobs: dict[tuple[str, int], Job], temporary: bool) -> Comparison:
    result = Comparison(folder, summary, jobs)
    if temporary:
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    return result


def _jobs(
    folder: Path,
    entries: Mapping[str, Entry],
    experiment: Experiment,
    federation: Federation,
    modules: Mapping[int, nn.Module],
    fast: Engine,
    folder_name: str | None = None,
) -> dict[tuple[str, int], Job]:
    """Every method with every seed, and the fingerprints of what it is made from."""
    # Nobody is unseen to a client that trains alone: a newcomer's control has its full time.
    plans = {CONTROL: dataclasses.replace(experiment, unseen=0.0)}
    code = {name: fingerprint(entry) for name, entry in entries.items()}
    jobs = {}
    data = fingerprint(federation)
    for seed, module in modules.items():
        made = {"data": data, "model": fingerprint(module)}
        for name, entry in entries.items():
            jobs[name, seed] = Job(
                folder=folder / "runs" / f"{folder_name or name}-seed{seed}",
                name=name,
                entry=entry,
                experiment=plans.get(name, experiment),
                federation=federation,
                module=module,
                engine=fast,
                seed=seed,
                identity=made | {"method": code[name]} | arithmetic(),
            )
    return jobs


def clear(folder: Path) -> None:
    """Delete a comparison's own files, and nothing else that may lie in its folder."""
    for settings in sorted(folder.glob("runs/**/settings.json")):
        run = settings.parent
        for path in [run / name for name in RUN_FILES] + sorted(run.glob("states/*.safetensors")):
            path.unlink(missing_ok=True)
        for emptied in (run / "states", run):
            if emptied.is_dir() and not any(emptied.iterdir()):
                emptied.rmdir()
    for name in ("settings.json", "summary.json", "report.html", "figures/differences.png", "figures/curves.png"):
        (folder / name).unlink(missing_ok=True)


def _check_source(source: object) -> None:
    if source is not None and not isinstance(source, Source):
        raise InputError(
            f"source must come from fairlead.data.from_tensors(x, y), got {shown(source)}; "
            "for a table write a .csv or .parquet file and give data='FILE'"
        )


def _folder(out: object) -> Path | None:
    require(out is None or isinstance(out, str | Path), f"a folder must be a path, got {shown(out)}")
    folder = None if out is None else Path(out)  # type: ignore[arg-type]
    require(folder is None or not folder.is_file(), f"{folder} is a file, expected a folder or a new path")
    return folder


def _seeds(seeds: object) -> list[int]:
    """The seeds as a list; a number stands for so many."""
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds) if isinstance(seeds, Iterable) else None
    fits = chosen is not None and all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in chosen)
    require(fits, f"seeds must be a number of seeds or a list of whole numbers, got {shown(seeds)}")
    require(bool(chosen), "seeds must be at least 1; with 3 the table shows a spread")
    return list(dict.fromkeys(chosen or []))


def _factory(model: object) -> Factory | None:
    if model is None or isinstance(model, str):
        return None
    if isinstance(model, nn.Module) or not callable(model):
        raise InputError(
            f"model must be a name, or a function of sample shape and number of classes that makes a module, "
            f"got {shown(model)}; write model=lambda shape, classes: ..."
        )
    return model


def _entries(methods: Sequence[str] | Mapping[str, Method], experiment: Experiment) -> dict[str, Entry]:
    """The methods by name, LOCAL first and always."""
    check_options(experiment.options)
    if isinstance(methods, Mapping):
        named = {name: Entry(_own(name, method), None) for name, method in methods.items()}
    else:
        fits = isinstance(methods, Iterable) and not isinstance(methods, str | Method)
        names: list[Any] = list(methods) if fits else [methods]
        odd = next((n for n in names if not isinstance(n, str)), None)
        kind = "a Method" if isinstance(odd, Method) else shown(odd)
        require(odd is None, f"methods must be names, got {kind}; give your own as {{'mine': Method(...)}}")
        require(fits, f"methods must be a list of names, got {shown(methods)}; write [{methods!r}]")
        named = {name: parse(name, experiment.options) for name in names}
    require(len(named) >= 1, "no method given; try local fedavg fedrep+confree")
    entries = {CONTROL: parse(CONTROL, experiment.options)} | named
    used = {part for name in entries for part in name.split("+")} if not isinstance(methods, Mapping) else {CONTROL}
    for owner, values in experiment.options.items():
        require(
            owner in used,
            f"option {owner}.{next(iter(values), '')} has no effect: {owner} is not among {', '.join(entries)}",
        )
    return entries


def _own(name: object, method: object) -> Method:
    """A method of the user's own under a name that can be a folder's."""
    if not isinstance(method, Method):
        hint = f"; call it: {{{name!r}: {getattr(method, '__name__', 'f')}()}}" if callable(method) else ""
        raise InputError(f"methods[{name!r}] must be a fairlead.Method, got {shown(method)}{hint}")
    fits = isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\")
    require(fits, f"a method's name must be text without slashes, got {name!r}")
    require(name != CONTROL, f"'{CONTROL}' is the control, which is always trained; give your method another name")
    return method


def _module(experiment: Experiment, factory: Factory | None, federation: Federation, seed: int) -> nn.Module:
    shape, outputs = tuple(federation.train.x.shape[1:]), federation.outputs
    if factory is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made: object = factory(shape, outputs)
        if not isinstance(made, nn.Module):
            raise InputError(f"the model function must give a torch.nn.Module, got {shown(made)}")
        return made
    require(
        federation.train.x.is_floating_point(),
        "the samples are whole numbers, which a model of your own may embed: pass model=function; if they are "
        "measurements, pass x.float()",
    )
    name = experiment.model
    if name == "auto":
        name = "cnn" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"
    return build(name, shape, outputs, seed)


def _engine(experiment: Experiment, module: nn.Module, federation: Federation, made_with: str | None) -> Engine:
    """The engine asked for; for "auto" the one that made the folder, else the fastest."""
    name = made_with if experiment.engine == "auto" and made_with else experiment.engine
    if name != "auto":
        chosen = engine(name)
        with chosen.start(module, Layout(module), federation, experiment.training, seed=0):
            return chosen  # an engine that cannot run the model has refused by now
    p, n = experiment.participation, federation.clients
    return choose(module, federation, experiment.training, max(1, int(p * n) if p <= 1 else int(p)))


def _engine_of(folder: Path) -> str | None:
    path = folder / "settings.json"
    found = read_json(path) if path.exists() else {}
    name = found.get("experiment", {}).get("engine") if isinstance(found, dict) else None
    return name if name in ENGINES else None


def summarise_all(
    jobs: Mapping[tuple[str, int], Job],
    entries: Mapping[str, Entry],
    seeds: list[int],
    experiment: Experiment,
    fast: Engine,
    found: Findings,
) -> dict[str, Any]:
    """The comparison's `summary.json`, from the runs' own."""
    count = next(iter(jobs.values())).federation.clients
    newcomers = [held_out(experiment.unseen, count, seed)[1].tolist() for seed in seeds]
    runs = {key: read_json(job.folder / "summary.json") for key, job in jobs.items()}
    for (name, seed), one in runs.items():
        own = found.by_run[name][seeds.index(seed)]
        one["accuracy"] = [float("nan") if score is None else score for score in own]
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
            name: summarise_method(
                [runs[name, s] for s in seeds], [runs[CONTROL, s] for s in seeds], newcomers, found[name]
            )
            | {"runs": [f"runs/{name}-seed{s}" for s in seeds], "notes": []}
            for name in entries
        },
        "findings": found.to_json(),
        "data": {"notes": list(next(iter(jobs.values())).federation.notes)},
    }


def summarise_method(
    runs: list[dict[str, Any]], controls: list[dict[str, Any]], newcomers: list[list[int]], found: Finding
) -> dict[str, Any]:
    """One method's entry: means over seeds, their spread, and each client against itself alone.

    `newcomers` are the clients held out under each seed; the headline figures leave them out.
    """
    triples = list(zip(runs, controls, newcomers, strict=True))
    scores = over_seeds([_summarise(r, c, ~_is_in(r, new)) for r, c, new in triples])
    unseen = {"unseen": _means([_summarise(r, c, _is_in(r, new)) for r, c, new in triples])} if newcomers[0] else {}
    accuracy, alone = (np.array([r["accuracy"] for r in group]) for group in (runs, controls))  # (seeds, N)
    n_test, n_train = (np.array([r[key] for r in runs]) for key in ("n_test", "n_train"))
    verdicts = {v.owner: v for v in found.verdicts}
    names = [runs[0]["names"][k] if runs[0]["names"] else str(k) for k in range(accuracy.shape[1])]
    clients: list[dict[str, Any]] = [
        {
            "id": k,
            "name": names[k],
            "n_train": round(float(n_train[:, k].mean())),
            "n_test": round(float(n_test[:, k].mean())),
            "accuracy": float(accuracy[:, k].mean()),
            "local_accuracy": float(alone[:, k].mean()),
            **judged(verdicts.get(names[k])),
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
            "worse": [c["id"] for c in clients if c["verdict"] == "worse"],
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
