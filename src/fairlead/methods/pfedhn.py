"""pFedHN (Shamsian et al., ICML 2021), Algorithm 1: a hypernetwork on the server writes every client's weights.

paper   here               meaning
v_i     server "v"         embedding of client i, learned with the hypernetwork; 1 + N/4 numbers
φ       server "phi."      the hypernetwork h: four linear layers of 100 units with ReLU between them, then one linear
                           head per tensor
θ_i     message["theta"]   h(v_i; φ), the weights of client i, which it deploys
Δθ_i    reply["theta"]     how local training changed them
α       lr                 step of the server: φ <- φ + α (∇_φ θ_i)ᵀ Δθ_i, and v_i alike

Cost: nothing kept per client; one model down and its change up, every round; φ and its momentum are 200 models in size.
With steps="client" the server takes a step for each client of a round, and each is a pass over φ and its momentum.
The head starts at the run's initial model plus a small deviation per client, in proportion to each tensor's spread.
A gradient longer than `clip` is shortened to it, a client's in each local step and the server's.
Differs from the paper: there, a round has one client and one step, and with one client a round (participation=1) it is
that. With more, all start from the same φ. steps="client" takes the paper's step for each of them, one after another,
so that runs compare at equal client updates. steps="round", the default, takes one step of C·α along their mean
gradient, but at most of 1 - momentum, where the head's bias alone follows the mean change in full, as FedAvg does:
beyond that many clients that ask for the same change overshoot it.
SGD with momentum and decay as in the authors' code, except that embeddings of clients that sit out stay put. Running
statistics never travel.
A newcomer starts from the mean embedding of those that took part; its own is then fitted in rounds that leave φ alone,
each to what its local training made of the weights.
"""

import math
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp
from torch.nn.functional import relu

from fairlead.core import Batch, Cohort, Layout, Method, Named, Server, Task, require, stream
from fairlead.core.initial import content_key

LAYERS = 4
WIDEST = 10_000  # units of a hidden layer
TINY = 1e-12  # a gradient shorter than this is none
DAMPING = 1e-2  # of a newcomer's fit, as a share of the mean curvature
Steps = Literal["client", "round"]


class Rule(NamedTuple):
    """How the server learns."""

    lr: float
    momentum: float
    weight_decay: float
    clip: float
    hidden: int
    steps: Steps
    rho: float = 0.0  # the gradient of φ is taken at φ + ρ g/‖g‖ (see PLGU-GHN); 0 is pFedHN


def pfedhn(
    *,
    lr: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 1e-3,
    clip: float = 50.0,
    hidden: int = 100,
    steps: Steps = "round",
) -> Method:
    """A hypernetwork on the server writes every client's weights."""
    return hypernetwork("pfedhn", Rule(lr, momentum, weight_decay, clip, hidden, steps))


def hypernetwork(name: str, rule: Rule) -> Method:
    """pFedHN with this rule."""
    require(rule.lr > 0, f"{name}: lr must be > 0, got {rule.lr}; the authors' is 0.01")
    require(0 <= rule.momentum < 1, f"{name}: momentum must lie in [0, 1), got {rule.momentum}; 0 is plain SGD")
    require(rule.weight_decay >= 0, f"{name}: weight_decay must be >= 0, got {rule.weight_decay}")
    require(rule.clip > 0, f"{name}: clip must be > 0, got {rule.clip}; it is the longest gradient let through")
    require(
        1 <= rule.hidden <= WIDEST,
        f"{name}: hidden must lie between 1 and {WIDEST:,}, got {rule.hidden}; the network has that many times the "
        "weights of the clients' model",
    )
    require(rule.steps in ("client", "round"), f"{name}: steps must be 'client' or 'round', got '{rule.steps}'")
    require(rule.rho >= 0, f"{name}: rho must be >= 0, got {rule.rho}; 0 is pFedHN")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        trainable = params[:, : layout.trainable]
        slots = [layout.slots[n] for n in layout.parameter_names]
        spread = torch.cat([params[:, s.start : s.stop].std(1, correction=0).repeat(s.stop - s.start) for s in slots])
        return {"buffers": params[:, layout.trainable :]}, {"theta": trainable, "spread": spread[None]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return torch.cat([x.expand(len(task), -1) for x in (message["theta"], state["buffers"])], 1)

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        def clipped(u: Tensor, batch: Batch) -> Tensor:
            g = task.grad(u, batch)
            length: Tensor = torch.linalg.vector_norm(g, dim=1, keepdim=True)
            return g * (rule.clip / length.clamp(min=rule.clip))

        before = personal(state, message, task)
        after = task.descend(before, gradient=clipped)
        n = task.layout.trainable
        return {"buffers": after[:, n:]}, {"theta": (after - before)[:, :n]}

    return Method(init, client, personal, lambda average: teacher(rule), average=None, join=fit)


def teacher(rule: Rule) -> Server:
    """The server that keeps φ and the embeddings, and learns them from the clients' changes."""

    def first(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        phi, v = draw(message["theta"], message["spread"], clients, rule.hidden)
        still = {n: torch.zeros_like(x) for n, x in (phi | {"v": v}).items()}
        present = torch.zeros(clients, 1, dtype=torch.bool)
        return pack(phi, v, still, present), {"theta": generate(phi, v)}

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        ids, size = cohort.ids.to(state["v"].device), len(cohort.ids)
        phi, speed = ({n: x.clone() for n, x in under(kind, state).items()} for kind in ("phi.", "velocity."))
        everyone, fast = state["v"].clone(), speed.pop("v")
        together = rule.steps == "round"
        step = min(size * rule.lr, 1 - rule.momentum) if together else rule.lr
        for who in torch.split(torch.arange(size), size if together else 1):
            k = ids[who]
            now, velocity = phi | {"v": everyone[k]}, speed | {"v": fast[k]}
            g = gradient(phi, everyone[k], -rows["theta"][who] / len(who), rule.rho)
            shorter = (rule.clip / norm(g).clamp(min=TINY)).clamp(max=1)
            for n, x in now.items():  # in place: φ is large, and these are copies
                velocity[n].mul_(rule.momentum).add_(shorter * g[n]).add_(x, alpha=rule.weight_decay)
                x.sub_(velocity[n], alpha=step)
            everyone[k], fast[k] = now["v"], velocity["v"]
        present = state["present"].index_fill(0, cohort.ids, True)
        everyone = torch.where(present.to(everyone.device), everyone, everyone[present[:, 0]].mean(0))
        return pack(phi, everyone, speed | {"v": fast}, present), {"theta": generate(phi, everyone)}

    return Server(first, update)


def gradient(phi: Named, v: Tensor, down: Tensor, rho: float) -> Named:
    """By φ and, under "v", by the embeddings, of a loss whose gradient by the weights is `down`, (C, D).

    That of φ is taken at φ + ρ g/‖g‖.
    """

    def at(phi: Named) -> tuple[Named, Tensor]:
        found: tuple[Named, Tensor] = vjp(generate, phi, v)[1](down)
        return found

    g_phi, g_v = at(phi)
    if rho > 0:
        reach = rho / norm(g_phi).clamp(min=TINY)
        g_phi, _ = at({n: x + reach * g_phi[n] for n, x in phi.items()})
    return g_phi | {"v": g_v}


def fit(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
    """Move newcomers' embeddings to where h(v; φ) comes nearest to what local training made of it; φ stays.

    A damped Gauss-Newton step on ‖h(v + δ; φ) - (θ + Δθ)‖².
    """
    phi, v = under("phi.", state), state["v"][cohort.ids]
    hidden = v @ phi["0.weight"].T + phi["0.bias"]
    J = phi["0.weight"].expand(len(v), -1, -1)
    for i in range(1, LAYERS):  # the chain rule through ReLU, layer by layer
        J = phi[f"{i}.weight"] @ ((hidden > 0)[..., None] * J)
        hidden = relu(hidden) @ phi[f"{i}.weight"].T + phi[f"{i}.bias"]
    J = phi["head.weight"] @ J  # (C, D, E)
    normal = J.mT @ J
    damping = DAMPING * normal.diagonal(dim1=1, dim2=2).mean(1).clamp(min=TINY)
    eye = torch.eye(v.shape[1], dtype=v.dtype, device=v.device)
    delta = torch.linalg.solve(normal + damping[:, None, None] * eye, J.mT @ rows["theta"][..., None])[..., 0]
    everyone = state["v"].index_copy(0, cohort.ids.to(v.device), v + delta)
    return state | {"v": everyone}, {"theta": generate(phi, everyone)}


def pack(phi: Named, v: Tensor, velocity: Named, present: Tensor) -> Named:
    """The server's state, under plain names."""
    named = {f"phi.{n}": x for n, x in phi.items()} | {f"velocity.{n}": x for n, x in velocity.items()}
    return named | {"v": v, "present": present}


def under(prefix: str, state: Named) -> Named:
    """The entries whose names start so, without it."""
    return {n.removeprefix(prefix): x for n, x in state.items() if n.startswith(prefix)}


def draw(params: Tensor, spread: Tensor, clients: int, hidden: int) -> tuple[Named, Tensor]:
    """A fresh hypernetwork and embeddings, whose first weights are the given ones plus a deviation within `spread`."""
    rng = stream(content_key(params), "hypernetwork")
    width = 1 + clients // 4

    def uniform(rows: int, columns: int) -> Tensor:
        bound = 1 / math.sqrt(columns)
        return torch.from_numpy(rng.uniform(-bound, bound, (rows, columns))).to(params)

    phi: Named = {}
    for i, (inside, outside) in enumerate(pairwise([width] + [hidden] * LAYERS)):
        phi[f"{i}.weight"] = uniform(outside, inside)
        phi[f"{i}.bias"] = uniform(outside, inside)[:, 0].clone()
    phi["head.weight"] = spread.T * uniform(params.shape[1], hidden)
    phi["head.bias"] = params[0].clone()
    return phi, torch.from_numpy(rng.standard_normal((clients, width))).to(params)


def generate(phi: Named, v: Tensor) -> Tensor:
    """h(v; φ): the weights of the clients with these embeddings, (C, E) -> (C, D)."""
    v = v @ phi["0.weight"].T + phi["0.bias"]
    for i in range(1, LAYERS):
        v = relu(v) @ phi[f"{i}.weight"].T + phi[f"{i}.bias"]
    return v @ phi["head.weight"].T + phi["head.bias"]


def norm(tensors: Named) -> Tensor:
    """The length of all the tensors taken as one vector."""
    return torch.stack([x.square().sum() for x in tensors.values()]).sum().sqrt()
