"""PLGU-GRep (Qu et al., CVPR 2023), Algorithm 3: FedRep whose shared representation looks for flat minima.

paper   here               meaning
φ       message["w"]       representation: every layer but the last
h_i     state["head"]      head of client i: the last layer, kept between rounds
φ_i     state["body"]      the representation as client i left it, kept for its scores only
ξ_l     personalization    how far layer l of φ_i is from φ, ‖φ_i,l - φ_l‖ / dim(φ_l), summing to one
Λ_i     scale              ξ_l spread over the columns of layer l
K       head_epochs        epochs on the head before the representation moves
ρ       rho                radius of the ascent ε = ρ Λ g/‖g‖ in the representation; 0 is FedRep with a plain mean

Cost: one model kept per client, twice the gradient work on the body; the body down and its change up, every round.
Differs from the paper: the representation takes an epoch of steps, as FedRep's, where the algorithm has one; the ascent
is along the gradient, without the further factor sign(g) of the slides. Which representation is scored against φ is a
choice made here, the one the client left; in a client's first round the scores of all its layers are equal.
"""

from torch import Tensor

from fairlead.core import Batch, Layout, Method, Named, Task, require
from fairlead.core.sharpness import ascent, personalization
from fairlead.servers import averaging, uniform


def plgu_grep(*, rho: float = 0.05, head_epochs: int | None = None, body_epochs: int = 1) -> Method:
    """FedRep whose shared representation looks for flat minima."""
    require(rho >= 0, f"plgu-grep: rho must be >= 0, got {rho}; 0 leaves sharpness alone")
    require(head_epochs is None or head_epochs >= 0, f"plgu-grep: head_epochs must be >= 0, got {head_epochs}")
    require(body_epochs >= 1, f"plgu-grep: body_epochs must be >= 1, got {body_epochs}; the body is what is shared")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        body = params[:, layout.body.columns]
        require(layout.body.size > 0, "plgu-grep: the model has one layer, so there is no body to share; use plgu-lf")
        return {"head": params[:, layout.head.columns], "body": body}, {"w": body}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        layout, body, head = task.layout, task.layout.body, task.layout.head
        passed = task.training.epochs if head_epochs is None else head_epochs
        u = personal(state, message, task)
        xi = personalization(state["body"], message["w"], layout.alone(body))
        scale = u.new_zeros(len(xi), layout.size)
        scale[:, body.columns] = layout.alone(body).per_layer(xi)

        def sharp(u: Tensor, batch: Batch) -> Tensor:
            g = task.grad(u, batch, only=body)
            return task.grad(u + ascent(g, rho, scale), batch, only=body)

        u = task.descend(u, only=head, how=task.sgd.but(epochs=head_epochs))
        u = task.descend(u, only=body, gradient=sharp, how=task.sgd.but(epochs=body_epochs, start=passed))
        phi = u[:, body.columns]
        return {"head": u[:, head.columns], "body": phi}, {"w": phi - message["w"]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return task.layout.join((task.layout.body, message["w"]), (task.layout.head, state["head"]))

    return Method(
        init, client, personal, server=averaging, average=uniform(), averaged=lambda layout: {"w": layout.body}
    )
