"""FedProx (Li et al., MLSys 2020), Algorithm 2: FedAvg whose clients are tied to the global model while they train.

paper   here           meaning
w^t     message["w"]   global model at round t
μ       mu             strength of the tie (μ/2)‖u - w‖²; 0 is FedAvg

Cost: as FedAvg.
Differs from the paper: clients take part by the run's rule, and every client does its full local work.
"""

from fairlead.core import Method, Named, Task, Tie, require
from fairlead.methods.fedavg import fedavg


def fedprox(*, mu: float = 0.1) -> Method:
    """FedAvg whose clients are tied to the global model while they train."""
    require(mu >= 0, f"fedprox: mu must be >= 0, got {mu}; 0 is FedAvg")

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        w = message["w"]
        w_k = task.descend(w, Tie(w, mu))
        return {}, {"w": w_k - w}

    return fedavg()._replace(client=client)
