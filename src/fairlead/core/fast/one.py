"""One client: the module's tensors are views of the client's row, so that a step on the row is a step of the module."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from fairlead.core.batches import Batch
from fairlead.core.dropout import KeyedDropout
from fairlead.core.fast.recorded import CallRecorder, LinearCall, RecordedGradient, differentiate
from fairlead.core.fast.views import Views, set_mode
from fairlead.core.gradient import Output
from fairlead.core.layout import Layout
from fairlead.core.loss import BatchLoss, MeanLoss


class OneClient:
    """A module that is used with one row at a time."""

    def __init__(
        self, module: nn.Module, layout: Layout, dropouts: list[KeyedDropout], recorder: CallRecorder, views: Views
    ) -> None:
        self.module, self._layout, self._dropouts, self._recorder, self._views = (
            module,
            layout,
            dropouts,
            recorder,
            views,
        )
        self._tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        self._bound: int | None = None  # address of the row that the module's tensors are views of
        self._learning: tuple[str, ...] | None = None  # the tensors that require gradients
        self._channels_last = any(isinstance(m, nn.Conv2d) for m in module.modules())
        self._tried = False  # whether the module takes channels last

    def gradient(self, rows: Tensor, batch: Batch, loss: BatchLoss, names: tuple[str, ...]) -> RecordedGradient:
        """The row's gradient, (1, D)."""
        leaves = self._bind(rows[0], names)
        one = batch.client(0)
        for dropout in self._dropouts:
            dropout.key.copy_(one.key)
        calls: list[LinearCall] = []
        # A loss that may be anything at all may ask autograd for weights itself.
        recording = self._recorder.recording(calls) if isinstance(loss, MeanLoss) else nullcontext()
        with torch.enable_grad(), recording:
            laid_out = Batch(self._laid_out(one.x), one.y, one.key, one.weight)
            value = loss.value(set_mode(self.module, training=True), laid_out, loss.given_to(0))
        return differentiate(value, leaves, calls, partial(self._views.of, names))

    def outputs(self, rows: Tensor, x: Tensor, f: Output) -> Tensor:
        """What `f` makes of all samples under the one row, evaluating: one large product for all clients."""
        self._bind(rows[0], None)
        everything = f(set_mode(self.module, training=False), self._laid_out(x.flatten(0, 1)))
        return everything.view(*x.shape[:2], *everything.shape[1:])

    def _bind(self, row: Tensor, learning: tuple[str, ...] | None) -> list[Tensor]:
        """Make the module's tensors views of the row; returns those that learn."""
        if row.data_ptr() != self._bound or not row.is_contiguous():
            row = row.contiguous()
            for name, view in self._layout.views(row):
                self._tensors[name].data = view
            self._bound = row.data_ptr()
        if learning is not None and learning != self._learning:
            chosen = set(learning)
            for name in self._layout.parameter_names:
                self._tensors[name].requires_grad_(name in chosen)
            self._learning = learning
        return [self._tensors[name] for name in learning or ()]

    def _laid_out(self, x: Tensor) -> Tensor:
        """Images with channels last, if the module takes them so: pooling is several times faster then."""
        if not self._channels_last or x.ndim != 4:
            return x
        laid = x.contiguous(memory_format=torch.channels_last)
        if not self._tried:
            # A forward function may insist on the usual order, with `view` say; evaluating, so that nothing moves.
            self._tried = True
            training = self.module.training
            try:
                with torch.no_grad():
                    self.module.eval()(laid[:1])
            except RuntimeError:
                self._channels_last = False
            self.module.train(training)
        return laid if self._channels_last else x
