"""Ways to divide samples among clients: each function returns one sorted array of sample indices per client.

Every function is deterministic given its generator and ends after a fixed amount of work: a client left with too few
samples is topped up from the best-off ones, rather than drawing again until luck helps. A sample goes to one client at
most; `pathological` alone may leave some out, when there are fewer places than classes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlead.core.errors import DataError, InputError, require

Index = NDArray[np.int64]
Rng = np.random.Generator


def iid(n: int, clients: int, rng: Rng, *, minimum: ArrayLike = 1) -> list[Index]:
    """Shuffle and deal out evenly: every client sees the same mix, sizes differ by at most one.

    >>> [len(part) for part in iid(10, 3, np.random.default_rng(0))]
    [4, 3, 3]
    """
    _check(n, clients, minimum)
    return quantity(n, clients, rng, proportions=np.ones(clients), minimum=minimum)


def quantity(
    n: int,
    clients: int,
    rng: Rng,
    *,
    skew: float = 1.0,
    proportions: ArrayLike | None = None,
    minimum: ArrayLike = 1,
) -> list[Index]:
    """The same mix for everybody, in unequal amounts: the r-th largest client gets a share like r ** -skew.

    `proportions`, one positive number per client, replaces the power law; `skew` 0 is an even split.
    """
    floor = _check(n, clients, minimum)
    if proportions is None:
        require(np.isfinite(skew) and skew >= 0, f"quantity: skew must be >= 0, got {skew}; 0 is an even split")
        weights = rng.permutation(np.arange(1.0, clients + 1) ** -skew)
    else:
        weights = np.asarray(proportions, dtype=float)
        good = weights.shape == (clients,) and bool(np.isfinite(weights).all()) and bool((weights > 0).all())
        require(good, f"quantity: proportions must be {clients} positive numbers, one per client")
    owner = rng.permutation(np.repeat(np.arange(clients), apportion(n, weights)))
    return _collect(owner, clients, floor, rng)


def dirichlet(labels: ArrayLike, clients: int, rng: Rng, *, beta: float, minimum: ArrayLike = 1) -> list[Index]:
    """Label skew: each class is shared out in proportions drawn from Dirichlet(beta); a small beta is a strong skew."""
    y = np.asarray(labels)
    floor = _check(len(y), clients, minimum)
    require(np.isfinite(beta) and beta > 0, f"dirichlet: beta must be > 0, got {beta}; try 0.1 (strong) to 100 (mild)")
    _, y = np.unique(y, return_inverse=True)
    shares = rng.dirichlet(np.full(clients, beta), size=int(y.max()) + 1)
    # A beta near the smallest float underflows; the limit of the distribution is one client per class.
    lost = ~np.isfinite(shares).all(1) | ~(shares.sum(1) > 0)
    shares[lost] = np.eye(clients)[rng.integers(clients, size=int(lost.sum()))]
    return _collect(_deal(y, shares, rng), clients, floor, rng)


def pathological(labels: ArrayLike, clients: int, rng: Rng, *, k: int, minimum: ArrayLike = 1) -> list[Index]:
    """Label skew: every client holds exactly k classes, in amounts as equal as the class sizes allow.

    Larger classes get more owners. With at least as many places (clients * k) as classes every class is used.
    """
    y = np.asarray(labels)
    floor = _check(len(y), clients, minimum)
    _, y, counts = np.unique(y, return_inverse=True, return_counts=True)
    require(1 <= k <= len(counts), f"pathological: k must be 1 to {len(counts)}, the classes in the data, got {k}")
    left = _owners_per_class(counts, clients, k, rng)
    shares = np.zeros((len(counts), clients))
    for client in rng.permutation(clients):
        # The k classes with the most owners still to find: this greedy choice never runs into a dead end, because
        # at most k classes can need every client that is left.
        chosen = np.lexsort((rng.random(len(left)), -left))[:k]
        shares[chosen, client] = 1
        left[chosen] -= 1
    return _by_class("pathological", _deal(y, shares, rng), clients, floor)


def consecutive(labels: ArrayLike, clients: int, rng: Rng, *, k: int, minimum: ArrayLike = 1) -> list[Index]:
    """Label skew: classes are dealt in turn, k to a client, so that clients a whole turn apart hold the same ones.

    >>> [np.unique(part % 4).tolist() for part in consecutive([0, 1, 2, 3] * 9, 4, np.random.default_rng(0), k=2)]
    [[0, 1], [2, 3], [0, 1], [2, 3]]
    """
    y = np.asarray(labels)
    floor = _check(len(y), clients, minimum)
    names, y = np.unique(y, return_inverse=True)
    require(1 <= k <= len(names), f"consecutive: k must be 1 to {len(names)}, the classes in the data, got {k}")
    shares = np.zeros((len(names), clients))
    places = np.arange(clients * k)
    shares[places % len(names), places // k] = 1
    return _by_class("consecutive", _deal(y, shares, rng), clients, floor)


def by_column(values: ArrayLike, clients: int | None = None, *, minimum: ArrayLike = 1) -> list[Index]:
    """One client per distinct value of a column, such as a user or a hospital, in sorted order.

    With fewer clients than values, neighbouring values (years, say) are put together into groups of similar size.

    >>> [part.tolist() for part in by_column(["b", "a", "b"])]
    [[1], [0, 2]]
    """
    column = np.asarray(values)
    missing = column != column if column.dtype.kind == "f" else np.array([v is None for v in column.tolist()], bool)
    if missing.any():
        raise InputError(f"column: the value in row {int(missing.argmax()) + 1} is missing; fill or drop such rows")
    column = column.astype(str) if column.dtype.kind == "O" else column
    names, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
    clients = len(names) if clients is None else clients
    floor = _check(len(column), clients, minimum)
    require(clients <= len(names), f"column: {clients} clients, and the column has only {len(names)} different values")
    middle = (counts.cumsum() - counts / 2) / len(column) * clients
    group = np.zeros(len(names), dtype=np.int64)
    for i in range(1, len(names)):
        # In order, without a gap, and leaving enough values for the clients that follow.
        group[i] = max(min(int(middle[i]), group[i - 1] + 1), group[i - 1], clients - len(names) + i)
    sizes = np.bincount(group[inverse], minlength=clients)
    short = np.flatnonzero(sizes < floor)
    if len(short):
        raise InputError(
            f"column: client {short[0]} ({names[group == short[0]][0]!s}) has {sizes[short[0]]} samples and needs "
            f"{floor[short[0]]}; lower clients, which joins neighbouring values, or drop that value"
        )
    return _group(group[inverse], clients)


def like(
    labels: ArrayLike, parts: list[Index], labels_of_parts: ArrayLike, rng: Rng, *, minimum: ArrayLike = 1
) -> list[Index]:
    """Deal a second pool, such as a test set, so that each client's class mix follows the partition of a first."""
    y, first = np.asarray(labels), np.asarray(labels_of_parts)
    clients = len(parts)
    floor = _check(len(y), clients, minimum)
    names, both = np.unique(np.concatenate([first, y]), return_inverse=True)
    shares = np.stack([np.bincount(both[: len(first)][part], minlength=len(names)) for part in parts], axis=1)
    return _collect(_deal(both[len(first) :], shares.astype(float), rng), clients, floor, rng)


def from_flwr(
    partitioner: Any, labels: ArrayLike, columns: Mapping[str, ArrayLike] | None = None, *, label: str = "label"
) -> list[Index]:
    """Use any partitioner of flwr-datasets: it sees the labels (and columns), we keep the indices it chose.

    The partitioner must be fresh, since flwr-datasets lets its `dataset` be set once.
    """
    try:
        from datasets import Dataset
    except ModuleNotFoundError as error:
        raise DataError("flwr partitioners divide Hugging Face data sets; run: pip install 'fairlead[hub]'") from error
    y = np.asarray(labels)
    table = {name: np.asarray(values) for name, values in (columns or {}).items()}
    partitioner.dataset = Dataset.from_dict({**table, label: y, "fairlead_index": np.arange(len(y))})
    parts = [
        np.sort(np.asarray(partitioner.load_partition(i)["fairlead_index"], dtype=np.int64))
        for i in range(partitioner.num_partitions)
    ]
    used = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    require(len(np.unique(used)) == len(used), "the flwr partitioner gave one sample to two clients")
    return parts


def apportion(n: int, weights: ArrayLike) -> Index:
    """Cut n into whole numbers in the given proportions, by largest remainder.

    >>> apportion(10, [1, 1, 2]).tolist()
    [3, 2, 5]
    """
    share = np.asarray(weights, dtype=float)
    exact = share / share.sum() * n
    sizes: Index = np.floor(exact).astype(np.int64)
    order = np.argsort(sizes - exact, kind="stable")  # stable, so ties go to the first
    sizes[order[: n - int(sizes.sum())]] += 1
    return sizes


def _check(n: int, clients: int, minimum: ArrayLike) -> Index:
    """The front door of every partitioner; returns the minimum of each client."""
    require(clients >= 1, f"clients must be at least 1, got {clients}")
    require(n >= 1, "there are no samples to divide")
    floor = np.broadcast_to(np.asarray(minimum, dtype=np.int64), (clients,))
    if floor.sum() > n:
        each = f"at least {floor.min()}" if floor.min() == floor.max() else f"{floor.min()} to {floor.max()}"
        raise InputError(
            f"{clients} clients with {each} samples each need {floor.sum():,} samples, and there are {n:,}; "
            "lower clients or the samples per client"
        )
    return floor


def _owners_per_class(counts: Index, clients: int, k: int, rng: Rng) -> Index:
    """How many clients share each class, so that a share is about equally large in every class."""
    places = clients * k
    limit = np.minimum(counts, clients)
    if limit.sum() < places:
        raise InputError(
            f"pathological: {clients} clients with {k} classes each need {places:,} shares, and the classes have "
            f"samples for only {limit.sum():,}; lower clients or the classes per client"
        )
    owners = np.zeros(len(counts), dtype=np.int64)
    owners[rng.permutation(len(counts))[:places]] = 1
    # Place after place goes to the class whose shares are largest; the random number settles ties.
    queue = [(-counts[c] / 2, rng.random(), c) for c in np.flatnonzero((owners == 1) & (limit > 1))]
    heapq.heapify(queue)
    for _ in range(places - int(owners.sum())):
        _, tie, c = heapq.heappop(queue)
        owners[c] += 1
        if owners[c] < limit[c]:
            heapq.heappush(queue, (-counts[c] / (owners[c] + 1), tie, c))
    return owners


def _deal(y: Index, shares: NDArray[np.float64], rng: Rng) -> Index:
    """The owner of each sample when class c is cut in proportions shares[c]; -1 where the class has no owner."""
    owner = np.full(len(y), -1, dtype=np.int64)
    shuffled = rng.permutation(len(y))
    for c, indices in enumerate(_group(y[shuffled], len(shares))):
        edges = shares[c].cumsum()
        if edges[-1] > 0:
            at = (np.arange(len(indices)) + 0.5) / max(len(indices), 1)
            owner[shuffled[indices]] = np.searchsorted(edges / edges[-1], at, side="right")
    return owner


def _group(owner: Index, clients: int) -> list[Index]:
    """The indices of each owner, ascending."""
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], np.arange(clients + 1))
    return [order[a:b] for a, b in pairwise(starts)]


def _by_class(caller: str, owner: Index, clients: int, floor: Index) -> list[Index]:
    """Group by owner; who has too few cannot be topped up, since others' samples are of other classes."""
    parts = _group(owner, clients)
    for client, part in enumerate(parts):
        if len(part) < floor[client]:
            raise InputError(
                f"{caller}: client {client} gets {len(part)} samples from its classes and needs {floor[client]}; "
                "lower clients or the samples per client, or raise the classes per client"
            )
    return parts


def _collect(owner: Index, clients: int, floor: Index, rng: Rng) -> list[Index]:
    """Group by owner, then fill up clients below their minimum with random samples of the largest clients."""
    parts = _group(owner, clients)
    spare = np.array([len(part) for part in parts]) - floor
    if spare.sum() < 0:
        raise InputError(
            f"{clients} clients need {floor.sum():,} samples together, and their classes have only "
            f"{spare.sum() + floor.sum():,}; lower clients or the samples per client"
        )
    donors = [(-int(s), k) for k, s in enumerate(spare) if s > 0]
    heapq.heapify(donors)
    stock: dict[int, list[int]] = {}
    for client in np.flatnonzero(spare < 0):
        moved = []
        for _ in range(-spare[client]):
            rest, donor = heapq.heappop(donors)
            if donor not in stock:
                stock[donor] = rng.permutation(parts[donor]).tolist()
            moved.append(stock[donor].pop())
            if rest + 1 < 0:
                heapq.heappush(donors, (rest + 1, donor))
        parts[client] = np.sort(np.concatenate([parts[client], np.array(moved, dtype=np.int64)]))
    for donor, kept in stock.items():
        parts[donor] = np.sort(np.array(kept, dtype=np.int64))
    return parts
