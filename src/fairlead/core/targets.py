"""What a sample's target is, and what follows from it: the loss that is trained and the scores that are reported.

| kind | targets y | model outputs | loss per sample | scores |
| --- | --- | --- | --- | --- |
| class | (n,) int64, one class each | (n, classes) | cross-entropy | accuracy |
| quantity | (n,) float, or (n, d) | (n, 1), or (n, d) | squared error, mean over d | rmse, in the targets' own unit |
| labels | (n, L) float, 0 or 1 each | (n, L) | binary cross-entropy, mean over L | accuracy, over all labels |

To add a score, add a function to `SCORES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

TargetKind = Literal["class", "quantity", "labels"]
Criterion = Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> one loss per sample
Score = Callable[[Tensor, Tensor, Tensor], Tensor]  # outputs (C, n, ...), targets (C, n, ...), real (C, n) -> (C, 1)


def squared_error(out: Tensor, y: Tensor) -> Tensor:
    """The squared error of each sample, (n,); with several outputs a sample, their mean.

    >>> import torch
    >>> squared_error(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0])).tolist()
    [0.0, 9.0]
    """
    # Outputs are (n, 1) where targets are (n,): without a common shape the difference would be (n, n).
    return (out.reshape(len(out), -1) - y.to(out.dtype).reshape(len(y), -1)).square().mean(1)


def binary_cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of several yes/no labels, mean over the labels of each sample, (n, L) -> (n,)."""
    return binary_cross_entropy_with_logits(out, y.to(out.dtype), reduction="none").mean(1)


def accuracy(out: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The share of samples whose largest output is that of their class."""
    return ((out.argmax(-1) == y) & real).sum(1, keepdim=True) / real.sum(1, keepdim=True)


def label_accuracy(out: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The share of yes/no labels that are right, where an output above zero means yes."""
    return mean_over_samples(((out > 0) == (y > 0.5)).to(out).mean(-1), real)


def root_mean_square_error(out: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The root of the mean squared error."""
    return mean_over_samples(squared_error(out.flatten(0, 1), y.flatten(0, 1)).view_as(real), real).sqrt()


def mean_over_samples(values: Tensor, real: Tensor) -> Tensor:
    """The mean of one value per sample over each client's real samples, (C, n) -> (C, 1)."""
    return (values * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)


CRITERIA: Mapping[TargetKind, Criterion] = {
    "class": partial(cross_entropy, reduction="none"),
    "quantity": squared_error,
    "labels": binary_cross_entropy,
}
SCORES: Mapping[TargetKind, Mapping[str, Score]] = {
    "class": {"accuracy": accuracy},
    "quantity": {"rmse": root_mean_square_error},
    "labels": {"accuracy": label_accuracy},
}
