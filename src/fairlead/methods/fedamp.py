"""FedAMP (Huang et al., AAAI 2021), Algorithm 1: each client is drawn to a mixture of the models most like its own.

paper   here               meaning
w_i     state["theta"]     personal model of client i, kept between rounds and deployed
u_i     message["theta"]   Σ_j ξ_ij w_j, the model made for client i in the cloud
A(x)    1 - exp(-x/σ)      x = ‖w_i - w_j‖²; attention is its slope, exp(-x/σ)/σ: the closer, the more
σ       sigma              squared distance at which attention has fallen to 1/e
α_k     alpha              step of the cloud; ξ_ij = α_k A'(‖w_i - w_j‖²) for j ≠ i, ξ_ii = 1 - Σ ξ_ij
λ       pull               strength of the tie (λ/2α_k)‖w - u_i‖²; 0 is LOCAL

Cost: one model kept per client; one model each way a round; the server keeps N models and takes N² D steps.
The paper asks for an α_k small enough that no ξ_ij is negative. Here it is made so client by client: of m clients, one
gives the others (m - 1)/m at most, and keeps as much as each would have in a plain mean; equal models give that mean.
Differs from the paper: the tie keeps the α_k asked for where a client's was made smaller; the proximal problem is
solved by the run's local training, from w_i. Clients that never took part receive the mean of the models of those that
did, and would deploy it. The variant for deep networks, HeurFedAMP, is not here.
"""

import torch
from torch import Tensor

from fairlead.core import Layout, Method, Named, Server, Task, Tie, require
from fairlead.functional.gram import gram
from fairlead.servers.mixing import mixing


def fedamp(*, alpha: float = 1.0, pull: float = 1.0, sigma: float = 1.0) -> Method:
    """Each client is drawn to a mixture of the models most like its own."""
    require(alpha > 0, f"fedamp: alpha must be > 0, got {alpha}; pull = 0 is what trains alone")
    require(pull >= 0, f"fedamp: pull must be >= 0, got {pull}; 0 is LOCAL")
    require(sigma > 0, f"fedamp: sigma must be > 0, got {sigma}; it is a squared distance between models")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {"theta": params}, {"theta": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        w = task.descend(state["theta"], Tie(message["theta"], pull / alpha))
        return {"theta": w}, {"theta": w}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return state["theta"]

    def newcomer(state: Named, message: Named, task: Task) -> Tensor:
        return message["theta"]

    def server(average: Server) -> Server:
        return mixing(lambda models, ids: attention(models, alpha, sigma))

    return Method(init, client, personal, server, average=None, newcomer=newcomer)


def attention(models: Tensor, alpha: float, sigma: float) -> Tensor:
    """ξ: how much of model j goes into the mixture for client i; rows sum to one. (P, D) -> (P, P), float64.

    >>> attention(torch.tensor([[0.0], [0.0], [9.0]]), alpha=0.5, sigma=1.0).round(decimals=4).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    >>> attention(torch.zeros(4, 1), alpha=1.0, sigma=1.0)[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    G = torch.from_numpy(gram(models))
    squares = G.diagonal()
    x = (squares[:, None] + squares - 2 * G).clamp(min=0)
    xi = (alpha / sigma * torch.exp(-x / sigma)).fill_diagonal_(0)
    most = (len(models) - 1) / len(models)
    xi = xi * (most / xi.sum(1, keepdim=True).clamp(min=most or 1.0))
    return xi + (1 - xi.sum(1)).diag()
