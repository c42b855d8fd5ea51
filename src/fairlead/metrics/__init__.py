"""Scores: from per-client arrays to the numbers of a table, to verdicts and to advice."""

from fairlead.metrics.advice import OwnerAdvice, PositiveTransfer, Recommendation, positive_transfer, recommend
from fairlead.metrics.measures import METRICS, Metric, Score, default_metric, metric
from fairlead.metrics.scores import over_seeds, summarise
from fairlead.metrics.verdict import TRAINING, OwnerPairs, OwnerVerdict, PairedRun, judge

__all__ = [
    "METRICS",
    "TRAINING",
    "Metric",
    "OwnerAdvice",
    "OwnerPairs",
    "OwnerVerdict",
    "PairedRun",
    "PositiveTransfer",
    "Recommendation",
    "Score",
    "default_metric",
    "judge",
    "metric",
    "over_seeds",
    "positive_transfer",
    "recommend",
    "summarise",
]
