"""FedFomo (Zhang et al., ICLR 2021), Section 3: a client takes of others' models what helps on its validation data.

paper   here                  meaning
θ_i     state["theta"]        model of client i after local training, kept between rounds and deployed
θ_i'    state["before"]       the mixture which that training started from: what all candidates are compared with
θ_n     message["models"]     all clients' models, (1, N, D); a client is sent the M that message["chosen"] names, and
                              its own, θ_i, is a candidate as well
w_i,n   reply["affinity"]     (L_i(θ_i') - L_i(θ_n)) / ‖θ_n - θ_i'‖ on validation data; clipped at 0 and normalised, it
                              is the share of θ_n in the mixture that local training starts from, θ_i' where all are 0
P       server "preference"   sum of w_i,n over the rounds, negative ones included: whose models client i is sent
M       models                models of others sent to a client; with 0 a client trains alone, and takes back a round
                              after which its validation loss is not lower
ε       epsilon               chance that one of them is drawn at random rather than by P

Cost: two models kept per client; M models down and one up, every round, and M + 2 passes over the validation data.
The server keeps N models.
Differs from the paper: ε does not decay; ties in P are broken at random. Models of clients that never took part are
sent to nobody; such a client would deploy the mixture.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from fairlead.core import Cohort, Layout, Method, Named, Server, Task, require, stream
from fairlead.core.device import on_host
from fairlead.core.fast.machine import large_empty


def fedfomo(*, models: int = 5, epsilon: float = 0.3) -> Method:
    """A client takes of others' models what helps on its validation data."""
    require(models >= 0, f"fedfomo: models must be >= 0, got {models}; with 0 clients train alone")
    require(0 <= epsilon <= 1, f"fedfomo: epsilon must lie in [0, 1], got {epsilon}; 0 never explores")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {"theta": params, "before": params}, {"models": params[:, None]}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        own, w = affinity(state, message, task)
        before = mixture(state, message, own, w).expand(len(task), -1)
        theta = task.descend(before)
        return {"theta": theta, "before": before}, {"theta": theta, "affinity": w}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return state["theta"]

    def newcomer(state: Named, message: Named, task: Task) -> Tensor:
        return mixture(state, message, *affinity(state, message, task))

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


def affinity(state: Named, message: Named, task: Task) -> tuple[Tensor, Tensor]:
    """How much lower than before training the validation loss is, per unit of distance; 0 for no model.

    Of the client's own model, (C, 1), and of those it was sent, (C, M).
    """
    (models,), chosen, offered = message["models"], message["chosen"].expand(len(task), -1), message["offered"]
    before = state["before"].expand(len(task), -1)
    # Pair by pair: a difference stays in the cache, those of all would not.
    gap = before.new_empty(chosen.shape)
    for i, sent in enumerate(chosen.tolist()):
        for j, n in enumerate(sent):
            gap[i, j] = torch.dist(models[n], before[i])
    loss = task.loss(state["before"])
    w = (loss - task.losses(models, chosen)) / gap
    moved = torch.linalg.vector_norm(state["theta"] - before, dim=1, keepdim=True)
    own = (loss - task.loss(state["theta"])) / moved
    # Not finite where the models are equal, or where the other one's loss overflows here.
    return own.where(own.isfinite(), 0), w.where(offered.to(w.device) & w.isfinite(), 0)


def mixture(state: Named, message: Named, own: Tensor, w: Tensor) -> Tensor:
    """The candidates with positive weights, scaled to sum to one; the model before training where none has. (C, D)

    >>> sent = {"models": torch.tensor([[[2.0], [4.0], [9.0]]]), "chosen": torch.tensor([[0, 1, 2]])}
    >>> state = {"theta": torch.tensor([[1.0]]), "before": torch.tensor([[7.0]])}
    >>> mixture(state, sent, torch.tensor([[4.0]]), torch.tensor([[3.0, 1.0, -5.0]])).tolist()
    [[1.75]]
    """
    own, w = own.clamp(min=0), w.clamp(min=0)
    total = own + w.sum(1, keepdim=True)
    nobody = on_host(total)[:, 0] == 0
    if bool(nobody.all()):
        return state["before"]
    total = total.where(total > 0, 1)
    share, (models,) = w / total, message["models"]
    chosen = message["chosen"].expand_as(w).to(w.device)
    if len(w) > 1 and len(models) <= chosen.numel():  # most are wanted by one client or another: a single product
        shares = share.new_zeros(len(w), len(models)).scatter_add_(1, chosen, share)
        mixed = torch.mm(shares, models, out=large_empty(models, len(w), models.shape[1]))
    elif chosen.numel():
        mixed = embedding_bag(chosen, models, per_sample_weights=share, mode="sum")
    else:
        mixed = models.new_zeros(len(w), models.shape[1])
    mixed.addcmul_(own / total, state["theta"].expand_as(mixed))
    mixed[nobody] = state["before"].expand_as(mixed)[nobody]
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
