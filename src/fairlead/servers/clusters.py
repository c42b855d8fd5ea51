"""Averages within clusters of clients."""

from __future__ import annotations

import torch

from fairlead.core.types import Cohort, Named, Server

MOST_CLUSTERS = 1_000  # models that a server keeps


def within(average: Server, clusters: int, *, name: str = "w", by: str = "cluster") -> Server:
    """Move each of several models by the average over the clients that chose it.

    The message holds the models side by side, `name`: (1, clusters, D). A client replies the change of one of them,
    (C, D), and under `by` which, (C, 1), on the host. `average` sees one cluster's clients at a time, with a cohort of
    their own whose weights sum to one; a model that nobody chose stays where it is.
    """

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        models = message[name]
        state = {name: models}
        for j in range(clusters):
            own, _ = average.init({name: models[:, j]}, hello, clients)
            state |= {f"{j}.{n}": x for n, x in own.items()}
        return state, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        models = state[name].clone()
        after = dict(state)
        for j in range(clusters):
            mine = rows[by][:, 0] == j
            if not bool(mine.any()):
                continue
            own = {n.removeprefix(f"{j}."): x for n, x in state.items() if n.startswith(f"{j}.")}
            own, change = average.update(own, {name: rows[name][mine]}, part_of(cohort, mine))
            models[:, j] += change[name]
            after |= {f"{j}.{n}": x for n, x in own.items()}
        after[name] = models
        return after, {name: models}

    return Server(init, update)


def part_of(cohort: Cohort, mine: torch.Tensor) -> Cohort:
    """Some of the clients that took part, (C,) true for those, as a cohort of their own."""
    if bool(mine.all()):
        return cohort  # as it is: dividing by a sum of 0.9999999 would be another mean
    weights = cohort.weights[mine]
    return cohort._replace(ids=cohort.ids[mine], weights=weights / weights.sum())
