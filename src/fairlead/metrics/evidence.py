"""How far chance alone can move a paired difference: the luck of the test rows and the luck of training.

The difference D of one owner is a mean over n rows. For a supposed true difference m, with δ = |D - m|, its variance is

    V(m) = (s² + κ δ² + step · max(0, |m| - |D|)) / n  +  training

s² is the spread of the rows' differences. κ δ² makes it the spread about m and not about D (a score interval): where
all differences point the same way, n rows can never look surer than n tosses of a coin do. κ is 1 for a mean over all
rows and larger where few rows decide, as the rarer class does in AUROC. `step` is the size of a typical difference that
is not zero. Its term stands for rare differences that these rows did not happen to show: with no difference among n
rows the upper bound at 95% is 3.8 / n, the exact one is 3.7 / n. For differences of -1, 0 and 1 and no training luck
the test of m = 0 is McNemar's. Where the rows' differences have a long tail towards m, as when a method gains a little
on most rows and loses much on a few, Hall's transformation makes the test less sure.

`training` is the variance from training luck. It is not known but estimated, so the p-value is a mean over what it may
be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, roots_hermitenorm

Floats = NDArray[np.float64]
FAR = 1e4  # an interval so many times wider than the plain one has no bound
NODES, WEIGHTS = roots_hermitenorm(15)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
ENDLESS = 10**9  # rows: what is left is training luck
POWER = 0.8  # the chance with which a difference "would be found"


@dataclass(frozen=True)
class Evidence:
    """What the rows and runs of one owner say about one difference, positive where the method is better."""

    gain: float
    rows: int
    spread: float  # s², the variance of the rows' differences, averaged over repeats first
    step: float  # the size of a typical difference that is not zero
    jump: float  # the size of the smallest; how finely the gain can move
    weight: float = 1.0  # κ, see above
    skew: float = 0.0  # of the rows' differences
    training: float = 0.0  # variance of the gain from training luck
    training_spread: float = 0.0  # variance of that estimate
    limit: float = math.inf  # differences lie within ± limit
    runs: tuple[tuple[float, ...], ...] = ()  # the gain of every run: by repeat, then by fold
    within: float = 0.0  # the variance of a row's difference within a run

    def variance(self, supposed: float) -> float:
        """Of the gain, if the true difference were `supposed`."""
        off = abs(self.gain - supposed)
        unseen = self.step * max(0.0, abs(supposed) - abs(self.gain))
        return (self.spread + self.weight * off * off + unseen) / self.rows + self.training

    def p_value(self, supposed: float = 0.0) -> float:
        """The chance of a gain at least this far from a true difference of `supposed`, two-sided."""
        off = abs(self.gain - supposed)
        variance = self.variance(supposed)
        if off <= 0 or variance <= 0:
            return 1.0
        # The third moment of the mean, where its long tail points to what is supposed.
        against = max(0.0, self.skew if supposed > self.gain else -self.skew) * self.spread**1.5 / self.rows**2
        if self.training_spread <= 0:
            return float(2 * ndtr(-_hall(off / math.sqrt(variance), against / variance**1.5)))
        # Training luck is lognormal with this mean and variance; the mean of the tails by Gauss and Hermite.
        width = math.log1p(self.training_spread / self.training**2)
        luck = self.training * np.exp(math.sqrt(width) * NODES - width / 2)
        spread = np.sqrt(variance - self.training + luck)
        return float(2 * WEIGHTS @ ndtr(-_hall(off / spread, against / spread**3)))

    def bound(self, error: float, side: int) -> float:
        """The largest (`side` 1) or smallest (-1) true difference that this evidence does not rule out."""
        spread = math.sqrt(self.variance(self.gain))
        near, far = 0.0, max(-float(ndtri(error / 2)) * spread, self.step / self.rows, 1e-12)
        furthest = min(FAR * far, 4 * self.limit)
        while self.p_value(self.gain + side * far) > error:
            near, far = far, 1.5 * far
            if far > furthest:
                return side * self.limit
        for _ in range(26):
            middle = (near + far) / 2
            if self.p_value(self.gain + side * middle) > error:
                near = middle
            else:
                far = middle
        return side * min(side * self.gain + far, self.limit)

    def detectable(self, error: float) -> float:
        """About the smallest true difference that is found with a chance of 80%."""
        return _detectable(self, self.bound(error, -1), self.bound(error, 1))

    def rows_to_find(self, difference: float, error: float) -> int | None:
        """About how many rows make this difference detectable; None if more runs are needed, whatever the rows.

        What is not known of training luck is taken to be known by then.
        """
        then = replace(self, training_spread=0.0)
        least = replace(then, rows=ENDLESS).detectable(error)
        fewest = self.weight * float(ndtri(error / 2)) ** 2 + 2  # fewer have no bound
        rows = max(float(self.rows), fewest)
        if difference <= least or then.detectable(error) <= difference:
            return None
        for _ in range(3):  # the rows' part of the square falls with their number, a little faster where they are few
            now = replace(then, rows=math.ceil(rows)).detectable(error)
            rows = max(rows * (now**2 - least**2) / (difference**2 - least**2), fewest)
        return math.ceil(rows)

    @property
    def surest(self) -> float:
        """The smallest p-value that so many rows can ever give, and no less than the exact sign test's."""
        deciding = self.rows / self.weight
        return min(1.0, max(float(2 * ndtr(-math.sqrt(deciding))), 2 ** (1 - deciding)))


def _detectable(e: Evidence, lower: float, upper: float) -> float:
    """The wider half of the interval, and the luck of the gain itself."""
    return max(upper - e.gain, e.gain - lower) + float(ndtri(POWER)) * math.sqrt(e.variance(e.gain))


def mean_of(found: Sequence[Evidence]) -> Evidence:
    """What several owners' differences say of their mean, in which every owner counts alike.

    Rows of different owners are independent. Training luck need not be, since owners share models: how much the mean
    itself differs from run to run says how large it is. With one run it is taken to be the same for all owners.

    >>> one = Evidence(gain=0.1, rows=100, spread=0.04, step=1.0, jump=1.0, training=0.0025)
    >>> four = mean_of([one] * 4)
    >>> four.gain, four.rows, round(four.variance(0.1), 6) == round(0.04 / 400 + 0.0025, 6)
    (0.1, 400, True)
    """
    rows, spread = (np.array([getattr(e, name) for e in found], dtype=np.float64) for name in ("rows", "spread"))
    share = 1 / (len(found) ** 2 * rows)  # of an owner's row variance in the variance of the mean
    count = max(round(1 / float(share.sum())), 1)
    names = ("spread", "step", "weight", "within")
    own = {name: count * float(share @ [getattr(e, name) for e in found]) for name in names}
    third = float((np.array([e.skew for e in found]) * spread**1.5 / (len(found) ** 3 * rows**2)).sum())
    luck, doubt = _luck_of_mean(found, count, own["within"], float(rows.sum()))
    return Evidence(
        gain=float(np.mean([e.gain for e in found])),
        rows=count,
        spread=own["spread"],
        step=own["step"],
        weight=own["weight"],
        within=own["within"],
        jump=min(e.jump for e in found),
        skew=third * count**2 / own["spread"] ** 1.5 if own["spread"] > 0 else 0.0,
        training=luck,
        training_spread=doubt,
        limit=max(e.limit for e in found),
    )


def by_group(rows: Floats, groups: NDArray[np.generic]) -> tuple[Floats, NDArray[np.int64]]:
    """One difference for each group of rows that are about the same, and where the group's first row is.

    The mean over groups is the mean over rows. The spread of its terms is that of the groups' sums about it, so that
    rows of one patient, which are right or wrong together, do not count as so many patients.

    >>> values, _ = by_group(np.array([1.0, 1.0, 0.0]), np.array([7, 7, 9]))
    >>> round(float(values.mean()), 3), values.round(3).tolist()
    (0.667, [1.111, 0.222])
    """
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    mean = rows.mean()
    sums = np.bincount(group, rows - mean)
    return np.asarray(mean + sums * len(sums) / len(rows), dtype=np.float64), first


def overlap(repeats: int, folds: int) -> float:
    """The variance of the mean over runs as a share of one run's.

    Of K folds 1 / (K - 1) and not 1 / K, since they have most train rows in common; docs/verdict.md has a check. Nadeau
    and Bengio's correction, 1 / K + 1 / (K - 1), is meant for the test rows' part too, which is known better here.
    """
    return 1 / repeats if folds == 1 else (1 / repeats + 1 / (folds - 1)) / folds


def _luck_of_mean(found: Sequence[Evidence], count: int, within: float, rows: float) -> tuple[float, float]:
    """The variance of the owners' mean from training luck, and the variance of that estimate.

    `within` is the variance of a row within a run, of which `count` rows make the mean as sure as it is.
    """
    most = max((np.shape(e.runs) for e in found), default=())
    runs = np.array([e.runs for e in found if np.shape(e.runs) == most])  # owners that were in every run
    if runs.ndim < 3 or runs[0].size < 2 or within <= 0:
        luck, doubt = (np.array([getattr(e, name) for e in found]) for name in ("training", "training_spread"))
        return float(np.sqrt(luck).mean()) ** 2, float(np.sqrt(doubt).mean()) ** 2
    means = runs.mean(0)  # (repeats, folds)
    repeats, folds = means.shape
    if folds > 1:
        between, freedom = float(means.var(1, ddof=1).mean()), repeats * (folds - 1)
    else:
        between, freedom = float(means.var(ddof=1)), repeats - 1
    of_run = count / folds
    ratio = Ratio(between * of_run / within, freedom, max(rows - len(found), 1.0), of_run)
    (share,), (doubt,) = training_shares([[ratio]])
    factor = overlap(repeats, folds) * within
    return factor * float(share), factor**2 * float(doubt)


def _hall(t: Floats | float, skew: Floats | float) -> Floats:
    """Hall's transformation of a mean's statistic against its skewness."""
    return np.maximum(0.0, np.minimum(t, t - skew * t**2 / 3 + skew**2 * t**3 / 27 - skew / 6))


@dataclass(frozen=True)
class Corrected:
    """A difference judged among others: the interval holds for all of them at once."""

    lower: float
    upper: float
    p: float  # Holm's, over all that were judged
    error: float  # of a single interval
    detectable: float  # about the smallest true difference that is found with a chance of 80%


def correct(found: list[Evidence], level: float) -> list[Corrected]:
    """Judge several differences so that the chance of any error among them is at most 1 - `level`.

    Who has too few rows ever to tell, whatever they show, is not counted. Holm's procedure decides. The intervals are
    Bonferroni's; where Holm is sure and Bonferroni is not, the end nearer to zero is the one at Holm's level for that
    difference. So an interval leaves out zero exactly where p <= 1 - level.
    """
    error = 1 - level
    counted = _counted(found, error)
    judged = [e.surest <= error / counted for e in found]
    raw = [e.p_value() for e in found]
    order = sorted((k for k, j in enumerate(judged) if j), key=lambda k: raw[k])
    adjusted, highest = [1.0] * len(found), 0.0
    for place, k in enumerate(order):
        highest = max(highest, min(1.0, (counted - place) * raw[k]))
        adjusted[k] = highest
    return [_with_interval(e, adjusted[k], raw[k], error, counted) for k, e in enumerate(found)]


def _counted(found: list[Evidence], error: float) -> int:
    """Tarone's number: the smallest k of which at most k could ever be sure at error / k."""
    surest = [e.surest for e in found]
    for k in range(1, len(found) + 1):
        if sum(p <= error / k for p in surest) <= k:
            return k
    return max(len(found), 1)


def _with_interval(e: Evidence, adjusted: float, raw: float, error: float, counted: int) -> Corrected:
    single = error / counted
    lower, upper = e.bound(single, -1), e.bound(single, 1)
    detectable = _detectable(e, lower, upper)
    if adjusted > error:
        lower, upper = min(lower, 0.0), max(upper, 0.0)
    elif lower <= 0 <= upper:
        tiny = 1e-9 * e.gain  # bisection may stop at zero itself
        if e.gain > 0:
            lower = max(e.bound(error * raw / adjusted, -1), tiny)
        else:
            upper = min(e.bound(error * raw / adjusted, 1), tiny)
    return Corrected(lower, upper, adjusted, single, detectable)


# The variance of a run's mean difference from training luck, as a share of the variance of a row's difference within
# the run. Before anything is seen: median 0.004, 95% between 0.0002 and 0.1. Twins of LOCAL on seven data sets had
# 0.0007 to 0.1, so that a narrower guess would be wrong for some of them.
MEDIAN, SPREAD = 0.004, 1.6
SHARES = np.exp(np.linspace(math.log(1e-6), math.log(1.0), 57))
OWNERS_DIFFER = np.array([0.4, 1.0])  # standard deviations of the logarithm from owner to owner


@dataclass(frozen=True)
class Ratio:
    """How much the means of runs differ, as a multiple of what rows alone explain: an F statistic."""

    value: float
    freedom: float  # of the runs
    residual: float  # of the rows
    rows: float  # per run

    def log_likelihood(self, shares: Floats) -> Floats:
        """Of each share of training luck."""
        expected = 1 + self.rows * shares
        half = (self.freedom + self.residual) / 2
        seen = -half * np.log1p(self.freedom * self.value / (self.residual * expected))
        return np.asarray(seen - self.freedom / 2 * np.log(expected), dtype=np.float64)


def independence(gains: Floats) -> float:
    """How many owners' worth of runs there are for each owner: 1, or less where owners are lucky together.

    `gains` are those of the runs, (owners, repeats, folds). Owners who share a model gain or lose in the same runs, so
    that K owners say no more of the size of training luck than K / (1 + (K - 1) ρ²) who train alone. ρ² is the mean
    square of two owners' correlation, without the bias that few runs give it: with ν degrees of freedom it is seen as
    (1 / ν + (1 + 1 / ν) ρ²) / (1 + 2 ρ² / ν). Two runs show no correlation: then the answer is 1.

    >>> luck = np.random.default_rng(0).normal(size=(40, 1, 5))
    >>> independence(luck) > 0.5, round(independence(np.ones((40, 1, 1)) * luck[:1]), 3)
    (True, 0.025)
    """
    _, repeats, folds = gains.shape
    axis, freedom = (2, repeats * (folds - 1)) if folds > 1 else (1, repeats - 1)
    off = (gains - gains.mean(axis, keepdims=True)).reshape(len(gains), repeats * folds)
    length = np.sqrt((off**2).sum(1))
    off = off[length > 0] / length[length > 0, None]
    owners = len(off)
    if owners < 2 or freedom < 2:
        return 1.0
    seen = (float(((off @ off.T) ** 2).sum()) - owners) / (owners * (owners - 1))
    alike = float((seen - 1 / freedom) / (1 + 1 / freedom - 2 * seen / freedom))
    return 1 / (1 + (owners - 1) * min(max(alike, 0.0), 1.0))


def training_shares(ratios: list[list[Ratio]], independent: float = 1.0) -> tuple[Floats, Floats]:
    """Mean and variance of every owner's share of training luck, from its own runs and from everybody's.

    Empirical Bayes on a grid: owners' shares scatter about a common one, and few runs draw an owner to it. What owners
    say of the common share counts as often as they are `independent`.

    >>> quiet, loud = (training_shares([[Ratio(f, 4, 400, 100)]] * 5)[0][0] for f in (1.0, 10.0))
    >>> bool(quiet < 0.005), bool(0.05 < loud < 0.2)
    (True, True)
    """
    log = np.log(SHARES)
    likelihood = np.array([sum((r.log_likelihood(SHARES) for r in own), np.zeros(len(log))) for own in ratios])
    likelihood = np.exp(likelihood - likelihood.max(1, keepdims=True))  # (owners, own share)
    scatter = -0.5 * ((log[:, None] - log) / OWNERS_DIFFER[:, None, None]) ** 2  # (spread, common, own)
    prior = np.exp(scatter)
    prior /= prior.sum(2, keepdims=True)
    seen = np.einsum("scg,kg->ksc", prior, likelihood)
    common = independent * np.log(seen).sum(0) - 0.5 * ((log - math.log(MEDIAN)) / SPREAD) ** 2  # (spread, common)
    weight = np.exp(common - common.max())
    weight /= weight.sum()
    own = np.einsum("sc,scg,kg,ksc->kg", weight, prior, likelihood, 1 / seen)
    mean: Floats = own @ SHARES
    return mean, np.asarray(own @ SHARES**2 - mean**2, dtype=np.float64)
