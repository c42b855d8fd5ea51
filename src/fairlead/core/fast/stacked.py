"""Many clients at once in a module of plain layers: the same products as `torch.func.vmap` makes, with fewer calls.

The clients' samples are laid one after another, (C * B, ...). A layer that treats samples one by one runs as it is.
Only linear layers need a version with a weight per client, and dropout a key per client. A module with any other
layer, or with a forward function that is not known here, cannot be stacked; `vmapped.py` then does the work.
"""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn

from fairlead.core.batches import Batch
from fairlead.core.dropout import KeyedDropout, replace_layers
from fairlead.core.fast.chain import chain_of
from fairlead.core.fast.recorded import (
    CallRecorder,
    LinearCall,
    RecordedGradient,
    RecordedLinear,
    StackedLinear,
    differentiate,
)
from fairlead.core.fast.views import Views, place_of, set_mode
from fairlead.core.features import BodyAndHead
from fairlead.core.gradient import Output
from fairlead.core.layout import Layout
from fairlead.core.loss import MeanLoss, PlainLoss

# Exact types: a subclass may compute something else.
CONTAINERS = {nn.Sequential, BodyAndHead}
LINEAR = {nn.Linear, RecordedLinear}
SAMPLE_BY_SAMPLE = {
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Softplus,
    nn.Sigmoid,
    nn.Tanh,
    KeyedDropout,
}


class Stack:
    """A module with the weights of many clients."""

    def __init__(self, module: nn.Module, layout: Layout, recorder: CallRecorder, views: Views) -> None:
        def per_client(layer: nn.Module) -> nn.Module | None:
            return StackedLinear(recorder) if type(layer) in LINEAR else None

        self.module = replace_layers(copy.deepcopy(module), per_client).train()
        self._layout, self._recorder, self._views = layout, recorder, views
        self._chain = chain_of(self.module)
        self._dropouts = [m for m in self.module.modules() if isinstance(m, KeyedDropout)]
        self._bound: tuple[object, ...] = ()  # of which rows the tensors are views, and which of these learn
        self._leaves: list[Tensor] = []

    def gradient(self, rows: Tensor, batch: Batch, loss: MeanLoss, names: tuple[str, ...]) -> RecordedGradient:
        """Each row's gradient, (C, D)."""
        clients = len(batch.y)
        leaves = self._bind(rows, names)
        for dropout in self._dropouts:
            dropout.key = batch.key[:, None]
        weight = None if batch.weight is None else batch.weight.flatten()
        everybody = Batch(batch.x.flatten(0, 1), batch.y.flatten(0, 1), batch.key, weight, clients=clients)
        given = {n: g.expand(clients, *g.shape[1:]) for n, g in loss.given.items()}
        if self._chain is not None and isinstance(loss, PlainLoss) and (batch.x.ndim == 3 or self._chain.flattens):
            samples = batch.y.shape[1]
            share = rows.new_full((clients * samples,), 1 / samples) if weight is None else weight.to(rows.dtype)
            found = self._chain.gradient(batch.x, leaves, lambda out: loss.losses.slope(out, everybody, given, share))
            return RecordedGradient(found, partial(self._views.of, names))
        calls: list[LinearCall] = []
        with torch.enable_grad(), self._recorder.recording(calls):
            values = loss.function(set_mode(self.module, training=True), everybody, given).view(batch.y.shape[:2])
            # A sum of means: each client's gradient is that of its own mean, and a NaN stays with its client.
            value = (values.mean(1) if batch.weight is None else (values * batch.weight).sum(1)).sum()
        return differentiate(value, leaves, calls, partial(self._views.of, names))

    def outputs(self, rows: Tensor, x: Tensor, f: Output) -> Tensor:
        """What `f` makes of each client's samples, evaluating, (C, B, ...)."""
        self._bind(rows, ())
        everything = f(set_mode(self.module, training=False), x.flatten(0, 1))
        self.release()
        return everything.view(*x.shape[:2], *everything.shape[1:])

    def _bind(self, rows: Tensor, names: tuple[str, ...]) -> list[Tensor]:
        """Make the module's tensors views of the rows; returns those that learn."""
        bound = (*place_of(rows), names)
        if bound != self._bound:
            tensors = {name: view.detach() for name, view in self._layout.stacked(rows).items()}
            for name, tensor in tensors.items():
                owner, _, attribute = name.rpartition(".")
                setattr(self.module.get_submodule(owner), attribute, tensor)
            self._bound, self._leaves = bound, [tensors[n].requires_grad_() for n in names]
        return self._leaves

    def release(self) -> None:
        """Forget the rows."""
        self._bound, self._leaves = (), []
        for m in self.module.modules():
            if isinstance(m, StackedLinear):
                m.clear()


def can_stack(module: nn.Module) -> bool:
    """Whether every layer is known here, and none occurs twice."""
    return all(map(_is_known, module.modules())) and not has_shared_tensors(module)


def _is_known(m: nn.Module) -> bool:
    if has_hooks(m):
        return False
    if type(m) in LINEAR:
        return True
    plain = type(m) in CONTAINERS | SAMPLE_BY_SAMPLE or (type(m) is nn.Flatten and m.start_dim == 1)
    return plain and not m._parameters and (not m._buffers or isinstance(m, KeyedDropout))


def has_hooks(m: nn.Module) -> bool:
    """Whether a hook sees what passes through the layer, or changes it."""
    return bool(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks)


def has_shared_tensors(module: nn.Module) -> bool:
    """Whether a layer or a tensor occurs twice: in a stack each place would get weights of its own."""
    layers, tensors = (list(f(remove_duplicate=False)) for f in (module.named_modules, module.named_parameters))
    return len(layers) != len(list(module.modules())) or len(tensors) != len(list(module.parameters()))
