"""FedSAM (Qu et al., ICML 2022; Caldarola et al., ECCV 2022): FedAvg whose clients look for flat minima.

paper   here           meaning
w       message["w"]   global model
g       g              gradient on the batch
ρ       rho            length of the step up the gradient, over the whole model; 0 is FedAvg
ε       ascent         ρ g/‖g‖; the descent step uses the gradient at w + ε

Cost: nothing kept per client, twice the gradient work; the model down and its change up, every round.
Differs from the paper: sample weights in the mean, as in FedAvg; the server's step size is 1.
"""

from torch import Tensor

from fairlead.core import Batch, Method, Named, Task, require
from fairlead.core.sharpness import ascent
from fairlead.methods.fedavg import fedavg


def fedsam(*, rho: float = 0.1) -> Method:
    """FedAvg whose clients look for flat minima."""
    require(rho >= 0, f"fedsam: rho must be >= 0, got {rho}; 0 is FedAvg")

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        w = message["w"]

        def sharp(u: Tensor, batch: Batch) -> Tensor:
            g = task.grad(u, batch)
            return task.grad(u + ascent(g, rho), batch)

        w_k = task.descend(w, gradient=sharp)
        return {}, {"w": w_k - w}

    return fedavg()._replace(client=client)
