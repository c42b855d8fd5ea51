"""FedRes (Agarwal, Langford and Wei, 2020), FedResAvg: a local model learns what the global one leaves over.

paper   here             meaning
θ_G     message["w"]     global model; each client trains a copy of it
θ_L     state["local"]   local model of client c, kept between rounds; any architecture with the same outputs
        Residual         the prediction global(x) + local(x)
K       local_epochs, global_epochs   passes on θ_L, then on θ_G; by default the run's, 0 freezes the model
c, c_i  message["c"], state["c"]      SCAFFOLD's control variates on θ_G, with control=True

Cost: one local model kept per client, twice the gradient work; the global model down and its change up, every round.
With control: a variate more kept, and twice the bytes.
Differs from the paper: K counts epochs; both models pass over the same batches. The local model is a copy of the global
one whose last layer starts at zero, so that training begins with the global predictions; `local` makes another one,
and a `fairlead.models.Several` gives clients local models of different architectures.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fairlead.core import Layout, Method, Named, Part, Plus, Server, Task, require
from fairlead.servers import averaging, chain, over_everybody, per_name, step, uniform


class Residual(nn.Module):
    """`shared(x) + local(x)`."""

    def __init__(self, shared: nn.Module, local: nn.Module) -> None:
        super().__init__()
        self.shared, self.local = shared, local

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.shared(x) + self.local(x)
        return out


def silenced(module: nn.Module) -> nn.Module:
    """A copy of the module whose last layer is zero, and so its outputs."""
    twin = copy.deepcopy(module)
    layout = Layout(twin)
    row = layout.read(twin)[0]
    for name in layout.head.names:
        slot = layout.slots[name]
        row[slot.start : slot.stop] = 0
    return layout.write(row, twin)


def fedres(
    *,
    local_epochs: int | None = None,
    global_epochs: int | None = None,
    control: bool = False,
    local: Callable[[nn.Module], nn.Module] | None = None,
) -> Method:
    """A local model learns what the global one leaves over."""
    for name, epochs in (("local_epochs", local_epochs), ("global_epochs", global_epochs)):
        require(epochs is None or epochs >= 0, f"fedres: {name} must be >= 0, got {epochs}; 0 freezes that model")
    require(not control or global_epochs != 0, "fedres: control needs a global model that trains; raise global_epochs")
    make_local = local or silenced

    def wrap(module: nn.Module) -> nn.Module:
        return Residual(copy.deepcopy(module), make_local(module))

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        shared, own = parts(layout)
        theta_g = params[:, shared.columns]
        state, message = {"local": params[:, own.columns]}, {"w": theta_g}
        if control:
            state["c"] = message["c"] = torch.zeros_like(theta_g)
        return state, message

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        shared, own = parts(task.layout)
        u = task.descend(personal(state, message, task), only=own, how=task.sgd.but(epochs=local_epochs))
        how = task.sgd.but(epochs=global_epochs)
        if not control:
            u = task.descend(u, only=shared, how=how)
            return {"local": u[:, own.columns]}, {"w": u[:, shared.columns] - message["w"]}
        c, c_i = message["c"], state["c"]
        drift = task.layout.join((shared, c - c_i), (own, torch.zeros_like(state["local"])))
        u = task.descend(u, Plus(drift), only=shared, how=how)
        change = u[:, shared.columns] - message["w"]
        c_new = c_i - c - change / (task.steps(how) * task.sgd.lr)
        return {"local": u[:, own.columns], "c": c_new}, {"w": change, "c": c_new - c_i}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        shared, own = parts(task.layout)
        return task.layout.join((shared, message["w"]), (own, state["local"]))

    def server(average: Server) -> Server:
        w = averaging(average)
        return per_name(w=w, c=chain(over_everybody(), step())) if control else w

    return Method(
        init, client, personal, server, average=uniform(), averaged=lambda layout: {"w": parts(layout)[0]}, wrap=wrap
    )


def parts(layout: Layout) -> tuple[Part, Part]:
    """The columns of the global and of the local model."""
    return layout.part("shared"), layout.part("local")
