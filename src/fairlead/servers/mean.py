"""Averages."""

from __future__ import annotations

import torch

from fairlead.core.errors import require
from fairlead.core.types import Server
from fairlead.servers.compose import reduce


def mean() -> Server:
    """The weighted mean of the clients' rows, as in FedAvg (McMahan et al., AISTATS 2017)."""
    return reduce(lambda rows, cohort: torch.tensordot(cohort.weights.to(rows), rows, 1))


def uniform() -> Server:
    """The plain mean of the clients' rows: every client counts the same, however much data it holds."""
    return reduce(lambda rows, cohort: rows.mean(0))


def scaled(*, factor: float = 1.2) -> Server:
    """The plain mean of the clients' rows, times a number: a server that only takes longer steps.

    The default is (1 + c) / (1 + c²) at c = 0.5, to which ConFREE's released code comes down at usual update sizes.
    """
    require(factor > 0, f"scaled: factor must be > 0, got {factor}; 1 is the plain mean")
    return reduce(lambda rows, cohort: factor * rows.mean(0))
