"""Servers, built from stages: `chain(clip(bound=10.0), confree(c=0.5), step())`.

`STAGES` is the catalogue of stages that can take the place of the average in any method.
"""

from collections.abc import Callable

from fairlead.core.types import Server
from fairlead.servers.adaptive import fedadagrad, fedadam, fedyogi
from fairlead.servers.clusters import within
from fairlead.servers.compose import chain, no_state, per_name, reduce
from fairlead.servers.confree import confree
from fairlead.servers.mean import mean, scaled, uniform
from fairlead.servers.mixing import mixing
from fairlead.servers.parameters import parameters_only, with_parts
from fairlead.servers.private import dp
from fairlead.servers.propagation import propagation
from fairlead.servers.robust import cagrad, clip, krum, median, pcgrad, trimmed
from fairlead.servers.step import step
from fairlead.servers.usual import averaging, over_everybody, silent

STAGES: dict[str, Callable[..., Server]] = {
    "mean": mean,
    "uniform": uniform,
    "scaled": scaled,
    "confree": confree,
    "pcgrad": pcgrad,
    "cagrad": cagrad,
    "median": median,
    "trimmed": trimmed,
    "krum": krum,
    "clip": clip,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedadagrad": fedadagrad,
    "dp": dp,
}

# Stages that give as many rows as they take; all others end in one.
ROW_BY_ROW = {"clip"}
# Stages that come after the average, whatever averages.
AFTER_AVERAGE = {"fedadam", "fedyogi", "fedadagrad"}


def reduces(name: str) -> bool:
    """Whether a stage of the catalogue ends in one row for everybody."""
    return name not in ROW_BY_ROW


__all__ = [
    "AFTER_AVERAGE",
    "STAGES",
    "averaging",
    "cagrad",
    "chain",
    "clip",
    "confree",
    "dp",
    "fedadagrad",
    "fedadam",
    "fedyogi",
    "krum",
    "mean",
    "median",
    "mixing",
    "no_state",
    "over_everybody",
    "parameters_only",
    "pcgrad",
    "per_name",
    "propagation",
    "reduce",
    "reduces",
    "scaled",
    "silent",
    "step",
    "trimmed",
    "uniform",
    "with_parts",
    "within",
]
