"""Who is better off, who is worse off, and where the data cannot tell: one verdict per owner.

    verdicts = judge(pairs, metric("accuracy"))

Both models of an owner, the method's and the control's, are tested on the same rows, so their differences are paired.
A verdict covers the luck of the test rows and the luck of training, and is corrected over the owners: all intervals of
one call hold together with the chance `level`. `fairlead.metrics.evidence` has the formulas, docs/verdict.md the
measured error rates.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlead.core.errors import require
from fairlead.metrics.evidence import (
    Corrected,
    Evidence,
    Ratio,
    by_group,
    correct,
    independence,
    overlap,
    training_shares,
)
from fairlead.metrics.measures import Metric

Floats = NDArray[np.float64]
Verdict = Literal["better", "worse", "no difference found", "too few rows to tell"]
BETTER: Verdict = "better"
WORSE: Verdict = "worse"
NO_DIFFERENCE: Verdict = "no difference found"
TOO_FEW: Verdict = "too few rows to tell"
FAR = 20  # times the rows of an owner: nobody collects as many more to settle a question
NOT_JUDGED = "Not judged: "
ROUNDING = 1e-9  # of a row's typical score
TRAINING = {
    "seeds": "training luck from the differences between seeds",
    "folds": "training luck from the differences between folds",
    "twins": "training luck from twins of the control, which differ in their seed alone",
    "assumed": "training luck assumed to be what it usually is, as there is one run; several seeds would measure it",
}


@dataclass(frozen=True)
class PairedRun:
    """Both models of one run on the same test rows of one owner.

    Runs with the same `repeat` and different `fold` are one cross-validation: together they test every row once.
    """

    rows: ArrayLike  # ids (n,), the same row has the same id in every run
    y: ArrayLike
    method: ArrayLike  # the method's outputs
    control: ArrayLike  # the control's outputs
    repeat: int = 0
    fold: int = 0
    groups: ArrayLike = ()  # (n,) whom each row is about, a patient say; empty where rows are independent


@dataclass(frozen=True)
class OwnerPairs:
    """All runs of one owner."""

    owner: str
    runs: Sequence[PairedRun]


@dataclass(frozen=True)
class OwnerVerdict:
    """One owner's verdict on one method. Gains are positive where the method is better, whatever the metric."""

    owner: str
    metric: str
    unit: str  # "points" where differences are told in percentage points, else ""
    higher: bool  # a higher score is better
    verdict: Verdict
    rows: int
    runs: int
    method_score: float | None
    control_score: float | None
    constant_score: float | None  # of an answer that is the same for every row; by `judge` the best one for these rows
    gain: float | None
    lower: float | None  # the interval that holds for all owners at once; None where there is no bound
    upper: float | None
    p: float | None  # Holm's over the owners
    detectable: float | None  # the smallest difference that would have been found with a chance of 80%
    asked: float | None  # the difference that `more_rows` is about
    more_rows: int | None  # about how many more rows would tell; None: none are needed, or more runs
    training: str  # where the estimate of training luck comes from: a key of TRAINING, or "" if not judged
    why: str  # a sentence
    evidence: Evidence | None

    def to_json(self) -> dict[str, Any]:
        """Plain data; numbers without a bound are None."""
        plain = asdict(self)
        if self.evidence:
            plain["evidence"]["limit"] = if_finite(self.evidence.limit)
            plain["evidence"]["runs"] = list(map(list, self.evidence.runs))
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> OwnerVerdict:
        """The inverse of `to_json`."""
        kept = plain["evidence"]
        found = (
            None
            if kept is None
            else Evidence(
                **{
                    **kept,
                    "limit": math.inf if kept["limit"] is None else kept["limit"],
                    "runs": tuple(map(tuple, kept.get("runs", ()))),
                }
            )
        )
        return cls(**{**plain, "evidence": found})


@dataclass(frozen=True)
class _Table:
    """An owner's differences, rows by repeats."""

    rows: Floats  # (repeats, n), each repeat's mean is its gain
    folds: NDArray[np.int64]  # (repeats, n)
    weight: float
    scores: tuple[float, float, float]  # method, control, constant; means over repeats
    scale: float  # a row's typical score, for step where nothing differs
    grouped: bool = False  # a "row" is then a group of rows

    @property
    def gain(self) -> float:
        return float(self.rows.mean())

    @property
    def rounding(self) -> float:
        """A variance of rows no larger than this is what rounding left."""
        return (ROUNDING * self.scale) ** 2

    @property
    def counted(self) -> str:
        """What it counts. Folds test every row; else an owner has more rows than it was tested on."""
        n, rows = self.rows.shape[1], "rows" if self.folded else "test rows"
        if self.grouped:
            return f"{n:,} {'group' if n == 1 else 'groups'} of {rows}"
        return f"{n:,} {rows.removesuffix('s') if n == 1 else rows}"

    @property
    def folded(self) -> bool:
        return bool((self.folds.max(1) > self.folds.min(1)).all())


def judge(
    pairs: Sequence[OwnerPairs], metric: Metric, level: float = 0.95, twins: Sequence[OwnerPairs] | None = None
) -> list[OwnerVerdict]:
    """One verdict per owner, in the order given.

    `twins` are pairs of controls that differ in their seed alone; with one run and no folds they are what training luck
    is known from.
    """
    require(0.5 <= level < 1, f"judge: level must lie in [0.5, 1), got {level}; 0.95 is customary")
    names = [p.owner for p in pairs]
    require(len(set(names)) == len(names), "judge: an owner comes twice; put all runs of an owner into one OwnerPairs")
    tables = [_table(p, metric) for p in pairs]
    twin_tables = {p.owner: t for p in twins or () if isinstance(t := _table(p, metric), _Table)}
    told = {name: t for name, t in zip(names, tables, strict=True) if isinstance(t, _Table)}
    found = _evidence(told, twin_tables, metric)
    judged = dict(zip(told, zip(found, correct(found, level), strict=True), strict=True))
    source = _source(told.values(), twin_tables)
    return [
        _undefined(p, metric, t) if isinstance(t, str) else _verdict(p, t, metric, source, *judged[p.owner])
        for p, t in zip(pairs, tables, strict=True)
    ]


def _table(pairs: OwnerPairs, metric: Metric) -> _Table | str:
    """The differences of one owner's rows, or why there are none."""
    repeats = sorted({r.repeat for r in pairs.runs})
    require(len(repeats) > 0, f"judge: {pairs.owner} has no run; leave out owners that were not tested")
    rows, folds, scores, weight, scale, ids = [], [], [], 1.0, 0.0, None
    for repeat in repeats:
        joined = _joined([r for r in pairs.runs if r.repeat == repeat], pairs.owner)
        require(
            ids is None or np.array_equal(ids, joined[0]),
            f"judge: the test rows of {pairs.owner} differ between repeats; an owner's rows must be the same in all",
        )
        ids, y, method, control, fold, groups = joined
        why = metric.check(y, method, fold) or metric.check(y, control, fold)
        if why:
            return why
        parts = [metric.over_folds(y, outputs, fold) for outputs in (method, control, _constant(y, control))]
        difference = (parts[0].rows - parts[1].rows) * (1 if metric.higher else -1)
        if groups is not None:
            difference, first = by_group(difference, groups)
            fold = fold[first]
        rows.append(difference)
        folds.append(fold)
        scores.append([float(p.rows.mean()) for p in parts])
        weight, scale = parts[0].weight, scale + float(np.mean([np.abs(p.rows) for p in parts[:2]])) / len(repeats)
    means = np.mean(scores, axis=0)
    return _Table(np.array(rows), np.array(folds), weight, (means[0], means[1], means[2]), scale, groups is not None)


def _joined(
    runs: list[PairedRun], owner: str
) -> tuple[NDArray[np.generic], NDArray[np.generic], Floats, Floats, NDArray[np.int64], NDArray[np.generic] | None]:
    """The folds of one repeat put together, in the order of the rows' ids."""
    ids = [np.asarray(r.rows) for r in runs]
    for r, i in zip(runs, ids, strict=True):
        shapes = [np.shape(x)[:1] for x in (r.y, r.method, r.control)]
        require(
            all(s == i.shape for s in shapes),
            f"judge: {owner} has {len(i)} ids but targets, method and control of {shapes}; give one of each per row",
        )
    every, fold = np.concatenate(ids), np.repeat([r.fold for r in runs], [len(i) for i in ids])
    order = np.argsort(every, kind="stable")
    require(
        len(np.unique(every)) == len(every),
        f"judge: a row of {owner} is tested twice in one repeat; number the repeats of a cross-validation",
    )
    y, method, control = (np.concatenate([np.asarray(getattr(r, name)) for r in runs])[order] for name in _FIELDS)
    groups = np.concatenate([np.asarray(r.groups) for r in runs])
    require(
        len(groups) in (0, len(every)),
        f"judge: {owner} has {len(every)} rows and says of {len(groups)} whom they are about; say it of all or of none",
    )
    about = groups[order] if len(groups) else None
    return every[order], y, method.astype(np.float64), control.astype(np.float64), fold[order], about


_FIELDS = ("y", "method", "control")


def _constant(y: NDArray[np.generic], like: Floats) -> Floats:
    """The best answer that is the same for every row."""
    if y.ndim == 2 and like.ndim == 2:  # several labels
        return np.broadcast_to(y.astype(np.float64).mean(0) - 0.5, like.shape).astype(np.float64)
    if like.ndim == 2:
        shares = np.bincount(y.astype(int), minlength=like.shape[1]) / len(y)
        return np.broadcast_to(shares, like.shape).astype(np.float64)
    return np.full(len(y), y.astype(np.float64).mean())


def _evidence(tables: dict[str, _Table], twins: dict[str, _Table], metric: Metric) -> list[Evidence]:
    """What rows and runs say, training luck shared among the owners."""
    if not tables:
        return []
    own = [_ratio(t) for t in tables.values()]
    paired = [_twin_ratio(twins[name]) if name in twins else None for name in tables]
    ratios = [[r[0] for r in both if r and r[0]] for both in zip(own, paired, strict=True)]
    share, doubt = training_shares(ratios, independence(_together(list(tables.values()), own)))
    found = []
    for k, t in enumerate(tables.values()):
        n, mean = t.rows.shape[1], t.rows.mean(0)
        scale = _scale(own[k], paired[k], mean)
        factor = scale * overlap(len(t.rows), len(np.unique(t.folds[0])) if t.folded else 1)
        step, jump = _sizes(mean, metric, t)
        found.append(
            Evidence(
                gain=t.gain,
                rows=n,
                spread=float(mean.var()),
                step=step,
                jump=jump,
                weight=t.weight,
                skew=_skew(mean) if float(mean.var()) > t.rounding else 0.0,
                training=factor * float(share[k]),
                training_spread=factor**2 * float(doubt[k]),
                limit=1.0 if metric.bounded else math.inf,
                runs=_run_gains(t),
                within=scale,
            )
        )
    return found


def _together(tables: Sequence[_Table], own: Sequence[_Runs | None]) -> Floats:
    """The gains of the runs, of the owners that were in every run and whose runs tell of luck."""
    known = [np.array(_run_gains(t)) for t, r in zip(tables, own, strict=True) if r and r[0]]
    most = max((gains.shape for gains in known), default=(1, 1))
    found = [gains for gains in known if gains.shape == most]
    return np.array(found, dtype=np.float64).reshape(len(found), *most)


def _run_gains(t: _Table) -> tuple[tuple[float, ...], ...]:
    """The gain of every run: by repeat, then by fold."""
    return tuple(
        tuple(float(rows[folds == fold].mean()) for fold in np.unique(folds))
        for rows, folds in zip(t.rows, t.folds, strict=True)
    )


UNSEEN = 1.5  # twins show the control's luck only; the method's may be larger


def _scale(own: _Runs | None, twin: _Runs | None, mean: Floats) -> float:
    """The variance of a row's difference within a run, of which training luck is a share."""
    if own:
        return own[1]
    # The rows of a single run: too large where the method truly differs, but a run that went badly shows in them.
    return max(float(mean.var()), UNSEEN * twin[1] if twin else 0.0)


def _skew(rows: Floats) -> float:
    off = rows - rows.mean()
    return float((off**3).mean() / (off**2).mean() ** 1.5)


def _sizes(mean: Floats, metric: Metric, table: _Table) -> tuple[float, float]:
    """A typical and the smallest difference of a row that is not zero.

    Where there is none, the size of one: an answer more or less, or the size of the error itself.
    """
    sizes = np.abs(mean)
    sizes = sizes[sizes**2 > table.rounding]
    if len(sizes) == 0:
        unit = 1.0 if metric.bounded else table.scale
        return unit, unit
    return float((sizes**2).sum() / sizes.sum()), float(sizes.min())


_Runs = tuple[Ratio | None, float]  # how much runs differ beyond their rows; the rows' variance within a run


def _ratio(t: _Table) -> _Runs | None:
    """How much the runs differ; None for a single run."""
    repeats, n = t.rows.shape
    if n < 2 or (repeats < 2 and not t.folded):
        return None
    if t.folded:
        labels, counts = np.unique(t.folds[0], return_counts=True)
        k = len(labels)
        inside = [t.rows[r] - _fold_means(t.rows[r], t.folds[r]) for r in range(repeats)]
        between = [_fold_means(t.rows[r], t.folds[r]) - t.rows[r].mean() for r in range(repeats)]
        if n <= k:
            return None
        spread, freedom, residual = float(np.mean([i @ i for i in inside])) / (n - k), repeats * (k - 1), n - k
        value, rows = float(np.mean([b @ b for b in between])) / (k - 1), float(counts.mean())
    else:
        runs = t.rows.mean(1)
        left = t.rows - t.rows.mean(0) - runs[:, None] + runs.mean()
        residual, freedom = (n - 1) * (repeats - 1), repeats - 1
        spread, value, rows = float((left**2).sum()) / residual, n * float(runs.var(ddof=1)), float(n)
    return (Ratio(value / spread, freedom, residual, rows) if spread > t.rounding else None), spread


def _twin_ratio(t: _Table) -> _Runs | None:
    """The same for twins, whose true difference is zero."""
    repeats, n = t.rows.shape
    means = np.array([_fold_means(t.rows[r], t.folds[r]) for r in range(repeats)])
    groups = sum(len(np.unique(f)) for f in t.folds)
    residual = repeats * n - groups
    spread = float(((t.rows - means) ** 2).sum()) / residual if residual > 0 else 0.0
    if spread <= t.rounding:
        return None
    return Ratio(float((means**2).sum()) / groups / spread, groups, residual, repeats * n / groups), spread


def _fold_means(rows: Floats, folds: NDArray[np.int64]) -> Floats:
    _, group, counts = np.unique(folds, return_inverse=True, return_counts=True)
    return np.asarray((np.bincount(group, rows) / counts)[group], dtype=np.float64)


def _source(tables: Collection[_Table], twins: dict[str, _Table]) -> str:
    if any(t.folded for t in tables):
        return "folds"
    if any(len(t.rows) > 1 for t in tables):
        return "seeds"
    return "twins" if twins else "assumed"


def _verdict(p: OwnerPairs, t: _Table, metric: Metric, source: str, e: Evidence, c: Corrected) -> OwnerVerdict:
    found = c.lower > 0 or c.upper < 0
    plausible = metric.plausible * (1.0 if metric.unit else abs(t.scores[1]))
    # Half the interval is then at most what is plausible, so an interval around zero allows for at most twice as much.
    told = NO_DIFFERENCE if c.detectable <= plausible else TOO_FEW
    verdict = (BETTER if e.gain > 0 else WORSE) if found else told
    asked = plausible if verdict == TOO_FEW else min(max(abs(e.gain), plausible / 10), plausible)
    needed = None if found or c.detectable <= asked else e.rows_to_find(asked, c.error)
    more = None if needed is None else _about(max(needed - e.rows, 1))
    return OwnerVerdict(
        owner=p.owner,
        metric=metric.name,
        unit=metric.unit,
        higher=metric.higher,
        verdict=verdict,
        rows=e.rows,
        runs=len(p.runs),
        method_score=float(t.scores[0]),
        control_score=float(t.scores[1]),
        constant_score=if_finite(t.scores[2]),
        gain=e.gain,
        lower=if_finite(c.lower),
        upper=if_finite(c.upper),
        p=c.p,
        detectable=if_finite(c.detectable),
        asked=None if found else asked,
        more_rows=more,
        training=source,
        why=_sentence(verdict, metric, e, c, asked, more, t.counted),
        evidence=e,
    )


def if_finite(x: float) -> float | None:
    """The number, or None where it has no bound."""
    return float(x) if math.isfinite(x) else None


def _sentence(
    verdict: Verdict, metric: Metric, e: Evidence, c: Corrected, asked: float, more: int | None, own: str
) -> str:
    if verdict in (BETTER, WORSE):
        return f"{told_gain(metric.unit, e.gain, c.lower, c.upper)}."
    size = amount(metric.unit, asked)
    span = f"The difference lies between {_span(metric.unit, c.lower, c.upper)}"
    if c.detectable <= asked:
        return f"{span}; one of {size} would have been found."
    one = e.rows == 1
    luck = "nor would more, but more runs may: training luck is too large or too little known"
    would = _would(e.rows, more) if more else luck
    if verdict == TOO_FEW and more:
        return f"{own} {'is' if one else 'are'} too few to tell a difference of {size}; {would}."
    if verdict == TOO_FEW:
        return f"{own} cannot tell a difference of {size}, {would}."
    return f"{span}; {own} cannot tell one of {size}, {would}."


def _would(rows: int, more: int) -> str:
    """Whether more rows are worth collecting.

    >>> _would(130, 510), _would(46, 30000)
    ('about 510 more would', '20 times as many would not be enough')
    """
    return f"about {more:,} more would" if more <= FAR * rows else f"{FAR} times as many would not be enough"


def _about(rows: int) -> int:
    """The number rounded up to two digits.

    >>> _about(7), _about(1234)
    (7, 1300)
    """
    unit = int(10 ** max(len(str(rows)) - 2, 0))
    return -(-rows // unit) * unit


def told_gain(unit: str, gain: float, lower: float, upper: float) -> str:
    """A gain or a loss in words, with its interval.

    >>> told_gain("points", 0.031, 0.012, 0.05), told_gain("", -2.5, -4.0, -1.0)
    ('3.1 points better than alone (1.2 to 5.0)', '2.50 worse than alone (1.00 to 4.00)')
    """
    word, low, high = ("better", lower, upper) if gain > 0 else ("worse", -upper, -lower)
    ends = f"{number(unit, low)} to {number(unit, high)}" if math.isfinite(high) else f"at least {number(unit, low)}"
    return f"{amount(unit, abs(gain))} {word} than alone ({ends})"


def _span(unit: str, lower: float, upper: float) -> str:
    ends = [number(unit, x) if math.isfinite(x) else "no bound" for x in (lower, upper)]
    return f"{ends[0]} and {ends[1]}{unit and ' ' + unit}"


def amount(unit: str, size: float) -> str:
    """A difference with its unit.

    >>> amount("points", 0.1), amount("", 0.0321)
    ('10.0 points', '0.0321')
    """
    return f"{number(unit, size)}{unit and ' ' + unit}"


def digits(x: float, sign: str = "") -> str:
    """A number with three digits, or all before the decimal point, if they are fewer than ten.

    >>> digits(31.4159), digits(16.0), digits(-0.01234, "+"), digits(12345.6), digits(155.0), digits(0.0, "+")
    ('31.4', '16.0', '-0.0123', '12,346', '155', '0')
    >>> digits(23761944031.7)
    '2.38e+10'
    """
    if x == 0:
        return "0"
    return f"{x:{sign},.0f}" if 999.5 <= abs(x) < 1e9 else f"{x:{sign}#.3g}".rstrip(".")


def number(unit: str, x: float) -> str:
    """A difference without its unit."""
    return f"{100 * x:.1f}" if unit else digits(x)


def _undefined(p: OwnerPairs, metric: Metric, why: str) -> OwnerVerdict:
    rows = len(np.unique(np.concatenate([np.asarray(r.rows) for r in p.runs])))
    nothing = dict.fromkeys(_NUMBERS)
    return OwnerVerdict(
        owner=p.owner,
        metric=metric.name,
        unit=metric.unit,
        higher=metric.higher,
        verdict=TOO_FEW,
        rows=rows,
        runs=len(p.runs),
        **nothing,
        training="",
        why=f"{NOT_JUDGED}{why}.",
        evidence=None,
    )


_NUMBERS = (
    *("method_score", "control_score", "constant_score", "gain", "lower", "upper"),
    *("p", "detectable", "asked", "more_rows"),
)
