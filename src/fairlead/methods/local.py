"""LOCAL: every client trains alone; the control that every other method is measured against.

paper   here         meaning
v_k     state["v"]   model of client k, kept between rounds

Cost: one model kept per client; nothing travels.
"""

from torch import Tensor

from fairlead.core import Layout, Method, Named, Task
from fairlead.servers import silent


def local() -> Method:
    """Every client trains alone."""

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {"v": params}, {}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        return {"v": task.descend(state["v"])}, {}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return state["v"]

    return Method(init, client, personal, server=silent, average=None, mixed=True)
