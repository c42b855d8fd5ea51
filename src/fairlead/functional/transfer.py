"""Did working together pay? Accuracy with the others, against accuracy alone, client by client."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlead.core.errors import require


def positive_transfer_ratio(accuracy: ArrayLike, local_accuracy: ArrayLike) -> float:
    """PTR: the share of clients that do strictly better than they would alone (FEDORA, Wu et al., KDD 2023).

    >>> positive_transfer_ratio([0.9, 0.5, 0.7, 0.2], [0.8, 0.5, 0.6, 0.4])
    0.5
    """
    acc, alone = _pairs("positive_transfer_ratio", accuracy, local_accuracy)
    return float((acc > alone).mean())


def relative_accuracy(accuracy: ArrayLike, local_accuracy: ArrayLike) -> float:
    """R-Acc: the gain over training alone as a share of it, (acc - local) / local, averaged over clients (FEDORA).

    Where a client alone is right on nothing the quotient is undefined; it counts 1 if the client is now right on
    anything, as if it had doubled, and 0 if not.

    >>> round(relative_accuracy([0.9, 0.5], [0.6, 0.5]), 4)
    0.25
    """
    acc, alone = _pairs("relative_accuracy", accuracy, local_accuracy)
    gain = np.divide(acc - alone, alone, out=(acc > 0).astype(np.float64), where=alone > 0)
    return float(gain.mean())


def _pairs(caller: str, accuracy: ArrayLike, local_accuracy: ArrayLike) -> tuple[NDArray[np.float64], ...]:
    acc, alone = np.asarray(accuracy, dtype=np.float64), np.asarray(local_accuracy, dtype=np.float64)
    require(
        acc.ndim == 1 and acc.shape == alone.shape and len(acc) > 0,
        f"{caller}: expected one accuracy per client, twice, got shapes {acc.shape} and {alone.shape}",
    )
    return acc, alone
