"""FedU (Dinh et al., IEEE TNSE 2022), Algorithm 1: models of neighbours in a graph are drawn together between rounds.

paper   here               meaning
w_k     state["theta"]     model of client k after its local steps, kept between rounds
a_kl    graph              weight of the edge from k to l; left out, everybody is everybody's neighbour
m_k     message["theta"]   Σ_l a_kl w_l, the mean of client k's neighbours
η       eta                strength of the Laplacian term; 0 is LOCAL
μ       task.sgd.lr        local step size
R       task.steps()       number of local steps

The Laplacian step is w_k <- w_k - μRη Σ_l a_kl (w_k - w_l) = w_k - μRη (w_k - m_k); local training goes on from there,
and there is what the client deploys.

Cost: one model kept per client; one model each way a round; the server keeps N models.
Differs from the paper: the client takes the Laplacian step when it next trains or deploys, since it knows μ and R; each
row of a_kl is scaled to sum to one over the neighbours that have taken part by now; μRη counts as at most one, which
puts m_k in the place of w_k, where more would overshoot. With momentum, R counts a gradient as often as it is applied.
Who never took part is nobody's neighbour, and receives the mean of the models of those that did.
"""

from typing import Any

import torch
from torch import Tensor

from fairlead.core import Layout, Method, Named, Server, Task, require
from fairlead.servers.mixing import mixing


def fedu(*, eta: float = 0.5, graph: list[list[float]] | None = None) -> Method:
    """Models of neighbours in a graph are drawn together between rounds."""
    require(eta >= 0, f"fedu: eta must be >= 0, got {eta}; 0 is LOCAL")
    edges = None if graph is None else weights_of(graph)

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {"theta": params}, {"theta": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        w = task.descend(personal(state, message, task))
        return {"theta": w}, {"theta": w}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return state["theta"].lerp(message["theta"], (task.sgd.lr * task.steps() * eta).clamp(max=1))

    def newcomer(state: Named, message: Named, task: Task) -> Tensor:
        return message["theta"]

    def server(average: Server) -> Server:
        return mixing(lambda models, ids: neighbours(edges, ids))

    return Method(init, client, personal, server, average=None, newcomer=newcomer)


def weights_of(graph: Any) -> Tensor:
    """The graph as a matrix, or a sentence about what is wrong with it."""
    W = torch.as_tensor(graph, dtype=torch.float64)
    require(
        W.ndim == 2 and len(W) == W.shape[1] and bool((W >= 0).all()),
        f"fedu: graph must be a square matrix of weights >= 0, got shape {tuple(W.shape)}; one row per client",
    )
    return W


def neighbours(edges: Tensor | None, ids: Tensor) -> Tensor:
    """Each present client's weights on the others, rows summing to one; without a neighbour, on itself. (P, P)

    >>> neighbours(None, torch.tensor([0, 4, 7])).tolist()
    [[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]
    """
    if edges is None:
        a = torch.ones(len(ids), len(ids), dtype=torch.float64)
    else:
        require(int(ids[-1]) < len(edges), f"fedu: graph has {len(edges)} clients, but client {int(ids[-1])} took part")
        a = edges[ids][:, ids]
    a = a.clone().fill_diagonal_(0)
    degree = a.sum(1, keepdim=True)
    return torch.where(degree > 0, a / degree.where(degree > 0, 1), torch.eye(len(a), dtype=a.dtype))
