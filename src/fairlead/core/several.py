"""A module of several architectures, of which each client uses one: clients of different networks in one run.

Rows of one run have one length, so a row holds all bodies. `which` marks the client's own; the others get no gradient
and stay as they were made: padding. What clients have in common are the features, of one size, and the head above them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fairlead.core.errors import require


class Several(nn.Module):
    """`head(body(x))`, where the body is one of several, client by client.

    Client k has body `whose[k]`; `whose` begins again where it ends, and is 0, 1, 2 ... if it is left out. All bodies
    give features of the same size. A forward pass computes all of them: the price of rows of one length.

    >>> model = Several([nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))], nn.Linear(2, 3))
    >>> model(torch.ones(5, 4)).shape, model.whose
    (torch.Size([5, 3]), (0, 1))
    """

    head_name = "head"
    which: Tensor  # (bodies,) 1 for the one that answers, else 0

    def __init__(self, bodies: Sequence[nn.Module], head: nn.Module, whose: Sequence[int] = ()) -> None:
        super().__init__()
        require(len(bodies) > 0, "model: Several needs at least one body")
        self.whose = tuple(whose) or tuple(range(len(bodies)))
        wrong = next((w for w in self.whose if not 0 <= w < len(bodies)), None)
        require(wrong is None, f"model: Several has bodies 0 to {len(bodies) - 1}, and whose names {wrong}")
        self.bodies = nn.ModuleList(bodies)
        self.head = head
        self.register_buffer("which", torch.eye(len(bodies))[self.whose[0]])

    def forward(self, x: Tensor) -> Tensor:
        """(n, ...) -> (n, outputs)."""
        features = torch.einsum("b,b...->...", self.which, torch.stack([body(x) for body in self.bodies]))
        out: Tensor = self.head(features)
        return out
