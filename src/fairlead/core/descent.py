"""The steps of local SGD, and the terms that a method may add to the gradient.

`task.descend(v, Tie(w, 0.5))` trains v on the clients' data with the further loss 0.25 ‖v - w‖². A term of your own is
a class with a method `at(u)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fairlead.core.batches import Batch
from fairlead.core.fast.machine import aligned_rows
from fairlead.core.gradient import Columns, Gradient, Rows
from fairlead.core.training import Sgd


class Term(Protocol):
    """What is added to the gradient in every step."""

    def at(self, u: Tensor) -> Tensor:
        """The term at the rows u, (C, D); a new tensor or a constant one, never u itself."""


@dataclass(frozen=True)
class Plus:
    """The same rows in every step, as SCAFFOLD's control variates."""

    rows: Tensor

    def at(self, u: Tensor) -> Tensor:
        """The rows."""
        return self.rows


@dataclass(frozen=True)
class Tie:
    """The gradient of strength / 2 * ‖u - v‖²; `strength` is one number, or one per client (C, 1)."""

    v: Tensor
    strength: Tensor | float

    def at(self, u: Tensor) -> Tensor:
        """Strength * (u - v)."""
        return (u - self.v).mul_(self.strength)


@dataclass(frozen=True)
class Towards:
    """A step of lr * strength of the way from u to v, beside the gradient's: momentum has no part in it."""

    v: Tensor
    strength: Tensor | float

    def move(self, u: Tensor, columns: Columns, lr: Tensor | float) -> None:
        """Take the step, in place."""
        nearer = u[..., columns].lerp_(self.v[..., columns], lr * self.strength)
        if not isinstance(columns, slice):  # then it is a copy
            u[..., columns] = nearer


def descend(
    u: Tensor,
    batches: Iterable[Batch],
    gradient: Callable[[Tensor, Batch, Tensor | float], Gradient],
    terms: Iterable[Term | Towards],
    columns: Columns,
    how: Sgd,
) -> None:
    """Step after step on the rows u, in place.

    `gradient(u, batch, active)` gives the gradient at u; `active` is 0 for clients that have no batch.
    """
    inside, outside = _by_momentum(terms, how.momentum)
    # Terms are added to the rows themselves, unless there is more to do with their sum.
    total = aligned_rows(u).zero_() if how.momentum or how.weight_decay else u
    for batch in batches:
        active = 1.0 if batch.active is None else batch.active
        parts: list[Gradient] = [gradient(u, batch, active), *(Rows(term.at(u), columns, active) for term in inside)]
        if total is not u:
            total.mul_(how.momentum) if how.momentum else total.zero_()
            if how.weight_decay:
                Rows(u, columns, active).add(total, how.weight_decay)
            _add_all(parts, total, 1)
            parts = [Rows(total, columns, active)]
        for term in outside:
            term.move(u, columns, how.lr * active)
        _add_all(parts, u, -how.lr)


def _by_momentum(terms: Iterable[Term | Towards], momentum: float) -> tuple[list[Term], list[Towards]]:
    """The terms that momentum repeats, and those it does not."""
    terms = list(terms)
    if not momentum and len(terms) == 1 and isinstance(terms[0], Tie):
        return [], [Towards(terms[0].v, terms[0].strength)]  # the same step, in one pass over the rows
    return [t for t in terms if not isinstance(t, Towards)], [t for t in terms if isinstance(t, Towards)]


def _add_all(parts: list[Gradient], to: Tensor, scale: float) -> None:
    """Add all, and forget each right away: the next gradient then has its memory, which is still in the cache."""
    while parts:
        parts.pop().add(to, scale)
