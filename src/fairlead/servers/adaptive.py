"""Server steps with a rate of their own for every number (Reddi et al., ICLR 2021, Algorithm 2).

paper   here            meaning
Δ_t     change          the clients' average change of a round
m_t     state "m."      its running mean, β1 of the last one
v_t     state "v."      its running square: here the three differ
η       lr              server step size
τ       tau             added to √v, and √v's first value; the larger, the more alike all numbers' rates
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fairlead.core.errors import require
from fairlead.core.types import Cohort, Named, Server


def fedadam(*, lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Server:
    """Take the average change as a gradient for Adam: numbers that move much take smaller steps (Reddi et al., 2021).

    FedAdam, after whatever averages: `fedavg+fedadam`, `fedavg+confree+fedadam`. The change becomes lr m/(√v + tau)
    with v a running mean of its squares; the first rounds' bias is not corrected, as in the paper. The paper looks for
    lr from 0.001 to 3 in each task: it is worth a search, together with the clients' --lr.
    Cost: two models more kept at the server; nothing more travels.
    """
    return _adaptive("fedadam", lr, beta1, beta2, tau, lambda v, square: beta2 * v + (1 - beta2) * square)


def fedyogi(*, lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Server:
    """As fedadam, but a rate rises no faster than its changes are small (FedYogi, Reddi et al., 2021).

    v ← v - (1 - beta2) Δ² sign(v - Δ²): after a large change Adam's v shrinks by a factor, Yogi's by a small amount.
    Cost: two models more kept at the server; nothing more travels.
    """
    return _adaptive(
        "fedyogi", lr, beta1, beta2, tau, lambda v, square: v - (1 - beta2) * square * torch.sign(v - square)
    )


def fedadagrad(*, lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3) -> Server:
    """As fedadam, but rates only fall: v is the sum of all squared changes (FedAdagrad, Reddi et al., 2021).

    Cost: two models more kept at the server; nothing more travels.
    """
    return _adaptive("fedadagrad", lr, beta1, 0.0, tau, lambda v, square: v + square)


def _adaptive(
    name: str, lr: float, beta1: float, beta2: float, tau: float, squares: Callable[[Tensor, Tensor], Tensor]
) -> Server:
    require(lr > 0, f"{name}: lr must be > 0, got {lr}; the paper's lie between 0.001 and 3")
    require(0 <= beta1 < 1, f"{name}: beta1 must lie in [0, 1), got {beta1}; 0 forgets earlier rounds")
    require(0 <= beta2 < 1, f"{name}: beta2 must lie in [0, 1), got {beta2}; the paper's is 0.99")
    require(tau > 0, f"{name}: tau must be > 0, got {tau}; the paper's is 0.001")

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        means = {f"m.{n}": torch.zeros_like(x[:1]) for n, x in message.items()}
        return means | {f"v.{n}": torch.full_like(x[:1], tau**2) for n, x in message.items()}, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        after, out = dict(state), {}
        for n, x in rows.items():
            # Another stage may have left one row for everybody; else it is the weighted mean.
            change = x if len(x) == 1 else torch.tensordot(cohort.weights.to(x), x, 1)[None]
            m = beta1 * state[f"m.{n}"] + (1 - beta1) * change
            v = squares(state[f"v.{n}"], change.square())
            after |= {f"m.{n}": m, f"v.{n}": v}
            out[n] = lr * m / (v.sqrt() + tau)
        return after, out

    return Server(init, update)
