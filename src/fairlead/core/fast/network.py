"""The door to the fast path: one function for gradients, one for outputs.

A `FastNetwork` belongs to one worker thread. Its module's tensors are set anew for every chunk of clients: two threads
that shared one would corrupt each other, silently when shapes agree.
"""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn

from fairlead.core.batches import Batch
from fairlead.core.dropout import replace_dropout, replace_layers
from fairlead.core.errors import EngineError
from fairlead.core.fast.one import OneClient
from fairlead.core.fast.recorded import CallRecorder, RecordedGradient, RecordedLinear, TensorGradient
from fairlead.core.fast.stacked import Stack, can_stack, has_hooks
from fairlead.core.fast.tail import tail_of
from fairlead.core.fast.views import Views
from fairlead.core.fast.vmapped import Vmapped
from fairlead.core.gradient import Gradient, Network, Output, plain_output
from fairlead.core.layout import Layout, Part
from fairlead.core.loss import BatchLoss, MeanLoss


class FastNetwork:
    """A module and its layout, able to differentiate a loss at any rows."""

    same_for_all = True

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        recorder = CallRecorder()
        module = copy.deepcopy(module)
        dropouts = replace_dropout(module)
        module.to(layout.device)
        self.layout = layout
        self.has_dropout = bool(dropouts)
        self.has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())
        self._module = replace_layers(module, partial(_recorded, recorder))
        self._views = Views(layout)
        self._one = OneClient(self._module, layout, dropouts, recorder, self._views)
        self._stack = Stack(self._module, layout, recorder, self._views) if can_stack(self._module) else None
        self._vmapped = Vmapped(self._module, layout, dropouts)
        self._tails: dict[tuple[str, ...], tuple[FastNetwork, Output] | None] = {}

    def gradient(self, rows: Tensor, batch: Batch, loss: BatchLoss, only: Part | None = None) -> Gradient:
        """Each row's gradient on its own client's batch, in the trainable tensors of `only`."""
        names = self.layout.parameter_names if only is None else only.names
        if not names:
            return RecordedGradient([], partial(self._views.of, names))
        if len(rows) == 1:
            return self._one.gradient(rows, batch, loss, names)
        if self._stack is not None and isinstance(loss, MeanLoss):
            return self._stack.gradient(rows, batch, loss, names)
        found = self._vmapped.gradient(rows, batch, loss, names)
        return RecordedGradient([TensorGradient(g, []) for g in found], partial(self._views.of, names))

    @torch.no_grad()
    def outputs(self, rows: Tensor, x: Tensor, f: Output | None = None) -> Tensor:
        """What the module, or `f` of it, makes of each client's samples, evaluating, (C, B, ...) -> (C, B, ...)."""
        f = f or plain_output
        if len(rows) == 1 or rows.stride(0) == 0:  # one model for all
            return self._one.outputs(rows, x, f)
        return (self._stack or self._vmapped).outputs(rows, x, f)

    def tail(self, part: Part) -> tuple[Network, Output] | None:
        """The part as a network of its own, and what gives it its inputs; None if it must stay where it is."""
        if part.names not in self._tails:
            exact = None if self.has_dropout or self.has_batch_norm else tail_of(self._module, self.layout, part)
            self._tails[part.names] = exact and (FastNetwork(exact[0], Layout(exact[0])), exact[1])
        return self._tails[part.names]

    def release(self) -> None:
        """Forget rows that were kept for the next step."""
        self._views.clear()
        if self._stack is not None:
            self._stack.release()


def _recorded(recorder: CallRecorder, layer: nn.Module) -> nn.Module | None:
    """What takes a layer's place; a layer with hooks stays, because they belong to it."""
    if type(layer) not in (nn.Linear, RecordedLinear) or has_hooks(layer):
        return None
    assert isinstance(layer, nn.Linear)
    return RecordedLinear(layer, recorder)


def check_stackable(module: nn.Module) -> None:
    """Refuse what many clients at once would get wrong."""
    for name, m in module.named_modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            raise EngineError(
                f"engine 'vectorised' cannot train {type(m).__name__} '{name}': its batch statistics would mix in "
                "the padding of clients of other sizes; use --engine threads or loop, or GroupNorm in the model"
            )
