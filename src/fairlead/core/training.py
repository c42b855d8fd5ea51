"""How clients train: `Training` is a run's choice, `Sgd` the steps of one call of `Task.descend`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fairlead.core.errors import require
from fairlead.core.targets import Criterion


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent: the step, and the batches it goes over. `task.sgd` is the run's own.

    >>> Sgd(lr=0.1).but(epochs=3, momentum=None)
    Sgd(lr=0.1, epochs=3, steps=None, batch_size=32, start=0, momentum=0.0, weight_decay=0.0)
    """

    lr: float
    epochs: int = 1
    steps: int | None = None  # batches in an epoch; None is a whole pass over the client's samples
    batch_size: int = 32
    start: int = 0  # whole passes to skip, for a second solver that needs other batches than the first
    momentum: float = 0.0  # starts from zero at every call
    weight_decay: float = 0.0

    def but(self, **changes: Any) -> Sgd:
        """The same with other fields; None leaves a field as it is."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    @property
    def batches(self) -> int | None:
        """How many batches these are for every client; None where they are whole passes over its samples."""
        return None if self.steps is None else self.epochs * self.steps


@dataclass(frozen=True)
class Training:
    """How every client trains in a round; the same for all methods of a comparison, LOCAL included."""

    lr: float = 0.05
    epochs: int = 1
    steps: int | None = None  # exactly so many batches, in place of epochs; what a method counts as an epoch, too
    batch_size: int = 32
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "exponential"] = "constant"
    decay: float = 0.99  # per round, of the exponential schedule
    rounds: int = 1  # over which the cosine falls to zero
    balance: bool = False  # every class of a client weighs the same in its loss, however few its train samples
    criterion: Criterion | None = field(default=None, repr=False)  # left out, the one that suits the targets

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr must be > 0, got {self.lr}; try 0.01")
        require(self.epochs >= 1, f"epochs must be >= 1, got {self.epochs}")
        require(self.steps is None or self.steps >= 1, f"steps must be >= 1, got {self.steps}; leave it out for epochs")
        require(self.batch_size >= 1, f"batch_size must be >= 1, got {self.batch_size}")
        require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), got {self.momentum}; 0 is plain SGD")
        require(self.weight_decay >= 0, f"weight_decay must be >= 0, got {self.weight_decay}")
        require(0 < self.decay <= 1, f"decay must lie in (0, 1], got {self.decay}; 1 keeps the rate constant")

    def lr_at(self, round: int) -> float:
        """The learning rate of a round, counted from 1."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * (round - 1) / max(self.rounds, 1)))
        return self.lr * self.decay ** (round - 1) if self.schedule == "exponential" else self.lr

    def sgd(self, round: int) -> Sgd:
        """The local steps of a round."""
        return Sgd(
            lr=self.lr_at(round),
            epochs=self.epochs if self.steps is None else 1,
            steps=self.steps,
            batch_size=self.batch_size,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
