"""Data sets, ways to divide them among clients, and scenarios that do both.

from fairlead.data import scenario
federation = scenario("rotated-digits", clients=6).build(seed=0)
"""

from fairlead.data.folders import from_dataset
from fairlead.data.partition import by_column, consecutive, dirichlet, from_flwr, iid, like, pathological, quantity
from fairlead.data.preparation import Preparation
from fairlead.data.presets import ABOUT, PRESETS, scenario
from fairlead.data.scenario import Scenario, describe
from fairlead.data.shift import rotate
from fairlead.data.source import Source, from_tensors
from fairlead.data.sources import load, owner_column
from fairlead.data.survey import Survey, survey

__all__ = [
    "ABOUT",
    "PRESETS",
    "Preparation",
    "Scenario",
    "Source",
    "Survey",
    "by_column",
    "consecutive",
    "describe",
    "dirichlet",
    "from_dataset",
    "from_flwr",
    "from_tensors",
    "iid",
    "like",
    "load",
    "owner_column",
    "pathological",
    "quantity",
    "rotate",
    "scenario",
    "survey",
]
