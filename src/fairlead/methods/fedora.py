"""FEDORA (Wu et al., KDD 2023): parameters propagate over a graph of clients with similar data.

paper   here                    meaning
θ_k     state["theta"]          personal model of client k, kept between rounds and deployed
θ̂_k     message["theta"]        what the client's neighbourhood suggests
U_k     hello["subspace"]       leading singular vectors of the client's inputs, sent once
w_kk'   similarity              sum of the cosines of the principal angles between U_k and U_k'
a       a                       α/(1+α), how far parameters travel: Θ̂ = (1-a)(I - a D⁻¹W)⁻¹ Θ; 0 keeps everyone apart
λ_k     lam                     tie to θ̂_k, from the validation losses of θ_k and θ̂_k: no gain, no tie
p       rank                    singular vectors per client
        pull                    times λ_k; 1 is the paper's, 0 is LOCAL
        noise                   deviation of the noise on Σ x xᵀ, whose leading vectors are U_k; 0 is the paper's

Cost: one model kept per client; one model each way a round, and p·d_in numbers per client once.
Variants: "paper", the default, ties with the gradient of λ_k‖θ - θ̂_k‖², λ_k = max(1e-8, ℓ(θ_k) - ℓ(θ̂_k)), and uses
every w_kk' as it is. "released" follows the settings of the published Rotated MNIST runs: one-hot labels appended to
the inputs, edges exp(sharpness · w) to each client's `neighbours` most similar others only, λ_k = 0 where θ_k has the
lower validation loss and exp((ℓ(θ_k) - ℓ(θ̂_k))/2) elsewhere, and a pull that momentum does not see; there ℓ is a sum
over validation batches of the run's batch size, in "paper" the mean over validation samples. On Rotated MNIST the
paper's form stays at LOCAL's accuracy (0.7530 both) and the released settings reach 0.8104 (docs/results): try both.
Privacy: a rank-1 vector resembles the client's mean image and, with labels appended, its label mix. With `noise`, every
input counts with length 1 at most, and the vectors hide whether a single one was there (Dwork et al., STOC 2014):
`fairlead.functional.privacy.sample_epsilon(noise, {1.0: 1}, delta)`. They still show what a client's inputs have in
common, and the models that clients send have no noise (docs/privacy.md).
Differs from the paper: a step goes at most as far as θ̂_k (λ_k ≤ 1/η in "released", 1/(2η) in "paper"), or a large gain
would overshoot it. The graph joins only clients that have taken part by now; one that never did receives the mean
of its neighbours' θ̂, which is also what it would deploy. Quantities are not appended to the inputs as labels are: the
graph would depend on their unit.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fairlead.core import Layout, Method, Named, Server, Task, Tie, Towards, draw_key, require
from fairlead.core.device import on_host
from fairlead.functional import subspace_similarity
from fairlead.servers.propagation import propagation


def fedora(
    *,
    a: float = 0.8,
    variant: Literal["paper", "released"] = "paper",
    rank: int = 1,
    neighbours: int = 2,
    sharpness: float = 10.0,
    pull: float = 1.0,
    noise: float = 0.0,
) -> Method:
    """Parameters propagate over a graph of clients with similar data."""
    require(0 <= a < 1, f"fedora: a must lie in [0, 1), got {a}; 0 propagates nothing")
    require(variant in ("paper", "released"), f"fedora: variant must be 'paper' or 'released', got '{variant}'")
    require(rank >= 1, f"fedora: rank must be >= 1, got {rank}")
    require(neighbours >= 1, f"fedora: neighbours must be >= 1, got {neighbours}")
    require(pull >= 0, f"fedora: pull must be >= 0, got {pull}; 0 is LOCAL")
    require(noise >= 0, f"fedora: noise must be >= 0, got {noise}; 0 sends the vectors as they are")
    released = variant == "released"

    def hello(task: Task) -> Named:
        data = zip(task.ids, task.data(), strict=True)
        return {
            "subspace": torch.stack([subspace(on_host(x), on_host(appended(y, task)), k, task) for k, (x, y) in data])
        }

    def appended(y: Tensor, task: Task) -> Tensor:
        """What is appended to the inputs, (n, columns)."""
        if not released or task.target_kind in ("quantity", "survival"):
            return y.new_empty(len(y), 0)
        return one_hot(y, task.classes) if task.target_kind == "class" else y

    def subspace(x: Tensor, labels: Tensor, client: int, task: Task) -> Tensor:
        # A client with NaN among its inputs is left out of every round; its greeting must not stop the others.
        samples = x.flatten(1).nan_to_num(0.0, 0.0, 0.0)
        samples = torch.cat([samples, labels.to(samples)], 1)
        return leading(samples, rank, noise, draw_key(task.secret, "fedora", client))

    def similarity(greetings: Named) -> Tensor:
        w = subspace_similarity(on_host(greetings["subspace"]))
        return (sharpness * w).exp() if released else w

    def edges(w: Tensor, present: Tensor) -> Tensor:
        return nearest_only(w, present, neighbours) if released else w

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {"theta": params}, {"theta": params}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        theta, theta_hat = state["theta"], message["theta"]
        loss = summed_loss if released else Task.loss
        gain = loss(task, theta) - loss(task, theta_hat)
        lam = torch.where(gain < 0, 0.0, (gain / 2).exp()) if released else 2 * gain.clamp(min=1e-8)
        lam = (pull * lam).clamp(max=1 / task.sgd.lr)  # a step may reach θ̂ and goes no further
        theta = task.descend(theta, Towards(theta_hat, lam) if released else Tie(theta_hat, lam))
        return {"theta": theta}, {"theta": theta}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return state["theta"]

    def newcomer(state: Named, message: Named, task: Task) -> Tensor:
        return message["theta"]

    def server(average: Server) -> Server:
        return propagation(similarity, edges, a=a)

    return Method(init, client, personal, server, average=None, hello=hello, newcomer=newcomer)


def leading(samples: Tensor, rank: int, noise: float, key: int) -> Tensor:
    """The leading singular vectors of the samples, (n, d) -> (d, p).

    With noise, of Σ x xᵀ with symmetric normal noise on it, the samples x shortened to length 1.
    """
    if not noise:
        right: Tensor = torch.linalg.svd(samples, full_matrices=False).Vh
        return right[:rank].T
    short = samples.double() / samples.double().norm(dim=1, keepdim=True).clamp(min=1)
    draw = torch.Generator().manual_seed(key)
    upper = torch.randn(short.shape[1], short.shape[1], generator=draw, dtype=torch.float64).triu()
    vectors: Tensor = torch.linalg.eigh(short.T @ short + noise * (upper + upper.triu(1).T)).eigenvectors
    return vectors[:, -rank:].flip(1).to(samples)


def summed_loss(task: Task, rows: Tensor) -> Tensor:
    """The sum over validation batches of the mean loss in each, as the released code adds them up, (C, 1)."""
    _, y, real = task.padded("validation")
    out = task.outputs(rows, "validation")
    values = task.sample_losses(out, y, real)
    size = task.sgd.batch_size
    batches = zip(torch.split(values, size, 1), torch.split(real, size, 1), strict=True)
    # A client whose samples have run out adds nothing.
    means = [(v * r).sum(1, keepdim=True) / r.sum(1, keepdim=True).clamp(min=1) for v, r in batches]
    return torch.stack(means).sum(0)


def nearest_only(w: Tensor, present: Tensor, neighbours: int) -> Tensor:
    """Keep each row's largest entries among those present, off the diagonal: a client is no neighbour of its own."""
    others = (w * present.T).fill_diagonal_(0)
    best = others.topk(min(neighbours, max(len(w) - 1, 1)), dim=1)
    return torch.zeros_like(w).scatter(1, best.indices, best.values)
