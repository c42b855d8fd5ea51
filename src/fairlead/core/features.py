"""A module divided before its last layer, for methods that look at features."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fairlead.core.layout import Layout


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
