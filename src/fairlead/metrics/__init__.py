"""Scores: from per-client arrays to the numbers of a table."""

from fairlead.metrics.scores import Interval, difference_interval, over_seeds, summarise

__all__ = ["Interval", "difference_interval", "over_seeds", "summarise"]
