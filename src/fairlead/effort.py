"""How hard every method is tried, LOCAL included: the step size from a small grid, then rounds until nothing improves.

A method that was trained too little loses to one that was trained enough, whatever it is worth. So every method gets
the same effort: each step size of the grid trains for a few rounds; the best on validation rows goes on until the
validation loss stops falling, or to a cap. A best step size at the end of the grid is not trusted: the grid grows. One
that stops early is not trusted either, nor one whose loss jumps from one evaluation to the next: the next smaller one
goes on, too. Losses are means over three evaluations in a row, since the lowest of many that jump is low by luck, and a
training of so many rounds on other rows would not be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.core.errors import DivergedError, InputError, nearest


@dataclass(frozen=True)
class Effort:
    """How many step sizes are tried, and how long."""

    rates: tuple[float, ...]  # step sizes that are tried first, ascending
    further: int  # step sizes that may be tried beyond the ends of the grid
    trial: int  # rounds that every step size gets
    rounds: int  # at most, for the best one
    patience: int | None  # evaluations without improvement that end the training; None: it goes on to the cap
    every: int  # rounds between evaluations
    repeats: int  # trainings of the final model, which differ in their seed alone; in folds a third as many

    @property
    def about(self) -> str:
        """The effort in words."""
        rates = ", ".join(f"{r:g}" for r in self.rates)
        end = f"for {self.rounds} rounds"
        if self.patience is not None:
            wait = self.patience * self.every
            end = f"until {wait} rounds bring no improvement on validation rows, {self.rounds} rounds at most"
        return f"step sizes {rates} for {self.trial} rounds each, the best one {end}"


EFFORTS = {
    "quick": Effort((0.03, 0.1), 1, 6, 60, 6, 2, 1),
    "standard": Effort((0.01, 0.03, 0.1), 2, 8, 150, 6, 4, 3),
    "thorough": Effort((0.01, 0.03, 0.1), 4, 24, 600, 12, 4, 5),
}
STEP = 3.0  # factor between neighbouring step sizes beyond the grid
STILL = 0.01  # a loss that fell by this share over the last evaluations was still falling
JUMPS = 0.1  # a lowest loss that is so much below its neighbours is luck


def effort(name: str) -> Effort:
    """The effort of that name."""
    if name not in EFFORTS:
        raise InputError(f"effort '{name}' is unknown; {nearest(name, EFFORTS)}")
    return EFFORTS[name]


class Curve(NamedTuple):
    """The mean loss over validation samples by round, as far as a training went."""

    rounds: list[int]
    losses: list[float]
    stopped: bool  # because nothing improved any more

    @property
    def best(self) -> int:
        """The position of the lowest loss; the first, where several are as low."""
        return min(range(len(self.losses)), key=lambda i: (self._mean(i), i))

    @property
    def loss(self) -> float:
        """The lowest loss, a mean with those before and after it; infinite where there is none."""
        return self._mean(self.best) if self.losses else math.inf

    @property
    def jumps(self) -> bool:
        """Whether the lowest loss of all is far below what a training of about as many rounds has."""
        return min(map(self._at, range(len(self.losses)))) < (1 - JUMPS) * self.loss

    def _at(self, i: int) -> float:
        return self.losses[i] if math.isfinite(self.losses[i]) else math.inf

    def _mean(self, i: int) -> float:
        if len(self.losses) < 3:  # a fall could not be told from a jump
            return self._at(i)
        near = range(max(i - 1, 0), min(i + 2, len(self.losses)))
        return float(f"{sum(map(self._at, near)) / len(near):.9g}")  # where nothing changes, sums round differently

    def improving(self) -> bool:
        """Whether the loss was still falling when the training ended at its cap, over the last tenth of it."""
        last = max(2, len(self.losses) // 10)
        before = [self._mean(i) for i in range(len(self.losses))][:-last]
        return not self.stopped and bool(before) and self.loss < (1 - STILL) * min(before)


class Choice(NamedTuple):
    """What the search found for one method."""

    lr: float
    round: int  # with the lowest validation loss
    loss: float  # there
    tried: dict[float, float]  # the lowest validation loss of every step size; infinite where training diverged
    followed: int  # rounds that this step size was trained for; `round` is the best of them
    trained: int  # rounds over all step sizes: the effort that was spent
    improving: bool  # still falling at the last round


Train = Callable[[float, int], Curve]  # step size, rounds -> validation losses; goes on where it was left


def search(train: Train, effort: Effort) -> Choice:
    """The step size and the number of rounds with the lowest validation loss, found with this effort.

    >>> def train(lr, rounds):  # the best step size is 0.3, and 30 rounds are enough
    ...     steps = list(range(5, rounds + 1, 5))
    ...     return Curve(steps, [abs(math.log10(lr / 0.3)) + max(30 - r, 0) / 30 for r in steps], stopped=rounds > 50)
    >>> found = search(train, EFFORTS["standard"])
    >>> round(found.lr, 3), found.round, found.improving
    (0.3, 35, False)
    """
    curves = {lr: attempt(train, lr, effort.trial) for lr in effort.rates}
    for _ in range(effort.further):
        ends, best = (min(curves), max(curves)), min(curves, key=lambda lr: curves[lr].loss)
        if best not in ends:
            break
        beyond = best / STEP if best == ends[0] else best * STEP
        curves[beyond] = attempt(train, beyond, effort.trial)
    best = min(curves, key=lambda lr: curves[lr].loss)
    if math.isinf(curves[best].loss):
        raise DivergedError(f"training diverged at every step size ({', '.join(f'{r:g}' for r in sorted(curves))})")
    longer = {best: go_on(train, best, curves[best], effort)}
    # What is best in a few rounds is often too large for many. The next smaller step size needs about as many times
    # more rounds as it is smaller; where these are at hand, or the loss jumps, it is followed too.
    while STEP * longer[best].rounds[longer[best].best] <= effort.rounds or longer[best].jumps:
        smaller = max((lr for lr in curves if lr < best), default=None)
        if smaller is None:
            break
        longer[smaller] = go_on(train, smaller, curves[smaller], effort)
        if longer[smaller].loss >= (1 - STILL) * longer[best].loss:
            break  # no better than with fewer rounds
        best = smaller
    curve, every = longer[best], curves | longer
    tried = {lr: every[lr].loss for lr in sorted(every)}
    spent = sum(c.rounds[-1] for c in every.values())
    return Choice(best, curve.rounds[curve.best], curve.loss, tried, curve.rounds[-1], spent, curve.improving())


def go_on(train: Train, lr: float, trial: Curve, effort: Effort) -> Curve:
    """The training of a trial to its end; where it diverges later on, what the trial found still stands."""
    curve = attempt(train, lr, effort.rounds)
    return trial if math.isinf(curve.loss) else curve


def attempt(train: Train, lr: float, rounds: int) -> Curve:
    """A training that may diverge, which is a result too: an infinite loss."""
    try:
        return train(lr, rounds)
    except DivergedError:
        return Curve([rounds], [math.inf], stopped=False)
