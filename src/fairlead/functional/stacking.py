"""Several models' outputs weighed into one: the weights with the lowest loss, drawn to a common centre.

Outputs are z, (B, n, M, K): B independent problems, n rows, M models (voices), K numbers each. The weighed output of a
row is sum_m s_m z_m with s >= 0. For classes z are log-probabilities, so the weighed output is a product of experts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid, one_hot

FLOOR = -14.0  # log-probabilities below say no more: one such row would outweigh all others
STEPS = 30
SWEEPS = 50
HALVINGS = 12


class Terms(NamedTuple):
    """The loss of weights on all rows together, with its first and second derivatives."""

    loss: Tensor  # (B,)
    slope: Tensor  # (B, M)
    curve: Tensor  # (B, M, M)


def voice_outputs(outputs: Tensor, kind: str) -> Tensor:
    """A model's outputs as they are weighed: log-probabilities of classes; labels' logits and quantities as they are.

    >>> voice_outputs(torch.tensor([[0.0, 0.0]]), "class").exp().tolist()
    [[0.5, 0.5]]
    """
    if kind == "class":
        return log_softmax(outputs, -1).clamp(min=FLOOR)
    return outputs.clamp(FLOOR, -FLOOR) if kind == "labels" else outputs


def weighed(z: Tensor, s: Tensor) -> Tensor:
    """The weighed outputs, (..., n, M, K) with weights (..., M) -> (..., n, K)."""
    return (z * s[..., None, :, None]).sum(-2)


def stack_terms(z: Tensor, y: Tensor, rows: Tensor, s: Tensor, kind: str) -> Terms:
    """What the weights s, (B, M), cost on the rows that count: `rows` is (B, n), one or zero.

    The loss is minus the log-likelihood. A quantity's has the variance that the first voice's errors have.
    """
    u = weighed(z, s)
    if kind == "class":
        p, truth = u.softmax(-1), one_hot(y, z.shape[-1]).to(z)
        loss = -(log_softmax(u, -1) * truth).sum(-1)
        seen = torch.einsum("bnk,bnmk->bnm", p, z)
        both = torch.einsum("bnk,bnmk,bnlk->bnml", p, z, z) - seen[..., :, None] * seen[..., None, :]
        error = p - truth
    elif kind == "labels":
        truth, p = y.to(z), u.sigmoid()
        loss = -(truth * logsigmoid(u) + (1 - truth) * logsigmoid(-u)).sum(-1)
        both = torch.einsum("bnk,bnmk,bnlk->bnml", p * (1 - p), z, z)
        error = p - truth
    else:
        truth = y.reshape(u.shape).to(z)
        count = (rows.sum(-1) * u.shape[-1]).clamp(min=1)
        first = (((z[..., 0, :] - truth) ** 2).sum(-1) * rows).sum(-1) / count
        scale = 1 / first.clamp(min=1e-12)[:, None, None]
        error = (u - truth) * scale
        loss = (error * (u - truth)).sum(-1) / 2
        both = torch.einsum("bnmk,bnlk->bnml", z, z) * scale[..., None]
    slope = torch.einsum("bnk,bnmk->bnm", error, z)
    return Terms((loss * rows).sum(1), (slope * rows[..., None]).sum(1), (both * rows[..., None, None]).sum(1))


def newton_step(s: Tensor, terms: Terms) -> Tensor:
    """Where the quadratic model of the loss is lowest for weights that are not negative, by coordinate descent."""
    new, curve = s.clone(), terms.curve
    own = torch.diagonal(curve, dim1=-2, dim2=-1).clamp(min=1e-9)
    for _ in range(SWEEPS):
        before = new.clone()
        for m in range(s.shape[-1]):
            slope = terms.slope[:, m] + (curve[:, m] * (new - s)).sum(-1)
            new[:, m] = (new[:, m] - slope / own[:, m]).clamp(min=0)
        if float((new - before).abs().max()) < 1e-6:
            break
    return new


def stack_weights(z: Tensor, y: Tensor, rows: Tensor, kind: str, centre: Tensor, strength: float) -> Tensor:
    """The weights, (B, M), that minimise loss + strength · |s - centre|², s >= 0; the loss is a sum over rows.

    >>> y = torch.tensor([[0, 1, 1, 0]])
    >>> good, none = torch.eye(2)[y].log().clamp(min=-2), torch.full((1, 4, 2), -0.7)
    >>> s = stack_weights(torch.stack([good, none], 2), y, torch.ones(1, 4), "class", torch.zeros(1, 2), 0.1)
    >>> bool(s[0, 0] > 1), bool(s[0, 1] < 1e-6)
    (True, True)
    """

    def at(s: Tensor) -> Terms:
        loss, slope, curve = stack_terms(z, y, rows, s, kind)
        off = s - centre
        identity = torch.eye(s.shape[-1]).to(s)
        return Terms(loss + strength * (off**2).sum(-1), slope + 2 * strength * off, curve + 2 * strength * identity)

    s = centre.expand(len(z), -1).clone()
    now = at(s)
    for _ in range(STEPS):
        wanted = newton_step(s, now)
        size = torch.ones(len(s), 1).to(s)
        for _ in range(HALVINGS):  # a whole step may go too far where the loss is no parabola
            then = at(s + size * (wanted - s))
            worse = then.loss > now.loss
            if not bool(worse.any()):
                break
            size = torch.where(worse[:, None], size / 2, size)
        better = (then.loss < now.loss)[:, None]
        moved = torch.where(better, size * (wanted - s), 0.0)
        s = s + moved
        if float(moved.abs().max()) < 1e-5:
            break
        now = at(s)
    return s
