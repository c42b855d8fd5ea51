"""Gradients the plain way: autograd, one client after another.

Read this first. `core.fast` gives the same numbers up to rounding, many times as fast, and a test compares the two for
every kind of module and every method.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fairlead.core.batches import Batch
from fairlead.core.dropout import replace_dropout
from fairlead.core.gradient import Network, Output, Rows, plain_output
from fairlead.core.layout import Layout, Part
from fairlead.core.loss import BatchLoss


class PlainNetwork:
    """A module and its layout: a row of numbers is written into the module, which is then used as it is."""

    same_for_all = True

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self.module = copy.deepcopy(module)
        self.layout = layout
        self.dropouts = replace_dropout(self.module)
        self.module.to(layout.device)
        self.has_dropout = bool(self.dropouts)
        self.has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())

    def gradient(self, rows: Tensor, batch: Batch, loss: BatchLoss, only: Part | None = None) -> Rows:
        """Each row's gradient on its own client's batch, in the trainable tensors of `only`."""
        names = self.layout.parameter_names if only is None else only.names
        g = torch.zeros_like(rows)
        for k, row in enumerate(rows):
            mine = batch.client(k)
            module = self.layout.write(row, self.module).train()
            for dropout in self.dropouts:
                dropout.key = mine.key
            tensors = dict(module.named_parameters())
            with torch.enable_grad():
                value = loss.value(module, mine, loss.given_to(k))
            found = torch.autograd.grad(value, [tensors[n] for n in names], allow_unused=True)
            for name, x in zip(names, found, strict=True):
                slot = self.layout.slots[name]
                g[k, slot.start : slot.stop] = 0 if x is None else x.flatten()
            # A forward pass in training moves running statistics, which are part of the row.
            row[self.layout.trainable :] = self.layout.read(module)[0, self.layout.trainable :]
        columns = slice(0, self.layout.trainable) if only is None else self.layout.part(*only.names).columns
        return Rows(g, columns)

    def outputs(self, rows: Tensor, x: Tensor, f: Output | None = None) -> Tensor:
        """What the module, or `f` of it, makes of each client's samples, evaluating, (C, B, ...) -> (C, B, ...)."""
        rows = rows.expand(len(x), -1)
        with torch.no_grad():
            return torch.stack(
                [(f or plain_output)(self.layout.write(row, self.module).eval(), x[k]) for k, row in enumerate(rows)]
            )

    def tail(self, part: Part) -> tuple[Network, Output] | None:
        """Nothing is computed ahead of time."""
        return None

    def release(self) -> None:
        """Nothing is kept."""
