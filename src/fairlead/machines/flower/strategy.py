"""ConFREE for plain Flower users: a strategy that takes the place of FedAvg.

    from fairlead.machines.flower.strategy import ConFREE
    result = ConFREE(fraction_train=1.0).start(grid, initial_arrays, num_rounds=10)

Clients send their whole models, as for FedAvg, and may use Flower's own mods for differential privacy (`LocalDpMod`,
`fixedclipping_mod`): each update is then clipped or noised before the server sees it. Secure aggregation does not fit:
it shows the server a sum alone, and conflicts between clients are not to be seen in a sum.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fairlead import functional
from fairlead.core import InputError, require

MASKED = "secaggplus"


class ConFREE(FedAvg):
    """FedAvg with ConFREE (Zheng et al., AAAI 2025) in place of the mean of the clients' changes.

    `c` in (0, 1) is how far the change may leave the guidance vector. Entries that are no floats keep the first
    client's value; a client whose model holds a number that is not finite is left out.
    """

    def __init__(self, *args: Any, c: float = 0.5, **kwargs: Any) -> None:
        require(0 < c < 1, f"ConFREE: c must lie in (0, 1), got {c}; the paper starts its search at 0.5")
        super().__init__(*args, **kwargs)
        self._c = c
        self._sent: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg; what is sent is remembered, since conflicts are between changes."""
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the change that serves every client."""
        replies = list(replies)
        for reply in replies:
            if reply.has_content() and any(MASKED in name for name in reply.content):
                raise InputError(
                    "ConFREE must see the update of each client, and secure aggregation (SecAgg+) shows the server "
                    "their sum alone; leave out one of the two"
                )
        sound, _ = self._check_and_log_replies(replies, is_train=True)
        if not sound or self._sent is None:
            return None, None
        contents = [reply.content for reply in sound]
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        models = [next(iter(content.array_records.values())) for content in contents]
        return _changed(self._sent, models, self._c), metrics


def _changed(before: ArrayRecord, models: list[ArrayRecord], c: float) -> ArrayRecord:
    old = {name: array.numpy() for name, array in before.items()}
    new = [{name: array.numpy() for name, array in model.items()} for model in models]
    floats = [name for name, x in old.items() if np.issubdtype(x.dtype, np.floating)]
    start = _vector(old, floats)
    rows = torch.stack([_vector(model, floats) for model in new]) - start
    rows = rows[rows.isfinite().all(1)]
    change: Tensor = functional.confree(rows, c) if len(rows) else torch.zeros_like(start)
    after, place = {**old, **{n: x for n, x in new[0].items() if n not in floats}}, 0
    for name in floats:
        size = old[name].size
        part = (start + change)[place : place + size].numpy().reshape(old[name].shape)
        after[name], place = part.astype(old[name].dtype), place + size
    return ArrayRecord(OrderedDict((name, Array(x)) for name, x in after.items()))


def _vector(model: dict[str, Any], names: list[str]) -> Tensor:
    return torch.from_numpy(np.concatenate([model[name].reshape(-1).astype(np.float32) for name in names]))
