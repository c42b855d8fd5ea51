"""What a sample's target is, and all that follows from it: the loss, the scores, the measure, how answers are told.

| kind | targets y | model outputs | loss per sample | scores |
| --- | --- | --- | --- | --- |
| class | (n,) int64, one class each | (n, classes) | cross-entropy | accuracy |
| quantity | (n,) float, or (n, d) | (n, 1), or (n, d) | squared error, mean over d | rmse, in the targets' own unit |
| labels | (n, L) float, 0 or 1 each | (n, L) | binary cross-entropy, mean over L | accuracy, over all labels |
| survival | (n, 2) float: time, and 1 if the event came then | (n, 1) | Cox partial likelihood | c-index |

A survival loss compares the samples of one client with each other; all other losses are of one sample each.

`KINDS` has all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

TargetKind = Literal["class", "quantity", "labels", "survival"]
Criterion = Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> one loss per sample
Score = Callable[[Tensor, Tensor, Tensor], Tensor]  # outputs (C, n, ...), targets (C, n, ...), real (C, n) -> (C, 1)
Columns = dict[str, Tensor | list[str]]  # of a table of answers
class_loss: Criterion = partial(cross_entropy, reduction="none")
BLOCK = 1024  # samples that are compared with all others at a time


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


def cox(out: Tensor, y: Tensor) -> Tensor:
    """What each sample adds to minus the logarithm of Cox's partial likelihood (Breslow's for ties).

    (n, 1) -> (n,), or of many clients, whose samples are compared with their own alone, (C, n, 1) -> (C, n). For an
    event at time t it is log Σ exp(f_j) - f_i, the sum over all samples j that lasted until t; for a sample without an
    event it is 0. `absent` samples are compared with nobody.

    >>> y = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])
    >>> cox(torch.zeros(3, 1), y).exp().round().tolist()
    [3.0, 1.0, 1.0]
    """
    risk, time, event = out.reshape(y.shape[:-1]), y[..., 0], y[..., 1].to(out.dtype)
    lasted = [
        risk[..., None, :].masked_fill(time[..., None, :] < some[..., None], -torch.inf).logsumexp(-1)
        for some in torch.split(time, BLOCK, dim=-1)
    ]
    return event * (torch.cat(lasted, -1) - risk)


def slope(criterion: Criterion, out: Tensor, y: Tensor, weight: Tensor) -> Tensor | None:
    """The gradient of Σ weight · criterion(out, y) in the outputs, (n, K), where it is written out here; else None.

    Autograd's bits, for less than its bookkeeping costs.

    >>> slope(squared_error, torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0]), torch.tensor([0.5, 0.5])).tolist()
    [[0.0], [-3.0]]
    """
    if criterion is class_loss and not y.is_floating_point():  # else they are probabilities
        at_class = torch.zeros_like(out).scatter_(1, y[:, None], -weight[:, None])
        log_p = out.log_softmax(1)
        g: Tensor = torch.ops.aten._log_softmax_backward_data.default(at_class, log_p, 1, out.dtype)
        return g
    if criterion is squared_error:
        flat = out.reshape(len(out), -1)
        share = weight * 2 if flat.shape[1] == 1 else weight / flat.shape[1] * 2
        return (flat - y.to(out.dtype).reshape(len(y), -1)).mul_(share[:, None]).view_as(out)
    return None


def absent(y: Tensor, real: Tensor) -> Tensor:
    """Survival targets (..., 2) in which samples that are padding end before all others, without an event."""
    none = torch.tensor([-torch.inf, 0.0], dtype=y.dtype, device=y.device)
    return torch.where(real[..., None], y, none)


def accuracy(out: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The share of samples whose largest output is that of their class."""
    return ((out.argmax(-1) == y) & real).sum(1, keepdim=True) / real.sum(1, keepdim=True)


def label_accuracy(out: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The share of yes/no labels that are right, where an output above zero means yes."""
    return mean_over_samples(((out > 0) == (y > 0.5)).to(out).mean(-1), real)


def root_mean_square_error(out: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The root of the mean squared error."""
    return mean_over_samples(squared_error(out.flatten(0, 1), y.flatten(0, 1)).view_as(real), real).sqrt()


def concordance(out: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The c-index: of the pairs whose order is known, the share whose risks have that order, ties half."""
    found = []
    for risk, one in zip(out.flatten(1), absent(y, real), strict=True):
        time, event = one.unbind(1)
        right = pairs = risk.new_zeros(())
        for mine in torch.split(torch.arange(len(time), device=time.device), BLOCK):
            later = (time > time[mine, None]) | ((time == time[mine, None]) & (event == 0))
            known = later & (event[mine, None] > 0)
            right = right + (known * ((risk[mine, None] - risk).sign() + 1) / 2).sum()
            pairs = pairs + known.sum()
        found.append(right / pairs)
    return torch.stack(found)[:, None]


def mean_over_samples(values: Tensor, real: Tensor) -> Tensor:
    """The mean of one value per sample over each client's real samples, (C, n) -> (C, 1)."""
    return (values * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)


def class_answers(out: Tensor, labels: Sequence[str], classes: Sequence[str]) -> Columns:
    """The class, and the probabilities of all."""
    chosen: Columns = {labels[0] if labels else "class": [classes[i] for i in out.argmax(1).tolist()]}
    return chosen | _probabilities(out.softmax(1), classes)


def label_answers(out: Tensor, labels: Sequence[str], classes: Sequence[str]) -> Columns:
    """Each label, 0 or 1, and the probabilities."""
    chosen: Columns = {name: (out[:, i].sigmoid() >= 0.5).long() for i, name in enumerate(classes)}
    return chosen | _probabilities(out.sigmoid(), classes)


def quantity_answers(out: Tensor, labels: Sequence[str], classes: Sequence[str]) -> Columns:
    """The quantities as they are."""
    values = out.reshape(len(out), -1).unbind(1)
    names = labels if len(labels) == len(values) else [f"quantity {i}" for i in range(len(values))]
    return dict(zip(names, values, strict=True))


def risk_answers(out: Tensor, labels: Sequence[str], classes: Sequence[str]) -> Columns:
    """The risk: higher for an earlier event, and of no unit; two differ by the logarithm of their hazards' ratio."""
    return {f"risk of {labels[1]}" if labels else "risk": out.reshape(len(out))}


def _probabilities(shares: Tensor, classes: Sequence[str]) -> Columns:
    return {f"probability of {name}": shares[:, i] for i, name in enumerate(classes)}


class Kind(NamedTuple):
    """All that follows from what a sample's target is."""

    words: str  # the target is ...
    criterion: Criterion
    scores: Mapping[str, Score]
    metric: str  # what verdicts are about where nobody says and no class is rare: a name in `metrics.METRICS`
    answers: Callable[[Tensor, Sequence[str], Sequence[str]], Columns]  # outputs (n, K), label columns, classes
    compares: bool = False  # the loss compares the samples of one client with each other


KINDS: Mapping[TargetKind, Kind] = {
    "class": Kind("one of several classes", class_loss, {"accuracy": accuracy}, "accuracy", class_answers),
    "quantity": Kind("a quantity", squared_error, {"rmse": root_mean_square_error}, "rmse", quantity_answers),
    "labels": Kind(
        "several yes/no labels", binary_cross_entropy, {"accuracy": label_accuracy}, "label-accuracy", label_answers
    ),
    "survival": Kind("a time until an event", cox, {"c-index": concordance}, "c-index", risk_answers, compares=True),
}
