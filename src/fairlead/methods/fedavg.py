"""FedAvg (McMahan et al., AISTATS 2017), Algorithm 1: one model for everybody, the mean of locally trained copies.

paper   here           meaning
w_t     message["w"]   global model at round t
w_k     w_k            client k's copy after its local epochs
n_k/n   cohort weights share of client k's samples among those taking part

Cost: nothing kept per client; the model down and its change up, every round.
Differs from the paper: the change w_k - w travels rather than w_k; the weighted mean is the same.
"""

from torch import Tensor

from fairlead.core import Layout, Method, Named, Task
from fairlead.servers import averaging, mean


def fedavg() -> Method:
    """One model for everybody, the mean of locally trained copies."""

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {}, {"w": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        w = message["w"]
        w_k = task.descend(w)
        return {}, {"w": w_k - w}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return message["w"]

    return Method(init, client, personal, server=averaging, average=mean())
