"""FedFomo (Zhang et al., ICLR 2021), Section 3: a client takes of others' models what helps on its validation data.

paper   here                  meaning
θ_i     state["theta"]        model of client i after local training, kept between rounds and deployed
θ_n     message["models"]     all clients' models, (1, N, D); a client is sent the M that message["chosen"] names
w_i,n   reply["affinity"]     (L_i(θ_i) - L_i(θ_n)) / ‖θ_n - θ_i‖ on validation data; clipped at 0 and normalised it is
                              the share of θ_n in the mixture that local training starts from
P       server "preference"   sum of w_i,n over the rounds, negative ones included: whose models client i is sent
M       models                models sent to a client; 0 is LOCAL
ε       epsilon               chance that one of them is drawn at random rather than by P

Cost: one model kept per client; M models down and one up, every round, and M + 1 passes over the validation data.
The server keeps N models.
Differs from the paper: a client's own model, whose weight is 0 by the formula, is not sent; ε does not decay; ties in P
are broken at random. Models of clients that never took part are sent to nobody; such a client would deploy the mixture.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from fairlead.core import Cohort, Layout, Method, Named, Server, Task, require, stream
from fairlead.core.device import on_host
from fairlead.core.fast.machine import large_empty


def fedfomo(*, models: int = 5, epsilon: float = 0.3) -> Method:
    """A client takes of others' models what helps on its validation data."""
    require(models >= 0, f"fedfomo: models must be >= 0, got {models}; 0 is LOCAL")
    require(0 <= epsilon <= 1, f"fedfomo: epsilon must lie in [0, 1], got {epsilon}; 0 never explores")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {"theta": params}, {"models": params[:, None]}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        w = affinity(state, message, task)
        theta = task.descend(mixture(state["theta"], message, w))
        return {"theta": theta}, {"theta": theta, "affinity": w}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return state["theta"]

    def newcomer(state: Named, message: Named, task: Task) -> Tensor:
        return mixture(state["theta"], message, affinity(state, message, task))

    def server(average: Server) -> Server:
        def first(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
            params = message["models"]  # (1, 1, D)
            count = min(models, clients - 1)
            state = {
                "theta": params[:, 0].repeat(clients, 1),
                "present": torch.zeros(clients, 1, dtype=torch.bool),
                "preference": torch.zeros(clients, clients),
                "chosen": torch.zeros(clients, count, dtype=torch.int64),
            }
            nothing = torch.zeros(1, count, dtype=torch.int64)
            return state, {"models": state["theta"][None], "chosen": nothing, "offered": nothing.bool()}

        def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
            ids = cohort.ids
            theta = rows["theta"]
            if len(ids) < cohort.clients:
                theta = state["theta"].index_copy(0, ids.to(theta.device), theta)
            present = state["present"].index_fill(0, ids, True)
            preference, affinity = on_host(state["preference"]), on_host(rows["affinity"])
            preference = preference.index_copy(0, ids, preference[ids].scatter_add(1, state["chosen"][ids], affinity))
            count = state["chosen"].shape[1]
            chosen, offered = choose(preference, present, count, epsilon, cohort.seed, cohort.round)
            state = {"theta": theta, "present": present, "preference": preference, "chosen": chosen}
            return state, {"models": theta[None], "chosen": chosen, "offered": offered}

        return Server(first, update)

    return Method(init, client, personal, server, average=None, newcomer=newcomer, picks={"models": "chosen"})


def affinity(state: Named, message: Named, task: Task) -> Tensor:
    """How much lower the validation loss of each model sent is, per unit of distance; 0 for none, (C, M)."""
    (models,), chosen, offered = message["models"], message["chosen"].expand(len(task), -1), message["offered"]
    theta = state["theta"].expand(len(task), -1)
    # Pair by pair: a difference stays in the cache, those of all would not.
    gap = theta.new_empty(chosen.shape)
    for i, sent in enumerate(chosen.tolist()):
        for j, n in enumerate(sent):
            gap[i, j] = torch.dist(models[n], theta[i])
    w = (task.loss(state["theta"]) - task.losses(models, chosen)) / gap
    # Not finite where the models are equal, or where the other one's loss overflows here.
    return w.where(offered.to(w.device) & w.isfinite(), 0)


def mixture(theta: Tensor, message: Named, w: Tensor) -> Tensor:
    """θ + Σ_n w_n (θ_n - θ) with the positive weights, scaled to sum to one; θ itself where there are none. (C, D)

    >>> sent = {"models": torch.tensor([[[2.0], [4.0], [9.0]]]), "chosen": torch.tensor([[0, 1, 2]])}
    >>> mixture(torch.tensor([[1.0]]), sent, torch.tensor([[3.0, 1.0, -5.0]])).tolist()
    [[2.5]]
    """
    helpful = w.clamp(min=0)
    total = helpful.sum(1, keepdim=True)
    alone = on_host(total)[:, 0] == 0
    if bool(alone.all()):
        return theta
    share, (models,) = helpful / total.where(total > 0, 1), message["models"]
    chosen = message["chosen"].expand_as(w).to(w.device)
    if len(w) > 1 and len(models) <= chosen.numel():  # most are wanted by one client or another: a single product
        shares = share.new_zeros(len(w), len(models)).scatter_add_(1, chosen, share)
        mixed = torch.mm(shares, models, out=large_empty(models, len(w), models.shape[1]))
    else:
        mixed = embedding_bag(chosen, models, per_sample_weights=share, mode="sum")
    mixed[alone] = theta.expand_as(mixed)[alone]
    return mixed


def choose(
    preference: Tensor, present: Tensor, count: int, epsilon: float, seed: int, round: int
) -> tuple[Tensor, Tensor]:
    """Whose models each client is sent next, (N, count), and which of these exist, (N, count).

    The most preferred of the others that are present come first; each of the `count` places goes with chance ε to one
    of the rest, drawn evenly.
    """
    n = len(preference)
    rng = stream(seed, "fedfomo", round)
    able = present.T & ~torch.eye(n, dtype=torch.bool)
    ties, luck = torch.from_numpy(rng.random((2, n, n)))
    explored = torch.from_numpy(rng.binomial(count, epsilon, (n, 1)))
    shuffled = ties.argsort(1)
    liked = preference.where(able, -torch.inf).gather(1, shuffled)
    order = shuffled.gather(1, liked.argsort(dim=1, descending=True, stable=True))
    kept = order.argsort(1) < count - explored
    chosen = torch.where(kept, -1.0, luck).where(able, 2.0).argsort(1)[:, :count]
    return chosen, able.gather(1, chosen)
