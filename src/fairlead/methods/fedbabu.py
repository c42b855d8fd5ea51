"""FedBABU (Oh et al., ICLR 2022), Algorithm 1: only the body is trained together, under a head that stays as it began.

paper   here              meaning
θ_ext   message["w"]      body: every layer but the last
θ_cls   state["head"]     head: the last layer, at its initial values for everybody and in every round
τ_f     tune_epochs       epochs on the client's own data, head included, for the model it deploys

Cost: nothing kept per client but the initial head; the body down and its change up, every round; `tune_epochs` of extra
local training per deployed model.
Differs from the paper: nothing; weight decay acts on the body alone, as the head does not move.
"""

from torch import Tensor

from fairlead.core import Layout, Method, Named, Task, require
from fairlead.servers import averaging, mean


def fedbabu(*, tune_epochs: int = 5) -> Method:
    """Only the body is trained together, under a head that stays as it began."""
    require(tune_epochs >= 0, f"fedbabu: tune_epochs must be >= 0, got {tune_epochs}; the paper's is 5")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        require(layout.body.size > 0, "fedbabu: the model has one layer, so there is no body to share; use fedavg")
        return {"head": params[:, layout.head.columns]}, {"w": params[:, layout.body.columns]}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        u = task.descend(joined(state, message, task), only=task.layout.body)
        return state, {"w": u[:, task.layout.body.columns] - message["w"]}

    def joined(state: Named, message: Named, task: Task) -> Tensor:
        return task.layout.join((task.layout.body, message["w"]), (task.layout.head, state["head"]))

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return task.descend(joined(state, message, task), how=task.sgd.but(epochs=tune_epochs))

    return Method(
        init,
        client,
        personal,
        server=averaging,
        average=mean(),
        averaged=lambda layout: {"w": layout.body},
        newcomer=joined,
    )
