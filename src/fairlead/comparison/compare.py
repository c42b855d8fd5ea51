"""Several methods on the same clients, and the verdict against training alone.

LOCAL is always among them: trained once per seed on the same split, model, batches and budget, it is the control that
every other method's clients are measured against.
"""

from __future__ import annotations

import copy
import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from fairlead.catalogue import Entry, decision
from fairlead.clients import Engine, check_models, wrapped
from fairlead.comparison.all_rows import to_use, train_on_all_rows
from fairlead.comparison.asked import CONTROL, Asked, check_source, entries_of, factory_of, folder_of, seeds_of
from fairlead.comparison.assess import Bench, Fold, answered, assess, check_folder, owners_of, summarise_assessment
from fairlead.comparison.decisions import Protocol
from fairlead.comparison.findings import Findings, Kind, Way, find
from fairlead.comparison.summarise import summarise_all
from fairlead.core import Federation, InputError, Layout, Method, RunError, check_targets, require
from fairlead.data import Source
from fairlead.metrics import Metric, default_metric, metric
from fairlead.metrics.measures import Target
from fairlead.prediction.predict import Predictor, choose_run, load_run
from fairlead.report import markdown_table
from fairlead.runs.files import read_json, write_json
from fairlead.runs.material import Factory, Material, engine_in
from fairlead.runs.run import FILES, FILES_TO_USE, Job, Run, deployed, finished, kept_outputs, result
from fairlead.runs.summary import RunSummary, Summary, write_summary
from fairlead.settings import Experiment, check, resolve, shown

FULLER = "local-all-rows"  # LOCAL on train and validation rows together, beside a published protocol
SMALL_TABLE = 2500  # rows, below which every row is tested once, in folds
FOLDS = 5
Progress = Callable[[str, int, int, int], None]  # method, seed, round done, rounds


@dataclass(frozen=True, repr=False)
class Comparison:
    """A finished comparison: its summary, its folder, and every client's model."""

    folder: Path
    summary: Summary
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

    def predictor(self, method: str, owner: str | int, fold: int | None = None) -> Predictor:
        """An owner's model that takes raw rows (a path, a data frame, dicts) and gives a data frame of predictions.

        After folds it is the model trained on all rows, where there is one; with `fold`, the model of that fold.
        """
        job = next((job for (name, _), job in self.jobs.items() if name == method), None)
        choice = choose_run(self.folder, str(owner), method, fold)
        module = None if job is None else wrapped(job.entry.method, copy.deepcopy(job.module), job.seed)
        return load_run(choice.run, owner, module)


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
    check_source(source)
    if isinstance(model, str):
        settings["model"] = model
    own = None if source is None else source.name
    asked = Asked(methods, resolve(check(settings), own), seeds_of(seeds), factory_of(model), source)
    return _compare(asked, folder_of(out), progress, "fresh" if fresh else "reuse")


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
    folder = folder_of(folder) or Path()
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
    check_source(source)
    experiment = Experiment.from_json(plan["experiment"])
    if rounds is not None:
        experiment = _further(folder, experiment, rounds)
    asked = Asked(methods or plan["methods"], experiment, seeds_of(plan["seeds"]), factory_of(model), source)
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


def _compare(
    asked: Asked, out: Path | None, progress: Progress | None, old: Literal["reuse", "extend", "fresh"]
) -> Comparison:
    if out is None:
        return _compare_for_now(asked, progress)
    experiment, seeds = asked.experiment, asked.seeds
    entries = entries_of(asked.methods, experiment)
    # All that can be wrong with the input shows here, before the first file is written.
    source = asked.source or experiment.scenario.load(experiment.data_dir)
    if experiment.effort is not None:
        return _assessed(asked, entries, source, out, progress, old)
    # Owners and their rows are the same under every seed; a seed decides on weights and batches.
    material = Material(experiment, experiment.scenario.build(seeds[0], source=source), asked.factory)
    fast = material.engine(seeds[0], None if old == "fresh" else engine_in(out / "settings.json"))
    jobs = {
        (name, seed): material.job(_run(out, name, entry, experiment, seed), fast)
        for seed in seeds
        for name, entry in entries.items()
        if decision(name, experiment.options) is None
    }
    whole = material
    if len(material.federation.validation.y):
        whole = Material(experiment, experiment.scenario.build(seeds[0], source=source, refit=True), asked.factory)
        last = dataclasses.replace(experiment, select="last")
        for seed in seeds:
            run = _run(out, CONTROL, entries[CONTROL], last, seed)
            run = dataclasses.replace(run, folder=out / "runs" / f"{FULLER}-seed{seed}")
            jobs[FULLER, seed] = whole.job(run, fast)
    if old == "fresh":
        clear(out)
    for job in jobs.values():
        finished(job, old == "extend")  # refuses a folder that holds something else
    _write_settings(out, asked, entries, fast)
    runs = {
        (name, seed): result(job, None, _teller(progress, name, seed, experiment.rounds), extend=old == "extend")
        for (name, seed), job in jobs.items()
    }
    for (name, seed), (job, made) in _decided(out, entries, jobs, whole, progress, old == "extend").items():
        jobs[name, seed], runs[name, seed] = job, made
    found = _findings(jobs, entries, seeds)
    compared = {(name, seed): jobs[name, seed] for seed in seeds for name in entries}
    summary = summarise_all(compared, {key: runs[key] for key in compared}, found)
    write_summary(out, summary)
    return Comparison(out, summary, jobs)


def _decided(
    out: Path,
    entries: Mapping[str, Entry],
    jobs: Mapping[tuple[str, int], Job],
    whole: Material,
    progress: Progress | None,
    extend: bool,
) -> dict[tuple[str, int], tuple[Job, RunSummary]]:
    """The runs of what is decided after training, from those of the methods it is decided between."""
    some = jobs[CONTROL, next(iter(jobs))[1]]
    experiment, chosen = dataclasses.replace(whole.experiment, select="last"), _usual(some.federation)[0]
    train, held = (int(split.sizes.sum()) for split in (some.federation.train, some.federation.validation))

    def run(name: str, called: str, seed: int) -> Run:
        one = _run(out, name, entries[name], experiment, seed)
        return dataclasses.replace(one, folder=out / "runs" / f"{called}-seed{seed}")

    def teller(name: str, seed: int) -> Callable[[int], None] | None:
        return _teller(progress, name, seed, experiment.rounds)

    protocol = Protocol(whole, held / (train + held), jobs, run, teller, extend)
    seeds = [seed for name, seed in jobs if name == CONTROL]
    found = {name: decision(name, experiment.options) for name in entries}
    return {
        (name, seed): protocol.deploy(name, seed, how, chosen)
        for name, how in found.items()
        if how is not None
        for seed in seeds
    }


def _compare_for_now(asked: Asked, progress: Progress | None) -> Comparison:
    """A comparison in a folder that goes with its result."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-"))
    try:
        found = _compare(asked, folder, progress, "reuse")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
    return found


def _run(out: Path, name: str, entry: Entry, experiment: Experiment, seed: int) -> Run:
    """A method with a seed. Nobody is unseen to a client that trains alone: a newcomer's control has its full time."""
    experiment = dataclasses.replace(experiment, unseen=0.0) if name == CONTROL else experiment
    return Run(out / "runs" / f"{name}-seed{seed}", name, entry, experiment, seed)


def _write_settings(out: Path, asked: Asked, entries: Mapping[str, Entry], fast: Engine) -> None:
    experiment = asked.experiment.to_json() | {"engine": fast.name}
    plan = {"methods": list(entries), "seeds": asked.seeds, "experiment": experiment, "own": asked.own()}
    write_json(out / "settings.json", plan)


def _teller(progress: Progress | None, name: str, seed: int, rounds: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(name, seed, done, rounds)


def _assessed(
    asked: Asked,
    entries: Mapping[str, Entry],
    source: Source,
    out: Path,
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
    material = Material(experiment, first, asked.factory)
    module = material.module(seed)
    check_models("loss", first.clients, Layout(module).size)
    fast = material.engine(seed, None if old == "fresh" else engine_in(out / "settings.json"))
    if old == "fresh":
        clear(out)
    # Folds are trainings of their own; without them only further seeds tell how much luck there is in training.
    repeats = max(experiment.effort.repeats if count == 1 else experiment.effort.repeats // 3, len(asked.seeds), 1)
    bench = Bench(
        folder=out,
        entries=entries,
        experiment=experiment,
        engine=fast,
        factory=asked.factory,
        effort=dataclasses.replace(experiment.effort, repeats=repeats),
        seed=seed,
        tell=lambda name, rounds: _teller(progress, name, seed, rounds),
    )
    check_folder(bench, folds)
    _write_settings(out, asked, entries, fast)
    done = assess(bench, folds, chosen)
    found = find(done.ways, owners_of(first), chosen, why, done.twins)
    if len(folds) > 1:
        done = done._replace(all_rows=train_on_all_rows(bench, folds[0], done.runs, to_use(found), chosen))
    summary = summarise_assessment(bench, found, done, folds, sum(p.numel() for p in module.parameters()))
    write_summary(out, summary)
    return Comparison(out, summary, {(name, seed): runs[0].final[0] for name, runs in done.runs.items()})


def _findings(jobs: Mapping[tuple[str, int], Job], entries: Mapping[str, Entry], seeds: Sequence[int]) -> Findings:
    """The runs of a published protocol, judged against its own LOCAL."""
    federation = jobs[CONTROL, seeds[0]].federation
    chosen, why = _usual(federation)

    def way(name: str, title: str, kind: Kind) -> Way:
        runs = [jobs[name, seed] for seed in seeds]
        found = [answered(job.federation, job.federation.test, kept_outputs(job, "test")) for job in runs]
        return Way(name, title, kind, [dataclasses.replace(a, repeat=i) for i, a in enumerate(found)], [])

    ways = [way(CONTROL, CONTROL, "alone")]
    if (FULLER, seeds[0]) in jobs:
        ways.append(way(FULLER, "local on train and validation rows", "alone"))
    ways += [way(name, name, "method") for name in entries if name != CONTROL]
    return find(ways, owners_of(federation), chosen, why)


def _usual(federation: Federation) -> tuple[Metric, str]:
    """What published protocols are about, and why."""
    usual = {"class": "accuracy", "labels": "label-accuracy", "quantity": "rmse"}
    return _metric(usual[federation.target_kind], federation)


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


def clear(folder: Path) -> None:
    """Delete a comparison's own files, and nothing else that may lie in its folder."""
    for settings in sorted(folder.glob("runs/**/settings.json")):
        run = settings.parent
        for path in [run / name for name in (*FILES, *FILES_TO_USE)] + sorted(run.glob("states/*.safetensors")):
            path.unlink(missing_ok=True)
        for emptied in (run / "states", run):
            if emptied.is_dir() and not any(emptied.iterdir()):
                emptied.rmdir()
    for lock in folder.glob("runs/**/locks/*"):
        lock.unlink(missing_ok=True)
    for name in ("settings.json", "summary.json", "report.html", "figures/differences.png", "figures/curves.png"):
        (folder / name).unlink(missing_ok=True)


def run(
    method: str, *, out: Path | str | None = None, seed: int = 0, progress: Progress | None = None, **settings: Any
) -> Comparison:
    """One method and its control, with one seed."""
    return compare([method], seeds=[seed], out=out, progress=progress, **settings)
