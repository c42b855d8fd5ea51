"""A module divided before its last layer, for methods that look at features."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.functional import one_hot

from fairlead.core.errors import require
from fairlead.core.layout import Layout

if TYPE_CHECKING:
    from fairlead.core.task import Task


class BodyAndHead(nn.Module):
    """`head(body(x))`, the same function as the module it was made from; `body(x)` are the features.

    >>> import torch
    >>> module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> parts, x = BodyAndHead(module), torch.ones(1, 4)
    >>> bool((parts(x) == module(x)).all()), parts.body(x).shape
    (True, torch.Size([1, 3]))
    """

    head_name = "head"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        name = Layout(module).head_name
        self.body = copy.deepcopy(module)
        self.head = self.body.get_submodule(name)
        parent, _, leaf = name.rpartition(".")
        setattr(self.body.get_submodule(parent), leaf, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def with_linear_head(parts: BodyAndHead, method: str) -> nn.Linear:
    """The head, if it is linear; its inputs are then the features, of known number."""
    head = parts.head
    require(
        isinstance(head, nn.Linear),
        f"{method}: the last layer must be nn.Linear, got {type(head).__name__}; its inputs are the features",
    )
    assert isinstance(head, nn.Linear)
    return head


def features(module: nn.Module, x: Tensor) -> Tensor:
    """What the head gets to see: `task.outputs(rows, "train", features)`."""
    assert isinstance(module, BodyAndHead)
    z: Tensor = module.body(x)
    return z


def by_class(z: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """Features of the train samples (C, n, d): their means by class, zero for a class without, and counts (C, K)."""
    sums, counts = class_sums(z, task)
    return sums / counts.clamp(min=1)[..., None], counts


def class_sums(z: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """Features of the train samples (C, n, d) summed by class, (C, K, d), and how many there are, (C, K)."""
    _, y, real = task.padded("train")
    member = (one_hot(y, task.classes) * real[..., None]).to(z)  # (C, n, K)
    return member.mT @ z, member.sum(1)
