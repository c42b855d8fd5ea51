"""FedRep (Collins et al., ICML 2021), Algorithm 1: a shared representation under every client's own head.

paper   here            meaning
φ       message["w"]    representation: every layer but the last
h_i     state["head"]   head of client i: the last layer, kept between rounds
τ       head_epochs     epochs on the head before the representation moves

Cost: one head kept per client; the body down and its change up, every round.
Differs from the paper: both solvers use the run's optimiser; sample weights in the mean, as in the authors' code.
"""

from torch import Tensor

from fairlead.core import Layout, Method, Named, Task, require
from fairlead.servers import averaging, mean


def fedrep(*, head_epochs: int | None = None, body_epochs: int = 1) -> Method:
    """A shared representation under every client's own head."""
    require(head_epochs is None or head_epochs >= 0, f"fedrep: head_epochs must be >= 0, got {head_epochs}")
    require(body_epochs >= 1, f"fedrep: body_epochs must be >= 1, got {body_epochs}; the body is what is shared")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        require(layout.body.size > 0, "fedrep: the model has one layer, so there is no body to share; use fedavg")
        return {"head": params[:, layout.head.columns]}, {"w": params[:, layout.body.columns]}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        body, head = task.layout.body, task.layout.head
        passed = task.training.epochs if head_epochs is None else head_epochs
        u = personal(state, message, task)
        u = task.descend(u, only=head, how=task.sgd.but(epochs=head_epochs))
        u = task.descend(u, only=body, how=task.sgd.but(epochs=body_epochs, start=passed))
        return {"head": u[:, head.columns]}, {"w": u[:, body.columns] - message["w"]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return task.layout.join((task.layout.body, message["w"]), (task.layout.head, state["head"]))

    return Method(init, client, personal, server=averaging, average=mean(), averaged=lambda layout: {"w": layout.body})
