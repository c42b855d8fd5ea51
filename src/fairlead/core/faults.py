"""Clients that do not answer, drawn from rates and the run's seed: what a federation goes through, on purpose.

    --faults dropout=0.1,stragglers=0.2,deadline=2,late=0.1@10,crash=0.1@20

dropout     the chance that a client does not answer in a round
stragglers  the share of clients that are slow: they take four times as long as the others
deadline    replies that take longer than so many times the usual are left out; 2 unless said otherwise
late        the share of clients that join in the round after the @
crash       the share of clients that fail in the round after the @ and never come back

How long a client takes in a round varies by about a quarter from round to round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlead.core.errors import InputError, nearest, require
from fairlead.core.seeds import stream

SLOW = 4.0  # times the usual time
VARIATION = 0.25  # of the logarithm of the time that a round takes

DROPPED = "reply was lost (a fault on purpose)"
TOO_LATE = "reply came after the deadline (a fault on purpose)"
NOT_THERE = "machine has not joined yet (a fault on purpose)"
CRASHED = "machine has crashed (a fault on purpose)"


@dataclass(frozen=True)
class Faults:
    """Which clients fail, and when.

    >>> Faults.of("dropout=0.5,crash=0.25@3")
    Faults(dropout=0.5, stragglers=0.0, deadline=2.0, late=0.0, late_round=1, crash=0.25, crash_round=3)
    """

    dropout: float = 0.0
    stragglers: float = 0.0
    deadline: float = 2.0
    late: float = 0.0
    late_round: int = 1  # in which they join
    crash: float = 0.0
    crash_round: int = 1  # in which they fail

    @staticmethod
    def of(text: str) -> Faults:
        """From text as on the command line; empty text is no faults."""
        found: dict[str, float | int] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            key, _, value = part.partition("=")
            amount, at, round = value.partition("@")
            known = ("dropout", "stragglers", "deadline", "late", "crash")
            if key not in known:
                raise InputError(f"faults: '{key}' is unknown; {nearest(key, known)}")
            fits = not at or (key in ("late", "crash") and round.isdecimal() and int(round) >= 1)
            require(fits, f"faults: {part}: expected NAME=SHARE, or late=SHARE@ROUND and crash=SHARE@ROUND")
            require(bool(at) or key not in ("late", "crash"), f"faults: {part}: say in which round, e.g. {part}@10")
            found[key] = _share(part, amount, most=math.inf if key == "deadline" else 1.0)
            if at:
                found[f"{key}_round"] = int(round)
        require(found.get("deadline", 1.0) > 0, "faults: deadline must be > 0, in times of what a round usually takes")
        return Faults(**found)  # type: ignore[arg-type]

    def absent(self, ids: list[int], clients: int, round: int, seed: int) -> dict[int, str]:
        """Who of these does not answer in a round, and why, as the end of a sentence about the client."""
        late, crashed = (
            self._some(n, share, clients, seed) for n, share in (("late", self.late), ("crash", self.crash))
        )
        slow = self._some("slow", self.stragglers, clients, seed)
        lost = stream(seed, "dropout of clients", round).random(clients) < self.dropout
        times = np.exp(VARIATION * stream(seed, "times", round).normal(size=clients)) * np.where(slow, SLOW, 1.0)
        reasons = {
            CRASHED: crashed & (round >= self.crash_round),
            NOT_THERE: late & (round < self.late_round),
            DROPPED: lost,
            TOO_LATE: (times > self.deadline) & (self.stragglers > 0),
        }
        found = {k: next((why for why, who in reasons.items() if who[k]), "") for k in ids}
        return {k: why for k, why in found.items() if why}

    @staticmethod
    def _some(which: str, share: float, clients: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        chosen = np.zeros(clients, dtype=np.bool_)
        chosen[stream(seed, f"faults {which}").permutation(clients)[: int(share * clients + 0.5)]] = True
        return chosen


def _share(part: str, text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(f"faults: {part}: '{text}' is no number") from error
    require(0 <= value <= most, f"faults: {part}: expected a share from 0 to 1, got {text}")
    return value
