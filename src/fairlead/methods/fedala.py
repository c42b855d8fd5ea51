"""FedALA (Zhang et al., AAAI 2023), Algorithm 1: each client learns, number by number, what the global model gives it.

paper     here               meaning
Θ         message["w"]       global model
Θ_i       state["theta"]     client i's upper layers after its last local training; of those below nothing is kept
W_i       state["weights"]   share of the global model in each of the upper layers' numbers, in [0, 1]; starts at one
p         layers             how many of the last layers are mixed; those below are the global model's
s         share              part of the train samples on which W_i is learned
η         rate               step size of W_i; 0 keeps W_i at one, which is FedAvg
Θ̂_i       mixed              Θ_i + (Θ - Θ_i) ⊙ [1, W_i]: where local training starts, and what the client deploys

Cost: upper layers and their shares kept per client, an extra pass per round and per deployed model; traffic as FedAvg.
In a client's first round there is nothing of its own to mix; in its second one W_i is trained until the standard
deviation of the last `window` losses falls below `threshold`, after more than `window` passes and `passes` at most,
later for one pass a round. All passes of a round go over the same sample.
Differs from the paper: the loss that decides is that of all train samples after each pass, where the released code has
the last batch's; and `passes` is a bound. `layers` counts layers, as the paper does; the released code's 2 counts
tensors, and is the last layer's weight and bias. There the sample is a run of neighbours in the file, here at random.
"""

from dataclasses import replace

import torch
from torch import Tensor

from fairlead.core import Batch, Layout, Method, Named, Part, Task, require
from fairlead.core.device import on_host
from fairlead.servers import averaging, mean


def fedala(
    *,
    layers: int = 1,
    share: float = 0.8,
    rate: float = 1.0,
    threshold: float = 0.1,
    window: int = 10,
    passes: int = 50,
) -> Method:
    """Each client learns, number by number, what the global model gives it."""
    require(layers >= 1, f"fedala: layers must be >= 1, got {layers}; it counts the last layers that are mixed")
    require(0 < share <= 1, f"fedala: share must lie in (0, 1], got {share}; 0.8 takes 80% of the train samples")
    require(rate >= 0, f"fedala: rate must be >= 0, got {rate}; 0 is FedAvg")
    require(threshold > 0, f"fedala: threshold must be > 0, got {threshold}; use rate=0 for no learning")
    require(window >= 2, f"fedala: window must be >= 2, got {window}; it counts the losses compared")
    require(passes >= 1, f"fedala: passes must be >= 1, got {passes}; it bounds the first learning of the weights")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        theta = params[:, upper(layout, layers).columns]
        return {"theta": theta, "weights": torch.ones_like(theta), "rounds": params.new_zeros(1, 1)}, {"w": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        weights, mixed = adapt(state, message, task)
        u = task.descend(mixed)
        seen = (state["rounds"] + 1).clamp(max=2).expand(len(task), 1)
        theta = u[:, upper(task.layout, layers).columns]
        return {"theta": theta, "weights": weights, "rounds": seen}, {"w": u - message["w"]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return adapt(state, message, task)[1]

    def adapt(state: Named, message: Named, task: Task) -> tuple[Tensor, Tensor]:
        """The shares W_i after learning, (C, p-layer columns), and the models Θ̂_i they give, (C, D)."""
        part = upper(task.layout, layers)
        w, rounds = message["w"], state["rounds"].expand(len(task), 1)
        theirs = w[:, part.columns]
        # A newcomer's own model is the initial one, and not worth a share.
        own = torch.where(rounds > 0, state["theta"], theirs)
        weights = state["weights"].expand(len(task), -1)
        learning = (rounds > 0) & (rate > 0)
        if bool(on_host(learning).any()):
            weights = learned(weights, learning, rounds == 1, own, theirs, task.above(part, w))
        mixed = w.expand(len(task), -1).clone()
        mixed[:, part.columns] = torch.lerp(own, theirs, weights)
        return weights, mixed

    def learned(weights: Tensor, learning: Tensor, search: Tensor, own: Tensor, theirs: Tensor, top: Task) -> Tensor:
        losses: list[Tensor] = []
        batches = sampled(top, share, start=top.training.epochs)
        for _ in range(passes):
            if not bool(on_host(learning).any()):
                break
            for batch in batches:
                g = top.grad(torch.lerp(own, theirs, weights), batch) * (theirs - own)
                active = learning if batch.active is None else learning * batch.active
                weights = (weights - rate * active * g).clamp(0, 1)
            learning = learning & search
            if bool(on_host(learning).any()):
                losses.append(top.loss(torch.lerp(own, theirs, weights), "train"))
            if len(losses) > window:
                learning = learning & (torch.stack(losses[-window:]).std(0, correction=0) >= threshold)
        return weights

    return Method(init, client, personal, server=averaging, average=mean())


def upper(layout: Layout, layers: int) -> Part:
    """The last so many layers."""
    count = len(layout.layers)
    require(layers <= count, f"fedala: layers must be at most the model's {count}, got {layers}")
    return layout.rest() if layers == count else layout.cut(layers)[1]


def sampled(task: Task, share: float, start: int) -> list[Batch]:
    """One pass over a random sample of each client's train data: the first so many of the order of pass `start`."""
    size = task.training.batch_size
    wanted = (share * task.sizes()).ceil()
    how = task.sgd.but(epochs=1, steps=int((wanted / size).ceil().max()), start=start)
    batches = []
    for t, batch in enumerate(task.batches(how)):
        kept = t * size + torch.arange(batch.y.shape[1]) < wanted  # (C, B)
        count = kept.sum(1, keepdim=True)
        weight = (kept / count.clamp(min=1)).to(torch.get_default_dtype())
        active = (count > 0).to(weight)
        batches.append(replace(batch, weight=weight.to(batch.x.device), active=active.to(batch.x.device)))
    return batches
