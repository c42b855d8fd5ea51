"""The small networks of the published tables, and what standard tools fit, as a network."""

from fairlead.core.several import Several
from fairlead.models.networks import MODELS, build, cnn, lenet, logistic, mlp, wide
from fairlead.models.tools import Tool

__all__ = ["MODELS", "Several", "Tool", "build", "cnn", "lenet", "logistic", "mlp", "wide"]
