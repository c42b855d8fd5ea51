"""The few types everything else is made of.

Shape letters: N clients, C in the cohort (or in one chunk of it), D numbers in a model's vector, B batch, K classes.
A state, a message and a reply are each a `Named`: a plain dict of tensors with the client axis first. What is the same
for everybody has one row and broadcasts; a number per client has shape (C, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fairlead.core.errors import require
from fairlead.core.targets import KINDS, TargetKind

if TYPE_CHECKING:
    from fairlead.core.layout import Layout, Part
    from fairlead.core.task import Task

Named = dict[str, Tensor]


class Cohort(NamedTuple):
    """Who took part in a round."""

    ids: Tensor  # (C,) client ids, ascending
    weights: Tensor  # (C,) shares in a weighted mean; they sum to one
    clients: int  # N
    round: int
    seed: int  # the run's; a stage that draws derives its stream from (seed, round)
    parts: Mapping[str, Part] = {}  # the part of the model that an averaged entry is made of


class Server(NamedTuple):
    """A server, or one stage of it: rows in, rows out.

    One row out is for everybody; N rows out are addressed by client id. `chain` puts stages one after another.
    """

    init: Callable[[Named, Named, int], tuple[Named, Named]]  # first message, greetings (N rows), N -> state, message
    update: Callable[[Named, Named, Cohort], tuple[Named, Named]]  # state, rows, cohort -> state, rows


class Method(NamedTuple):
    """A federated method: what a client does, what it deploys, and the server it was published with.

    `server` is a function of the stage that averages, so that any other aggregation can take its place; a method that
    averages nothing sets `average` to None. `averaged` names the entries of a reply which that stage takes, and the
    part of the model that each is made of. `wrap` turns the user's module into the one the method trains (two heads, a
    residual pair), so a deployed model is always one vector of one module. `newcomer` is `personal` for a client that
    never took part; left out, it is `personal` itself on the first state. A newcomer fine-tunes what it is given; where
    there is a `join` it takes part in rounds of that instead: the server learns of newcomers, and nothing changes for
    the others. `picks` names entries of a message that lie ready at the server, (1, R, ...), and for each the entry
    that lists which of these rows a client is sent, (N, M). `needs_classes` refuses data whose targets are quantities
    or several labels. `mixed` says, of a method that averages nothing, that no model travels either: then clients may
    have different architectures (`core.several`); of a method that averages, the parts that it averages tell.
    """

    init: Callable[[Tensor, Layout], tuple[Named, Named]]  # (1, D) -> clients' first state, first message
    client: Callable[[Named, Named, Task], tuple[Named, Named]]  # states, messages, data -> states, replies
    personal: Callable[[Named, Named, Task], Tensor]  # states, messages, data -> (C, D) models to deploy
    server: Callable[[Server], Server]  # the stage that averages -> the whole server
    average: Server | None
    averaged: Callable[[Layout], Mapping[str, Part]] = lambda layout: {"w": layout.everything}
    hello: Callable[[Task], Named] | None = None  # what every client sends once, before the first round
    wrap: Callable[[nn.Module], nn.Module] | None = None
    newcomer: Callable[[Named, Named, Task], Tensor] | None = None  # what one that never took part starts from
    join: Callable[[Named, Named, Cohort], tuple[Named, Named]] | None = None  # `server.update` for newcomers alone
    picks: Mapping[str, str] = {}  # for messages that share rows: only those picked are counted as sent
    needs_classes: bool = False
    mixed: bool = False


def check_targets(name: str, method: Method, federation: Federation) -> None:
    """Refuse data whose targets the method cannot learn, in one sentence."""
    kind = federation.target_kind
    require(
        not method.needs_classes or kind == "class",
        f"{name} needs samples with one class each, and the target is {KINDS[kind].words}; leave {name} out",
    )


@dataclass(frozen=True)
class Split:
    """Samples of all clients, client after client, so that one client's data is a view.

    >>> s = Split(torch.arange(5.0)[:, None], torch.tensor([0, 1, 0, 1, 1]), torch.tensor([0, 2, 5]))
    >>> s.client(1)[1].tolist(), s.sizes.tolist()
    ([0, 1, 1], [2, 3])
    """

    x: Tensor  # (samples, ...)
    y: Tensor  # (samples,) class numbers or quantities, (samples, labels), or (samples, 2) time and event
    starts: Tensor  # (N + 1,) int64; client k owns rows starts[k] to starts[k + 1]
    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # (samples,) rows of the source
    groups: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # (samples,) whom a row is about

    @property
    def sizes(self) -> Tensor:
        """Samples per client, (N,)."""
        return self.starts.diff()

    def to(self, device: torch.device) -> Split:
        """The same with its samples on a device; who owns which stays on the host."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def client(self, k: int) -> tuple[Tensor, Tensor]:
        """Client k's own samples, as views."""
        a, b = int(self.starts[k]), int(self.starts[k + 1])
        return self.x[a:b], self.y[a:b]

    def marks(self, k: int) -> tuple[Tensor, Tensor]:
        """The row numbers and the groups of client k's samples; empty where there are none."""
        a, b = int(self.starts[k]), int(self.starts[k + 1])
        return self.rows[a:b], self.groups[a:b]

    def take(self, index: Tensor, starts: Tensor) -> Split:
        """These samples with all that is known of them, of clients that own so many."""
        rows, groups = (ids[index] if len(ids) else ids for ids in (self.rows, self.groups))
        return Split(self.x[index], self.y[index], starts, rows, groups)


class Target(NamedTuple):
    """What is to be predicted, and the unit it is in.

    Quantities are trained in standard deviations from a mean: `sd[k] * y + mean[k]` is client k's in its own unit.
    """

    names: tuple[str, ...] = ()  # of the label columns; for survival times the time's and the event's
    mean: tuple[float, ...] = ()  # (N,) for quantities, else empty
    sd: tuple[float, ...] = ()
    survival: bool = False  # times until an event, or until the last observation without one


NO_TARGET = Target()


class Preparing(Protocol):
    """How raw rows become samples (`data.Preparation`): learned from train rows, saved as plain data."""

    def transform(self, rows: Any, owner: str, notes: list[str] | None = None) -> Tensor:
        """Raw rows as samples (n, features), as the owner's model was trained on."""

    def restore(self, y: Tensor, owner: str) -> Tensor:
        """Predicted quantities in their own unit."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""


@dataclass(frozen=True)
class Federation:
    """Every client's train, validation and test samples; what a scenario builds and an engine trains on."""

    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]  # names of the classes, or of several yes/no labels; () where targets are quantities
    names: tuple[str, ...] = ()  # of the clients, where the data names them; else they go by number
    target: Target = NO_TARGET
    preparation: Preparing | None = None  # of a table's rows; images and tensors need none
    notes: tuple[str, ...] = ()  # sentences on who could not be given all it needs

    @property
    def clients(self) -> int:
        """N."""
        return len(self.train.starts) - 1

    @property
    def owners(self) -> tuple[str, ...]:
        """The clients' names, or their numbers."""
        return self.names or tuple(map(str, range(self.clients)))

    def to(self, device: torch.device) -> Federation:
        """The same with all samples on a device."""
        return replace(self, **{split: getattr(self, split).to(device) for split in ("train", "validation", "test")})

    @property
    def target_kind(self) -> TargetKind:
        """What a sample's target is: one class, a quantity, several yes/no labels or a survival time."""
        if not self.classes:
            return "survival" if self.target.survival else "quantity"
        return "labels" if self.train.y.is_floating_point() else "class"

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample: one per class, label or quantity, or its risk."""
        if self.target.survival:
            return 1
        return len(self.classes) or self.train.y[:1].numel() or 1
