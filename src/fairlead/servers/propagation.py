"""Models that flow along a graph of clients; the mathematics is in `fairlead.functional.propagate`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fairlead.core.device import on_host
from fairlead.core.errors import require
from fairlead.core.types import Cohort, Named, Server
from fairlead.functional import spread_matrix
from fairlead.functional.gram import mix


def propagation(
    similarity: Callable[[Named], Tensor],
    edges: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    a: float = 0.8,
    name: str = "theta",
) -> Server:
    """Send each client its own mixture of the clients' models, by how alike the clients are.

    FEDORA (Wu et al., KDD 2023), server update. `similarity` turns the greetings (N rows) into a matrix (N, N), once;
    `edges(similarity, present)` makes of it the graph W among the clients present, those that have taken part by now
    (N, 1), again whenever their number grows; left out, W is the similarity itself. `a` in [0, 1) is the weight of the
    neighbours, α / (1 + α) in the paper.

    Replies are whole models, one row per client, and the last one of each client is kept for the rounds it sits out.
    Who never took part has no model to spread: it receives the mean of its neighbours' mixtures, weighted by W, and
    the first message while it has no neighbour present. State: N models and two N x N matrices.
    """
    require(0 <= a < 1, f"propagation: a must lie in [0, 1), got {a}; it is the weight of the neighbours, 0 for none")

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        require(
            name in message,
            f"propagation: the first message has no entry '{name}', only {', '.join(message)}; name one",
        )
        first = message[name]
        alike = on_host(similarity(hello))  # the graph is small, and worked out there
        require(
            alike.shape == (clients, clients),
            f"propagation: similarity must give a ({clients}, {clients}) matrix, got {tuple(alike.shape)}; "
            "one row and one column per client",
        )
        state = {
            name: first.expand(clients, *first.shape[1:]),
            "similarity": alike,
            "present": torch.zeros(clients, 1, dtype=torch.bool),
            "spread": torch.eye(clients, dtype=first.dtype),
        }
        return state, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        # With everybody there the replies are the models, in order: nothing to copy.
        full = len(cohort.ids) == cohort.clients
        theta = rows[name] if full else state[name].index_copy(0, cohort.ids.to(rows[name].device), rows[name])
        present = state["present"].index_fill(0, cohort.ids, True)
        spread = state["spread"]
        if not torch.equal(present, state["present"]):
            alike = on_host(state["similarity"])
            W = alike if edges is None else edges(alike, present)
            spread = spread_among(W, present, a).to(theta.dtype)
        return state | {name: theta, "present": present, "spread": spread}, {name: mix(spread, theta)}

    return Server(init, update)


def spread_among(W: Tensor, present: Tensor, a: float) -> Tensor:
    """`spread_matrix` among the clients present; the others are given their neighbours' mixtures. (N, N), float64.

    >>> W = torch.ones(3, 3)
    >>> spread_among(W, torch.tensor([[True], [True], [False]]), a=0.5).tolist()
    [[0.75, 0.25, 0.0], [0.25, 0.75, 0.0], [0.5, 0.5, 0.0]]
    """
    here, away = present[:, 0].nonzero()[:, 0], (~present[:, 0]).nonzero()[:, 0]
    spread = torch.eye(len(W), dtype=torch.float64)
    among = spread_matrix(W[here][:, here], a)
    spread[here[:, None], here] = among
    towards = W[away][:, here].double()
    degree = towards.sum(1)
    heard, known = away[degree > 0], towards[degree > 0] / degree[degree > 0, None]
    spread[heard] = 0
    spread[heard[:, None], here] = known @ among
    return spread
