"""What everything else leans on: types, layout, local training, seeds, errors."""

from fairlead.core.batches import Batch
from fairlead.core.descent import Plus, Term, Tie, Towards
from fairlead.core.errors import (
    DataError,
    DivergedError,
    EngineError,
    FairleadError,
    InputError,
    NeedsValidationError,
    RunError,
    nearest,
    require,
)
from fairlead.core.fast import FastNetwork
from fairlead.core.features import BodyAndHead
from fairlead.core.gradient import Gradient, Network
from fairlead.core.layout import Layout, Part
from fairlead.core.loss import BatchLoss, MeanLoss
from fairlead.core.plan import Plan
from fairlead.core.reference import PlainNetwork
from fairlead.core.seeds import draw_key, stream
from fairlead.core.task import Task
from fairlead.core.training import Sgd, Training
from fairlead.core.types import Cohort, Federation, Method, Named, Server, Split, check_targets

__all__ = [
    "Batch",
    "BatchLoss",
    "BodyAndHead",
    "Cohort",
    "DataError",
    "DivergedError",
    "EngineError",
    "FairleadError",
    "FastNetwork",
    "Federation",
    "Gradient",
    "InputError",
    "Layout",
    "MeanLoss",
    "Method",
    "Named",
    "NeedsValidationError",
    "Network",
    "Part",
    "PlainNetwork",
    "Plan",
    "Plus",
    "RunError",
    "Server",
    "Sgd",
    "Split",
    "Task",
    "Term",
    "Tie",
    "Towards",
    "Training",
    "check_targets",
    "draw_key",
    "nearest",
    "require",
    "stream",
]
