"""The stage that keeps the message and moves it."""

from __future__ import annotations

import torch
from torch import Tensor

from fairlead.core.errors import require
from fairlead.core.layout import Part
from fairlead.core.types import Cohort, Named, Server


def step(*, lr: float = 1.0) -> Server:
    """Add the averaged change to what the server sent last, and send the sum.

    The state is the message itself. Entries nobody replied to stay as they are; `lr` = 1 is FedAvg, other values are
    the server step size of Reddi et al. (ICLR 2021). It is the step size of parameters: a model's buffers, such as
    running statistics, take the averaged change as it is.
    """
    require(lr > 0, f"step: lr must be > 0, got {lr}; 1 takes the averaged change as it is")

    def scaled(change: Tensor, part: Part | None) -> Tensor:
        if part is None or part.trainable == part.size:
            return lr * change
        return torch.cat([lr * change[:, : part.trainable], change[:, part.trainable :]], 1)

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        return message, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        unknown = sorted(rows.keys() - state.keys())
        require(
            not unknown,
            f"step: a reply changes {', '.join(unknown)}, but the message holds {', '.join(state) or 'nothing'}; "
            "reply under the message's own names",
        )
        moved = {name: state[name] + scaled(change, cohort.parts.get(name)) for name, change in rows.items()}
        return state | moved, state | moved

    return Server(init, update)
