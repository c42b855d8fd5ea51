"""Rows sorted into groups of like ones."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.errors import require
from fairlead.core.seeds import stream
from fairlead.functional.gram import Array, check_rows, gram

RESTARTS = 10
ITERATIONS = 100


def kmeans(rows: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """Which of at most `clusters` groups each row belongs to, numbered from 0, (m,).

    Lloyd's iterations from k-means++ seeds (Arthur and Vassilvitskii, SODA 2007), the best of ten tries. Everything
    after the Gram matrix is m x m. Cost: m² d once.

    >>> kmeans(torch.tensor([[0.0], [10.0], [1.0], [11.0]]), 2).bincount().tolist()
    [2, 2]
    """
    require(clusters >= 1, f"kmeans: clusters must be >= 1, got {clusters}")
    check_rows("kmeans", rows)
    G = gram(rows)
    tries = [_lloyd(G, _seeds(G, clusters, stream(seed, "kmeans", i))) for i in range(RESTARTS)]
    labels, _ = min(tries, key=lambda found: found[1])
    return torch.from_numpy(labels).to(rows.device)


def _seeds(G: Array, clusters: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Labels by the nearest of some rows, each drawn in proportion to its squared distance from those before."""
    squares = np.diagonal(G)
    distances = np.maximum(squares[:, None] + squares - 2 * G, 0)
    chosen = [int(rng.integers(len(G)))]
    while len(chosen) < clusters:
        gap = distances[:, chosen].min(1)
        if gap.sum() == 0:  # fewer different rows than clusters
            break
        chosen.append(int(rng.choice(len(G), p=gap / gap.sum())))
    labels: NDArray[np.intp] = distances[:, chosen].argmin(1)
    return labels


def _lloyd(G: Array, labels: NDArray[np.intp]) -> tuple[NDArray[np.intp], float]:
    """Labels that no longer change, and the sum of squared distances from the groups' means."""
    distances = np.zeros((len(G), 1))
    for _ in range(ITERATIONS):
        member = (labels == np.unique(labels)[:, None]).astype(np.float64)
        centre = member / member.sum(1, keepdims=True)  # (k, m): each mean, as a combination of rows
        cross = centre @ G
        distances = np.diagonal(G)[:, None] - 2 * cross.T + (cross * centre).sum(1)
        before, labels = labels, distances.argmin(1)
        if np.array_equal(before, labels):
            break
    return labels, float(distances.min(1).sum())
