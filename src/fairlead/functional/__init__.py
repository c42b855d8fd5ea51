"""The mathematics on plain tensors, for those who bring their own training stack.

>>> import torch
>>> from fairlead.functional import confree
>>> confree(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), c=0.5)
tensor([1.5000, 0.0000])
"""

from fairlead.functional.conflicts import Solution, cagrad, confree, confree_solution, pcgrad
from fairlead.functional.gains import CommonGain, chance_positive, common_gain
from fairlead.functional.graph import principal_cosines, propagate, spread_matrix, subspace_similarity
from fairlead.functional.groups import kmeans
from fairlead.functional.robust import clip_norm, coordinate_median, krum, trimmed_mean
from fairlead.functional.stacking import stack_weights, voice_outputs
from fairlead.functional.transfer import positive_transfer_ratio, relative_accuracy

__all__ = [
    "CommonGain",
    "Solution",
    "cagrad",
    "chance_positive",
    "clip_norm",
    "common_gain",
    "confree",
    "confree_solution",
    "coordinate_median",
    "kmeans",
    "krum",
    "pcgrad",
    "positive_transfer_ratio",
    "principal_cosines",
    "propagate",
    "relative_accuracy",
    "spread_matrix",
    "stack_weights",
    "subspace_similarity",
    "trimmed_mean",
    "voice_outputs",
]
