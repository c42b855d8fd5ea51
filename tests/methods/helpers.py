"""Quadratic clients: client k's loss is |u - c_k|²/2 for every sample, so that a round has a closed form.

One step of size lr takes u to u + lr (c_k - u); K steps take it to c_k + (1 - lr)^K (u - c_k).
"""

from importlib import import_module

import torch
from torch import nn

from fairlead.core import Federation, Layout, Split, Training
from fairlead.engines import engine

loop_of_rounds = import_module("fairlead.federate")


class Point(nn.Module):
    """A model that is one vector and answers with it, whatever the sample."""

    def __init__(self, start):
        super().__init__()
        self.u = nn.Parameter(torch.as_tensor(start, dtype=torch.float32).clone())

    def forward(self, x):
        return self.u.expand(x.shape[0], -1)


def half_square(out, y):
    """|out - y|²/2, one per sample."""
    return 0.5 * (out - y).square().sum(-1)


def training(lr=0.1, steps=1, **more):
    """Plain SGD on the quadratic losses."""
    return Training(lr=lr, steps=steps, criterion=half_square, **more)


def quadratic(centres, sizes=None, inputs=None):
    """A client per row of `centres` (N, d), each with so many samples; validation and test targets are the same.

    `inputs` (N, p) are the samples' x, which `Point` ignores.
    """
    centres = torch.as_tensor(centres, dtype=torch.float32)
    n = len(centres)
    sizes = torch.tensor([2] * n if sizes is None else sizes)
    inputs = torch.zeros(n, 1) if inputs is None else torch.as_tensor(inputs, dtype=torch.float32)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    split = Split(inputs.repeat_interleave(sizes, 0), centres.repeat_interleave(sizes, 0), starts)
    return Federation(split, split, split, ("only",))


def run(method, federation, start, *, rounds=1, on="loop", participation=1.0, seed=0, average=None, how=None):
    """Train `Point(start)`; returns the models the clients deploy, (N, d), and the last snapshot."""
    how = training() if how is None else how
    module = Point(start)
    for _, snapshot in loop_of_rounds.federate(  # noqa: B007
        method,
        federation,
        module,
        how,
        rounds=rounds,
        engine=engine(on),
        average=average,
        participation=participation,
        seed=seed,
    ):
        pass
    return deployed(method, federation, module, snapshot, how, seed), snapshot


def deployed(method, federation, module, snapshot, how, seed=0):
    """The models of `personal` on a snapshot, (N, d)."""

    def work(state, message, task):
        return {"model": method.personal(state, message, task)}, {}

    everyone = torch.arange(federation.clients)
    with engine("loop").start(module, Layout(module), federation, how, seed) as pool:
        rows, _ = pool.map(work, everyone, snapshot.round, snapshot.states.get(everyone), snapshot.message)
    return rows["model"]


def cohorts(participation, clients, rounds, seed=0):
    """Who takes part, round by round."""
    return [loop_of_rounds.draw(participation, clients, seed, t).tolist() for t in range(1, rounds + 1)]
