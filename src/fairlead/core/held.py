"""A part of a network's model as a network of its own, the rest held where it is."""

from __future__ import annotations

import torch
from torch import Tensor

from fairlead.core.batches import Batch
from fairlead.core.gradient import Network, Output, Rows
from fairlead.core.layout import Part
from fairlead.core.loss import BatchLoss


class HeldNetwork:
    """Rows are the part's columns, (C, P); the other columns are those of `rows`, each client's own."""

    same_for_all = False

    def __init__(self, network: Network, part: Part, rows: Tensor) -> None:
        self.layout = network.layout.alone(part)
        self.has_dropout, self.has_batch_norm = network.has_dropout, network.has_batch_norm
        self._network, self._part = network, part
        self._rows = rows.clone()
        self._gradient = torch.zeros_like(self._rows)

    def gradient(self, rows: Tensor, batch: Batch, loss: BatchLoss, only: Part | None = None) -> Rows:
        """Each row's gradient, in the trainable tensors of `only`."""
        learning = self._part if only is None else self._network.layout.part(*only.names)
        self._gradient.zero_()
        self._network.gradient(self._full(rows), batch, loss, learning).write(self._gradient)
        first_buffer = self.layout.trainable
        if first_buffer < self.layout.size:  # running statistics have moved, and are part of the rows
            rows[:, first_buffer:] = self._rows[:, self._part.columns][:, first_buffer:]
        return Rows(self._gradient[:, self._part.columns], slice(None))

    def outputs(self, rows: Tensor, x: Tensor, f: Output | None = None) -> Tensor:
        """What the whole module, or `f` of it, makes of each client's samples."""
        return self._network.outputs(self._full(rows), x, f)

    def tail(self, part: Part) -> tuple[Network, Output] | None:
        """Nothing can be computed ahead of time, or this network would not be needed."""
        return None

    def release(self) -> None:
        """Forget rows that were kept for the next step."""
        self._network.release()

    def _full(self, rows: Tensor) -> Tensor:
        self._rows[:, self._part.columns] = rows
        return self._rows
