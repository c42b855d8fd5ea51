"""LG-FedAvg (Liang et al., 2020): every client's own representation under shared top layers.

paper   here            meaning
ℓ_m     state["body"]   local representation of client m: the bottom layers, kept between rounds
g       message["w"]    shared top layers
        layers          how many last layers are shared; by default the head

Cost: the bottom layers kept per client; the top layers down and their change up, every round.
Differs from the paper: no auxiliary loss on the representation, and no warm start from a FedAvg model; a client deploys
its own representation under the shared top layers, and no ensemble of all clients' models.
"""

from torch import Tensor

from fairlead.core import Layout, Method, Named, Task, require
from fairlead.servers import averaging, mean


def lg_fedavg(*, layers: int | None = None) -> Method:
    """Every client's own representation under shared top layers."""
    require(layers is None or layers >= 1, f"lg-fedavg: layers must be >= 1, got {layers}; with none, use local")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        body, top = layout.cut(layers)
        require(body.size > 0, "lg-fedavg: the model has one layer, so nothing can stay local; use fedavg")
        return {"body": params[:, body.columns]}, {"w": params[:, top.columns]}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        body, top = task.layout.cut(layers)
        u = task.descend(personal(state, message, task))
        return {"body": u[:, body.columns]}, {"w": u[:, top.columns] - message["w"]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        body, top = task.layout.cut(layers)
        return task.layout.join((body, state["body"]), (top, message["w"]))

    return Method(
        init, client, personal, server=averaging, average=mean(), averaged=lambda layout: {"w": layout.cut(layers)[1]}
    )
