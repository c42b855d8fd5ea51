"""FedProto (Tan et al., AAAI 2022), Algorithm 1: clients share the mean feature of every class, and no model.

paper     here                    meaning
ω_i       state["theta"]          client i's whole model, kept between rounds
C̄^(j)     message["prototypes"]   mean feature of class j over the clients that have it, where message["known"] is 1
C_i^(j)   reply["prototypes"]     mean feature of client i's train samples of class j, after local training
|D_i,j|   reply["counts"]         how many these are: the weight of C_i^(j) in C̄^(j)
λ         pull                    weight of ‖z - C̄^(y)‖²/d beside the usual loss; 0 trains alone
          least                   samples of a class below which a client says nothing of the class; 1 is the paper's
          pool                    how C̄^(j) is made: "mean" is the paper's, by samples; "median", of every coordinate
                                  over the clients that have the class, is one that hostile clients cannot carry away

Cost: one model kept per client; classes x features numbers each way, every round: no model travels. So clients may have
different architectures whose features are of one size: `model` is then a `fairlead.models.Several`, or --model mixed.
The deployed model answers with the class whose prototype is nearest to the sample's feature, as the paper's does;
before any prototype is known, and with answer="head", by its own head.
Privacy: prototypes are mean features of real samples: what a class looks like to a model that only its client has. Of
a class with one sample it is that sample's feature; `least` leaves such classes out of what the client sends.
Differs from the paper: the tie is that of the released code, each sample's feature to its class's prototype, where the
paper ties the local mean. A class nobody brought in a round keeps its prototype.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from fairlead.core import Batch, BodyAndHead, Cohort, Layout, MeanLoss, Method, Named, Part, Server, Task, require
from fairlead.core.features import by_class, features, with_linear_head
from fairlead.functional import coordinate_median

Pool = Literal["mean", "median"]


class Prototypical(BodyAndHead):
    """Answers minus the squared distance of a sample's feature to each class's prototype."""

    prototypes: Tensor
    known: Tensor

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        head = with_linear_head(self, "fedproto")
        self.register_buffer("prototypes", torch.zeros(head.out_features, head.in_features))
        self.register_buffer("known", torch.zeros(head.out_features))

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        apart = (z[:, None] - self.prototypes).square().sum(-1)  # (B, K)
        # A class of which no client had a sample is further away than any other.
        furthest = apart.amax(1, keepdim=True) + 1
        near: Tensor = -torch.where(self.known > 0, apart, furthest)
        return torch.where(self.known.sum() > 0, near, self.head(z))


def fedproto(
    *, pull: float = 1.0, answer: Literal["prototypes", "head"] = "prototypes", least: int = 1, pool: Pool = "mean"
) -> Method:
    """Clients share the mean feature of every class, and no model."""
    require(pull >= 0, f"fedproto: pull must be >= 0, got {pull}; 0 trains alone")
    require(answer in ("prototypes", "head"), f"fedproto: answer must be 'prototypes' or 'head', got '{answer}'")
    require(least >= 1, f"fedproto: least must be >= 1, got {least}; 1 tells of every class that a client has")
    require(pool in ("mean", "median"), f"fedproto: pool must be 'mean' or 'median', got '{pool}'")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        shape = layout.slots["prototypes"].shape
        nothing = {"prototypes": params.new_zeros(1, *shape), "known": params.new_zeros(1, shape[0])}
        return {"theta": params[:, own(layout).columns]}, nothing

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        def values(module: nn.Module, batch: Batch, given: Named) -> Tensor:
            assert isinstance(module, BodyAndHead)
            z = module.body(batch.x)
            apart: Tensor = (z - batch.by_label(given["prototypes"])).square().mean(1)
            usual = task.losses_of(module.head(z), batch, given)
            return usual + pull * batch.by_label(given["known"]) * apart

        start = joined(state, message, task, "prototypes")
        u = task.descend(start, loss=MeanLoss(values, message | task.given))
        prototypes, counts = by_class(task.outputs(u, "train", features), task)
        told = counts >= least
        reply = {"prototypes": prototypes * told[..., None], "counts": counts * told}
        return {"theta": u[:, own(task.layout).columns]}, reply

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return joined(state, message, task, answer)

    return Method(
        init,
        client,
        personal,
        lambda average: pooling(pool),
        average=None,
        wrap=Prototypical,
        needs_classes=True,
        mixed=True,
    )


def own(layout: Layout) -> Part:
    """What a client trains and keeps: everything but the prototypes."""
    return layout.rest("prototypes", "known")


def joined(state: Named, message: Named, task: Task, answer: str) -> Tensor:
    """The clients' models with the prototypes in them, (C, D); none is known where the head is to answer."""
    layout = task.layout
    known = message["known"] if answer == "prototypes" else torch.zeros_like(message["known"])
    return layout.join(
        (own(layout), state["theta"]),
        (layout.part("prototypes"), message["prototypes"].flatten(1)),
        (layout.part("known"), known),
    )


def pooling(pool: Pool) -> Server:
    """Each class's prototype: the mean by samples, or the median, of those that clients sent.

    The median asks only who has the class: how many samples they have is what clients say of themselves.
    """

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        return dict(message), message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        counts, sent = rows["counts"].clamp(min=0), rows["prototypes"]  # fewer than none is nonsense
        total = counts.sum(0)  # (K,)
        if pool == "mean":
            fresh = torch.einsum("ck,ckd->kd", counts, sent) / total.clamp(min=1)[:, None]
        else:
            fresh = torch.zeros_like(sent[0])
            for k in total.nonzero()[:, 0].tolist():
                fresh[k] = coordinate_median(sent[counts[:, k] > 0, k])
        after = {
            "prototypes": torch.where((total > 0)[:, None], fresh, state["prototypes"]),
            "known": torch.where(total > 0, 1.0, state["known"]),
        }
        return after, dict(after)

    return Server(init, update)
