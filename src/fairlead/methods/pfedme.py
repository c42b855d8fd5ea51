"""pFedMe (T Dinh et al., NeurIPS 2020), Algorithm 1: personal models on a leash, a global model that follows them.

paper   here             meaning
w       message["w"]     global model; w_i is client i's copy
θ_i     state["theta"]   personal model of client i, as its last batch left it: what is deployed
λ       lam              leash (λ/2)‖θ - w‖² between them
K       inner_steps      gradient steps towards θ on each batch
        personal_lr      step size of these
η       task.sgd.lr      step size of w_i ← w_i - η λ (w_i - θ_i)
β       beta             how far the server moves towards the clients' mean; 1 takes it as it is

Cost: one model kept per client, K times the gradient work; the model down and its change up, every round.
Differs from the paper: within a round θ goes on from the batch before, and starts from w; weight decay acts on θ, and
momentum on w_i. Running statistics of w_i are those that θ saw.
"""

from torch import Tensor

from fairlead.core import Batch, Layout, Method, Named, Server, Task, require
from fairlead.servers import chain, step, uniform


def pfedme(*, lam: float = 15.0, inner_steps: int = 5, personal_lr: float = 0.09, beta: float = 1.0) -> Method:
    """Personal models on a leash, a global model that follows them."""
    require(lam > 0, f"pfedme: lam must be > 0, got {lam}; without a leash the global model never moves")
    require(inner_steps >= 1, f"pfedme: inner_steps must be >= 1, got {inner_steps}")
    require(
        0 < personal_lr * lam < 2,
        f"pfedme: personal_lr must lie in (0, 2/lam) = (0, {2 / lam:g}), got {personal_lr}; larger steps diverge",
    )
    require(beta > 0, f"pfedme: beta must be > 0, got {beta}; 1 takes the clients' mean as it is")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {"theta": params}, {"w": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        weights, decay = task.layout.trainable, task.training.weight_decay
        theta = message["w"].expand(len(task), -1).clone()

        def moreau(w: Tensor, batch: Batch) -> Tensor:
            rate = personal_lr if batch.active is None else personal_lr * batch.active
            for _ in range(inner_steps):
                g = task.grad(theta, batch) + lam * (theta - w) + decay * theta
                theta[:, :weights] -= (rate * g)[:, :weights]
            w[:, weights:] = theta[:, weights:]
            return lam * (w - theta)

        w = task.descend(message["w"], gradient=moreau, how=task.sgd.but(weight_decay=0.0))
        return {"theta": theta}, {"w": w - message["w"]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return state["theta"]

    def newcomer(state: Named, message: Named, task: Task) -> Tensor:
        return message["w"]

    def server(average: Server) -> Server:
        return chain(average, step(lr=beta))

    return Method(init, client, personal, server, average=uniform(), newcomer=newcomer)
