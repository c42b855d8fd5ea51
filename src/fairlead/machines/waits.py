"""How long a site's answer is waited for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Waits(NamedTuple):
    """Seconds that sites may take."""

    most: float = 600.0  # for any answer
    grace: float = 20.0  # longer than the others took

    def deadline(
        self, site: int, asked: Collection[int], took: Mapping[int, float], silent: Collection[int], since: float = 0.0
    ) -> float:
        """When a site has taken too long, in seconds since all were asked.

        It may take as long again as the slowest of the others, and `grace` in any case; one that was `silent` last
        time a quarter of that. `took` has the seconds of those that answered; `since` is when it was asked anew.

        >>> Waits(600, 20).deadline(1, [0, 1, 2], {0: 3.0, 2: 8.0}, silent=())
        28.0
        >>> Waits(600, 20).deadline(1, [0, 1, 2], {0: 3.0}, silent=())  # another is still at work
        600.0
        """
        others = [k for k in asked if k != site and k not in silent]
        if not others or not all(k in took for k in others):
            return self.most
        slowest = max(took[k] for k in others)
        patience = max(self.grace, slowest) / (4 if site in silent else 1)
        return min(self.most, max(slowest, since) + patience)
