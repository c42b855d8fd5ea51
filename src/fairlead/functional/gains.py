"""Gains of many clients, each measured with an error: what they have in common, and the chance that one is positive.

Client k's measured gain is d_k = θ_k + error of variance v_k; the true gains θ_k scatter about a common mean μ with a
standard deviation τ. Neither is known: μ is integrated out, and τ is kept as a grid of values, each as likely as it
makes the measured gains. Before anything is measured τ has a half-Cauchy distribution: small ones are likely, and none
is ruled out. With few clients τ stays uncertain, and so does everything else.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

GRID = 33
FAR = 1e12  # the variance of a gain that says nothing


class CommonGain(NamedTuple):
    """What is known of the clients together: for each value of the grid, (G,)."""

    tau: Tensor  # the clients' scatter
    mean: Tensor  # of the gains, if that is the scatter
    spread: Tensor  # the variance of this mean
    share: Tensor  # how likely that scatter is; they sum to one


def common_gain(gain: Tensor, variance: Tensor, scale: float) -> CommonGain:
    """What gains (N,) with these error variances (N,) have in common; half of all scatters are below `scale` before.

    >>> alike = common_gain(torch.tensor([0.1, 0.1, 0.1, 0.1]), torch.full((4,), 1e-4), 0.05)
    >>> apart = common_gain(torch.tensor([0.5, -0.5, 0.3, -0.3]), torch.full((4,), 1e-4), 0.05)
    >>> [round(float(c.tau @ c.share), 2) for c in (alike, apart)]
    [0.01, 0.5]
    """
    gain, variance = gain.double(), variance.double()
    told = variance < FAR / 2
    d, v = gain[told], variance[told]
    if len(d) == 0:
        one = torch.ones(GRID, dtype=torch.float64)
        return CommonGain(one, 0 * one, one * FAR, one / GRID)
    spread = float(d.std()) if len(d) > 1 else float(d.abs().max())
    top = 3 * (spread + math.sqrt(float(v.median())))
    # Points are close to each other where scatter is small, and each counts by the stretch that it stands for.
    at = torch.linspace(0, 1, GRID, dtype=torch.float64)
    tau = top * at**2
    prior = (at + 0.5 / GRID).log() - (1 + (tau / scale) ** 2).log()
    weight = 1 / (v + tau[:, None] ** 2)  # (G, N)
    total = weight.sum(1)
    mean = (weight * d).sum(1) / total
    off = (weight * (d - mean[:, None]) ** 2).sum(1)
    likely = 0.5 * (weight.log().sum(1) - total.log() - off) + prior
    return CommonGain(tau, mean, 1 / total, likely.softmax(0))


def chance_positive(gain: Tensor, variance: Tensor, common: CommonGain, luck: Tensor) -> tuple[Tensor, Tensor]:
    """The chance that the next training's gain is positive, and the gain to expect, for measured gains (C,).

    `luck` is the variance of a gain from one training to the next, (C,), or (C, Q): values that are equally likely.

    >>> nothing = common_gain(torch.zeros(5), torch.full((5,), 1e-4), 0.05)
    >>> chance_positive(torch.zeros(1), torch.full((1,), 1e-4), nothing, torch.zeros(1))[0].round(decimals=6).item()
    0.5
    """
    d, v = (x.double()[:, None] for x in (gain, variance))  # (C, 1)
    own = luck.double().reshape(len(d), -1, 1)
    scatter = common.tau**2
    to_mean = v / (v + scatter)  # how far a client's own gain is drawn to the common mean
    expected = (1 - to_mean) * d + to_mean * common.mean
    spread = (to_mean * scatter + to_mean**2 * common.spread)[:, None] + own
    better = torch.special.ndtr(expected[:, None] / spread.clamp(min=1e-24).sqrt()).mean(1)
    return (better * common.share).sum(1), (expected * common.share).sum(1)
