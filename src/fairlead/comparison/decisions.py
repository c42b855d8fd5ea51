"""What each client deploys, decided after training: `METHOD+guard` and `METHOD+stack`.

1. cross     the client's rows are cut into parts; every voice is trained without each part once and answers for it,
             so that all rows are answered by models that did not learn from them; the same with fewer rows to
             learn from tells what more rows change;
2. decide    the clients and the server find weights and chances from these answers (`methods.voices.decide`);
3. deploy    the voices' final models, which learned from all rows, become one module with the decided weights.

The result is a run folder like any other, with `decision.json` beside its models.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fairlead.clients import KEPT, InProcess, States, wrapped
from fairlead.core import Federation, Layout, NeedsValidationError, Plan, RunError, Split
from fairlead.core.targets import KINDS
from fairlead.data.folds import divide, group_means, owner_stream
from fairlead.data.partition import Index
from fairlead.functional import voice_outputs
from fairlead.methods import Decision
from fairlead.methods.voices import (
    ROUNDS,
    LeftOut,
    Weigh,
    decide,
    rows_together,
    soft_targets,
    student,
    voices_together,
)
from fairlead.metrics import METRICS, Metric
from fairlead.rounds import Best, Round, Snapshot, federate
from fairlead.runs.checkpoint import load_snapshot, save_snapshot
from fairlead.runs.deployment import FILE as DEPLOYMENT
from fairlead.runs.files import append_part, read_json, write_json
from fairlead.runs.material import Material
from fairlead.runs.records import go_back
from fairlead.runs.run import DECISION, Job, Progress, Run, deployment_of, kept_outputs, on_device, result
from fairlead.runs.summary import RunSummary, read_run_summary, write_run_summary

PARTS = 1_000  # what the draws of the parts are called among an owner's own
LEAST = 0.01  # a weight below is nothing


class Voice(NamedTuple):
    """A method's runs: the one whose models are deployed, and those that each left a part of the rows out."""

    name: str
    final: Job
    parts: list[Job]  # of a voice that nobody listened to in the first part: that one alone
    fewer: Sequence[Job] = ()  # those that learned from fewer rows, half of them say; none of such a voice

    @property
    def runs(self) -> list[Job]:
        """All of them, the deployed one first."""
        return [self.final, *self.parts, *self.fewer]


def in_parts(federation: Federation, count: int, seed: int, validation: float = 0.0) -> list[Federation]:
    """Federations that each lack a part of every client's train rows; the part is what they are tested on.

    `validation` is the share of the other rows that a method looks at while it trains. A client with a single row
    keeps it in all of them.
    """
    train = federation.train
    cuts: list[list[Tensor]] = []  # by client and part: positions among the train rows
    held: list[list[Tensor]] = []  # to look at while training, from the other rows
    rest: list[list[Tensor]] = []  # to learn from
    for k, name in enumerate(federation.owners):
        group = _groups(train, k)
        y = group_means(group, train.client(k)[1].double().numpy())
        n, units = len(y), np.arange(len(y))
        sizes = np.array([n // count + (j < n % count) if n > 1 else 0 for j in range(count)])
        parts = divide(units, y, sizes, owner_stream(seed, name, PARTS, count))
        cuts.append([_rows_in(group, part) for part in parts])
        held.append([])
        rest.append([])
        for j, part in enumerate(parts):
            others = np.setdiff1d(units, part)
            few = min(max(round(validation * len(others)), 1), len(others)) if validation else 0
            (some,) = divide(others, y, np.array([few]), owner_stream(seed, name, PARTS, count, j))
            left = np.setdiff1d(others, some)
            held[k].append(_rows_in(group, some))
            rest[k].append(_rows_in(group, left if len(left) else others))  # one row is both

    def of(j: int) -> Federation:
        learn, look, judge = (taken(train, [own[j] for own in each]) for each in (rest, held, cuts))
        return dataclasses.replace(federation, train=learn, validation=look, test=judge)

    return [of(j) for j in range(count)]


def _groups(split: Split, client: int) -> Index:
    """The group of each of a client's rows, counted from 0; a row is a group of its own where nothing else is said."""
    a, b = int(split.starts[client]), int(split.starts[client + 1])
    return np.unique(split.groups[a:b], return_inverse=True)[1] if len(split.groups) else np.arange(b - a)


def _rows_in(group: Index, some: Index) -> Tensor:
    """The positions of the rows that belong to some groups."""
    return torch.from_numpy(np.flatnonzero(np.isin(group, some)))


def cut(federation: Federation, how: LeftOut, seed: int, validation: float = 0.0) -> list[Federation]:
    """The federations of all trainings of this kind: see `in_parts` and `halved`."""
    parts = in_parts(federation, how.of, seed, validation)
    return [halved(one, seed) for one in parts] if how.halved else parts


def halved(federation: Federation, seed: int) -> Federation:
    """Without half of every client's train rows, and of its validation rows; the test rows stay."""

    def half(split: Split) -> Split:
        left = []
        for k, name in enumerate(federation.owners):
            group = _groups(split, k)
            y = group_means(group, split.client(k)[1].double().numpy())
            n, rng = len(y), owner_stream(seed, name, PARTS, 2)
            kept = divide(np.arange(n), y, np.array([n - n // 2, n // 2]), rng)[1] if n > 1 else np.arange(n)
            left.append(_rows_in(group, kept))
        return taken(split, left)

    return dataclasses.replace(federation, train=half(federation.train), validation=half(federation.validation))


def taken(split: Split, positions: Sequence[Tensor]) -> Split:
    """Some of the rows, by each client's positions."""
    index = torch.cat([split.starts[k] + own for k, own in enumerate(positions)])
    starts = torch.tensor([0, *map(len, positions)]).cumsum(0)
    return split.take(index, starts)


def said(voices: Sequence[Voice]) -> Federation:
    """What the voices say of all rows, each by models that did not learn from it, as train samples (n, M, K)."""

    def of(runs: Sequence[Sequence[Job]]) -> Answers:
        outputs = [[kept_outputs(job, "test") for job in jobs] for jobs in runs]
        return Answers(outputs, [job.federation for job in runs[0]])

    parts = of([voice.parts for voice in voices])
    return in_order(parts, of([voice.fewer for voice in voices]) if voices[0].fewer else parts)


def heard(first: Sequence[Voice], decision: Decision, metric: Metric) -> set[str]:
    """The voices that somebody listens to, by what all of them say of the first part of everybody's rows; LOCAL, too.

    The others need not be trained without the other parts. Of two voices both are heard.
    """
    if len(first) <= 2:
        return set(decision.voices)
    rows, _ = weights_of(first[0].parts[0], said(first), decision._replace(sure=None), metric)
    most = rows[:, : len(first)].max(0).values
    return {"local"} | {voice.name for voice, weight in zip(first, most.tolist(), strict=True) if weight >= LEAST}


class Answers(NamedTuple):
    """Outputs by voice, part and client, and the federations of the parts, whose test rows they are for."""

    outputs: Sequence[Sequence[Sequence[Tensor]]]
    parts: Sequence[Federation]


def in_order(crossed: Answers, fewer: Answers) -> Federation:
    """Samples to decide by, (2n, M, K) of each client: what was said of its parts, then of its halves.

    Their row numbers are those of the parts; their groups are whom the rows are about.
    """
    first, (by_parts, by_fewer) = crossed.parts[0], (one_after_another(said) for said in (crossed, fewer))
    both = [split.client(k) + split.marks(k) for k in range(first.clients) for split in (by_parts, by_fewer)]
    x, y, parts, groups = (torch.cat([one[i] for one in both]) for i in range(4))
    train = Split(x, y, by_parts.starts + by_fewer.starts, parts, groups)
    none = Split(x[:0], y[:0], torch.zeros_like(train.starts))
    return Federation(train, none, none, first.classes, first.names)


def one_after_another(said: Answers) -> Split:
    """A client's parts one after another, (n, M, K), with the number of its part for each row."""
    outputs, parts = said
    x, y, rows, groups, sizes = [], [], [], [], []
    for k in range(parts[0].clients):
        # Larger parts first, whatever their numbers: the same rows are in the same order.
        order = sorted(range(len(parts)), key=lambda j: -len(outputs[0][j][k]))
        z = [torch.cat([voice[j][k] for j in order]) for voice in outputs]
        x.append(torch.stack([voice_outputs(one, parts[0].target_kind) for one in z], 1))
        y.append(torch.cat([parts[j].test.client(k)[1] for j in order]))
        rows += [torch.full((len(outputs[0][j][k]),), at) for at, j in enumerate(order)]
        groups += [parts[j].test.marks(k)[1] for j in order]
        sizes.append(len(y[-1]))
    return Split(torch.cat(x), torch.cat(y), torch.tensor([0, *sizes]).cumsum(0), torch.cat(rows), torch.cat(groups))


def deploy(
    job: Job, voices: Sequence[Voice], decision: Decision, metric: Metric, *, extend: bool = False
) -> RunSummary:
    """The run of a decision: read, where its folder holds it, else made from the voices' runs."""
    decision = decision._replace(parts=len(voices[0].parts))

    def make(job: Job, progress: Progress | None) -> None:
        write_json(job.folder / "settings.json", job.settings())
        left = [m for m, voice in enumerate(voices) if len(voice.parts) == decision.parts]
        between = decision._replace(voices=tuple(voices[m].name for m in left))
        found, cost = weights_of(job, said([voices[m] for m in left]), between, metric)
        weigh = torch.zeros(len(found), len(voices) + found.shape[1] - len(left))
        weigh[:, [*left, *range(len(voices), weigh.shape[1])]] = found.to(weigh)
        # Clients of a decision have no state but what they deploy.
        none = {f"state.{n}": x for n, x in States(job.federation.clients, {}).save()().items()}
        models = together(job, voices, weigh)
        if decision.distil:
            models, more = distilled(job, voices, weigh, models)
            cost = {name: spent + more[name] for name, spent in cost.items()}
        saved = none | {KEPT: models}
        last = Best(job.experiment.rounds, 0.0, math.inf, 0)
        save_snapshot(job.folder / "checkpoint.safetensors", Snapshot(last.round, {}, {}, lambda: saved, last))
        write_json(job.folder / DEPLOYMENT, deployment_of(job).to_json())
        write_json(job.folder / DECISION, told(job, voices, decision, metric, weigh))
        summary = summarise(job, voices, cost)
        go_back(job.folder / "records.parquet", 0)
        append_part(job.folder / "records.parquet", last.round, records(summary))
        write_run_summary(job.folder, summary)

    return result(job, by=make, extend=extend)


def weights_of(job: Job, samples: Federation, decision: Decision, metric: Metric) -> tuple[Tensor, dict[str, float]]:
    """What each client decides, a row of `Weigh` each, and what the decision cost."""
    method = decide(decision, metric, samples.target_kind)
    plan = Plan(rounds=ROUNDS, evaluate_every=ROUNDS, seed=job.seed)
    with InProcess(samples, job.experiment.training, job.engine) as clients:
        module = Weigh(len(decision.voices)).to(Layout(on_device(job)).device)
        rounds = [happened for happened, _ in federate(method, clients, module, plan)]
        return clients.models(torch.arange(samples.clients)).cpu(), cost_of(rounds)


def cost_of(rounds: Sequence[Round]) -> dict[str, float]:
    """What rounds cost, as a run's summary tells it."""
    cost: dict[str, float] = {n: sum(getattr(r, n) for r in rounds) for n in ("bytes_up", "bytes_down", "passes")}
    return cost | {"train_seconds": sum(r.seconds for r in rounds)}


def together(job: Job, voices: Sequence[Voice], weigh: Tensor) -> Tensor:
    """The models to deploy, (N, D): the voices' final models and the decided weights."""
    pieces = [(Layout(network(voice.final)), kept(voice.final)) for voice in voices]
    return rows_together(pieces, weigh.to(pieces[0][1]), Layout(in_one(job, voices)))


def in_one(job: Job, voices: Sequence[Voice]) -> nn.Module:
    """The voices' networks as one module, with any weights."""
    return wrapped(voices_together([voice.final.entry.method for voice in voices]), copy.deepcopy(job.module), job.seed)


def network(job: Job) -> nn.Module:
    """A run's network, with any weights."""
    return wrapped(job.entry.method, copy.deepcopy(job.module), job.seed)


def kept(job: Job) -> Tensor:
    """The models that a run deploys, (N, D)."""
    saved = load_snapshot(job.folder / "checkpoint.safetensors").clients()
    if KEPT not in saved:
        raise RunError(f"{job.folder} has too many models to keep them, so none can be chosen among")
    return saved[KEPT].cpu()


def distilled(job: Job, voices: Sequence[Voice], weigh: Tensor, models: Tensor) -> tuple[Tensor, dict[str, float]]:
    """One network for each client in the place of its weighed voices, (N, D), and what that cost.

    It begins as the voice with the largest weight and trains as long as LOCAL did, on the client's own rows, whose
    targets are halfway to what the voices say of them. Who deploys one voice alone keeps its network.
    """
    alone, federation, count = voices[0].final, job.federation, len(voices)
    train, kind = federation.train, federation.target_kind
    able = [m for m, voice in enumerate(voices) if voice.final.entry.method.wrap is None]
    every = torch.stack([kept(voices[m].final) for m in able])
    first = every[weigh[:, able].argmax(1), torch.arange(len(weigh))]
    teacher, soft = in_one(job, voices), []
    for k, row in enumerate(models):
        x, y = train.client(k)
        with torch.no_grad():
            soft.append(soft_targets(Layout(teacher).write(row, teacher).eval()(x), y, kind))
    learn = dataclasses.replace(train, y=torch.cat(soft))
    none = Split(learn.x[:0], learn.y[:0], torch.zeros_like(learn.starts))
    rows = dataclasses.replace(federation, train=learn, validation=none, test=none)
    e = alone.experiment
    training = dataclasses.replace(e.training, criterion=KINDS[kind].criterion, balance=False)
    with InProcess(rows, training, job.engine) as clients:
        plan = Plan(rounds=e.rounds, evaluate_every=e.rounds, seed=job.seed)
        rounds = [happened for happened, _ in federate(student(first), clients, on_device(job), plan)]
        found = clients.models(torch.arange(rows.clients)).cpu()
    single = (weigh[:, :count].max(1).values == 1) & (weigh[:, :count].sum(1) == 1)
    return torch.where(single[:, None], first, found), cost_of(rounds)


def told(job: Job, voices: Sequence[Voice], decision: Decision, metric: Metric, weigh: Tensor) -> dict[str, Any]:
    """The decision in plain values: client by client, beside what each voice scores on the test rows."""
    layout = Layout(Weigh(len(voices)))
    of, sd = layout.stacked(weigh.double()), job.federation.target.sd
    scores = {voice.name: _scores(voice.final, metric) for voice in voices}
    clients = []
    for k, name in enumerate(job.federation.owners):
        weights = dict(zip((v.name for v in voices), of["weight"][k].tolist(), strict=True))
        # Models learn quantities in standard deviations; errors in their own unit are what the page tells.
        unit = sd[k] if sd and metric.name in ("rmse", "mae") else 1.0
        clients.append({"name": name, **chosen(weights, float(of["worse"][k]), unit * float(of["gain"][k]))})
    return {
        "voices": list(decision.voices),
        "dropped": [voice.name for voice in voices if len(voice.parts) < decision.parts],
        "sure": decision.sure,
        "parts": decision.parts,
        "distilled": decision.distil,
        "metric": metric.name,
        "clients": clients,
        "test_scores": scores,
    }


def chosen(weights: dict[str, float], worse: float, gain: float) -> dict[str, Any]:
    """What a client deploys, with its chance of being worse than alone and its gain; or what it declined."""
    what, risk = deploys(weights), {"worse": worse, "gain": gain}
    found = {"deploys": what, "weights": weights}
    return found | ({"worse": 0.0, "gain": 0.0, "declined": risk} if what == "local" else risk)


def deploys(weights: dict[str, float]) -> str:
    """The one voice that counts, or the stack."""
    alone = [name for name, weight in weights.items() if weight == 1.0]
    return alone[0] if alone and sum(map(abs, weights.values())) == 1.0 else "stack"


def _scores(job: Job, metric: Metric) -> list[float | None]:
    """Each client's score on its test rows, quantities in their own unit."""
    found, sd = [], job.federation.target.sd
    for k, out in enumerate(kept_outputs(job, "test")):
        y, given = job.federation.test.client(k)[1].numpy(), out.numpy()
        if metric.target == "quantity":
            y, given = ((sd[k] if sd else 1.0) * values.reshape(len(values)) for values in (y, given))
        value = metric(y, given).value
        found.append(value if math.isfinite(value) else None)
    return found


def summarise(job: Job, voices: Sequence[Voice], cost: dict[str, float]) -> RunSummary:
    """The run's own figures; its cost is that of all trainings behind it."""
    runs = [read_run_summary(one.folder) for voice in voices for one in voice.runs]
    usual = {"class": "accuracy", "labels": "label-accuracy"}.get(job.federation.target_kind)
    count = job.federation.clients
    seconds = cost["train_seconds"] + sum(r["train_seconds"] for r in runs)
    samples = sum(r["train_seconds"] * r["samples_per_second"] for r in runs)
    return {
        "method": job.name,
        "seed": job.seed,
        "model": "personal",
        "round": {"rule": "last", "round": job.experiment.rounds, "of": job.experiment.rounds},
        "average": "clients",
        "accuracy": _scores(job, METRICS[usual]) if usual else [None] * count,
        "n_test": job.federation.test.sizes.tolist(),
        "n_train": job.federation.train.sizes.tolist(),
        "names": list(job.federation.names),
        "bytes_up": int(cost["bytes_up"]) + sum(r["bytes_up"] for r in runs),
        "bytes_down": int(cost["bytes_down"]) + sum(r["bytes_down"] for r in runs),
        "passes": int(cost["passes"]) + sum(r["passes"] for r in runs),
        "train_seconds": seconds,
        "samples_per_second": samples / max(seconds, 1e-9),
        "left_out": sum(r["left_out"] for r in runs),
    }


@dataclass(frozen=True)
class Protocol:
    """Voices of a published protocol: rounds and step size as they are given, models of the last round."""

    refit: Material  # train and validation rows together
    validation: float  # the share of these rows that a method which needs them looks at while it trains
    jobs: Mapping[tuple[str, int], Job]  # by method and seed: the runs that are compared, all trained
    run: Callable[[str, str, int], Run]  # a method under a name of its folder with a seed
    teller: Callable[[str, int], Progress | None]
    extend: bool
    _parts: dict[tuple[bool, int, bool], list[Material]] = field(default_factory=dict, repr=False)

    def deploy(self, name: str, seed: int, how: Decision, metric: Metric) -> tuple[Job, RunSummary]:
        """The run of a decision."""
        voices = [self.voice(name, seed, how.crossed[:1]) for name in how.voices]
        kept = heard(voices, how, metric)
        voices = [self.voice(v.name, seed, how.crossed, how.fewer) if v.name in kept else v for v in voices]
        job = self.refit.job(self.run(name, name, seed), voices[0].final.engine)
        return job, deploy(job, voices, how, metric, extend=self.extend)

    def voice(self, name: str, seed: int, parts: Sequence[LeftOut], fewer: Sequence[LeftOut] = ()) -> Voice:
        """A method's run on all rows, and those without parts of them."""
        compared = self.jobs[name, seed]
        final, validated = compared, False
        if self.validation:
            final = self.refit.job(self.run(name, f"{name}-all-rows", seed), compared.engine)
            try:
                self._train(final)
            except NeedsValidationError:
                final, validated = compared, True

        def without(each: Sequence[LeftOut]) -> list[Job]:
            jobs = []
            for one in each:
                rows = self.parts(one, validated)[one.which]
                jobs.append(rows.job(self.run(name, f"{name}-{one.name}", seed), compared.engine))
                self._train(jobs[-1])
            return jobs

        return Voice(name, final, without(parts), without(fewer))

    def parts(self, how: LeftOut, validated: bool) -> list[Material]:
        """The rows without each of their parts, cut once for all methods and seeds."""
        key = (validated, how.of, how.halved)
        if key not in self._parts:
            rows = cut(self.refit.federation, how, 0, self.validation if validated else 0.0)
            self._parts[key] = [Material(self.refit.experiment, one, self.refit.factory) for one in rows]
        return self._parts[key]

    def _train(self, job: Job) -> None:
        result(job, None, self.teller(job.name, job.seed), extend=self.extend)


def records(summary: RunSummary) -> dict[str, list[Any]]:
    """The scores of the only round there is, as the columns of a run's table."""
    count = len(summary["n_test"])
    same = {"round": summary["round"]["round"], "split": "test", "model": "personal", "loss": None}
    own: dict[str, list[Any]] = {"client": list(range(count)), "accuracy": summary["accuracy"], "n": summary["n_test"]}
    return {name: [value] * count for name, value in same.items()} | own


def read_decision(folder: Path) -> dict[str, Any] | None:
    """What was decided in a run's folder; None where nothing was."""
    path = folder / DECISION
    return dict(read_json(path)) if path.exists() else None
