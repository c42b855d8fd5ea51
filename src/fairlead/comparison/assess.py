"""A comparison on the user's own data: every way to train gets the same effort, then answers for the same test rows.

For each fold:

1. choose   every method searches for its step size and its number of rounds on validation rows (`effort.search`);
2. refit    with these it is trained again on train and validation rows together, as anybody alone would; a method that
            needs validation rows while it trains keeps the models of step 1;
3. answer   its deployed models give their outputs for the test rows.

LOCAL is one of the methods. Beside it stand the yardsticks (standard tools, each owner alone), LOCAL's twin (the same
training with another seed: how much luck there is in training) and `pooled` (all rows in one place).
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fairlead.catalogue import decision
from fairlead.comparison.bench import Bench, Fold, inside
from fairlead.comparison.decisions import Voice, deploy, heard, read_decision
from fairlead.comparison.findings import IMPROVING, LEVEL, Answers, Array, Finding, Findings, Way, mean
from fairlead.comparison.remarks import remarks
from fairlead.comparison.tools import folder_of, tools
from fairlead.comparison.yardsticks import Yardstick, pooled
from fairlead.core import DivergedError, Federation, NeedsValidationError, Split
from fairlead.effort import Choice, Curve, Effort, search
from fairlead.methods import Decision
from fairlead.methods.voices import LeftOut
from fairlead.metrics import Metric, OwnerVerdict
from fairlead.runs.identity import digest, versions
from fairlead.runs.records import rows_of, validation_losses
from fairlead.runs.run import Job, check_same, kept_outputs, result, rounds_in
from fairlead.runs.summary import Data, Found, Kept, Summary, read_run_summary

POOLED = "pooled"


# Settings of a trial, which differ from one to the next.
SEARCHED = ("rounds", "evaluate_every", "tested", "patience", "select", "training.lr", "training.rounds")


def check_folder(bench: Bench, folds: Sequence[Fold]) -> None:
    """Refuse a folder whose runs were made from something else, before anything is written."""
    for fold in folds:
        for name in bench.entries:
            if decision(name, bench.experiment.options) is not None:
                continue  # it is made from the others
            job = bench.job(f"fold{fold.number}/choose", name, fold.chooses, bench.seed_in(fold))
            for path in sorted(job.folder.glob("*/settings.json")):
                check_same(dataclasses.replace(job, folder=path.parent), SEARCHED)


class Trained(NamedTuple):
    """A method in one fold: what it chose, and the runs whose models it deploys."""

    choice: Choice
    chosen_in: Job
    final: list[Job]  # one for every repeat
    refitted: bool  # on train and validation rows together


def trained(bench: Bench, name: str, fold: Fold, repeats: int, place: str = "") -> Trained:
    """Choose on validation rows, then train the final models.

    Where one diverges, with its other rows or seed, all of them have the best of the smaller step sizes.
    """
    place = place or f"fold{fold.number}"
    below = math.inf
    while True:
        chosen_in, choice = chosen(bench, name, fold, place, below)
        try:
            return _final(bench, name, fold, repeats, place, chosen_in, choice)
        except DivergedError:
            below = choice.lr


def _final(bench: Bench, name: str, fold: Fold, repeats: int, place: str, chosen_in: Job, choice: Choice) -> Trained:
    def final(repeat: int, federation: Federation) -> Job:
        job = decided(bench.job(f"{place}/final{repeat}", name, federation, bench.seed_in(fold, repeat)), choice)
        result(job, None, bench.tell(name, choice.round))
        return job

    try:
        first, refitted = final(0, fold.refit), True
    except NeedsValidationError:
        first, refitted = chosen_in, False
    rows = fold.refit if refitted else fold.chooses
    return Trained(choice, chosen_in, [first, *(final(r, rows) for r in range(1, repeats))], refitted)


def chosen(bench: Bench, name: str, fold: Fold, place: str, below: float = math.inf) -> tuple[Job, Choice]:
    """The run that was best on validation rows, and its step size, of those `below`, and number of rounds."""
    return tune(bench, bench.job(f"{place}/choose", name, fold.chooses, bench.seed_in(fold)), below)


def weighed(bench: Bench, name: str, fold: Fold, done: Mapping[str, Trained], metric: Metric) -> Trained:
    """A decision between methods that are trained already: trained again without each part of the rows, then decided.

    What it is called, `choice` and `chosen_in`, is the last voice's: the method that is guarded.
    """
    how = decision(name, bench.experiment.options)
    assert how is not None
    kept = _heard(bench, fold, how, done, metric)

    def crossed(voice: str, each: Sequence[LeftOut]) -> list[Job]:
        return [without(bench, fold, voice, done[voice], one) for one in each]

    parts = {v: crossed(v, how.crossed if v in kept else how.crossed[:1]) for v in how.voices}
    fewer = {v: crossed(v, how.fewer if v in kept else ()) for v in how.voices}
    last = done[how.voices[-1]]
    final = []
    for repeat in range(bench.effort.repeats):
        last_of = {v: done[v].final[min(repeat, len(done[v].final) - 1)] for v in how.voices}
        voices = [Voice(v, last_of[v], parts[v], fewer[v]) for v in how.voices]
        final.append(voted(bench, name, f"fold{fold.number}/final{repeat}", fold.refit, voices, metric))
    return Trained(last.choice, last.chosen_in, final, all(done[v].refitted for v in how.voices))


def without(bench: Bench, fold: Fold, voice: str, one: Trained, part: LeftOut) -> Job:
    """A method trained again without a part of the rows, with what it had chosen."""
    rows, choice = bench.parts(fold, part, not one.refitted)[part.which], one.choice
    while True:
        job = decided(bench.job(f"fold{fold.number}/{part.name}", voice, rows, bench.seed_in(fold)), choice)
        try:
            result(job, None, bench.tell(voice, choice.round))
            return job
        except DivergedError:
            choice = chosen(bench, voice, fold, f"fold{fold.number}", choice.lr)[1]


def _heard(bench: Bench, fold: Fold, how: Decision, done: Mapping[str, Trained], metric: Metric) -> Collection[str]:
    """The voices that are worth further trainings, by those without the first part."""
    first = {v: [without(bench, fold, v, done[v], how.crossed[0])] for v in how.voices}
    return heard([Voice(v, done[v].final[0], first[v]) for v in how.voices], how, metric)


def voted(bench: Bench, name: str, place: str, federation: Federation, voices: Sequence[Voice], metric: Metric) -> Job:
    """The run of a decision, made from its voices' runs."""
    how = decision(name, bench.experiment.options)
    assert how is not None
    last = voices[-1].final
    job = bench.job(place, name, federation, last.seed)
    # Made from other runs or for another metric, it is another run.
    made = [inside(bench, one.folder) for voice in voices for one in voice.runs]
    e = dataclasses.replace(last.experiment, unseen=job.experiment.unseen, options=job.experiment.options)
    job = dataclasses.replace(job, folder=job.folder / digest([made, metric.name]), experiment=e)
    deploy(job, voices, how, metric)
    return job


def tune(bench: Bench, job: Job, below: float = math.inf) -> tuple[Job, Choice]:
    """Search for a method's step size and rounds; every step size has a run folder of its own.

    One that is not `below` is taken to diverge.
    """
    effort, key = bench.effort, (job.folder, below)

    def trial(lr: float, rounds: int) -> Job:
        folder = job.folder / f"lr{lr:.3g}"
        e = dataclasses.replace(
            job.experiment,
            rounds=max(rounds, rounds_in(folder)),  # a trial that went on answers for its first rounds, too
            training=dataclasses.replace(job.experiment.training, lr=lr),
            evaluate_every=effort.every,
            patience=effort.patience,
            select="loss",
            tested=False,
        )
        e = dataclasses.replace(e, training=dataclasses.replace(e.training, rounds=e.rounds))
        return dataclasses.replace(job, folder=folder, experiment=e)

    def run(lr: float, rounds: int) -> Curve:
        if lr >= below:
            raise DivergedError(f"step size {lr:.3g} diverged with other rows or another seed")
        one = trial(lr, rounds)
        with quiet():
            result(one, None, bench.tell(job.name, effort.rounds), extend=True)
        found = {r: loss for r, loss in validation_losses(one.folder / "records.parquet").items() if r <= rounds}
        return Curve(list(found), list(found.values()), stopped=max(found) < rounds)

    # Every final training begins with it: made or read once, it is not read again.
    if key not in bench._choices:
        try:
            bench._choices[key] = search(run, effort)
        except DivergedError as error:
            raise DivergedError(f"{job.name}: {error}; give a smaller one with --lr") from error
    choice = bench._choices[key]
    return trial(choice.lr, choice.round), choice


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings of single rounds: a step size that is too large is no news while step sizes are tried."""
    log = logging.getLogger("fairlead.rounds")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def decided(job: Job, choice: Choice) -> Job:
    """The job with what was chosen; it is scored once, at its end."""
    training = dataclasses.replace(job.experiment.training, lr=choice.lr, rounds=choice.round)
    e = dataclasses.replace(
        job.experiment,
        rounds=choice.round,
        training=training,
        evaluate_every=choice.round,
        patience=None,
        select="last",
    )
    # Another choice, after more rounds say, is another run.
    return dataclasses.replace(job, folder=job.folder / f"lr{choice.lr:.3g}-rounds{choice.round}", experiment=e)


class Assessment(NamedTuple):
    """All ways to train, ready to be judged, and the federated runs behind them."""

    ways: list[Way]
    twins: list[Answers]
    runs: dict[str, list[Trained]]  # by method, one for every fold
    tools: Mapping[str, Kept]  # by name: where the models of a standard tool are
    all_rows: Mapping[str, Job] = MappingProxyType({})  # by method: a last run on all rows, to be used and not judged


def trainings(bench: Bench, name: str, folds: Sequence[Fold]) -> int:
    """Final trainings of a method in a fold. Where one is all there is, LOCAL has another: its twin."""
    lone = bench.effort.repeats == 1 and len(folds) == 1
    return bench.effort.repeats + (name == "local" and lone)


class Piece(NamedTuple):
    """A part of an assessment that leaves its files behind; made again, it reads them."""

    make: Callable[[], object]
    after: str = ""  # the name of the piece that it goes on from


def pieces(bench: Bench, folds: Sequence[Fold], metric: Metric) -> dict[str, Piece]:
    """What an assessment is made of, by name: the choices and the tools, then the first final trainings, and so on."""
    stages = [dict[str, Piece]() for _ in range(bench.effort.repeats + 2)]
    for fold in folds:
        for name in bench.entries:
            if decision(name, bench.experiment.options) is not None:
                continue
            before = f"{fold.number}-{name}"
            stages[0][before] = Piece(partial(chosen, bench, name, fold, f"fold{fold.number}"))
            for repeat in range(trainings(bench, name, folds)):
                last = f"{fold.number}-{name}-final{repeat}"
                stages[repeat + 1][last] = Piece(partial(trained, bench, name, fold, repeat + 1), before)
                before = last
        stages[0][f"{fold.number}-tools"] = Piece(partial(tools, bench, fold))
        stages[0][f"{fold.number}-{POOLED}"] = Piece(partial(_pooled, bench, fold, metric))
    return {name: piece for stage in stages for name, piece in stage.items()}


def crossings(bench: Bench, folds: Sequence[Fold], metric: Metric) -> dict[str, Piece]:
    """The trainings that what is decided after training needs beside `pieces`, by name."""
    found: dict[str, Piece] = {}

    def train(fold: Fold, how: Decision, voice: str, part: LeftOut) -> None:
        done = {v: trained(bench, v, fold, trainings(bench, v, folds)) for v in how.voices}  # from their folders
        if part == how.crossed[0] or voice in _heard(bench, fold, how, done, metric):
            without(bench, fold, voice, done[voice], part)

    hows = [how for name in bench.entries if (how := decision(name, bench.experiment.options)) is not None]
    for fold in folds:
        for how in hows:
            for part in (*how.crossed, *how.fewer):
                for voice in how.voices:
                    found[f"{fold.number}-{voice}-{part.name}"] = Piece(partial(train, fold, how, voice, part))
    return found


def assess(bench: Bench, folds: Sequence[Fold], metric: Metric) -> Assessment:
    """Train every method, LOCAL first, and what stands beside it, in every fold."""
    runs: dict[str, list[Trained]] = {name: [] for name in bench.entries}
    answers: dict[str, list[Answers]] = {name: [] for name in bench.entries}
    twins: list[Answers] = []
    company: dict[str, tuple[str, list[Answers]]] = {}
    shared: list[tuple[Answers, str]] = []
    for fold in folds:
        for name in bench.entries:
            if decision(name, bench.experiment.options) is None:
                one = trained(bench, name, fold, trainings(bench, name, folds))
            else:
                one = weighed(bench, name, fold, {n: own[-1] for n, own in runs.items() if own}, metric)
            found = [_answers(job, fold, repeat, metric, one.chosen_in) for repeat, job in enumerate(one.final)]
            if len(found) > bench.effort.repeats:
                twins.append(dataclasses.replace(found.pop(), repeat=0))
            runs[name].append(one)
            answers[name] += found
        for tool in tools(bench, fold):
            company.setdefault(tool.name, (tool.title, []))[1].append(_of_tool(tool, fold, metric))
        shared.append(_pooled(bench, fold, metric))
    local = Way("local", "the network alone", "alone", answers["local"], _notes(runs["local"], bench.effort))
    alone = [local, *(Way(n, title, "alone", found, []) for n, (title, found) in company.items())]
    methods = [
        Way(name, name, "method", answers[name], _notes(runs[name], bench.effort))
        for name in bench.entries
        if name != "local"
    ]
    by = ", ".join(dict.fromkeys(title for _, title in shared))
    last = Way(POOLED, f"all rows in one place, {by}", "pooled", [found for found, _ in shared], [])
    places = [folder_of(bench, fold) for fold in folds]
    kept = {name: Kept(final=[[inside(bench, place / name)] for place in places], all_rows=None) for name in company}
    return Assessment([*alone, *methods, last], twins, runs, kept)


def _notes(runs: Sequence[Trained], effort: Effort) -> list[str]:
    """What a method chose, and what to know of it."""
    rates = sorted({f"{run.choice.lr:.3g}" for run in runs}, key=float)
    rounds = sorted(run.choice.round for run in runs)
    span = f"{rounds[0]}" if rounds[0] == rounds[-1] else f"{rounds[0]} to {rounds[-1]}"
    said = [f"step size {' and '.join(rates)}, {span} rounds"]
    still = sum(run.choice.improving for run in runs)
    if still:
        folds = "" if len(runs) == 1 else f" in {still} of {len(runs)} folds"
        said.append(f"{IMPROVING} after {effort.rounds} rounds{folds}: a longer training may change the verdict")
    if not all(run.refitted for run in runs):
        said.append("needs its validation rows while it trains, so it learned from fewer rows than the others")
    return said + remarks([job for run in runs for job in run.final], searched=True)


def _answers(job: Job, fold: Fold, repeat: int, metric: Metric, chosen_in: Job) -> Answers:
    checked = answered(fold.chooses, fold.chooses.validation, kept_outputs(chosen_in, "validation"))
    outputs = kept_outputs(job, "test")
    found = answered(job.federation, job.federation.test, outputs)
    return dataclasses.replace(found, fold=fold.number, repeat=repeat, validation=row_numbers(checked, metric))


def _of_tool(tool: Yardstick, fold: Fold, metric: Metric) -> Answers:
    checked = answered(fold.chooses, fold.chooses.validation, tool.validation)
    found = answered(fold.refit, fold.refit.test, tool.test)
    return dataclasses.replace(found, fold=fold.number, validation=row_numbers(checked, metric))


def _pooled(bench: Bench, fold: Fold, metric: Metric) -> tuple[Answers, str]:
    """The best way to train on all rows in one place, by its validation rows: standard tools, or the network."""
    together = Fold(fold.number, pooled(fold.chooses), pooled(fold.refit))
    able = [tool for tool in tools(bench, together) if tool.name != "majority"]
    if able:
        scores = [row_numbers(_apart(fold.chooses, "validation", t.validation[0]), metric) for t in able]
        known = [-np.inf if s is None else s.mean() if metric.higher else -s.mean() for s in scores]
        best = able[int(np.argmax(known))]
        outputs, title = best.test[0], best.title
    else:
        one = trained(bench, "local", together, 1, f"fold{fold.number}/{POOLED}")
        outputs, title = kept_outputs(one.final[0], "test")[0], "the network"
    return dataclasses.replace(_apart(fold.refit, "test", outputs), fold=fold.number), title


def _apart(federation: Federation, split: str, outputs: Tensor) -> Answers:
    """Outputs for all rows in one place, given back to their owners."""
    rows: Split = getattr(federation, split)
    return answered(federation, rows, torch.split(outputs, rows.sizes.tolist()))


def answered(federation: Federation, split: Split, outputs: Sequence[Tensor]) -> Answers:
    """Outputs for a split with its row numbers and targets, quantities in their own unit."""
    rows, y, given, groups = [], [], [], []
    for k, out in enumerate(outputs):
        a, b = int(split.starts[k]), int(split.starts[k + 1])
        groups.append(split.groups[a:b].numpy())
        rows.append((split.rows if len(split.rows) else torch.arange(len(split.y)))[a:b].numpy())
        y.append(in_units(federation, k, split.y[a:b]))
        given.append(in_units(federation, k, out))
    return Answers(rows, y, given, groups=groups)


def in_units(federation: Federation, client: int, values: Tensor) -> Array:
    """Quantities in their own unit and risks, (n,); classes, their scores, and times with events as they are."""
    times = federation.target.survival and values.dim() == 2 and values.shape[1] == 2
    if federation.classes or times:
        return values.detach().numpy()
    flat = values.detach().double().reshape(len(values)).numpy()
    return flat * federation.target.sd[client] + federation.target.mean[client] if federation.target.sd else flat


def row_numbers(answers: Answers, metric: Metric) -> Array | None:
    """One number for each row of the owners for which the metric is defined; their mean is what choices are made by.

    It is the mean over owners, each counting the same, as in the table: an owner with most of the rows would else
    choose the bar of all others. The rows of small owners count more, so that the spread of these numbers shows their
    luck.
    """
    both = zip(answers.y, answers.outputs, strict=True)
    each = [metric.row_scores(y, out).rows for y, out in both if len(y) and not metric.check(y, out)]
    count = sum(map(len, each)) / max(len(each), 1)
    return np.concatenate([own * count / len(own) for own in each]) if each else None


def summarise_assessment(
    bench: Bench, found: Findings, done: Assessment, folds: Sequence[Fold], parameters: int, data: Data
) -> Summary:
    """The comparison's `summary.json`."""
    sizes = [_mean_sizes(folds, part) for part in ("train", "test")]
    methods: dict[str, Any] = {name: _method(bench, found, done, name, sizes) for name in done.runs}
    return Summary(
        scenario={"name": bench.experiment.name} | bench.experiment.to_json()["scenario"],
        settings=_settings(bench, parameters, folds),
        versions=versions(),
        control="local",
        methods=methods,
        tools=dict(done.tools),
        findings=cast(Found, found.to_json()),
        data=data,
    )


def _settings(bench: Bench, parameters: int, folds: Sequence[Fold]) -> dict[str, Any]:
    """What all methods have in common."""
    experiment, left_out = bench.experiment, ("lr", "rounds", "criterion", "decay")
    settings = {name: value for name, value in vars(experiment.training).items() if name not in left_out}
    settings |= {"model": experiment.model, "parameters": parameters}
    settings |= {"engine": bench.engine.name, "participation": experiment.participation, "options": experiment.options}
    settings |= {"rounds": bench.effort.rounds, "seeds": [f.number for f in folds], "folds": len(folds), "level": LEVEL}
    return settings | {"effort": dataclasses.asdict(experiment.effort) if experiment.effort else None}


def _method(bench: Bench, found: Findings, done: Assessment, name: str, sizes: list[list[int]]) -> dict[str, Any]:
    """A method's entry; `sizes` are the clients' train and test rows."""
    way, bar, runs = found[name], found[found.bar], done.runs[name]
    clients = [_client(k, found, way, bar, *both) for k, both in enumerate(zip(*sizes, strict=True))]
    entry = _numbers(way, bar, sizes[1], found.higher) | {
        **_costs(runs),
        "spread": {},
        "model": "personal",
        "round": {"rule": "loss", "rounds": [run.choice.round for run in runs]},
        "average": "clients",
        "worse": [c["id"] for c in clients if c["verdict"] == "worse"],
        "clients": clients,
        "runs": [inside(bench, run.chosen_in.folder) for run in runs],
        "final": [[inside(bench, job.folder) for job in run.final[: bench.effort.repeats]] for run in runs],
        "all_rows": inside(bench, done.all_rows[name].folder) if name in done.all_rows else None,
        "search": [_search(run.choice) for run in runs],
        "notes": way.notes,
    }
    decisions = [read_decision(run.final[0].folder) for run in runs]
    return entry | ({} if None in decisions else {"decisions": decisions})


def _client(k: int, found: Findings, way: Finding, bar: Finding, n_train: int, n_test: int) -> dict[str, Any]:
    verdict = next((v for v in way.verdicts if v.owner == found.owners[k]), None)
    return {
        "id": k,
        "name": found.owners[k],
        "n_train": n_train,
        "n_test": n_test,
        "accuracy": way.scores[k],
        "local_accuracy": bar.scores[k],
        **judged(verdict),
        "newcomer": 0.0,
    }


def judged(verdict: OwnerVerdict | None) -> dict[str, Any]:
    """A verdict as part of a client's entry; nothing is known of one that was not judged."""
    if verdict is None:
        return {"difference": None, "interval": None, "verdict": "", "why": ""}
    span = [verdict.lower, verdict.upper]
    return {"difference": verdict.gain, "interval": span, "verdict": verdict.verdict, "why": verdict.why}


def _numbers(way: Finding, bar: Finding, n_test: list[int], higher: bool) -> dict[str, float | None]:
    """The table's numbers, over the owners for which the metric is defined."""
    both = zip(way.scores, bar.scores, n_test, strict=True)
    pairs = [(s, b, n) for s, b, n in both if s is not None and b is not None]
    if not pairs:
        return dict.fromkeys(("accuracy", "accuracy_samples", "r_accuracy", "ptr", "low5", "top5", "std"))
    scores, alone, sizes = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    ordered, few = np.sort(scores if higher else -scores), -(-len(scores) // 20)
    relative = mean(list((scores - alone) / alone)) if higher and bool((alone > 0).all()) else None
    return {
        "accuracy": float(scores.mean()),
        "accuracy_samples": float(scores @ sizes / sizes.sum()),
        "r_accuracy": relative,
        "ptr": way.ptr.share if way.ptr else None,
        "low5": float(abs(ordered[:few].mean())),
        "top5": float(abs(ordered[-few:].mean())),
        "std": float(scores.std()),
    }


def _costs(runs: Sequence[Trained]) -> dict[str, float]:
    """Bytes, passes, seconds and speed of a final run, mean over folds and repeats."""
    each = [_cost(job, run.choice.round) for run in runs for job in run.final]
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}


def _cost(job: Job, rounds: int) -> dict[str, float]:
    """Up to a round: a run that chose its round went on after it."""
    spent: dict[str, float] = {**cast(dict[str, Any], read_run_summary(job.folder))}
    if (job.folder / "rounds.parquet").exists():  # a decision between runs has none
        until = [row for row in rows_of(job.folder / "rounds.parquet") if row["round"] <= rounds]
        names = ("seconds", "samples", "passes", "bytes_up", "bytes_down")
        spent = {name: float(sum(row[name] for row in until)) for name in names}
        spent["train_seconds"] = spent["seconds"]
        spent["samples_per_second"] = spent["samples"] / max(spent["seconds"], 1e-9)
    told = ("bytes_up", "bytes_down", "train_seconds", "samples_per_second")
    return {name: spent[name] for name in told} | {"passes": spent["passes"] / len(job.federation.train.y)}


def _search(choice: Choice) -> dict[str, Any]:
    """What was tried and chosen, for a file."""
    tried = {f"{lr:.3g}": loss if np.isfinite(loss) else None for lr, loss in choice.tried.items()}
    return choice._asdict() | {"tried": tried}


def _mean_sizes(folds: Sequence[Fold], part: str) -> list[int]:
    """Rows an owner learned from on average, or was tested on in all."""
    sizes = np.array([getattr(f.refit, part).sizes.tolist() for f in folds])
    return [round(float(n)) for n in (sizes.mean(0) if part == "train" else sizes.sum(0))]
