"""FedBN (Li et al., ICLR 2021), Algorithm 1: everything is averaged but the normalisation layers, which stay home.

paper   here            meaning
w_l     message["w"]    layers that are averaged: all but the normalisation layers
BN_k    state["norm"]   client k's normalisation layers, their running statistics included, kept between rounds

Cost: the normalisation layers kept per client; the other layers down and their change up, every round.
A model without normalisation layers is refused: it would be FedAvg. `--model mlp-norm` and `cnn-norm` have some.
Differs from the paper: LayerNorm and GroupNorm stay home as well as BatchNorm; the mean is weighted by samples, as in
FedAvg, where the paper's is over clients.
"""

from torch import Tensor

from fairlead.core import Layout, Method, Named, Part, Task, require
from fairlead.servers import averaging, mean


def fedbn() -> Method:
    """Everything is averaged but the normalisation layers, which stay home."""

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        shared, own = parts(layout)
        return {"norm": params[:, own.columns]}, {"w": params[:, shared.columns]}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        shared, own = parts(task.layout)
        u = task.descend(personal(state, message, task))
        return {"norm": u[:, own.columns]}, {"w": u[:, shared.columns] - message["w"]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        shared, own = parts(task.layout)
        return task.layout.join((shared, message["w"]), (own, state["norm"]))

    return Method(
        init, client, personal, server=averaging, average=mean(), averaged=lambda layout: {"w": parts(layout)[0]}
    )


def parts(layout: Layout) -> tuple[Part, Part]:
    """What travels, and the normalisation layers."""
    require(
        layout.norms.size > 0,
        "fedbn: the model has no normalisation layer, and without one fedbn is fedavg; take --model mlp-norm or "
        "cnn-norm, a module of your own with one, or fedavg",
    )
    return layout.rest(*layout.norms.tensors), layout.norms
