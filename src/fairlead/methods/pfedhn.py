"""pFedHN (Shamsian et al., ICML 2021), Algorithm 1: a hypernetwork on the server writes every client's weights.

paper   here               meaning
v_i     server "v"         embedding of client i, learned with the hypernetwork; 1 + N/4 numbers
φ       server "phi."      the hypernetwork h: three hidden layers of 100 units, then one linear head per tensor
θ_i     message["theta"]   h(v_i; φ), the weights of client i, which it deploys
Δθ_i    reply["theta"]     how local training changed them
α       lr                 step of the server: φ <- φ + α (∇_φ θ_i)ᵀ Δθ_i, and v_i alike

Cost: nothing kept per client; one model down and its change up, every round; φ and its momentum are 200 models in size.
The head starts at the run's initial model plus a small deviation per client, in proportion to each tensor's spread.
Differs from the paper: there, a step serves one client. Here a round's C clients give one step of C·α along their mean
gradient, which is C of the paper's steps at once, so runs compare at equal client updates; but at most of 1 - momentum,
where the head's bias alone follows the mean change in full, as FedAvg does, and beyond which many clients overshoot.
SGD with momentum, decay and clipping as in the authors' code, except that embeddings of clients that sit out stay put.
Running statistics never travel.
A newcomer starts from the mean embedding of those that took part; its own is then fitted in rounds that leave φ alone,
each to what its local training made of the weights.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.func import vjp
from torch.nn.functional import relu

from fairlead.core import Cohort, Layout, Method, Named, Server, Task, require, stream
from fairlead.core.initial import content_key

LAYERS = 3
TINY = 1e-12  # a gradient shorter than this is none
DAMPING = 1e-2  # of a newcomer's fit, as a share of the mean curvature


def pfedhn(
    *, lr: float = 0.01, momentum: float = 0.9, weight_decay: float = 1e-3, clip: float = 50.0, hidden: int = 100
) -> Method:
    """A hypernetwork on the server writes every client's weights."""
    return hypernetwork(
        "pfedhn", lr=lr, momentum=momentum, weight_decay=weight_decay, clip=clip, hidden=hidden, rho=0.0
    )


def hypernetwork(
    name: str, *, lr: float, momentum: float, weight_decay: float, clip: float, hidden: int, rho: float
) -> Method:
    """pFedHN, whose gradient of φ is taken at φ + ρ g/‖g‖ (see PLGU-GHN); ρ = 0 is pFedHN itself."""
    require(lr > 0, f"{name}: lr must be > 0, got {lr}; the authors' is 0.01")
    require(0 <= momentum < 1, f"{name}: momentum must lie in [0, 1), got {momentum}; 0 is plain SGD")
    require(weight_decay >= 0, f"{name}: weight_decay must be >= 0, got {weight_decay}")
    require(clip > 0, f"{name}: clip must be > 0, got {clip}; it is the longest gradient of the server")
    require(hidden >= 1, f"{name}: hidden must be >= 1, got {hidden}")
    require(rho >= 0, f"{name}: rho must be >= 0, got {rho}; 0 is pFedHN")

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        trainable = params[:, : layout.trainable]
        slots = [layout.slots[n] for n in layout.parameter_names]
        spread = torch.cat([params[:, s.start : s.stop].std(1, correction=0).repeat(s.stop - s.start) for s in slots])
        return {"buffers": params[:, layout.trainable :]}, {"theta": trainable, "spread": spread[None]}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return torch.cat([x.expand(len(task), -1) for x in (message["theta"], state["buffers"])], 1)

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        before = personal(state, message, task)
        after = task.descend(before)
        n = task.layout.trainable
        return {"buffers": after[:, n:]}, {"theta": (after - before)[:, :n]}

    def server(average: Server) -> Server:
        def first(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
            phi, v = draw(message["theta"], message["spread"], clients, hidden)
            still = {n: torch.zeros_like(x) for n, x in (phi | {"v": v}).items()}
            present = torch.zeros(clients, 1, dtype=torch.bool)
            return pack(phi, v, still, present), {"theta": generate(phi, v)}

        def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
            ids, size = cohort.ids, len(cohort.ids)
            phi, speed = under("phi.", state), under("velocity.", state)
            v = state["v"][ids]
            down = -rows["theta"] / size  # the clients' gradient, of the mean of their losses

            def gradient(phi: Named) -> tuple[Named, Tensor]:
                found: tuple[Named, Tensor] = vjp(generate, phi, v)[1](down)
                return found

            g_phi, g_v = gradient(phi)
            if rho > 0:
                reach = rho / norm(g_phi).clamp(min=TINY)
                g_phi, _ = gradient({n: x + reach * g_phi[n] for n, x in phi.items()})
            now, g, was = phi | {"v": v}, g_phi | {"v": g_v}, speed | {"v": speed["v"][ids]}
            shorter = (clip / norm(g).clamp(min=TINY)).clamp(max=1)
            velocity = {n: momentum * was[n] + shorter * g[n] + weight_decay * x for n, x in now.items()}
            step = min(size * lr, 1 - momentum)
            after = {n: x - step * velocity[n] for n, x in now.items()}
            present = state["present"].index_fill(0, ids, True)
            where = ids.to(v.device)
            everyone = state["v"].index_copy(0, where, after.pop("v"))
            everyone = torch.where(present.to(v.device), everyone, everyone[present[:, 0]].mean(0))
            velocity["v"] = speed["v"].index_copy(0, where, velocity["v"])
            return pack(after, everyone, velocity, present), {"theta": generate(after, everyone)}

        return Server(first, update)

    return Method(init, client, personal, server, average=None, join=fit)


def fit(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
    """Move newcomers' embeddings to where h(v; φ) comes nearest to what local training made of it; φ stays.

    A damped Gauss-Newton step on ‖h(v + δ; φ) - (θ + Δθ)‖².
    """
    phi, v = under("phi.", state), state["v"][cohort.ids]
    J, hidden = torch.eye(v.shape[1], dtype=v.dtype, device=v.device).expand(len(v), -1, -1), v
    for i in range(LAYERS):  # the chain rule through ReLU, layer by layer
        hidden = relu(hidden @ phi[f"{i}.weight"].T + phi[f"{i}.bias"])
        J = (hidden > 0)[..., None] * (phi[f"{i}.weight"] @ J)
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
    for i in range(LAYERS):
        v = relu(v @ phi[f"{i}.weight"].T + phi[f"{i}.bias"])
    return v @ phi["head.weight"].T + phi["head.bias"]


def norm(tensors: Named) -> Tensor:
    """The length of all the tensors taken as one vector."""
    return torch.stack([x.square().sum() for x in tensors.values()]).sum().sqrt()
