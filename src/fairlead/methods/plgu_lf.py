"""PLGU-LF (Qu et al., CVPR 2023), Algorithms 1 and 2: keep the most personal layers, share flat-minded changes.

paper   here                meaning
w       message["w"]        global model; client i moves a copy of it
θ_i     state["theta"]      personal model of client i, kept between rounds and deployed
ξ_l     personalization     how far layer l of θ_i has left w, ‖θ_l - w_l‖ / dim(w_l), summing to one
Λ_i     scale               ξ_l spread over the columns of layer l
D       personal_layers     layers with the largest ξ stay as they are, the others start the round from w
ρ       rho                 radius of the ascent ε = ρ Λ g/‖g‖, g the gradient at θ_i
        at                  where the gradient that moves w is taken: at w + ε ("w") or at θ_i + ε ("theta")
K       task.batches()      local work, the run's

Cost: one model kept per client, twice the gradient work; the model down and its change up, every round.
Line 7 of Algorithm 1 names two points: it differentiates the loss of θ_i + ε by w + ε. "w", the default, takes the
gradient at w + ε: of the two readings it is the one in which line 8 is a step down in the variable that it moves, for
the objective min over w of max over ε of F_i(w + ε; θ_i), and w comes to rest where its own loss is flat. Without
sharpness it goes FedAvg's way then, whatever layers clients keep. "theta" takes the loss's argument: w is moved by
gradients that do not depend on it, by the sum of the personal models' steps in layers that clients keep, and comes to
rest where θ_i fits, wherever w is. Which one does better differs between data sets (docs/results).
Differs from the paper: the ascent is along the gradient, without the further factor sign(g) of the slides; scores are
equal where θ_i is w. Running statistics of w are those that θ_i saw.
"""

from typing import Literal

import torch
from torch import Tensor

from fairlead.core import Batch, Layout, Method, Named, Task, require
from fairlead.core.sharpness import ascent, personalization
from fairlead.servers import averaging, uniform


def plgu_lf(*, rho: float = 0.05, personal_layers: int = 1, at: Literal["w", "theta"] = "w") -> Method:
    """Keep the most personal layers, share flat-minded changes."""
    require(rho >= 0, f"plgu-lf: rho must be >= 0, got {rho}; 0 leaves sharpness alone")
    require(personal_layers >= 0, f"plgu-lf: personal_layers must be >= 0, got {personal_layers}; 0 keeps none")

    require(at in ("w", "theta"), f"plgu-lf: at must be 'w' or 'theta', got '{at}'")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        count = len(layout.layers)
        require(
            personal_layers <= count,
            f"plgu-lf: personal_layers is {personal_layers}, but the model has {count} layers; lower it",
        )
        return {"theta": params}, {"w": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        w, layout = message["w"], task.layout
        xi = personalization(state["theta"], w, layout)
        scale = layout.per_layer(xi)
        kept = torch.zeros_like(xi).scatter(1, xi.topk(personal_layers).indices, 1.0)
        theta = torch.where(layout.per_layer(kept) > 0, state["theta"], w)

        def gradients(u: Tensor, batch: Batch) -> Tensor:
            theta, w = u
            g = task.grad(theta, batch)
            w[:, layout.trainable :] = theta[:, layout.trainable :]
            point = theta if at == "theta" else w
            return torch.stack([g, task.grad(point + ascent(g, rho, scale), batch)])

        start = [rows.expand(len(task), -1) for rows in (theta, w)]
        theta, w_k = task.descend(torch.stack(start), gradient=gradients)
        return {"theta": theta}, {"w": w_k - w}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return state["theta"]

    def newcomer(state: Named, message: Named, task: Task) -> Tensor:
        return message["w"]

    return Method(init, client, personal, server=averaging, average=uniform(), newcomer=newcomer)
