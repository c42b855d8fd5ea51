"""FedPer (Arivazhagan et al., 2019), Algorithm 1: shared base layers under personal layers, trained together.

paper   here           meaning
W_B     message["w"]   base layers
W_Pj    state["top"]   personal layers of client j, kept between rounds
K_P     layers         how many last layers are personal; by default the head

Cost: the personal layers kept per client; the base down and its change up, every round.
Differs from the paper: only clients that take part are averaged; everybody's personal layers start alike.
"""

from torch import Tensor

from fairlead.core import Layout, Method, Named, Task, require
from fairlead.servers import averaging, mean


def fedper(*, layers: int | None = None) -> Method:
    """Shared base layers under personal layers, trained together."""
    require(layers is None or layers >= 1, f"fedper: layers must be >= 1, got {layers}; with none, use fedavg")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        base, top = layout.cut(layers)
        require(base.size > 0, "fedper: the model has one layer, so there is no base to share; use local or fedavg")
        return {"top": params[:, top.columns]}, {"w": params[:, base.columns]}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        base, top = task.layout.cut(layers)
        u = task.descend(personal(state, message, task))
        return {"top": u[:, top.columns]}, {"w": u[:, base.columns] - message["w"]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        base, top = task.layout.cut(layers)
        return task.layout.join((base, message["w"]), (top, state["top"]))

    return Method(
        init, client, personal, server=averaging, average=mean(), averaged=lambda layout: {"w": layout.cut(layers)[0]}
    )
