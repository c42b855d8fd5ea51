"""Per-client scores and their summaries, in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

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
