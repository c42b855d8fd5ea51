"""APFL (Deng et al., 2020), Algorithm 1: a personal mixture of a local and the global model, its share learned.

paper   here             meaning
w       message["w"]     global model; client i trains a copy of it
v_i     state["v"]       local model of client i, kept between rounds
α_i     state["alpha"]   share of v_i in the mixture, adapted once a round and kept in [0, 1]
v̄_i     mixture          α v + (1 - α) w, the model that is deployed
η       task.sgd.lr      step size of both models, and of α where alpha_lr is not given

Cost: one model and one number kept per client, twice the gradient work; the model down and its change up, every round.
Differs from the paper: α moves at the start of a round, on its first batch; the mixture is deployed with the newest
global model. Running statistics are not mixed: they are those the mixture saw. The released code mixes outputs instead.
"""

import torch
from torch import Tensor

from fairlead.core import Batch, Layout, Method, Named, Task, require
from fairlead.servers import averaging, uniform


def apfl(*, alpha: float = 0.5, alpha_lr: float | None = None) -> Method:
    """A personal mixture of a local and the global model, its share learned."""
    require(
        0 <= alpha <= 1, f"apfl: alpha must lie in [0, 1], got {alpha}; 0 deploys the global model, 1 the local one"
    )
    require(alpha_lr is None or alpha_lr >= 0, f"apfl: alpha_lr must be >= 0, got {alpha_lr}; 0 keeps alpha fixed")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {"v": params, "alpha": params.new_full((1, 1), alpha)}, {"w": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        a = adapted(state, message, task)
        buffers = task.layout.trainable
        start = torch.stack([rows.expand(len(task), -1) for rows in (state["v"], message["w"])])
        g = torch.zeros_like(start)

        def gradients(u: Tensor, batch: Batch) -> Tensor:
            v, w = u
            v_bar = mixture(v, w, a, task.layout)
            task.grad(v_bar, batch, out=g[0]).mul_(a)
            task.grad(w, batch, out=g[1])
            v[:, buffers:] = v_bar[:, buffers:]
            return g

        v, w = task.descend(start, gradient=gradients)
        return {"v": v, "alpha": a}, {"w": w - message["w"]}

    def adapted(state: Named, message: Named, task: Task) -> Tensor:
        v, w, a = state["v"], message["w"], state["alpha"]
        g = task.grad(mixture(v, w, a, task.layout), next(task.batches()))
        slope = ((v - w) * g).sum(1, keepdim=True)
        return (a - (task.sgd.lr if alpha_lr is None else alpha_lr) * slope).clamp(0, 1)

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return mixture(state["v"], message["w"], state["alpha"], task.layout)

    def newcomer(state: Named, message: Named, task: Task) -> Tensor:
        return message["w"]

    return Method(init, client, personal, server=averaging, average=uniform(), newcomer=newcomer)


def mixture(v: Tensor, w: Tensor, alpha: Tensor, layout: Layout) -> Tensor:
    """The weights α v + (1 - α) w, with the buffers of v."""
    out = torch.lerp(w, v, alpha)
    out[:, layout.trainable :] = v[:, layout.trainable :]
    return out
