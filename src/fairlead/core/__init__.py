"""What everything else leans on: types, layout, local training, seeds, errors."""

from fairlead.core.batches import Batch
from fairlead.core.cut import Cut
from fairlead.core.errors import (
    DataError,
    DivergedError,
    EngineError,
    FairleadError,
    InputError,
    RunError,
    nearest,
    require,
)
from fairlead.core.layout import Layout, Part
from fairlead.core.network import Loss, MeanLoss, Network
from fairlead.core.plan import Plan
from fairlead.core.seeds import draw_key, stream
from fairlead.core.states import States
from fairlead.core.task import Task, Training
from fairlead.core.types import Cohort, Federation, Method, Named, Server, Split, StateStore, check_targets

__all__ = [
    "Batch",
    "Cohort",
    "Cut",
    "DataError",
    "DivergedError",
    "EngineError",
    "FairleadError",
    "Federation",
    "InputError",
    "Layout",
    "Loss",
    "MeanLoss",
    "Method",
    "Named",
    "Network",
    "Part",
    "Plan",
    "RunError",
    "Server",
    "Split",
    "StateStore",
    "States",
    "Task",
    "Training",
    "check_targets",
    "draw_key",
    "nearest",
    "require",
    "stream",
]
