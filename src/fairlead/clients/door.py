"""What the round loop knows of the clients, wherever they are: a few questions, answered with named tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch  # noqa: F401 - the example below uses it
from torch import Tensor, nn

from fairlead.core.plan import Plan
from fairlead.core.task import SplitName
from fairlead.core.types import Method, Named

Saved = Callable[[], Named]  # named tensors, made when asked for


class Greeting(NamedTuple):
    """What clients say before the first round."""

    samples: dict[SplitName, Tensor]  # (N,) each
    rows: Named  # what the method's `hello` makes, N rows; empty where it has none


class Answer(NamedTuple):
    """What came back from the clients that were asked."""

    ids: Tensor  # (C,) who answered soundly, ascending
    rows: Named  # what travelled, (C, ...)
    absent: Mapping[int, str] = {}  # who did not, and why, as the end of a sentence about the client's answer
    samples: int = 0  # over which gradients were taken, as the local epochs count them
    passes: int = 0  # the same with every time that the method took one; 0 where it is not known


class Clients(Protocol):
    """The clients of a federation. Their samples, states and models stay with them; named tensors come and go.

    A message has one row for everybody, or N rows addressed by client id. `ids` are ascending.
    """

    count: int  # N

    def start(self, method: Method, module: nn.Module, plan: Plan) -> None:
        """Get ready for a run, from the clients' first states; `module` is the one the method trains."""

    def greet(self, hello: bool) -> Greeting:
        """How many samples each client has and, with `hello`, what the method wants to know before the first round."""

    def train(self, ids: Tensor, round: int, message: Named) -> Answer:
        """These clients' replies to the message; who answered soundly goes on from its new state, others do not."""

    def score(self, ids: Tensor, round: int, message: Named) -> Answer:
        """Metrics of the models these clients would deploy now: for each metric a column per pair of `scored`."""

    def join(self, ids: Tensor, round: int, message: Named) -> Answer:
        """Replies of clients that never took part, to a message of the method's `join`; nothing stays with them."""

    def newcomers(self, ids: Tensor, round: int, message: Named) -> Answer:
        """As `score`, of what clients that never took part would deploy after training on their own."""

    def keep(self, round: int) -> None:
        """The models scored last, in this round, are the ones to deploy from now on."""

    def outputs(self, split: SplitName) -> list[Tensor]:
        """What each client's model to deploy makes of its own samples: for each client a row per sample, (n, ...)."""

    def save(self) -> Saved:
        """All that the clients hold now; later rounds do not change what it gives."""

    def load(self, saved: Named, round: int, message: Named) -> None:
        """Take back what `save` gave, after `start`; `message` was the server's at the end of that round."""


def payload(rows: Named, picks: Mapping[str, str] | None = None) -> int:
    """Bytes that one client's row of each name takes on the wire; of rows to pick from, those that are picked.

    >>> shelf = {"models": torch.zeros(1, 100, 7), "chosen": torch.tensor([[4, 50]])}
    >>> payload(shelf, {"models": "chosen"})  # two models of seven numbers; which they are need not be sent
    56
    """
    picks = picks or {}
    sent = {n: x[0, : rows[picks[n]].shape[1]] if n in picks else x[0] for n, x in rows.items()}
    return sum(x.numel() * x.element_size() for n, x in sent.items() if n not in picks.values())
