"""Averages."""

from __future__ import annotations

import torch

from fairlead.core.types import Server
from fairlead.servers.compose import reduce


def mean() -> Server:
    """The weighted mean of the clients' rows, as in FedAvg (McMahan et al., AISTATS 2017)."""
    return reduce(lambda rows, cohort: torch.tensordot(cohort.weights.to(rows), rows, 1))


def uniform() -> Server:
    """The plain mean of the clients' rows: every client counts the same, however much data it holds."""
    return reduce(lambda rows, cohort: rows.mean(0))
