"""Fairlead: personalized federated learning in which no participant ends up worse off than alone.

>>> import fairlead
>>> result = fairlead.compare(["fedavg", "fedrep+confree"], clients=4, rounds=2)
>>> sorted(result.summary["methods"])
['fedavg', 'fedrep+confree', 'local']
>>> result.model("fedrep+confree", client=3).training
False
"""

import warnings

with warnings.catch_warnings():  # torch and numpy come with it, and set filters
    from fairlead.core.surroundings import unchanged

with unchanged():
    from fairlead import functional
    from fairlead.catalogue import parse
    from fairlead.clients import InProcess, engine
    from fairlead.comparison.compare import Comparison, compare, resume, run
    from fairlead.core.errors import DataError, EngineError, FairleadError, InputError, RunError
    from fairlead.core.plan import Plan
    from fairlead.core.types import Cohort, Federation, Method, Named, Server, Split
    from fairlead.data import Scenario, scenario
    from fairlead.prediction.export import load_model
    from fairlead.rounds import federate
    from fairlead.settings import Settings

__all__ = [
    "Cohort",
    "Comparison",
    "DataError",
    "EngineError",
    "FairleadError",
    "Federation",
    "InProcess",
    "InputError",
    "Method",
    "Named",
    "Plan",
    "RunError",
    "Scenario",
    "Server",
    "Settings",
    "Split",
    "compare",
    "engine",
    "federate",
    "functional",
    "load_model",
    "parse",
    "resume",
    "run",
    "scenario",
]
