"""The small networks of the published tables."""

from fairlead.core.several import Several
from fairlead.models.networks import MODELS, build, cnn, lenet, logistic, mlp, wide

__all__ = ["MODELS", "Several", "build", "cnn", "lenet", "logistic", "mlp", "wide"]
