"""What a verdict can be about: the measures of a model on the test rows of one owner.

    metric("auroc")(y, outputs)          # Score(value=0.87, why="")
    metric("auroc")(all_ones, outputs)   # Score(value=nan, why="AUROC needs rows of two classes, ...")

Targets and outputs are numpy arrays. Classes: y is (n,) of 0 to K - 1, outputs are (n, K) logits or probabilities.
Several labels: y is (n, L) of 0 and 1, outputs are (n, L), above zero for yes. Quantities: y and outputs are (n,).
Survival times: y is (n, 2), time and event (1 if it happened, 0 if the row was only watched until then), outputs are
(n,) risks, higher for an earlier event.

Every measure comes with one number per row whose mean is the measure: for a mean over rows, such as accuracy, the rows'
own scores; for the others the linear expansion in the rows' weights (the infinitesimal jackknife). For AUROC these are
DeLong's components. Differences of these numbers between two models on the same rows give the variance of the
difference; see `fairlead.metrics.verdict`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlead.core.errors import nearest, require
from fairlead.core.targets import KINDS

Floats = NDArray[np.float64]
Target = Literal["classes", "labels", "quantity", "survival"]
BINS = 10  # of the calibration error
TINY = 1e-7  # probabilities are kept this far from 0 in the log loss: the resolution of single precision
GROUPS = 500  # at most so many evaluations for a measure that has no expansion of its own
BLOCK = 1_000  # rows compared with all others at a time
FEW = 20  # rows: with fewer, one class is often most common by chance
IMBALANCED = 0.8  # a majority class above this share says that accuracy tells little


class Score(NamedTuple):
    """A measure's value; NaN where it is undefined, and then why."""

    value: float
    why: str = ""


class RowScores(NamedTuple):
    """One number per row whose mean is the measure."""

    rows: Floats
    weight: float = 1.0  # 1 / weight is the share of rows that decide; 1 for a mean over all of them


@dataclass(frozen=True)
class Metric:
    """A measure: how it is computed and how it is read.

    `score(y, outputs)` gives the value. `expand(y, outputs)` gives the rows' numbers; without it they are found by
    leaving rows out in turn. `undefined(y)` says why these targets have no value, or gives "".
    """

    name: str
    title: str
    target: Target
    higher: bool  # higher is better
    score: Callable[[NDArray[np.generic], Floats], float]
    expand: Callable[[NDArray[np.generic], Floats], RowScores] | None = None
    undefined: Callable[[NDArray[np.generic]], str] = lambda y: ""
    unit: str = "points"  # what differences are told in: percentage points, or the target's own unit
    bounded: bool = True  # between 0 and 1, so that differences lie between -1 and 1
    plausible: float = 0.1  # a difference about as large as may be hoped for: absolute in points, else relative
    ranks: bool = False  # compares the outputs of rows with each other, which only those of one model are fit for

    def __call__(self, y: ArrayLike, outputs: ArrayLike, folds: ArrayLike | None = None) -> Score:
        """The measure on these rows; `folds` says which fold's model answered for each, if there were several."""
        targets, given = np.asarray(y), np.asarray(outputs, dtype=np.float64)
        parts = None if folds is None else np.asarray(folds)
        why = self.check(targets, given, parts)
        if why:
            return Score(float("nan"), why)
        if parts is not None and self.ranks:
            return Score(float(self.over_folds(targets, given, parts).rows.mean()))
        return Score(float(self.score(targets, given)))

    def check(self, y: NDArray[np.generic], outputs: Floats, folds: NDArray[np.int64] | None = None) -> str:
        """Why there is no value, or ""; raises `InputError` for shapes that do not fit together."""
        wide, several = self.target in ("classes", "labels"), self.target in ("labels", "survival")
        require(
            outputs.ndim == 1 + wide and len(outputs) == len(y) and y.ndim == 1 + several,
            f"{self.name}: expected {_SHAPES[self.target]}, got shapes {y.shape} and {outputs.shape}",
        )
        if len(y) == 0:
            return "no test rows"
        if not np.isfinite(outputs).all():
            return "the model's outputs are not all finite numbers"
        why = self.undefined(y)
        if why or folds is None or not self.ranks:
            return why
        each = [self.undefined(y[folds == f]) for f in np.unique(folds)]
        # Ranked across folds, the same answer for every row would have an AUROC of 0: leaving a row out moves it away.
        return f"no fold has enough of its rows to rank: {each[0]}" if all(each) else ""

    def row_scores(self, y: NDArray[np.generic], outputs: Floats) -> RowScores:
        """One number per row whose mean is the measure; for targets for which it is defined."""
        return self.expand(y, outputs) if self.expand else _leave_out(self.score, y, outputs)

    def over_folds(self, y: NDArray[np.generic], outputs: Floats, folds: NDArray[np.int64]) -> RowScores:
        """The same for rows that the models of several folds have tested.

        A measure of ranks is computed within each fold and averaged by the number of rows that decide; scores of
        different models are not on one scale. Other measures are computed on all rows together. For targets for which
        it is defined.
        """
        if not self.ranks or len(np.unique(folds)) < 2:
            return self.row_scores(y, outputs)
        inside = [i for i in (folds == f for f in np.unique(folds)) if not self.undefined(y[i])]
        parts = [self.row_scores(y[i], outputs[i]) for i in inside]
        deciding = np.array([i.sum() / p.weight for i, p in zip(inside, parts, strict=True)])
        rows = np.zeros(len(y))
        for i, p, d in zip(inside, parts, deciding, strict=True):
            rows[i] = p.rows * d / deciding.sum() * len(y) / i.sum()
        return RowScores(rows, len(y) / float(deciding.sum()))


_SHAPES = {
    "classes": "classes (n,) and outputs (n, K)",
    "labels": "labels of 0 and 1 (n, L) and outputs (n, L), above zero for yes",
    "quantity": "quantities (n,) and outputs (n,)",
    "survival": "times and events (n, 2) and risks (n,)",
}


def probabilities(outputs: Floats) -> Floats:
    """Probabilities as they are, logits by softmax.

    >>> probabilities(np.array([[0.0, 0.0], [2.0, 2.0]])).tolist(), probabilities(np.array([[0.2, 0.8]])).tolist()
    ([[0.5, 0.5], [0.5, 0.5]], [[0.2, 0.8]])
    """
    if bool((outputs >= 0).all()) and bool(np.allclose(outputs.sum(1), 1, atol=1e-4)):
        return outputs
    e = np.exp(outputs - outputs.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True), dtype=np.float64)


def _hits(y: NDArray[np.generic], outputs: Floats) -> Floats:
    return np.asarray(outputs.argmax(1) == y, dtype=np.float64)


def _accuracy(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    return RowScores(_hits(y, outputs))


def _label_accuracy(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    return RowScores(((outputs > 0) == (y.astype(np.float64) > 0.5)).mean(1))


def _label_log_loss(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    signed = np.where(y.astype(np.float64) > 0.5, outputs, -outputs)
    return RowScores(np.logaddexp(0, -signed).mean(1))


def _log_loss(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    return RowScores(-np.log(np.clip(probabilities(outputs)[np.arange(len(y)), y.astype(int)], TINY, 1)))


def _brier(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    p = probabilities(outputs)
    squares = ((p - np.eye(p.shape[1])[y.astype(int)]) ** 2).sum(1)
    return RowScores(squares / 2 if p.shape[1] == 2 else squares)


def _calibration(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    p = probabilities(outputs)
    surplus = p.max(1) - _hits(y, outputs)
    bins = np.minimum((p.max(1) * BINS).astype(int), BINS - 1)
    return RowScores(surplus * np.sign(np.bincount(bins, surplus, BINS))[bins])


def _balanced(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    _, which, counts = np.unique(y, return_inverse=True, return_counts=True)
    return RowScores(_hits(y, outputs) * (len(y) / (len(counts) * counts))[which])


def _f1(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    said, n = outputs.argmax(1), len(y)
    rows, (classes, counts) = np.zeros(n), np.unique(y, return_counts=True)
    for c in classes:
        is_c, said_c = y == c, said == c
        size = is_c.sum() + said_c.sum()
        f = 2 * (is_c & said_c).sum() / size
        rows += f + n * (2.0 * (is_c & said_c) - f * (1.0 * is_c + said_c)) / size
    return RowScores(rows / len(classes), float((n / counts).mean() / len(classes)))


def _per_class(
    one: Callable[[NDArray[np.bool_], Floats], RowScores], y: NDArray[np.generic], outputs: Floats
) -> RowScores:
    """Two classes: class 1 against class 0. More: each class of these rows against the rest, then the mean."""
    if outputs.shape[1] == 2:
        return one(y == 1, outputs[:, 1] - outputs[:, 0])
    p = probabilities(outputs)
    found = [one(y == c, p[:, int(c)]) for c in np.unique(y)]
    return RowScores(np.mean([r.rows for r in found], axis=0), float(np.mean([r.weight for r in found])) / len(found))


def _ranks(s: Floats) -> Floats:
    """Ranks from 1, ties sharing their mean; scipy.stats has it but takes longer to import than to use."""
    _, group, counts = np.unique(s, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[group], dtype=np.float64)


def _auroc_one(positive: NDArray[np.bool_], s: Floats) -> RowScores:
    """DeLong's components: for each row the share of rows of the other class that it is ranked rightly against."""
    n, n1 = len(s), int(positive.sum())
    n0 = n - n1
    below = _ranks(s)  # less the ranks within the own class: rows of the other class below this one, ties half
    below[positive] -= _ranks(s[positive])
    below[~positive] -= _ranks(s[~positive])
    placed = np.where(positive, below / n0, 1 - below / n1)
    area = placed[positive].mean()
    return RowScores(area + (placed - area) * np.where(positive, n / n1, n / n0), n / n1 + n / n0)


def _auprc_one(positive: NDArray[np.bool_], s: Floats) -> RowScores:
    """Average precision and its derivative by the weight of each row."""
    n, n1 = len(s), int(positive.sum())
    _, group = np.unique(-s, return_inverse=True)  # 0 is the highest score; ties share a threshold
    hits = np.cumsum(np.bincount(group, positive))
    total = np.cumsum(np.bincount(group))
    precision, positives = hits / total, np.bincount(group, positive)
    area = float(positives @ precision / n1)
    # A row counts in the precision at its own threshold and at every lower one.
    gain = np.cumsum((positives / total)[::-1])[::-1][group]
    loss = np.cumsum((positives * precision / total)[::-1])[::-1][group]
    slope = (positive * (precision[group] + gain - area) - loss) / n1
    return RowScores(area + n * slope, n / n1)


def _auroc(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    return _per_class(_auroc_one, y, outputs)


def _auprc(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    return _per_class(_auprc_one, y, outputs)


def _mae(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    return RowScores(np.abs(outputs - y.astype(np.float64)))


def _rmse(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    squares = (outputs - y.astype(np.float64)) ** 2
    root = float(np.sqrt(squares.mean()))
    return RowScores(root + (squares - root**2) / (2 * root) if root > 0 else squares)


def _r2(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    targets = y.astype(np.float64)
    spread, squares = (targets - targets.mean()) ** 2, (outputs - targets) ** 2
    share = squares.mean() / spread.mean()
    return RowScores(1 - share - (squares - share * spread) / spread.mean())


def _c_index(y: NDArray[np.generic], outputs: Floats) -> RowScores:
    """Harrell's C: of the pairs of rows whose order is known, the share whose risks have that order, ties half."""
    time, event = y[:, 0].astype(np.float64), y[:, 1].astype(bool)
    right, pairs = np.zeros(len(time)), np.zeros(len(time))
    for start in range(0, len(time), BLOCK):
        i = slice(start, start + BLOCK)
        known = event[i, None] & ((time[i, None] < time) | ((time[i, None] == time) & ~event))
        won = known * (np.sign(outputs[i, None] - outputs) + 1) / 2
        right[i] += won.sum(1)
        pairs[i] += known.sum(1)
        right += won.sum(0)
        pairs += known.sum(0)
    share = right.sum() / pairs.sum()
    return RowScores(share + 2 * len(time) * (right - share * pairs) / pairs.sum(), len(time) / event.sum())


def _leave_out(score: Callable[[NDArray[np.generic], Floats], float], y: NDArray[np.generic], o: Floats) -> RowScores:
    """The jackknife: leave out each row, or each of `GROUPS` groups of rows, in turn."""
    n = len(y)
    groups = min(n, GROUPS)
    value, group = float(score(y, o)), np.arange(n) % groups
    if n < 2:
        return RowScores(np.full(n, value))
    without = np.array([score(y[group != g], o[group != g]) for g in range(groups)], dtype=np.float64)
    pull = np.nan_to_num((groups - 1) * (np.nanmean(without) - without))
    rows = pull[group] * np.sqrt(n / groups)
    return RowScores(value + rows - rows.mean())


def _one_class(title: str) -> Callable[[NDArray[np.generic]], str]:
    def undefined(y: NDArray[np.generic]) -> str:
        found = np.unique(y)
        return "" if len(found) > 1 else f"{title} needs test rows of two classes, all {len(y)} are of one class"

    return undefined


def _no_spread(y: NDArray[np.generic]) -> str:
    return "" if len(np.unique(y)) > 1 else "R2 needs test rows with different targets"


def _no_pairs(y: NDArray[np.generic]) -> str:
    time, event = y[:, 0], y[:, 1].astype(bool)
    known = event.any() and bool((time > time[event].min()).any() or ((time == time[event].min()) & ~event).any())
    return "" if known else "the c-index needs an event and a row that lasted longer"


def _mean_of(expand: Callable[[NDArray[np.generic], Floats], RowScores]) -> Callable[..., float]:
    return lambda y, outputs: float(expand(y, outputs).rows.mean())


def _root(y: NDArray[np.generic], outputs: Floats) -> float:
    return float(np.sqrt(((outputs - y.astype(np.float64)) ** 2).mean()))


def _of(
    name: str, title: str, target: Target, higher: bool, expand: Callable[..., RowScores], **more: object
) -> Metric:
    return Metric(name, title, target, higher, _mean_of(expand), expand, **more)  # type: ignore[arg-type]


_OWN_UNIT = {"unit": "", "bounded": False}
METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        _of("accuracy", "accuracy", "classes", True, _accuracy),
        _of(
            "balanced-accuracy",
            "balanced accuracy",
            "classes",
            True,
            _balanced,
            undefined=_one_class("balanced accuracy"),
        ),
        _of("auroc", "AUROC", "classes", True, _auroc, undefined=_one_class("AUROC"), ranks=True),
        _of("auprc", "AUPRC", "classes", True, _auprc, undefined=_one_class("AUPRC"), ranks=True),
        _of("f1", "F1", "classes", True, _f1),
        _of("log-loss", "log loss", "classes", False, _log_loss, **_OWN_UNIT),
        _of("brier", "Brier score", "classes", False, _brier, **_OWN_UNIT),
        _of("calibration", "calibration error", "classes", False, _calibration),
        _of("label-accuracy", "accuracy over labels", "labels", True, _label_accuracy),
        _of("label-log-loss", "log loss over labels", "labels", False, _label_log_loss, **_OWN_UNIT),
        _of("rmse", "RMSE", "quantity", False, _rmse, **_OWN_UNIT),
        _of("mae", "mean absolute error", "quantity", False, _mae, **_OWN_UNIT),
        _of("r2", "R2", "quantity", True, _r2, undefined=_no_spread, bounded=False),
        _of("c-index", "c-index", "survival", True, _c_index, undefined=_no_pairs, ranks=True),
    )
}


def metric(name: str) -> Metric:
    """The measure of this name.

    >>> metric("accuracy")([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]).value.__round__(3)
    0.667
    >>> metric("auroc")([1, 1], [[0.9, 0.1], [0.2, 0.8]])
    Score(value=nan, why='AUROC needs test rows of two classes, all 2 are of one class')
    """
    require(name in METRICS, f"no metric '{name}'; {nearest(name, METRICS)}")
    return METRICS[name]


class Choice(NamedTuple):
    """The measure that a verdict is about, and why."""

    metric: Metric
    why: str


def default_metric(target: Target, owners: Mapping[str, ArrayLike] | None = None) -> Choice:
    """A sensible measure for a target, from the classes of each owner's rows (train rows, so that nothing leaks).

    >>> default_metric("classes", {"a": [0, 1, 0, 1], "b": [1] * 27 + [0] * 3}).why
    'AUROC, because most train rows of b are of one class, which accuracy would reward for saying always'
    """
    if target != "classes":
        kind = KINDS[target]
        return Choice(METRICS[kind.metric], f"{METRICS[kind.metric].title}, because the target is {kind.words}")
    held = {owner: np.asarray(classes).ravel() for owner, classes in (owners or {}).items()}
    every = np.concatenate([np.zeros(0, dtype=np.int64), *held.values()])
    # All together too: where each owner has few rows, none by itself shows that a class is rare.
    shares = {}
    for owner, classes in {**held, "all owners together": every}.items():
        _, counts = np.unique(classes, return_counts=True)
        if counts.sum() >= FEW:
            shares[owner] = counts.max() / counts.sum()
    if not shares or max(shares.values()) <= IMBALANCED:
        why = f"no class has over {IMBALANCED:.0%} of the train rows, nor of an owner's who has {FEW} or more"
        return Choice(METRICS["accuracy"], f"accuracy, because the target is a class and {why}")
    worst = max(shares, key=lambda o: shares[o])
    two = len(np.unique(every)) == 2
    chosen = METRICS["auroc" if two else "balanced-accuracy"]
    return Choice(
        chosen,
        f"{chosen.title}, because most train rows of {worst} are of one class, "
        "which accuracy would reward for saying always",
    )
