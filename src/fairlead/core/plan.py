"""How a run of rounds goes, whatever the method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fairlead.core.errors import require
from fairlead.core.faults import Faults

SELECT = ("validation", "loss", "last")


@dataclass(frozen=True)
class Plan:
    """How many rounds, who takes part, when models are scored, and which are kept; how clients train is `Training`.

    >>> Plan(rounds=20, participation=0.5).evaluated(13), Plan(rounds=20).evaluated(20)
    (False, True)
    """

    rounds: int
    participation: float = 1.0  # the share of clients in a round, or a count above 1
    evaluate_every: int = 10  # rounds; the last one is always evaluated
    tested: bool = True  # test samples are scored too; without, validation samples alone
    evaluate_global: bool = False  # score the server's model too, where there is one
    # Which round's models are deployed: the one with the best mean validation score, with the lowest mean validation
    # loss, or the last.
    select: Literal["validation", "loss", "last"] = "last"
    unseen: float = 0.0  # the share of clients that takes no part and is scored as newcomers
    newcomer_epochs: int = 5  # that a newcomer trains on its own data
    patience: int | None = None  # evaluations without a lower mean validation loss until training stops; None: never
    seed: int = 0
    faults: Faults = field(default_factory=Faults)  # clients that fail on purpose

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"rounds must be >= 1, got {self.rounds}")
        require(
            self.participation > 0,
            f"participation must be a rate in (0, 1] or a count above 1, got {self.participation:g}",
        )
        require(self.evaluate_every >= 1, f"evaluate_every must be >= 1, got {self.evaluate_every}")
        require(self.select in SELECT, f"select must be one of {', '.join(SELECT)}, got '{self.select}'")
        require(0 <= self.unseen < 1, f"unseen must be a share in [0, 1), got {self.unseen:g}; 0 lets everybody train")
        require(self.newcomer_epochs >= 1, f"newcomer_epochs must be >= 1, got {self.newcomer_epochs}")
        require(
            self.patience is None or self.patience >= 1,
            f"patience must be >= 1 evaluation, got {self.patience}; leave it out to train all rounds",
        )

    def evaluated(self, round: int) -> bool:
        """Whether models are scored after this round."""
        return round % self.evaluate_every == 0 or round == self.rounds
