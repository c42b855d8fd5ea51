"""kNN-Per (Marfoq et al., ICML 2022), Algorithm 1: a global model, and beside it what the client's own samples say.

paper       here              meaning
h           message["w"]      global model, trained as FedAvg trains it
φ(x)        features          what its last layer gets to see
S_m         keys, labels      client m's train samples as pairs of φ(x) and y, computed anew for each deployed model
k           neighbours        how many of them answer
h^(k)       knn               their labels, weighted by exp(-‖φ(x) - φ(x_i)‖)
λ_m         share             weight of h^(k) beside h, chosen per client on its validation samples: 0, 0.1, ... 1

Cost: nothing kept per client between rounds; the model down and its change up, every round; per deployed model a pass
over the train and validation samples.
The deployed model holds features and labels of up to `capacity` of the client's own train samples. They never travel;
whoever is given that model is given them.
Differs from the paper: λ_m is the one with the lowest validation loss, the smaller one of equals; a client with more
train samples than `capacity` keeps a random choice of them. (The paper tries a capacity too; by default it keeps all.)
A newcomer fine-tunes the global model and remembers nothing, as other methods' do.
"""

import torch
from torch import Tensor, nn

from fairlead.core import BodyAndHead, Layout, Method, Named, Part, Task, require, stream
from fairlead.core.features import features, with_linear_head
from fairlead.servers import averaging, mean

SHARES = tuple(i / 10 for i in range(11))
TINY = 1e-8  # the least probability, as the model answers with logarithms


class Memory(BodyAndHead):
    """Answers log((1 - λ) h(x) + λ h^(k)(x)): `keys` (R, d) are remembered features, `labels` (R, K) one-hot."""

    keys: Tensor
    labels: Tensor
    share: Tensor

    def __init__(self, module: nn.Module, neighbours: int, capacity: int) -> None:
        super().__init__(module)
        head = with_linear_head(self, "knnper")
        self.neighbours = neighbours
        self.register_buffer("keys", torch.zeros(capacity, head.in_features))
        self.register_buffer("labels", torch.zeros(capacity, head.out_features))  # all zero where nothing is kept
        self.register_buffer("share", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)  # memory answers, and is not trained
        both = self.answers(x)
        return torch.log(torch.lerp(both[..., 0, :], both[..., 1, :], self.share).clamp(min=TINY))

    def answers(self, x: Tensor) -> Tensor:
        """The probabilities of the model, and of the neighbours where there are any, (B, 2, K)."""
        z = self.body(x)
        usual = self.head(z).softmax(-1)
        apart = (z[:, None] - self.keys).square().sum(-1).clamp(min=TINY).sqrt()  # (B, R)
        kept = self.labels.sum(-1) > 0
        nearest = torch.where(kept, apart, torch.inf).topk(self.neighbours, dim=1, largest=False)
        weights = (-nearest.values).softmax(1).nan_to_num(0.0)  # nothing is kept: all are infinitely far
        knn = (weights[..., None] * self.labels[nearest.indices]).sum(1)
        return torch.stack([usual, torch.where(kept.any(), knn, usual)], 1)


def knnper(*, neighbours: int = 10, capacity: int = 500) -> Method:
    """A global model, and beside it what the client's own samples say."""
    require(neighbours >= 1, f"knnper: neighbours must be >= 1, got {neighbours}; the paper's is 10")
    require(
        capacity >= neighbours,
        f"knnper: capacity must be at least the {neighbours} neighbours, got {capacity}; it counts samples kept",
    )

    def wrap(module: nn.Module) -> Memory:
        return Memory(module, neighbours, capacity)

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {}, {"w": params[:, shared(layout).columns]}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        part = shared(task.layout)
        u = task.descend(without_memory(message, task))
        return {}, {"w": u[:, part.columns] - message["w"]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        rows = without_memory(message, task).expand(len(task), -1).clone()
        keys, labels = remembered(rows[:1], task, capacity)
        layout = task.layout
        rows[:, layout.part("keys").columns] = keys.flatten(1)
        rows[:, layout.part("labels").columns] = labels.flatten(1)
        rows[:, layout.part("share").columns] = best_share(rows, task)
        return rows

    return Method(
        init,
        client,
        personal,
        server=averaging,
        average=mean(),
        averaged=lambda layout: {"w": shared(layout)},
        wrap=wrap,
        newcomer=lambda state, message, task: without_memory(message, task),
        needs_classes=True,
    )


def shared(layout: Layout) -> Part:
    """What travels: all but the memory."""
    return layout.rest("keys", "labels", "share")


def without_memory(message: Named, task: Task) -> Tensor:
    """The global model, which remembers nothing, (1, D)."""
    layout, w = task.layout, message["w"]
    memory = layout.part("keys", "labels", "share")
    return layout.join((shared(layout), w), (memory, w.new_zeros(len(w), memory.size)))


def remembered(w: Tensor, task: Task, capacity: int) -> tuple[Tensor, Tensor]:
    """Features (C, R, d) and one-hot labels (C, R, K) of each client's train samples, R at most; zero where fewer."""
    z = task.outputs(w.expand(len(task), -1), "train", features)
    keys, labels = z.new_zeros(len(task), capacity, z.shape[2]), z.new_zeros(len(task), capacity, task.classes)
    for i, (k, (_, y)) in enumerate(zip(task.ids, task.data(), strict=True)):
        n = min(len(y), capacity)
        order = torch.from_numpy(stream(task.seed, "knnper", k).permutation(len(y))[:n])
        order = order.sort().values.to(z.device)
        keys[i, :n] = z[i, order]
        labels[i, torch.arange(n), y[order]] = 1
    return keys, labels


def best_share(rows: Tensor, task: Task) -> Tensor:
    """The λ with the lowest validation loss, (C, 1)."""
    _, y, real = task.padded("validation")
    both = task.outputs(rows, "validation", lambda module, x: module.answers(x))  # type: ignore[operator]
    right = both.gather(-1, y[..., None, None].expand(*y.shape, 2, 1))[..., 0]  # (C, n, 2): of the true class
    shares = rows.new_tensor(SHARES)
    mixed = torch.lerp(right[..., :1], right[..., 1:], shares).clamp(min=TINY)  # (C, n, 11)
    loss = -(mixed.log() * real[..., None]).sum(1)
    return shares[loss.argmin(1)][:, None]
