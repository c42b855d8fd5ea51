"""Models that flow along a graph of clients; the mathematics is in `fairlead.functional.propagate`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fairlead.core.errors import require
from fairlead.core.types import Cohort, Named, Server
from fairlead.functional import spread_matrix


def propagation(similarity: Callable[[Named], Tensor], *, a: float = 0.8, name: str = "theta") -> Server:
    """Send each client its own mixture of all clients' models, by how alike the clients are.

    FEDORA (Wu et al., KDD 2023), server update. `similarity` turns the greetings (N rows) into the matrix W (N, N);
    `a` in [0, 1) is the weight of the neighbours, α / (1 + α) in the paper. Replies are whole models, one row per
    client, and the last one of each client is kept for the rounds it sits out. State: N models and an N x N matrix.
    """
    require(0 <= a < 1, f"propagation: a must lie in [0, 1), got {a}; it is the weight of the neighbours, 0 for none")

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        require(
            name in message,
            f"propagation: the first message has no entry '{name}', only {', '.join(message)}; name one",
        )
        first = message[name]
        W = similarity(hello)
        require(
            W.shape == (clients, clients),
            f"propagation: similarity must give a ({clients}, {clients}) matrix, got {tuple(W.shape)}; "
            "one row and one column per client",
        )
        theta = first.expand(clients, *first.shape[1:]).clone()
        return {name: theta, "spread": spread_matrix(W, a).to(first)}, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        theta = state[name].index_copy(0, cohort.ids, rows[name])
        return state | {name: theta}, {name: state["spread"] @ theta}

    return Server(init, update)
