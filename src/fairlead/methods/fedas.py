"""FedAS (Yang et al., CVPR 2024): a shared body fitted to each client's own features; who learned more counts more.

paper   here             meaning
ω       message["w"]     shared body: every layer but the last
ω_i     state["body"]    the body as client i left it
φ_i     state["head"]    head of client i: the last layer, kept between rounds
p_i,c   prototypes       mean feature of client i's train samples of class c under ω_i
        align_epochs     passes in which the received body is brought near: ‖f(ω; x) - p_i,y‖²/d
        align_lr         step size of these; the run's own where left out
F_i     reply["trace"]   trace of the Fisher information after training: squared lengths of the batches' gradients
                         of the log-likelihood, summed; the client's weight in the mean is F_i / Σ F

Cost: one model kept per client; three passes over the train samples beside training; the body down and its change and
one number up, every round.
Differs from the paper: written from the description in public code (PFLlib), as the paper's text was not at hand. There
the tie sums over a batch's classes the mean over each class, here it is the mean over samples; align_lr is 0.01 there.
A client's first round has no features of its own, and nothing is aligned.
"""

import torch
from torch import Tensor, nn

from fairlead.core import Batch, BodyAndHead, Cohort, Layout, MeanLoss, Method, Named, Server, Task, require
from fairlead.core.features import by_class, features
from fairlead.servers import averaging, mean


def fedas(*, align_epochs: int = 1, align_lr: float | None = None) -> Method:
    """The shared body is fitted to a client's own features first, and clients that learned more count more."""
    require(align_epochs >= 0, f"fedas: align_epochs must be >= 0, got {align_epochs}; 0 aligns nothing")
    require(align_lr is None or align_lr > 0, f"fedas: align_lr must be > 0, got {align_lr}")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        body, head = params[:, layout.body.columns], params[:, layout.head.columns]
        require(layout.body.size > 0, "fedas: the model has one layer, so there is no body to share; use local")
        return {"body": body, "head": head, "rounds": params.new_zeros(1, 1)}, {"w": body}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        body, head = task.layout.body, task.layout.head
        u = task.descend(aligned(state, message, task))
        seen = torch.ones_like(state["rounds"]).expand(len(task), 1)
        kept = {"body": u[:, body.columns], "head": u[:, head.columns], "rounds": seen}
        return kept, {"w": kept["body"] - message["w"], "trace": fisher(u, task)}

    def aligned(state: Named, message: Named, task: Task) -> Tensor:
        """The received body after it was brought near the client's own features, under the client's head."""
        layout, rounds = task.layout, state["rounds"].expand(len(task), 1)
        mine, theirs = (
            layout.join((layout.body, b), (layout.head, state["head"])) for b in (state["body"], message["w"])
        )
        prototypes, _ = by_class(task.outputs(mine.expand(len(task), -1), "train", features), task)

        def values(module: nn.Module, batch: Batch, given: Named) -> Tensor:
            assert isinstance(module, BodyAndHead)
            apart: Tensor = (module.body(batch.x) - batch.by_label(given["prototypes"])).square().flatten(1).mean(1)
            return apart

        near = task.descend(
            theirs,
            only=layout.body,
            loss=MeanLoss(values, {"prototypes": prototypes}),
            how=task.sgd.but(epochs=align_epochs, lr=align_lr, start=task.training.epochs),
        )
        return torch.where(rounds > 0, near, theirs)

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return task.layout.join((task.layout.body, state["body"]), (task.layout.head, state["head"]))

    def newcomer(state: Named, message: Named, task: Task) -> Tensor:
        return task.layout.join((task.layout.body, message["w"]), (task.layout.head, state["head"]))

    return Method(
        init,
        client,
        personal,
        server=by_trace,
        average=mean(),
        averaged=lambda layout: {"w": layout.body},
        wrap=BodyAndHead,
        newcomer=newcomer,
        needs_classes=True,
    )


def fisher(rows: Tensor, task: Task) -> Tensor:
    """The squared length of the loss's gradient, summed over a pass of batches, (C, 1)."""
    found = rows.new_zeros(len(task), 1)
    for batch in task.batches(task.sgd.but(epochs=1)):
        g = task.grad(rows.clone(), batch).square().sum(1, keepdim=True)
        found = found + (g if batch.active is None else g * batch.active)
    return found


def by_trace(average: Server) -> Server:
    """FedAvg's server, in whose mean a client counts by its trace of the Fisher information."""
    usual = averaging(average)

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        trace = rows["trace"][:, 0]
        total, samples = trace.sum(), cohort.weights.to(trace)
        weights = torch.where(total > 0, trace / total.clamp(min=torch.finfo(trace.dtype).tiny), samples)
        return usual.update(state, {"w": rows["w"]}, cohort._replace(weights=weights))

    return Server(usual.init, update)
