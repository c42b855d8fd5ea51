"""How long a site's answer is waited for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Waits(NamedTuple):
    """Seconds that sites may take."""

    most: float = 600.0  # for any answer
    grace: float = 20.0  # longer than the others took


class Patience:
    """What is known of how long sites take, from one exchange to the next."""

    def __init__(self, waits: Waits) -> None:
        self.waits = waits
        self.silent: set[int] = set()  # sites that did not answer last time
        self._usual: dict[int, float] = {}  # how many times as long as the fastest a site took, at most

    def deadline(
        self,
        site: int,
        asked: Collection[int],
        took: Mapping[int, float],
        gone: Collection[int] = (),
        since: float = 0.0,
    ) -> float:
        """When a site has taken too long, in seconds since all were asked.

        Once the others have answered, it may take as long again as the slowest of them; while some have not, as long
        as it takes beside the fastest, and that again; `grace` in any case, and a quarter of it all if it was silent
        last time. `took` has the seconds of those that answered, `gone` who cannot; `since` is when it was asked anew.

        >>> Patience(Waits(600, 20)).deadline(1, [0, 1, 2], {0: 3.0, 2: 8.0})
        28.0
        >>> Patience(Waits(600, 20)).deadline(1, [0, 1, 2], {0: 3.0})  # another is still at work
        600
        """
        others = [k for k in asked if k != site and k not in self.silent and k not in gone]
        if others and all(k in took for k in others):
            slowest = max(took[k] for k in others)
        elif site in self._usual and took:
            slowest = self._usual[site] * min(took.values())
        else:
            return self.waits.most
        patience = max(self.waits.grace, slowest) / (4 if site in self.silent else 1)
        return min(self.waits.most, max(slowest, since) + patience)

    def learn(self, asked: Collection[int], took: Mapping[int, float]) -> None:
        """What an exchange showed: who answered, and in how many seconds."""
        self.silent = (self.silent | set(asked)) - set(took)
        for site, seconds in took.items():
            times = seconds / max(min(took.values()), 1e-3)
            self._usual[site] = max(self._usual.get(site, 1.0), times)
