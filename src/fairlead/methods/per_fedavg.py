"""Per-FedAvg (Fallah et al., NeurIPS 2020), Algorithm 1: a global model from which one step makes a good personal one.

paper          here           meaning
w              message["w"]   global model, the starting point of everybody's adaptation
α              alpha          step size of the adaptation w - α ∇f(w)
β              beta           meta step size; by default the run's (the paper's experiments use 0.001)
D, D', D''     three batches  for the adaptation, for the gradient at the adapted model, for the curvature
δ              delta          half-width of the difference that stands for ∇²f(w) g in the Hessian-free variant

Cost: nothing kept per client, two to four times the gradient work; the model down and its change up, every round.
Variants: "first-order" leaves the curvature (I - α ∇²f(w)) out, at two gradients a step; "hessian-free" keeps it, by a
difference of gradients, at four.
Differs from the paper: a client deploys the global model after `adapt_steps` steps on batches of its train data, where
the paper takes one step on all of them.
"""

from typing import Literal

from torch import Tensor

from fairlead.core import Batch, Layout, Method, Named, Task, require
from fairlead.servers import averaging, uniform


def per_fedavg(
    *,
    alpha: float = 0.01,
    beta: float | None = None,
    variant: Literal["first-order", "hessian-free"] = "first-order",
    delta: float = 0.001,
    adapt_steps: int = 1,
) -> Method:
    """A global model from which one step makes a good personal one."""
    require(alpha >= 0, f"per-fedavg: alpha must be >= 0, got {alpha}; 0 adapts nothing")
    require(beta is None or beta > 0, f"per-fedavg: beta must be > 0, got {beta}; leave it out for the run's lr")
    variants = ("first-order", "hessian-free")
    require(variant in variants, f"per-fedavg: variant must be 'first-order' or 'hessian-free', got '{variant}'")
    require(delta > 0, f"per-fedavg: delta must be > 0, got {delta}; try 0.001")
    require(adapt_steps >= 1, f"per-fedavg: adapt_steps must be >= 1, got {adapt_steps}")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {}, {"w": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        w, epochs = message["w"], task.training.epochs
        second, third = (task.batches(task.sgd.but(start=passes)) for passes in (epochs, 2 * epochs))

        def meta(u: Tensor, batch: Batch) -> Tensor:
            adapted = u - alpha * task.grad(u, batch)
            g = task.grad(adapted, next(second))
            return g if variant == "first-order" else g - alpha * curvature(u, g, next(third))

        def curvature(u: Tensor, g: Tensor, batch: Batch) -> Tensor:
            return (task.grad(u + delta * g, batch) - task.grad(u - delta * g, batch)) / (2 * delta)

        w_k = task.descend(w, gradient=meta, how=task.sgd.but(lr=beta))
        return {}, {"w": w_k - w}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        how = task.sgd.but(lr=alpha, epochs=1, steps=adapt_steps, momentum=0.0, weight_decay=0.0)
        return task.descend(message["w"], how=how)

    return Method(init, client, personal, server=averaging, average=uniform())
