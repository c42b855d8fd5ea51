"""Ditto (Li et al., ICML 2021), Algorithm 1: a personal model tied to the global one.

paper   here           meaning
w^t     message["w"]   global model at round t
v_k     state["v"]     personal model of client k, kept between rounds
λ       pull           strength of the tie; 0 is purely local training
η       task.sgd.lr    step size of both solvers

Cost: one model kept per client, twice the gradient work; the model down and its change up, every round.
Differs from the paper: both solvers pass over the same batches.
"""

from torch import Tensor

from fairlead.core import Layout, Method, Named, Task, Tie, require
from fairlead.servers import averaging, mean


def ditto(*, pull: float = 1.0) -> Method:
    """A personal model tied to the global one."""
    require(pull >= 0, f"ditto: pull must be >= 0, got {pull}; 0 unties the personal model")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {"v": params}, {"w": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        w, v = message["w"], state["v"]
        w_k = task.descend(w)
        v_k = task.descend(v, Tie(w, pull))
        return {"v": v_k}, {"w": w_k - w}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return state["v"]

    return Method(init, client, personal, server=averaging, average=mean())
