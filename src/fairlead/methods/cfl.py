"""CFL (Sattler et al., IEEE TNNLS 2021), Algorithm 2: one model for all, and where clients pull apart, two.

paper     here              meaning
θ_c       message["centre"] model of client i's cluster; one row per client
Δθ_i      reply["w"]        how local training changed it
c_i       server "cluster"  cluster of client i
α_ij      cosines           cosine of the angle between the last changes of clients i and j
ε1        eps1              a cluster is settled when ‖mean Δθ‖ is below eps1 times the longest it ever was
ε2        eps2              and still pulls apart when some ‖Δθ_i‖ is above eps2 times that bound
γ_max     gamma             parts split off are kept if √((1 - max α across)/2) is above it; 0 keeps every split

Cost: nothing kept per client; the model down and its change up, every round. The server keeps two models per client.
The two parts are those with the smallest largest cosine across them: clients are joined by their largest cosines until
two groups are left. Until the first split it is FedAvg.
Differs from the paper: changes are averaged with sample weights; ε1 and ε2 are relative, as the paper recommends to set
them (ε1 a tenth of the longest mean change, ε2 up to ten times ε1); a cluster is judged in the rounds in which three or
more of its members take part, by what these sent, and divided by the last changes of all members that ever took part.
One that never did goes with the larger part. The released code joins by complete linkage.
"""

import torch
from torch import Tensor

from fairlead.core import Cohort, Layout, Method, Named, Server, Task, require
from fairlead.core.device import on_host
from fairlead.functional.gram import gram


def cfl(*, eps1: float = 0.1, eps2: float = 4.0, gamma: float = 0.0) -> Method:
    """One model for all, and where clients pull apart, two."""
    require(eps1 > 0, f"cfl: eps1 must be > 0, got {eps1}; it is a share of the longest mean change")
    require(eps2 >= 1, f"cfl: eps2 must be >= 1, got {eps2}; the released code's is 4")
    require(0 <= gamma < 1, f"cfl: gamma must lie in [0, 1), got {gamma}; 0 keeps every split")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {}, {"centre": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        return {}, {"w": task.descend(message["centre"]) - message["centre"]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return message["centre"]

    def server(average: Server) -> Server:
        def first(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
            w = message["centre"].repeat(clients, 1)
            state = {
                "w": w,
                "last": torch.zeros_like(w),
                "cluster": torch.zeros(clients, 1, dtype=torch.int64),
                "present": torch.zeros(clients, 1, dtype=torch.bool),
                "longest": torch.zeros(clients, 1),  # of the mean changes of the client's cluster
            }
            return state, {"centre": w}

        def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
            ids, change = cohort.ids, rows["w"]
            w, longest, cluster = state["w"].clone(), state["longest"].clone(), state["cluster"].clone()
            last = state["last"].index_copy(0, ids.to(change.device), change)
            present = state["present"].index_fill(0, ids, True)
            lengths = on_host(torch.linalg.vector_norm(change, dim=1))
            for c in sorted(set(state["cluster"][:, 0].tolist())):
                members = (state["cluster"][:, 0] == c).nonzero()[:, 0]
                here = (state["cluster"][ids, 0] == c).nonzero()[:, 0]
                if not len(here):
                    continue
                weights = cohort.weights[here] / cohort.weights[here].sum()
                mean = torch.tensordot(weights.to(change), change[here.to(change.device)], 1)
                w[members.to(w.device)] += mean
                length = on_host(torch.linalg.vector_norm(mean))
                longest[members] = torch.maximum(longest[members], length)
                bound = eps1 * longest[members[0], 0]
                if len(here) > 2 and bool(length < bound) and bool(lengths[here].max() > eps2 * bound):
                    split = divided(members, last, present, gamma)
                    cluster[split] = int(cluster.max()) + 1
                    longest[split] = 0
            after = {"w": w, "last": last, "cluster": cluster, "present": present, "longest": longest}
            return after, {"centre": w}

        return Server(first, update)

    return Method(init, client, personal, server, average=None)


def divided(members: Tensor, last: Tensor, present: Tensor, gamma: float) -> Tensor:
    """Which of a cluster's members leave it, by their last changes; nobody if they are not far enough apart."""
    known = members[present[members, 0]]
    G = torch.from_numpy(gram(last[known.to(last.device)]))
    scale = G.diagonal().clamp(min=0).sqrt()
    cosines = G / (scale[:, None] * scale).clamp(min=torch.finfo(G.dtype).tiny)
    part = bipartition(cosines)
    across = float(cosines[part][:, ~part].max())
    if not ((1 - across) / 2) ** 0.5 > gamma:
        return members[:0]
    smaller = part if int(part.sum()) * 2 <= len(part) else ~part
    return known[smaller]


def bipartition(cosines: Tensor) -> Tensor:
    """Two groups whose largest cosine across is the smallest that any two groups have; true for one of them, (m,).

    >>> near, far = 0.9, -0.5
    >>> bipartition(torch.tensor([[1, near, far], [near, 1, far], [far, far, 1]])).tolist()
    [False, False, True]
    """
    m = len(cosines)
    group = torch.arange(m)
    upper = torch.triu_indices(m, m, 1)
    for pair in cosines[upper[0], upper[1]].argsort(descending=True, stable=True).tolist():
        if len(set(group.tolist())) == 2:
            break
        a, b = group[upper[0, pair]], group[upper[1, pair]]
        group = torch.where(group == b, a, group)
    return group != group[0]
