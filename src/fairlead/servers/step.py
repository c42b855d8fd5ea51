"""The stage that keeps the message and moves it."""

from __future__ import annotations

from fairlead.core.errors import require
from fairlead.core.types import Cohort, Named, Server


def step(*, lr: float = 1.0) -> Server:
    """Add the averaged change to what the server sent last, and send the sum.

    The state is the message itself. Entries nobody replied to stay as they are; `lr` = 1 is FedAvg, other values are
    the server step size of Reddi et al. (ICLR 2021).
    """
    require(lr > 0, f"step: lr must be > 0, got {lr}; 1 takes the averaged change as it is")

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        return message, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        unknown = sorted(rows.keys() - state.keys())
        require(
            not unknown,
            f"step: a reply changes {', '.join(unknown)}, but the message holds {', '.join(state) or 'nothing'}; "
            "reply under the message's own names",
        )
        moved = {name: state[name] + lr * change for name, change in rows.items()}
        return state | moved, state | moved

    return Server(init, update)
