"""What a comparison found: every way to train beside the best that an owner can do alone, owner by owner.

Ways to train come in three kinds. `alone`: LOCAL and standard tools, for which an owner needs nobody else; the best of
them on validation rows is the bar. `method`: federated. `pooled`: all rows in one place, what sharing the data itself
would have given. Each gave its answers for the same test rows, in one run or in several that differ in fold or seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.metrics import (
    METRICS,
    Metric,
    OwnerPairs,
    OwnerVerdict,
    PairedRun,
    PositiveTransfer,
    Recommendation,
    judge,
    positive_transfer,
    recommend,
)

Kind = Literal["alone", "method", "pooled"]
Array = NDArray[Any]
BEST_ALONE = "best alone"  # the bar's name where folds have different ones
IMPROVING = "still improving"  # so begins the note on a way whose training was cut short
LEVEL = 0.95  # all intervals of one way to train hold together with this chance


@dataclass(frozen=True)
class Answers:
    """What one way to train answered for the test rows of one run; lists are by owner."""

    rows: list[Array]  # (n,) ids
    y: list[Array]  # (n,) targets
    outputs: list[Array]  # (n, K) class scores, or (n,) quantities
    fold: int = 0
    repeat: int = 0
    validation: Array | None = None  # one number for each validation row, whose mean is what choices are made by
    groups: list[Array] = field(default_factory=list)  # (n,) whom each row is about; empty where rows are independent


@dataclass(frozen=True)
class Way:
    """One way to train, and all its runs."""

    name: str
    title: str
    kind: Kind
    answers: list[Answers]
    notes: list[str]  # sentences: what it chose, what to know of it


@dataclass(frozen=True)
class Finding:
    """One way to train, judged."""

    name: str
    title: str
    kind: Kind
    score: float | None  # mean over owners
    lowest: float | None  # the owner's that it serves worst
    scores: list[float | None]  # by owner
    others: dict[str, float | None]  # further metrics, mean over owners
    gain: float | None  # mean over owners, positive where it is better than the bar
    ptr: PositiveTransfer | None  # the share of owners above the bar, and what chance alone would give
    verdicts: list[OwnerVerdict]  # by owner, against the bar; empty for the bar itself
    notes: list[str]

    def owners(self, verdict: str) -> list[str]:
        """The owners with this verdict."""
        return [v.owner for v in self.verdicts if v.verdict == verdict]


@dataclass(frozen=True)
class Findings:
    """All ways to train, and what to do."""

    metric: str
    higher: bool  # is better
    why_metric: str
    owners: list[str]
    bar: str  # the name of the best alone
    why_bar: str
    alone: str  # the way that an owner alone should use: the bar, or where folds have different ones, the most frequent
    training: str  # where training luck was measured: a key of `metrics.TRAINING`
    ways: list[Finding]
    recommendation: Recommendation | None  # None where LOCAL alone was run
    by_run: dict[str, list[list[float | None]]]  # the scores of every repeat, by way and owner

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        ways = [asdict(way) | {"verdicts": [v.to_json() for v in way.verdicts]} for way in self.ways]
        plain = {k: v for k, v in vars(self).items() if k not in ("ways", "recommendation")}
        return plain | {"ways": ways, "recommendation": self.recommendation.to_json() if self.recommendation else None}

    def __getitem__(self, name: str) -> Finding:
        return next(way for way in self.ways if way.name == name)


def find(
    ways: Sequence[Way], owners: Sequence[str], metric: Metric, why_metric: str, twins: Sequence[Answers] = ()
) -> Findings:
    """Judge every way to train against the best alone. `twins` are LOCAL's runs again, with other seeds."""
    by_name = {way.name: way for way in ways}
    bar, name, why, alone = best_alone([way for way in ways if way.kind == "alone"], metric)
    if name == BEST_ALONE:
        ways = [Way(name, "the best alone", "alone", bar, []), *ways]
    luck = paired(owners, twins, by_name["local"].answers) if twins else None
    # The best answer for all test rows is known only afterwards: on a few rows no method would come up to it.
    majority = by_name.get("majority")
    same = dict(zip(owners, by_owner(majority.answers, metric), strict=True)) if majority else {}
    found = []
    for way in ways:
        judged = [] if way.name == name else judge(paired(owners, way.answers, bar), metric, LEVEL, luck)
        judged = [replace(v, constant_score=same.get(v.owner, v.constant_score)) for v in judged]
        found.append(finding(way, metric, judged))
    verdicts = {f.name: f.verdicts for f in found if f.kind == "method"}
    improving = {f.name for f in found if any(note.startswith(IMPROVING) for note in f.notes)}
    return Findings(
        metric=metric.name,
        higher=metric.higher,
        why_metric=why_metric,
        owners=list(owners),
        bar=name,
        why_bar=why,
        alone=alone,
        training=_training_of(verdicts),
        ways=found,
        recommendation=recommend(verdicts, LEVEL, improving, name in improving) if verdicts else None,
        by_run={way.name: _by_run(way, metric) for way in ways},
    )


def _by_run(way: Way, metric: Metric) -> list[list[float | None]]:
    return [by_owner(runs, metric) for runs in repeats(way.answers)]


def _training_of(verdicts: Mapping[str, list[OwnerVerdict]]) -> str:
    """Where training luck was measured."""
    return next((v.training for own in verdicts.values() for v in own if v.training), "")


class Bar(NamedTuple):
    """What every way to train is judged against."""

    answers: list[Answers]
    name: str
    why: str
    alone: str  # the way behind it, or the most frequent of them


def best_alone(ways: Sequence[Way], metric: Metric) -> Bar:
    """The bar: in every fold the answers of the way that was best on the fold's validation rows.

    The choice is made inside the fold, so that no test row has a part in it. Another way takes the place of the first,
    LOCAL, where it is better by more than its standard error: a choice by luck among few rows would be a bar that is
    easy to pass. Where folds choose differently, the bar is made of several. Without validation scores, as in a
    published protocol, it is the first way.
    """
    chosen = {fold: _best_in(fold, ways, metric) for fold in sorted({a.fold for a in ways[0].answers})}
    bar = [answers for fold, way in chosen.items() for answers in way.answers if answers.fold == fold]
    counts = Counter(way.name for way in chosen.values()).most_common()
    titles, first = {way.name: way.title for way in ways}, next(iter(chosen.values()))
    if all(a.validation is None for way in ways for a in way.answers):
        return Bar(bar, first.name, "as published", first.name)
    if len(counts) == 1:
        stays = "since nothing else alone is better on validation rows by more than chance"
        why = stays if first is ways[0] else "the best alone on validation rows"
        return Bar(bar, first.name, why, first.name)
    told = ", ".join(f"{titles[name]} in {count}" for name, count in counts)
    why = f"chosen on the validation rows of each of {len(chosen)} folds ({told})"
    return Bar(bar, BEST_ALONE, why, counts[0][0])


def _best_in(fold: int, ways: Sequence[Way], metric: Metric) -> Way:
    """The way that was best on the fold's validation rows; the first if none is better by more than chance."""
    scores = [next(a for a in way.answers if a.fold == fold).validation for way in ways]
    if scores[0] is None:
        return ways[0]
    gains = [np.zeros(1) if own is None else (own - scores[0]) * (1 if metric.higher else -1) for own in scores]
    best = max(range(len(ways)), key=lambda i: float(gains[i].mean()))
    few = len(gains[best]) < 2  # of which no error is known
    error = np.inf if few else float(gains[best].std(ddof=1)) / np.sqrt(len(gains[best]))
    return ways[best if float(gains[best].mean()) > error else 0]


def paired(owners: Sequence[str], ours: Sequence[Answers], theirs: Sequence[Answers]) -> list[OwnerPairs]:
    """The same rows answered twice, owner by owner; a side with fewer repeats uses its own again."""
    (our, our_count), (their, their_count) = _by_place(ours), _by_place(theirs)
    found: list[list[PairedRun]] = [[] for _ in owners]
    for repeat, fold in product(range(max(our_count, their_count)), sorted({a.fold for a in ours})):
        a, b = our[fold, repeat % our_count], their[fold, repeat % their_count]
        for k, runs in enumerate(found):
            if len(a.rows[k]):
                groups = a.groups[k] if a.groups else ()
                runs.append(PairedRun(a.rows[k], a.y[k], a.outputs[k], b.outputs[k], repeat, fold, groups))
    return [OwnerPairs(name, runs) for name, runs in zip(owners, found, strict=True) if runs]


def _by_place(answers: Sequence[Answers]) -> tuple[dict[tuple[int, int], Answers], int]:
    """The answers by fold and repeat, and the number of repeats."""
    return {(a.fold, a.repeat): a for a in answers}, max(a.repeat for a in answers) + 1


def finding(way: Way, metric: Metric, judged: list[OwnerVerdict]) -> Finding:
    """One way to train in numbers."""
    scores = by_owner(way.answers, metric)
    known = [s for s in scores if s is not None]
    worst = min if metric.higher else max
    others = {m.name: mean(by_owner(way.answers, m)) for m in METRICS.values() if m.target == metric.target}
    gains = [v.gain for v in judged if v.gain is not None]
    return Finding(
        name=way.name,
        title=way.title,
        kind=way.kind,
        score=mean(scores),
        lowest=worst(known) if known else None,
        scores=scores,
        others=others,
        gain=mean(gains),
        ptr=positive_transfer(judged),
        verdicts=judged,
        notes=way.notes,
    )


def by_owner(answers: Sequence[Answers], metric: Metric) -> list[float | None]:
    """Each owner's value on all its test rows, folds together, mean over repeats; None where it has none."""
    found: list[float | None] = []
    for k in range(len(answers[0].rows)):
        values = []
        for runs in repeats(answers):
            y = np.concatenate([a.y[k] for a in runs])
            outputs = np.concatenate([a.outputs[k] for a in runs])
            folds = np.repeat([a.fold for a in runs], [len(a.y[k]) for a in runs])
            values.append(metric(y, outputs, folds).value)
        found.append(mean(values))
    return found


def repeats(answers: Sequence[Answers]) -> list[list[Answers]]:
    """The answers of each repeat, its folds together."""
    return [[a for a in answers if a.repeat == repeat] for repeat in sorted({a.repeat for a in answers})]


def mean(values: Sequence[float | None]) -> float | None:
    """Over those that are known; None where none is."""
    known = [v for v in values if v is not None and np.isfinite(v)]
    return float(np.mean(known)) if known else None
