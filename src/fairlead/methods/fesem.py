"""FeSEM (Xie et al., World Wide Web 2023), Algorithm 1: several centres, and each client trains the one nearest to it.

paper   here                meaning
W̃^(k)   server centres      mean of the models in cluster k, k = 1..K
W_i     reply["w"]          client i's model after local training
r_i^k   server "cluster"    cluster of client i: the centre with the smallest ‖W_i - W̃^(k)‖² when it last took part
-       message["centre"]   the centre of the client's own cluster; local training starts there, and it is deployed
K       clusters            number of centres; 1 is FedAvg

Cost: nothing kept per client; one model each way, every round.
Equal centres would never part, so all clients train the initial model in the first round, and k-means over the models
they return (k-means++ seeds, ten tries) makes the first clusters. The averaging stage acts within each cluster.
Differs from the paper: a round's centre moves with the members that took part in it, by sample weights; the others keep
their cluster. Who never took part starts from, and would deploy, the mean of the centres, weighted by their members. A
client alone in its cluster is LOCAL.
"""

import torch
from torch import Tensor

from fairlead.core import Cohort, Layout, Method, Named, Server, Task, draw_key, require
from fairlead.core.device import on_host
from fairlead.functional import kmeans
from fairlead.servers import mean, within
from fairlead.servers.clusters import MOST_CLUSTERS


def fesem(*, clusters: int = 3) -> Method:
    """Several centres, and each client trains the one nearest to it."""
    most = MOST_CLUSTERS
    require(1 <= clusters <= most, f"fesem: clusters must lie between 1 (FedAvg) and {most:,}, got {clusters}")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {}, {"centre": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        return {}, {"w": task.descend(message["centre"])}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return message["centre"]

    def server(average: Server) -> Server:
        averages = within(average, clusters)

        def first(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
            centres = message["centre"][:, None].repeat(1, clusters, 1)  # (1, K, D)
            state, _ = averages.init({"w": centres}, hello, clients)
            state["cluster"] = torch.zeros(clients, 1, dtype=torch.int64)
            state["present"] = torch.zeros(clients, 1, dtype=torch.bool)
            return state, message

        def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
            w, centres = rows["w"], state["w"][0]
            if bool(state["present"].any()):
                nearest = on_host(distances(w, centres).argmin(1))
            else:
                nearest = on_host(kmeans(w - centres[0], clusters, draw_key(cohort.seed, "fesem", cohort.round)))
            change = {"w": w - centres[nearest], "cluster": nearest[:, None]}
            state, moved = averages.update(state, change, cohort)
            centres = moved["w"][0]
            cluster = state["cluster"].index_copy(0, cohort.ids, nearest[:, None])
            present = state["present"].index_fill(0, cohort.ids, True)
            members = torch.bincount(cluster[present], minlength=clusters).to(centres)
            start = (members / members.sum()) @ centres
            sent = torch.where(present.to(centres.device), centres[cluster[:, 0]], start)
            return state | {"cluster": cluster, "present": present}, {"centre": sent}

        return Server(first, update)

    return Method(init, client, personal, server, average=mean())


def distances(w: Tensor, centres: Tensor) -> Tensor:
    """‖w_i - centre_k‖ of every pair, (C, K); from differences, as a product would round close centres together."""
    return torch.cdist(w, centres, compute_mode="donot_use_mm_for_euclid_dist")
