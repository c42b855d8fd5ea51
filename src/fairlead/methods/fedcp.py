"""FedCP (Zhang et al., KDD 2023), Algorithm 1: each sample's features are divided between a global and a personal head.

paper     here              meaning
W^fe      message["w"]      global feature extractor; client i trains a copy of it
W^hd      message["head"]   global head, frozen while a client trains: the mean of the personal heads
W^cs      message["gate"]   conditional policy network: linear, layer norm, ReLU; 2K outputs for K features
W_i^hd    state["own"]      personal head of client i, kept between rounds
v_i       v                 sum of the personal head's rows, which tells the policy whose sample it is
h_i, h    z, frozen         features of the client's extractor, and of the global one
r_i, s_i  r, s              shares of each feature for the global and the personal head; r + s = 1
λ         pull              weight of the squared MMD between h_i and h; 0 lets the extractors drift

Cost: one head kept per client, an extra pass through the body per step; body, head and gate down and their changes up.
Differs from the paper: v_i follows the personal head while it trains, as a constant; the MMD sums Gaussian kernels of
four fixed widths, as the reference code does. Another averaging stage acts on the body alone; heads and gates are
always averaged.
Differs from the released code: r and s are a plain softmax of the policy's outputs. There it is `gumbel_softmax` with
temperature 1, in training as in tests: random shares, so that a deployed model would answer the same sample
differently each time.
"""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fairlead.core import Batch, BatchLoss, BodyAndHead, Layout, Method, Named, Server, Task, require
from fairlead.servers import averaging, mean, per_name

WIDTHS = (10.0, 15.0, 20.0, 50.0)  # squared, of the Gaussian kernels


class Gated(BodyAndHead):
    """`head(r z) + own(s z)` with `z = body(x)`; the gate decides r and s = 1 - r for every sample and feature."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        require(
            isinstance(self.head, nn.Linear),
            f"fedcp: the last layer must be nn.Linear, got {type(self.head).__name__}; its rows describe the client",
        )
        assert isinstance(self.head, nn.Linear)
        k = self.head.in_features
        self.own = copy.deepcopy(self.head)
        self.gate = nn.Sequential(nn.Linear(k, 2 * k), nn.LayerNorm(2 * k), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(self.body(x))

    def answer(self, z: Tensor) -> Tensor:
        """What both heads together make of the features."""
        v = self.own.weight.detach().sum(0)
        a = self.gate(v / v.norm().clamp(min=1e-12) * z).unflatten(-1, (2, -1))
        r, s = a.softmax(-2).unbind(-2)
        out: Tensor = self.head(r * z) + self.own(s * z)
        return out


def fedcp(*, pull: float = 5.0) -> Method:
    """Each sample's features are divided between a global and a personal head."""
    require(pull >= 0, f"fedcp: pull must be >= 0, got {pull}; 0 leaves the features free")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        body, head, own, gate = (params[:, layout.part(n).columns] for n in ("body", "head", "own", "gate"))
        return {"own": own}, {"w": body, "head": head, "gate": gate}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        layout = task.layout
        body, own, gate = (layout.part(n) for n in ("body", "own", "gate"))

        def loss(module: nn.Module, batch: Batch, given: Named) -> Tensor:
            assert isinstance(module, Gated)
            z = module.body(batch.x)
            value = batch.mean(task.losses_of(module.answer(z), batch, given))
            if not pull:
                return value
            frozen: Tensor = functional_call(module.body, {n: given[n] for n in before}, (batch.x,))
            return value + pull * mmd(z.flatten(1), frozen.flatten(1), batch.weight)

        start = personal(state, message, task)
        before = {n.removeprefix("body."): x for n, x in layout.stacked(start).items() if n.startswith("body.")}
        u = task.descend(start, only=layout.part("body", "own", "gate"), loss=BatchLoss(loss, before | task.given))
        return {"own": u[:, own.columns]}, {
            "w": u[:, body.columns] - message["w"],
            "head": u[:, own.columns] - message["head"],
            "gate": u[:, gate.columns] - message["gate"],
        }

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        rows = {"body": message["w"], "head": message["head"], "own": state["own"], "gate": message["gate"]}
        return task.layout.join(*((task.layout.part(n), x) for n, x in rows.items()))

    def server(average: Server) -> Server:
        return per_name(w=averaging(average), head=averaging(mean()), gate=averaging(mean()))

    return Method(
        init, client, personal, server, average=mean(), averaged=lambda layout: {"w": layout.part("body")}, wrap=Gated
    )


def mmd(a: Tensor, b: Tensor, weight: Tensor | None = None) -> Tensor:
    """Squared maximum mean discrepancy between two sets of features (B, K), summed over Gaussian kernels.

    `weight` (B,) sums to one and is zero where a row is padding.
    """
    p = a.new_full((len(a),), 1 / len(a)) if weight is None else weight
    both, signed = torch.cat([a, b]), torch.cat([p, -p])
    squares = both.square().sum(1)
    distances = (squares[:, None] + squares - 2 * both @ both.T).clamp(min=0)
    kernel = torch.stack([(-distances / width / 2).exp() for width in WIDTHS]).sum(0)
    return signed @ kernel @ signed
