"""Scores and costs of every round, as the columns of tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fairlead.core import Federation, Plan
from fairlead.rounds import Round


class Records:
    """Scores by round and client, as the columns of a table."""

    def __init__(self, columns: dict[str, list[Any]] | None = None, until: int = 0, plan: Plan | None = None) -> None:
        names = ("round", "client", "split", "model", "accuracy", "loss", "n")
        self.columns = _until(columns, until, plan) if columns else {n: [] for n in names}

    def add(self, round: Round, federation: Federation) -> None:
        """Append the scores of a round; a metric that no earlier round had is a new column."""
        count, before = federation.clients, len(self.columns["round"])
        for s in round.scores:
            constant = {"round": round.round, "split": s.split, "model": s.model}
            new: dict[str, list[Any]] = {n: [v] * count for n, v in constant.items()}
            new |= {"client": list(range(count)), "n": getattr(federation, s.split).sizes.tolist()}
            new |= {metric: values.to(torch.float64).tolist() for metric, values in s.values.items()}
            for name in {**self.columns, **new}:
                column = self.columns.setdefault(name, [None] * before)
                column += new.get(name, [None] * count)
            before += count

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict per record."""
        return (dict(zip(self.columns, values, strict=True)) for values in zip(*self.columns.values(), strict=True))


class Rounds:
    """Cost by round, as the columns of a table."""

    def __init__(self, columns: dict[str, list[Any]] | None = None, until: int = 0) -> None:
        names = ("round", "seconds", "samples", "bytes_up", "bytes_down", "left_out")
        self.columns = _until(columns, until) if columns else {n: [] for n in names}

    def add(self, r: Round) -> None:
        """Append a round."""
        values = (r.round, r.seconds, r.samples, r.bytes_up, r.bytes_down, len(r.dropped))
        for name, value in zip(self.columns, values, strict=True):
            self.columns[name].append(value)


def _until(columns: dict[str, list[Any]], round: int, plan: Plan | None = None) -> dict[str, list[Any]]:
    """The rows up to a round; without those that were evaluated only because a shorter run ended there."""
    keep = [i for i, r in enumerate(columns["round"]) if r <= round and (plan is None or plan.evaluated(r))]
    return {n: [values[i] for i in keep] for n, values in columns.items()}
