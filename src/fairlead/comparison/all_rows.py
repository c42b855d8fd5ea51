"""After the folds: models to use, trained on all rows.

A fold's models learned from a part of the rows so that the others could judge them. What is used afterwards may learn
from all: with the step size and rounds that the folds chose, LOCAL and whatever is recommended is trained once more.
Nothing is judged by these runs, and they have no test rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low

import torch

from fairlead.catalogue import decision, with_voices
from fairlead.comparison.assess import Trained, decided, voted
from fairlead.comparison.bench import Bench, Fold, inside
from fairlead.comparison.decisions import Voice, in_parts
from fairlead.comparison.findings import Findings
from fairlead.comparison.tools import folder_of, tools
from fairlead.core import DivergedError, Federation, NeedsValidationError, Split
from fairlead.effort import Choice
from fairlead.methods.voices import HALVES
from fairlead.metrics import Metric
from fairlead.runs.run import Job, result
from fairlead.runs.summary import Kept


def train_on_all_rows(
    bench: Bench, fold: Fold, runs: Mapping[str, Sequence[Trained]], names: Iterable[str], metric: Metric
) -> dict[str, Job]:
    """A run on all rows of each method that can do without validation rows.

    What is decided after training is decided by the folds' models: each answered for rows it had not learned from.
    """
    federation = joined(fold.refit)
    done: dict[str, Job] = {}

    def made(place: str, name: str, rows: Federation) -> Job:
        choice = middle([run.choice for run in runs[name]])
        job = decided(bench.job(place, name, rows, bench.seed), choice)
        result(job, progress=bench.tell(name, choice.round))
        return job

    for name in with_voices(names, bench.experiment.options):
        how = decision(name, bench.experiment.options)
        if how is not None:
            # Two folds are the halves themselves: what more rows change is not known then.
            if all(voice in done and len(runs[voice]) > HALVES for voice in how.voices):
                halves = list(enumerate(in_parts(federation, HALVES, bench.seed)))
                halved = {v: [made(f"all/part{j}of{HALVES}", v, half) for j, half in halves] for v in how.voices}
                voices = [Voice(v, done[v], [run.final[0] for run in runs[v]], halved[v]) for v in how.voices]
                done[name] = voted(bench, name, "all", federation, voices, metric)
            continue
        try:
            done[name] = made("all", name, federation)
        except (NeedsValidationError, DivergedError):  # the models of the folds are there
            continue
    return done


def tools_on_all_rows(bench: Bench, fold: Fold, kept: Mapping[str, Kept], name: str) -> dict[str, Kept]:
    """Where the tools are, and one of them once more: fitted on all rows, with the settings of the first fold."""
    if name not in kept:
        return dict(kept)
    every = fold._replace(refit=joined(fold.refit))
    tools(bench, every, "all")
    place = inside(bench, folder_of(bench, every, "all") / name)
    return {**kept, name: Kept(final=kept[name]["final"], all_rows=place)}


def to_use(found: Findings) -> list[str]:
    """LOCAL, and the methods that are recommended to somebody."""
    if found.recommendation is None:
        return ["local"]
    named = [found.recommendation.federation.method, *(owner.method for owner in found.recommendation.owners)]
    return list(dict.fromkeys(["local", *(name for name in named if name is not None)]))


def middle(choices: Sequence[Choice]) -> Choice:
    """The median step size, and the median rounds of the folds that chose it."""
    lr = median_low([choice.lr for choice in choices])
    with_it = sorted((choice for choice in choices if choice.lr == lr), key=lambda choice: choice.round)
    return with_it[(len(with_it) - 1) // 2]


def joined(federation: Federation) -> Federation:
    """The federation with each client's test rows among its train rows, and none to test."""
    train, test = federation.train, federation.test
    both = [(k, split) for k in range(federation.clients) for split in (train, test)]
    pieces = [(split, slice(int(split.starts[k]), int(split.starts[k + 1]))) for k, split in both]
    names = ("x", "y", "rows", "groups")
    x, y, rows, groups = (torch.cat([getattr(split, name)[where] for split, where in pieces]) for name in names)
    none = Split(test.x[:0], test.y[:0], torch.zeros_like(test.starts), test.rows[:0], test.groups[:0])
    return dataclasses.replace(federation, train=Split(x, y, train.starts + test.starts, rows, groups), test=none)
