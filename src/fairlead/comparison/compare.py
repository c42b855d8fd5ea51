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
from typing import Any, Literal, cast

import pandas as pd
from torch import nn

from fairlead.catalogue import Entry, decision
from fairlead.clients import Engine, check_models, wrapped
from fairlead.comparison import frames
from fairlead.comparison.all_rows import to_use, tools_on_all_rows, train_on_all_rows
from fairlead.comparison.asked import (
    CONTROL,
    Asked,
    check_progress,
    check_source,
    entries_of,
    factory_of,
    folder_of,
    own_functions,
    seeds_of,
    with_loss,
)
from fairlead.comparison.assess import answered, assess, check_folder, summarise_assessment
from fairlead.comparison.bench import Bench, Fold
from fairlead.comparison.beside import share
from fairlead.comparison.decisions import Protocol
from fairlead.comparison.findings import Findings, Kind, Way, find
from fairlead.comparison.remarks import remarks
from fairlead.comparison.summarise import summarise_all
from fairlead.core import Federation, InputError, Layout, Method, RunError, check_targets, require
from fairlead.core.files import alone_in, clear_partial
from fairlead.core.targets import KINDS
from fairlead.data import Preparation, Source, survey
from fairlead.data.folds import FEWEST
from fairlead.metrics import Metric, default_metric, metric
from fairlead.metrics.measures import Target
from fairlead.prediction.predict import BALANCED, Predictor, RawRows, choose_run, load_run
from fairlead.report import markdown_table
from fairlead.runs.files import read_object, write_json
from fairlead.runs.material import Factory, Material, engine_in
from fairlead.runs.run import (
    FILES,
    FILES_TO_USE,
    TABLES,
    Job,
    Run,
    comparison_of,
    deployed,
    finished,
    kept_outputs,
    result,
)
from fairlead.runs.summary import Data, RunSummary, Summary, write_summary
from fairlead.settings import Experiment, check, resolve, shown

FULLER = "local-all-rows"  # LOCAL on train and validation rows together, beside a published protocol
SMALL_TABLE = 2500  # rows, below which every row is tested once, in folds
FOLDS = 5
MANY_OWNERS = 10
# Method, seed, round done, rounds. One that has a method `data` is given the survey of the data before training.
Progress = Callable[[str, int, int, int], None]


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

    def curves(self) -> pd.DataFrame:
        """Scores by method, seed or fold, round, client and split; `comparison.frames.curves` names the columns."""
        return frames.curves(self.folder, self.summary)

    def clients(self) -> pd.DataFrame:
        """Every owner with every way to train, score and verdict; `comparison.frames.clients` names the columns."""
        return frames.clients(self.summary)

    def model(self, method: str, client: int | str, seed: int = 0) -> nn.Module:
        """The model that the client (by number or name) would deploy, at the chosen round; after folds, that of fold 0.

        It takes a tensor of samples as it was trained on, or raw rows of a table (a path, a data frame, dicts), and
        gives what stands before probabilities and units; `predictor` gives these.
        """
        job = self.jobs.get((method, seed))
        if job is None:
            known = ", ".join(f"{m} (seed {s})" for m, s in self.jobs)
            raise InputError(f"no run of method '{method}' with seed {seed}; there are {known}")
        names = job.federation.owners
        if isinstance(client, str) and client in names:
            client = names.index(client)
        fits = isinstance(client, int) and 0 <= client < len(names)
        require(fits, f"client must be a number from 0 to {len(names) - 1} or a name, got {shown(client)}")
        module, made = deployed(job, int(client)), job.federation.preparation
        if isinstance(made, Preparation):
            module.register_forward_pre_hook(RawRows(made, names[int(client)]))
        return module

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
    otherwise; `loss` a function of outputs and targets that gives one number per sample; `metric` a name or a
    `fairlead.metrics.Metric` of your own, which verdicts are then about. Without `out`, the folder lives as long as the
    result. Finished runs found in `out` are reused if they were made from the same data, model, method and loss,
    unfinished ones go on; `fresh` deletes them first.
    """
    check_source(source)
    if isinstance(model, str):
        settings["model"] = model
    loss, measure = own_functions(settings)
    own = None if source is None else source.name
    experiment = with_loss(resolve(check(settings), own), loss)
    asked = Asked(methods, experiment, seeds_of(seeds), factory_of(model), source, measure)
    return _compare(asked, folder_of(out), progress, "fresh" if fresh else "reuse")


def resume(
    folder: Path | str,
    *,
    rounds: int | None = None,
    methods: Mapping[str, Method] | None = None,
    model: Factory | None = None,
    source: Source | None = None,
    progress: Progress | None = None,
    **own: Any,
) -> Comparison:
    """Finish a comparison, or a single run, that was interrupted; it ends with the bits it would have had.

    With `rounds`, a finished one goes on to so many. One that was made with methods, a model, a source, a `loss` or a
    `metric` of your own program needs them here as well.
    """
    require(folder is not None, "a folder must be a path, got None")
    folder = folder_of(folder) or Path()
    plan = read_object(folder / "settings.json")
    if "method" in plan:  # a single run
        folder = comparison_of(folder)
        plan = read_object(folder / "settings.json")
    if not {"methods", "seeds", "experiment"} <= plan.keys():
        raise RunError(f"{folder / 'settings.json'} lacks methods, seeds or experiment; expected a comparison's folder")
    loss, measure = own_functions(own)
    require(not own, f"resume takes no '{next(iter(own), '')}'; a comparison goes on with the settings it began with")
    given = {"methods": methods, "model": model, "source": source, "loss": loss, "metric": measure}
    theirs = plan.get("own") or []
    if not isinstance(theirs, list):
        raise RunError(f"{folder / 'settings.json'}: own must be a list of names, got {theirs!r}")
    lacking = [name for name, mine in given.items() if mine is None and name in theirs]
    if lacking:
        needs = ", ".join(f"{name}=..." for name in lacking)
        raise RunError(
            f"{folder} was made with {' and '.join(lacking)} of your own program; "
            f"go on from there with fairlead.resume({str(folder)!r}, {needs})"
        )
    check_source(source)
    experiment = with_loss(Experiment.from_json(plan["experiment"], folder / "settings.json"), loss)
    if rounds is not None:
        experiment = _further(folder, experiment, rounds)
    asked = Asked(methods or plan["methods"], experiment, seeds_of(plan["seeds"]), factory_of(model), source, measure)
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
    check_progress(progress)
    if out is None:
        return _compare_for_now(asked, progress)
    with alone_in(out):
        clear_partial(out)
        return _compare_here(asked, out, progress, old)


def _compare_here(
    asked: Asked, out: Path, progress: Progress | None, old: Literal["reuse", "extend", "fresh"]
) -> Comparison:
    experiment = asked.experiment
    entries = entries_of(asked.methods, experiment)
    # All that can be wrong with the input shows here, before the first file is written.
    source = asked.source or experiment.scenario.load(experiment.data_dir)
    if experiment.effort is not None:
        return _assessed(asked, entries, source, out, progress, old)
    return _published(asked, entries, source, out, progress, old)


def _published(
    asked: Asked,
    entries: Mapping[str, Entry],
    source: Source,
    out: Path,
    progress: Progress | None,
    old: Literal["reuse", "extend", "fresh"],
) -> Comparison:
    """The comparison by a protocol with nothing to search for."""
    experiment, seeds = asked.experiment, asked.seeds
    # Owners and their rows are the same under every seed; a seed decides on weights and batches.
    material = Material(experiment, experiment.scenario.build(seeds[0], source=source), asked.factory)
    _check_targets(entries, experiment, material.federation)
    fast = material.engine(seeds[0], None if old == "fresh" else engine_in(out / "settings.json"))
    jobs = _jobs(out, entries, seeds, material, fast)
    refit = material
    if len(material.federation.validation.y):
        refit = Material(experiment, experiment.scenario.build(seeds[0], source=source, refit=True), asked.factory)
        jobs |= _fuller_jobs(out, entries[CONTROL], seeds, refit, fast)
    if old == "fresh":
        clear(out)
    for job in jobs.values():
        finished(job, old == "extend")  # refuses a folder that holds something else
    data = _survey(experiment, source, material.federation, progress)
    _write_settings(out, asked, entries, fast)
    runs = {
        (name, seed): result(job, None, _teller(progress, name, seed, experiment.rounds), extend=old == "extend")
        for (name, seed), job in jobs.items()
    }
    chosen = asked.metric or _usual(material.federation)[0]
    for (name, seed), (job, made) in _decided(out, entries, jobs, refit, chosen, progress, old == "extend").items():
        jobs[name, seed], runs[name, seed] = job, made
    found = _findings(jobs, entries, seeds, asked.metric)
    compared = {(name, seed): jobs[name, seed] for seed in seeds for name in entries}
    summary = summarise_all(compared, runs, found, data)
    write_summary(out, summary)
    return Comparison(out, summary, jobs)


def _jobs(
    out: Path, entries: Mapping[str, Entry], seeds: Sequence[int], material: Material, fast: Engine
) -> dict[tuple[str, int], Job]:
    """Every method that is trained, with every seed."""
    return {
        (name, seed): material.job(_run(out, name, entry, material.experiment, seed), fast)
        for seed in seeds
        for name, entry in entries.items()
        if decision(name, material.experiment.options) is None
    }


def _fuller_jobs(
    out: Path, control: Entry, seeds: Sequence[int], refit: Material, fast: Engine
) -> dict[tuple[str, int], Job]:
    """LOCAL on train and validation rows together: nothing is left to choose a round with."""
    last = dataclasses.replace(refit.experiment, select="last")
    runs = {seed: _run(out, CONTROL, control, last, seed) for seed in seeds}
    folders = {seed: out / "runs" / f"{FULLER}-seed{seed}" for seed in seeds}
    return {(FULLER, s): refit.job(dataclasses.replace(runs[s], folder=folders[s]), fast) for s in seeds}


def _decided(
    out: Path,
    entries: Mapping[str, Entry],
    jobs: Mapping[tuple[str, int], Job],
    refit: Material,
    chosen: Metric,
    progress: Progress | None,
    extend: bool,
) -> dict[tuple[str, int], tuple[Job, RunSummary]]:
    """The runs of what is decided after training, from those of the methods it is decided between."""
    some = jobs[CONTROL, next(iter(jobs))[1]]
    experiment = dataclasses.replace(refit.experiment, select="last")
    train, held = (int(split.sizes.sum()) for split in (some.federation.train, some.federation.validation))

    def run(name: str, called: str, seed: int) -> Run:
        one = _run(out, name, entries[name], experiment, seed)
        return dataclasses.replace(one, folder=out / "runs" / f"{called}-seed{seed}")

    def teller(name: str, seed: int) -> Callable[[int], None] | None:
        return _teller(progress, name, seed, experiment.rounds)

    protocol = Protocol(refit, held / (train + held), jobs, run, teller, extend)
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
    """A method with a seed; the control is trained alone."""
    experiment = experiment.alone() if name == CONTROL else experiment
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
    folds = folds_of(experiment, source, seed)
    first = folds[0].chooses
    owner = experiment.scenario.column
    require(
        bool(first.validation.sizes.any()),
        f"no owner has {FEWEST} rows, the least to train, choose and test with; "
        + (f"check that '{owner}' is the column that says whose a row is" if owner else "give owners more rows"),
    )
    _check_targets(entries, experiment, first)
    chosen, why = metric_of(asked, first)
    material = Material(experiment, first, asked.factory)
    module = material.module(seed)
    check_models("loss", first.clients, Layout(module).size)
    fast = material.engine(seed, None if old == "fresh" else engine_in(out / "settings.json"))
    if old == "fresh":
        clear(out)
    bench = bench_of(asked, folds, out, fast, lambda name, rounds: _teller(progress, name, seed, rounds))
    check_folder(bench, folds)
    data = _survey(experiment, source, first, progress)
    _write_settings(out, asked, entries, fast)
    if not asked.own():  # what a program of the caller's own brings is nowhere but in this process
        share(bench, folds, chosen)
    done = assess(bench, folds, chosen)
    found = find(done.ways, first.owners, chosen, why, done.twins)
    if len(folds) > 1:
        all_rows = train_on_all_rows(bench, folds[0], done.runs, to_use(found), chosen)
        done = done._replace(all_rows=all_rows, tools=tools_on_all_rows(bench, folds[0], done.tools, found.alone))
    parameters = sum(p.numel() for p in module.parameters())
    summary = summarise_assessment(bench, found, done, folds, parameters, data)
    write_summary(out, summary)
    return Comparison(out, summary, {(name, seed): runs[0].final[0] for name, runs in done.runs.items()})


def bench_of(
    asked: Asked,
    folds: Sequence[Fold],
    out: Path,
    fast: Engine,
    tell: Callable[[str, int], Callable[[int], None] | None],
) -> Bench:
    """What all runs of a comparison on a user's own data have in common."""
    effort = asked.experiment.effort
    assert effort is not None
    # Folds are trainings of their own; without them only further seeds tell how much luck there is in training.
    # Many owners together tell as much by fewer.
    most = effort.repeats - (folds[0].chooses.clients >= MANY_OWNERS)
    repeats = max(most if len(folds) == 1 else most // 3, len(asked.seeds), 1)
    return Bench(
        folder=out,
        entries=entries_of(asked.methods, asked.experiment),
        experiment=asked.experiment,
        engine=fast,
        factory=asked.factory,
        effort=dataclasses.replace(effort, repeats=repeats),
        seed=asked.seeds[0],
        tell=tell,
    )


def _check_targets(entries: Mapping[str, Entry], experiment: Experiment, federation: Federation) -> None:
    """Refuse methods that cannot learn such targets, before anything is trained."""
    for name, entry in entries.items():
        check_targets(name, entry.method, federation)
        decides = decision(name, experiment.options) is not None
        require(
            not decides or federation.target_kind != "survival",
            f"{name} weighs models by classes, labels or quantities, and the targets are survival times; leave it out",
        )


def _survey(experiment: Experiment, source: Source, federation: Federation, progress: Progress | None) -> Data:
    """What there is to know of the data; `progress` is told before training."""
    found = survey(experiment.scenario, source, federation)
    if experiment.training.balance:
        found = dataclasses.replace(found, notes=(*found.notes, BALANCED))
    tell = getattr(progress, "data", None)
    if tell is not None:
        tell(found)
    return cast(Data, found.to_json())


def _findings(
    jobs: Mapping[tuple[str, int], Job], entries: Mapping[str, Entry], seeds: Sequence[int], own: Metric | None
) -> Findings:
    """The runs of a published protocol, judged against its own LOCAL."""
    federation = jobs[CONTROL, seeds[0]].federation
    chosen, why = _usual(federation) if own is None else _metric(own, federation)

    def way(name: str, title: str, kind: Kind) -> Way:
        runs = [jobs[name, seed] for seed in seeds]
        found = [answered(job.federation, job.federation.test, kept_outputs(job, "test")) for job in runs]
        return Way(name, title, kind, [dataclasses.replace(a, repeat=i) for i, a in enumerate(found)], remarks(runs))

    ways = [way(CONTROL, CONTROL, "alone")]
    if (FULLER, seeds[0]) in jobs:
        ways.append(way(FULLER, "local on train and validation rows", "alone"))
    guarded = len(ways) > 1 and any(decision(name) is not None for name in entries)
    if guarded:
        ways.reverse()  # the first is the bar
    ways += [way(name, name, "method") for name in entries if name != CONTROL]
    found = find(ways, federation.owners, chosen, why)
    # What is decided after training learns from these rows, too; against less, an owner's own model would look better.
    told = "as what is decided after training learns from all of these rows"
    return dataclasses.replace(found, why_bar=told) if guarded else found


def _usual(federation: Federation) -> tuple[Metric, str]:
    """What published protocols are about, and why."""
    return _metric(KINDS[federation.target_kind].metric, federation)


def usual_folds(experiment: Experiment, source: Source) -> int:
    """How many folds there are where nobody says: several for a small table."""
    who = experiment.scenario
    # A published test part stays the test part, and so does one of a given size.
    small = source.table is not None and len(source) < SMALL_TABLE
    return FOLDS if small and who.pool == "all" and who.samples is None else 1


def folds_of(experiment: Experiment, source: Source, seed: int) -> list[Fold]:
    """The divisions of a comparison; without folds, one."""
    count = experiment.folds or usual_folds(experiment, source)
    build = experiment.scenario.build
    places = [None] if count == 1 else [(i, count) for i in range(count)]
    rows = [[build(seed, source=source, fold=fold, refit=refit) for refit in (False, True)] for fold in places]
    return [Fold(number, *both) for number, both in enumerate(rows)]


def metric_of(asked: Asked, federation: Federation) -> tuple[Metric, str]:
    """What the verdict on a user's own data is about, and why."""
    return _metric(asked.metric or asked.experiment.metric, federation)


def _metric(asked: str | Metric | None, federation: Federation) -> tuple[Metric, str]:
    """What the verdict is about, and why."""
    kind = federation.target_kind
    target: Target = "classes" if kind == "class" else kind
    if asked is not None:
        chosen = metric(asked) if isinstance(asked, str) else asked
        require(
            chosen.target == target,
            f"metric '{chosen.name}' is for {chosen.target}, and the label is {KINDS[kind].words}; leave it out for a "
            "default",
        )
        return chosen, f"{chosen.title}, as published or asked for"
    owners = {name: federation.train.client(k)[1].numpy() for k, name in enumerate(federation.owners)}
    choice = default_metric(target, owners)
    return choice.metric, choice.why


def clear(folder: Path) -> None:
    """Delete a comparison's own files, and nothing else that may lie in its folder."""
    for settings in sorted(folder.glob("runs/**/settings.json")):
        _clear_run(settings.parent)
    pages = [folder / name for name in ("report.html", "figures/differences.png", "figures/curves.png")]
    made = [file for kind in ("locks/*", "tools/**/*") for file in folder.glob(f"runs/**/{kind}")]
    for path in (*filter(Path.is_file, made), folder / "settings.json", folder / "summary.json", *pages):
        path.unlink(missing_ok=True)


def _clear_run(run: Path) -> None:
    folders = [run / "states", *(run / name for name in TABLES)]
    grown = [file for one in folders for suffix in ("parquet", "safetensors") for file in one.glob(f"*.{suffix}")]
    earlier = [table for table in folders if table.is_file()]  # of an earlier version, in which a table was one file
    for path in (*(run / name for name in (*FILES, *FILES_TO_USE)), *grown, *earlier):
        path.unlink(missing_ok=True)
    for emptied in (*folders, run):
        if emptied.is_dir() and not any(emptied.iterdir()):
            emptied.rmdir()


def run(
    method: str, *, out: Path | str | None = None, seed: int = 0, progress: Progress | None = None, **settings: Any
) -> Comparison:
    """One method and its control, with one seed."""
    return compare([method], seeds=[seed], out=out, progress=progress, **settings)
