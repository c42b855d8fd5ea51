"""The small networks of the published tables."""

from fairlead.models.networks import MODELS, build, cnn, lenet, logistic, mlp, wide

__all__ = ["MODELS", "build", "cnn", "lenet", "logistic", "mlp", "wide"]
