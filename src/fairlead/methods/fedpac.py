"""FedPAC (Xu et al., ICLR 2023), Algorithm 1: features tied to shared class prototypes, heads mixed client by client.

paper     here                    meaning
φ         message["w"]            global body
θ_i       message["head"]         client i's own mixture of the clients' heads
c_k       message["prototypes"]   mean feature of class k over all clients, where message["known"] is 1
λ         pull                    weight of the alignment ‖z - c_y‖²/d; 0 leaves the features free
ĉ_i,k     reply["prototypes"]     mean feature of the client's samples of class k under its trained body
h_i       reply["means"]          share of class k times its mean feature, under the body as received
V_i       reply["variance"]       (E‖z‖² - ‖h_i‖²)/n_i: the variance of h_i's estimate
          least                   samples of a class below which a client says nothing of the class; 1 is the paper's
          pool                    how c_k is made: "mean" is the paper's, "median" FedProto's against hostile clients
α_i       combine                 argmin over the simplex of Σ_j α_j² V_j + ‖h_i - Σ_j α_j h_j‖²

Cost: nothing kept per client; body, head and prototypes each way and the means up, every round; N small problems.
The server keeps every client's head and means, and solves each client's problem anew in every round.
Privacy: of a class with one sample, the prototype is that sample's feature, from which a picture can be made
(docs/privacy.md); `least` leaves such classes out of all that the client says beside its model.
Differs from the paper: clients that stayed away enter the mixtures with what they sent last; one that never took part
gets the plain mean of the heads. Body and head train with the run's step size, as in comparisons where all methods
have one; the paper's own is 0.01 for 5 epochs of the body and 0.1 for the head: lr=0.01, epochs=5, head_lr=0.1.
"""

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from fairlead.core import Batch, BodyAndHead, Cohort, Layout, MeanLoss, Method, Named, Server, Task, require
from fairlead.core.device import on_host
from fairlead.core.features import by_class, class_sums, features, with_linear_head
from fairlead.methods.fedproto import Pool, pooling
from fairlead.servers import averaging, chain, mean, no_state, per_name


def fedpac(
    *, pull: float = 1.0, head_lr: float | None = None, head_epochs: int = 1, least: int = 1, pool: Pool = "mean"
) -> Method:
    """Features tied to shared class prototypes, heads mixed client by client."""
    require(pull >= 0, f"fedpac: pull must be >= 0, got {pull}; 0 leaves the features free")
    require(head_lr is None or head_lr > 0, f"fedpac: head_lr must be > 0, got {head_lr}; the paper's is 0.1")
    require(head_epochs >= 0, f"fedpac: head_epochs must be >= 0, got {head_epochs}")
    require(least >= 1, f"fedpac: least must be >= 1, got {least}; 1 tells of every class that a client has")
    require(pool in ("mean", "median"), f"fedpac: pool must be 'mean' or 'median', got '{pool}'")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        classes, d = layout.slots["head.weight"].shape
        return {}, {
            "w": params[:, layout.body.columns],
            "head": params[:, layout.head.columns],
            "prototypes": params.new_zeros(1, classes, d),
            "known": params.new_zeros(1, classes),
        }

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        body, head = task.layout.body, task.layout.head

        def values(module: nn.Module, batch: Batch, given: Named) -> Tensor:
            assert isinstance(module, BodyAndHead)
            z = module.body(batch.x)
            apart: Tensor = (z - batch.by_label(given["prototypes"])).square().mean(1)
            usual = task.losses_of(module.head(z), batch, given)
            return usual + pull * batch.by_label(given["known"]) * apart

        # Features do not depend on the head, so that anybody's serves for a body which all have in common.
        received = task.layout.join((body, message["w"]), (head, message["head"][:1]))
        z = task.outputs(received, "train", features)
        sums, counts = class_sums(z, task)
        told = counts >= least
        sums = sums * told[..., None]
        n = task.sizes().to(sums)
        means = sums / n[..., None]
        squares = (z.square().sum(-1) * task.padded("train")[2]).sum(1, keepdim=True)
        variance = (squares / n - means.square().sum((1, 2))[:, None]).clamp(min=0) / n
        decayed = None if head_lr is None else head_lr * task.sgd.lr / task.training.lr
        how = task.sgd.but(lr=decayed, epochs=head_epochs)
        own = task.above(head, received, z).descend(message["head"], how=how)
        u = task.descend(
            task.layout.join((body, message["w"]), (head, own)),
            only=body,
            loss=MeanLoss(values, {"prototypes": message["prototypes"], "known": message["known"]} | task.given),
            how=task.sgd.but(start=head_epochs),
        )
        prototypes, counts = by_class(task.outputs(u, "train", features), task)
        return {}, {
            "w": u[:, body.columns] - message["w"],
            "head": u[:, head.columns],
            "prototypes": prototypes * told[..., None],
            "counts": counts * told,
            "means": means,
            "variance": variance,
        }

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return task.layout.join((task.layout.body, message["w"]), (task.layout.head, message["head"]))

    def server(average: Server) -> Server:
        keep = Server(no_state, lambda state, rows, cohort: (state, rows))
        return chain(collaboration(pool), per_name(w=averaging(average), head=keep, prototypes=keep, known=keep))

    return Method(
        init,
        client,
        personal,
        server,
        average=mean(),
        averaged=lambda layout: {"w": layout.body},
        wrap=divided,
        needs_classes=True,
    )


def divided(module: nn.Module) -> BodyAndHead:
    """The module as a body, which gives the features, and a linear head."""
    parts = BodyAndHead(module)
    with_linear_head(parts, "fedpac")
    return parts


def collaboration(pool: Pool) -> Server:
    """Prototypes pooled by class, and for each client its own mixture of the heads; the body passes through.

    State: each client's last head, means and variance, whether it has taken part, and the prototypes.
    """

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        head, prototypes = message["head"], message["prototypes"]
        return {
            "head": head.repeat(clients, 1),
            "means": torch.zeros_like(prototypes).repeat(clients, 1, 1),
            "variance": head.new_zeros(clients, 1),
            "present": head.new_zeros(clients, 1),
            "prototypes": prototypes,
            "known": message["known"],
        }, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        ids = cohort.ids
        kept = {n: state[n].index_copy(0, ids.to(rows[n].device), rows[n]) for n in ("head", "means", "variance")}
        kept["present"] = state["present"].index_fill(0, ids.to(state["present"].device), 1.0)
        kept |= pooling(pool).update(state, rows, cohort)[0]
        there = on_host(kept["present"])[:, 0] > 0
        alpha = combine(kept["means"][there].flatten(1), kept["variance"][there, 0])
        heads = kept["head"][there].mean(0).repeat(len(there), 1)
        heads[there] = alpha.to(heads) @ kept["head"][there]
        return kept, {"w": rows["w"], "head": heads, "prototypes": kept["prototypes"], "known": kept["known"]}

    return Server(init, update)


def combine(h: Tensor, variance: Tensor) -> Tensor:
    """For each i, the α on the simplex that minimises Σ_j α_j² V_j + ‖h_i - Σ_j α_j h_j‖²; (m, p), (m,) -> (m, m).

    On the simplex that is ‖Bα‖² with columns B_j = (√V_j e_j, h_i - h_j), and where x >= 0 minimises
    ‖Bx‖² + (Σx - 1)², x / Σx is the minimiser: for x = tα the best t leaves q/(1 + q) with q = ‖Bα‖². So non-negative
    least squares (Lawson and Hanson, 1974) finds it exactly.

    >>> h = torch.tensor([[0.0], [0.0], [99.0]], dtype=torch.float64)
    >>> combine(h, variance=torch.ones(3)).round(decimals=3)[0].tolist()
    [0.5, 0.5, 0.0]
    """
    h, variance, m = on_host(h), on_host(variance), len(h)  # small problems, solved on the host
    # By torch: numpy's threads would go on spinning on the cores that the next round needs.
    values, vectors = torch.linalg.eigh(h.double() @ h.double().T)
    points = (vectors * values.clamp(min=0).sqrt()).numpy()  # the h_j, in the m coordinates of the space they span
    deviations = np.sqrt(variance.double().numpy().clip(0))
    alpha = np.empty((m, m))
    for i in range(m):
        B = np.vstack([np.diag(deviations), (points[i] - points).T])
        # Scaled, so that tiny features do not drown in the constraint; the minimiser is the same.
        B /= np.sqrt((B**2).sum(0).mean()) or 1.0
        x, _ = nnls(np.vstack([B, np.ones(m)]), np.append(np.zeros(len(B)), 1.0))
        alpha[i] = x / x.sum()
    return torch.from_numpy(alpha).to(h)
