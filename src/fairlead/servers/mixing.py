"""A mixture of the clients' models for each of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fairlead.core.types import Cohort, Named, Server
from fairlead.functional.gram import mix


def mixing(weights: Callable[[Tensor, Tensor], Tensor], *, name: str = "theta") -> Server:
    """Send each client a mixture of the models of all that have taken part by now, the P present.

    `weights(models, ids)` takes their last models (P, D) and ids (P,) to a matrix (P, P) whose row k makes client k's
    mixture. Who never took part adds nothing to anybody's mixture and receives the plain mean. State: N models.
    """

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        first = message[name]
        theta = first.expand(clients, *first.shape[1:])
        return {name: theta, "present": torch.zeros(clients, 1, dtype=torch.bool)}, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        # With everybody there the replies are the models, in order: nothing to copy.
        full = len(cohort.ids) == cohort.clients
        theta = rows[name] if full else state[name].index_copy(0, cohort.ids.to(rows[name].device), rows[name])
        present = state["present"].index_fill(0, cohort.ids, True)
        ids = present[:, 0].nonzero()[:, 0]
        models = theta if len(ids) == len(theta) else theta[ids]
        mixed = mix(weights(models, ids), models)
        if len(ids) < len(theta):
            mixed = models.mean(0, keepdim=True).repeat(len(theta), 1).index_copy(0, ids.to(mixed.device), mixed)
        return state | {name: theta, "present": present}, {name: mixed}

    return Server(init, update)
