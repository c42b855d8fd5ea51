"""FedRoD (Chen and Chao, ICLR 2022), Algorithm 1: a class-balanced generic model and, on top of it, a personal head.

paper   here             meaning
θ, ψ    message["w"]     body and generic head, trained with the balanced softmax
φ_m     state["own"]     personal head of client m, kept between rounds, trained with the plain loss
n_m,c   counts           samples of class c that client m has; the balanced softmax adds log n_m,c to the logits
γ       balance          exponent of the counts; 0 is the plain loss

Cost: one head kept per client; body and generic head down and their change up, every round.
The deployed model answers with the sum of both heads. The personal head sees features and generic logits as constants,
so neither loss moves what the other one trains.
Differs from the paper: personal heads start from zero, so a client that never trained deploys the generic model; a
class the client lacks counts as 1e-8 samples, since log 0 is no number; a linear personal head, no hypernetwork.
"""

import copy

import torch
from torch import Tensor, nn

from fairlead.core import Batch, BatchLoss, BodyAndHead, Layout, Method, Named, Part, Task, require
from fairlead.servers import averaging, mean

ABSENT = 1e-8


class TwoHeads(BodyAndHead):
    """`head(z) + own(z)` with `z = body(x)`; `own` starts from zero."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.own = _zero_copy(self.head)

    def forward(self, x: Tensor) -> Tensor:
        generic, personal = self.answers(x)
        return generic + personal

    def answers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads' logits; nothing of the second reaches the body."""
        z: Tensor = self.body(x)
        return self.head(z), self.own(z.detach())


def fedrod(*, balance: float = 1.0) -> Method:
    """A class-balanced generic model and a personal head on top."""
    require(balance >= 0, f"fedrod: balance must be >= 0, got {balance}; 0 trains the generic head with the plain loss")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        own, shared = parts(layout)
        return {"own": params[:, own.columns]}, {"w": params[:, shared.columns]}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        criterion = task.criterion

        def loss(module: nn.Module, batch: Batch, given: Named) -> Tensor:
            assert isinstance(module, TwoHeads)
            generic, personal = module.answers(batch.x)
            balanced = criterion(generic + given["prior"], batch.y)  # needs no class weights beside the prior
            plain = task.losses_of(generic.detach() + personal, batch, given)
            return batch.mean(balanced + plain)

        own, shared = parts(task.layout)
        both = BatchLoss(loss, {"prior": log_prior(task, balance)} | task.given)
        u = task.descend(personal(state, message, task), loss=both)
        return {"own": u[:, own.columns]}, {"w": u[:, shared.columns] - message["w"]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        own, shared = parts(task.layout)
        return task.layout.join((shared, message["w"]), (own, state["own"]))

    return Method(
        init,
        client,
        personal,
        server=averaging,
        average=mean(),
        averaged=lambda layout: {"w": parts(layout)[1]},
        wrap=TwoHeads,
        needs_classes=True,
    )


def parts(layout: Layout) -> tuple[Part, Part]:
    """What stays home and what travels."""
    return layout.part("own"), layout.rest("own")


def log_prior(task: Task, balance: float) -> Tensor:
    """What the balanced softmax adds to the logits, (C, K)."""
    counts = task.class_counts().to(torch.get_default_dtype())
    return balance * counts.clamp(min=ABSENT).log()


def _zero_copy(module: nn.Module) -> nn.Module:
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    return twin
