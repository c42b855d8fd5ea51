"""IFCA (Ghosh et al., NeurIPS 2020), Algorithm 1, model averaging: k models, and each client trains the one that fits.

paper   here                meaning
θ_j     message["w"][:, j]  model of cluster j, j = 1..k
ĵ       reply["cluster"]    the cluster whose model has the lowest loss on the client's training data
k       clusters            number of models; 1 is FedAvg
θ̃_i     u                   client i's copy of its cluster's model after local training

Cost: nothing kept per client; k models down and one change up, every round; k passes over the training data to choose.
The averaging stage acts within each cluster: on the changes of the clients that chose it, with weights summing to one.
Differs from the paper: sample weights in the mean; no restarts, so fewer than k clusters form if one model is best for
everybody from the start. The first model is the given one; the others put the entries of each of its tensors in an
order of their own, which for the usual initialisations is an independent draw of the same kind.
"""

import torch
from torch import Tensor

from fairlead.core import Layout, Method, Named, Server, Task, require
from fairlead.core.initial import initial_models
from fairlead.servers import mean, within
from fairlead.servers.clusters import MOST_CLUSTERS


def ifca(*, clusters: int = 4) -> Method:
    """Several models, and each client trains the one that fits."""
    most = MOST_CLUSTERS
    require(1 <= clusters <= most, f"ifca: clusters must lie between 1 (FedAvg) and {most:,}, got {clusters}")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {}, {"w": initial_models(params, layout, clusters)}

    def choose(message: Named, task: Task) -> tuple[Tensor, Tensor]:
        w = message["w"]
        losses = torch.cat([task.loss(w[:, j], "train") for j in range(clusters)], 1)  # (C, k)
        cluster = losses.argmin(1, keepdim=True)
        return cluster, w[0, cluster[:, 0]]

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        cluster, w = choose(message, task)
        u = task.descend(w)
        return {}, {"w": u - w, "cluster": cluster}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return choose(message, task)[1]

    def server(average: Server) -> Server:
        return within(average, clusters)

    return Method(init, client, personal, server, average=mean())
