"""Per-client scores and their summaries, in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from fairlead.core.errors import require
from fairlead.functional.transfer import positive_transfer_ratio, relative_accuracy


def summarise(accuracy: ArrayLike, local_accuracy: ArrayLike, n_test: ArrayLike) -> dict[str, float]:
    """One run in seven numbers, from each client's accuracy, its accuracy alone and its number of test samples.

    accuracy           mean over clients
    accuracy_samples   mean over test samples
    r_accuracy, ptr    gain over training alone, and the share of clients that gain: see `fairlead.functional`
    low5, top5         mean of the lowest and of the highest 5 % of clients, rounded up
    std                standard deviation over clients, who are all there are: divided by N

    >>> s = summarise([0.5, 0.7, 0.9], [0.5, 0.5, 0.5], [10, 10, 20])
    >>> {name: round(x, 4) for name, x in s.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'accuracy': 0.7, 'accuracy_samples': 0.75, 'r_accuracy': 0.4, 'ptr': 0.6667, 'low5': 0.5, 'top5': 0.9,
     'std': 0.1633}
    """
    acc, alone, n = (np.asarray(x, dtype=np.float64) for x in (accuracy, local_accuracy, n_test))
    require(
        acc.ndim == 1 and len(acc) > 0 and acc.shape == alone.shape == n.shape,
        f"summarise: expected one number per client, three times, got shapes {acc.shape}, {alone.shape} and {n.shape}",
    )
    require(bool((n >= 0).all() and n.sum() > 0), "summarise: no client has a test sample; check the split")
    ordered, few = np.sort(acc), -(-len(acc) // 20)
    return {
        "accuracy": float(acc.mean()),
        "accuracy_samples": float(acc @ n / n.sum()),
        "r_accuracy": relative_accuracy(acc, alone),
        "ptr": positive_transfer_ratio(acc, alone),
        "low5": float(ordered[:few].mean()),
        "top5": float(ordered[-few:].mean()),
        "std": float(acc.std()),
    }


def over_seeds(summaries: Sequence[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Mean and sample standard deviation (n - 1) of every number over runs; one run has no deviation, so None.

    >>> over_seeds([{"accuracy": 0.5}, {"accuracy": 0.75}])["accuracy"]["mean"]
    0.625
    >>> over_seeds([{"accuracy": 0.5}])
    {'accuracy': {'mean': 0.5, 'std': None}}
    """
    require(len(summaries) > 0, "over_seeds: got no summaries; give one per seed")
    names = summaries[0].keys()
    for one in summaries:
        require(
            one.keys() == names,
            f"over_seeds: summaries disagree on their names, {sorted(names ^ one.keys())} are not in all of them; "
            "summarise every seed alike",
        )
    table = {name: np.array([one[name] for one in summaries]) for name in names}
    return {
        name: {"mean": float(x.mean()), "std": float(x.std(ddof=1)) if len(x) > 1 else None}
        for name, x in table.items()
    }


class Interval(NamedTuple):
    """Per client: how much accuracy was gained over training alone, and how sure that is."""

    difference: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    verdict: NDArray[np.str_]  # "helped" if lower > 0, "hurt" if upper < 0, else "unclear"


def difference_interval(correct: ArrayLike, local_correct: ArrayLike, n: ArrayLike, level: float = 0.95) -> Interval:
    """Who was helped and who was hurt, beyond the luck of a finite test set.

    Of n test samples, `correct` are right with the others' help and `local_correct` alone. Newcombe's hybrid score
    interval for a difference of proportions (Statistics in Medicine 1998, method 10), from two Wilson intervals. It
    treats the two as independent; two models scored on the same samples mostly err together, which makes the truth
    narrower and this interval the cautious one. A client without test samples is unclear.

    >>> i = difference_interval([90, 52, 10], [70, 50, 40], [100, 100, 100])
    >>> i.verdict.tolist(), i.lower.round(3).tolist(), i.upper.round(3).tolist()
    (['helped', 'unclear', 'hurt'], [0.09, -0.116, -0.408], [0.306, 0.155, -0.183])
    """
    require(0 < level < 1, f"difference_interval: level must lie in (0, 1), got {level}; 0.95 is customary")
    a, b, n = (np.asarray(x, dtype=np.float64) for x in (correct, local_correct, n))
    require(
        a.shape == b.shape == n.shape,
        f"difference_interval: expected three counts per client, got shapes {a.shape}, {b.shape} and {n.shape}",
    )
    require(
        bool(((a >= 0) & (a <= n) & (b >= 0) & (b <= n)).all()),
        "difference_interval: correct and local_correct must lie between 0 and n; give counts, not accuracies",
    )
    z = float(ndtri((1 + level) / 2))  # the normal quantile; scipy.stats would take longer to import than to use
    p, p_low, p_high = _wilson(a, n, z)
    q, q_low, q_high = _wilson(b, n, z)
    difference = p - q
    lower = difference - np.hypot(p - p_low, q_high - q)
    upper = difference + np.hypot(p_high - p, q - q_low)
    lower, upper = np.where(n > 0, lower, -1.0), np.where(n > 0, upper, 1.0)
    verdict = np.where(lower > 0, "helped", np.where(upper < 0, "hurt", "unclear"))
    return Interval(difference, lower, upper, verdict)


def _wilson(
    k: NDArray[np.float64], n: NDArray[np.float64], z: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """A proportion and its Wilson score interval; 0 and [0, 1] without samples."""
    p = np.divide(k, n, out=np.zeros_like(k), where=n > 0)
    total = n + z * z
    centre = (k + z * z / 2) / total
    half = z * np.sqrt(p * (1 - p) * n + z * z / 4) / total
    return p, centre - half, centre + half
