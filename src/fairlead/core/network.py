"""How a gradient is computed: plain autograd for one row; for many, stacked layers or `torch.func.vmap`.

A `Network` is one worker's private copy of the module. Private, because both ways rebind the module's tensors: two
threads sharing one module would corrupt each other, silently when shapes agree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fairlead.core.batches import Batch
from fairlead.core.dropout import KeyedDropout, keyed
from fairlead.core.errors import EngineError
from fairlead.core.gradient import Gradient, Piece
from fairlead.core.layout import Layout, Part
from fairlead.core.linear import Ear, Heard, HeardLinear, StackedLinear
from fairlead.core.loss import BatchLoss, MeanLoss
from fairlead.core.stacked import CONTAINERS, SETTLED, shares, stacked, watched
from fairlead.core.types import Named

# Module under the current parameters, (B, ...) -> (B, ...); each sample by itself, for many clients' may come at once.
Output = Callable[[nn.Module, Tensor], Tensor]

Views = tuple[tuple[object, ...], list[Tensor]]  # of which rows, and the views: every step asks for the same ones
NOTHING: Views = ((), [])


class _Call(nn.Module):
    """Lets a plain function run with swapped parameters: `functional_call` only knows modules."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, f: Callable[..., Tensor], *args: object) -> Tensor:
        return f(self.module, *args)


class Network:
    """A module and its layout, able to differentiate a loss at any rows."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self.module = copy.deepcopy(module)
        self.layout = layout
        self._dropouts = keyed(self.module)
        names = {m: n for n, m in self.module.named_modules()}
        self._key_names = [f"module.{names[d]}.key" for d in self._dropouts]
        self._call = _Call(self.module)
        self._tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        self._bound = 0
        self._learning: tuple[str, ...] | None = None
        self._ear = Ear()
        HeardLinear.replace(self.module, self._ear)
        self._twin = stacked(self.module, self._ear)
        self._twin_bound: Views = NOTHING  # those that learn
        self._viewed: Views = NOTHING  # where gradients were put last
        self._images = any(isinstance(m, nn.Conv2d) for m in self.module.modules())
        self._tried = False
        self._tails: dict[tuple[str, ...], tuple[Network, Output] | None] = {}

    @property
    def drops(self) -> bool:
        """Whether batches need keys to draw from."""
        return bool(self._dropouts)

    @property
    def pairs(self) -> bool:
        """Whether a batch needs two samples, to have a spread."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())

    def check_stackable(self) -> None:
        """Refuse what many rows at once would get wrong."""
        for name, m in self.module.named_modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm):
                raise EngineError(
                    f"engine 'vectorised' cannot train {type(m).__name__} '{name}': its batch statistics would mix in "
                    "the padding of clients of other sizes; use --engine threads or loop, or GroupNorm in the model"
                )

    def gradient(self, rows: Tensor, batch: Batch, loss: BatchLoss, only: Part | None = None) -> Gradient:
        """Each row's gradient on its own client's batch, in the trainable tensors of `only`."""
        names = self.layout.parameter_names if only is None else only.names
        views = partial(self._views, names)
        if not names:
            return Gradient([], views)
        heard: list[Heard] = []
        if len(rows) == 1:
            leaves = self._bind(rows[0], names)
            # A loss that may be anything at all may ask autograd for weights itself.
            with self._ear.listening(heard) if isinstance(loss, MeanLoss) else nullcontext():
                value = self._value_of_one(batch, loss)
        elif self._twin is not None and isinstance(loss, MeanLoss):
            leaves = self._bind_twin(self._twin, rows, names)
            with self._ear.listening(heard):
                value = self._value_of_stack(self._twin, batch, loss)
        else:
            return Gradient([Piece(g, []) for g in self._gradient_of_many(rows, batch, loss, names)], views)
        found = torch.autograd.grad(value, leaves + [call.y for call in heard], allow_unused=True)
        calls: dict[int, list[tuple[Heard, Tensor]]] = {id(leaf): [] for leaf in leaves}
        for call, g in zip(heard, found[len(leaves) :], strict=True):
            if g is not None:
                calls[id(call.weight)].append((call, g))
        return Gradient([Piece(g, calls[id(leaf)]) for leaf, g in zip(leaves, found, strict=False)], views)

    def _value_of_one(self, batch: Batch, loss: BatchLoss) -> Tensor:
        for dropout in self._dropouts:
            dropout.key.copy_(batch.key[0])
        weight = None if batch.weight is None else batch.weight[0]
        one = Batch(self._laid_out(batch.x[0]), batch.y[0], batch.key[0], weight)
        with torch.enable_grad():
            return loss.value(_mode(self.module, training=True), one, {n: g[0] for n, g in loss.given.items()})

    def _value_of_stack(self, twin: nn.Module, batch: Batch, loss: MeanLoss) -> Tensor:
        clients = len(batch.y)
        for m in twin.modules() if self._dropouts else ():
            if isinstance(m, KeyedDropout):
                m.key = batch.key[:, None]
        everybody = Batch(batch.x.flatten(0, 1), batch.y.flatten(0, 1), batch.key, clients=clients)
        expanded = {n: g.expand(clients, *g.shape[1:]) for n, g in loss.given.items()}
        with torch.enable_grad():
            values = loss.function(_mode(twin, training=True), everybody, expanded).view(batch.y.shape[:2])
            # A sum of means: each client's gradient is that of its own term, and a NaN stays in it.
            return (values.mean(1) if batch.weight is None else (values * batch.weight).sum(1)).sum()

    def _views(self, names: tuple[str, ...], rows: Tensor) -> list[Tensor]:
        """These tensors as views of the rows."""
        asked = (rows.data_ptr(), rows.shape, rows.stride(), names)
        if self._viewed[0] != asked:
            views = dict(self.layout.views(rows[0])) if len(rows) == 1 else self.layout.stacked(rows)
            self._viewed = asked, [views[n] for n in names]
        return self._viewed[1]

    def _bind_twin(self, twin: nn.Module, rows: Tensor, names: tuple[str, ...]) -> list[Tensor]:
        """Make the twin's tensors views of the rows; those that learn."""
        bound = (rows.data_ptr(), rows.shape, rows.stride(), names)
        if bound != self._twin_bound[0]:
            leaves = {name: view.detach() for name, view in self.layout.stacked(rows).items()}
            for name, leaf in leaves.items():
                owner, _, attribute = name.rpartition(".")
                setattr(twin.get_submodule(owner), attribute, leaf)
            self._twin_bound = bound, [leaves[n].requires_grad_() for n in names]
        return self._twin_bound[1]

    def release(self) -> None:
        """Let go of rows that nobody else holds any more."""
        self._viewed = self._twin_bound = NOTHING
        for m in self._twin.modules() if self._twin else ():
            if isinstance(m, StackedLinear):
                m.clear()

    def _gradient_of_many(self, rows: Tensor, batch: Batch, loss: BatchLoss, names: tuple[str, ...]) -> list[Tensor]:
        _mode(self.module, training=True)
        stacked = {f"module.{n}": t for n, t in self.layout.stacked(rows).items()}
        moving = {f"module.{n}": stacked.pop(f"module.{n}") for n in names}

        def value(
            moving: Named, fixed: Named, x: Tensor, y: Tensor, key: Tensor, weight: Tensor | None, given: Named
        ) -> Tensor:
            keys = dict.fromkeys(self._key_names, key)
            args = (loss.value, Batch(x, y, key, weight), given)
            result: Tensor = functional_call(self._call, moving | fixed | keys, args)
            return result

        expanded = {n: g.expand(len(rows), *g.shape[1:]) for n, g in loss.given.items()}
        dims = (0, 0, 0, 0, 0, None if batch.weight is None else 0, 0)
        found = vmap(grad(value), in_dims=dims)(moving, stacked, batch.x, batch.y, batch.key, batch.weight, expanded)
        return [found[f"module.{n}"] for n in names]

    def outputs(self, rows: Tensor, x: Tensor, f: Output | None = None) -> Tensor:
        """What the module, or `f` of it, makes of each client's samples, evaluating, (C, B, ...) -> (C, B, ...)."""
        f = f or _forward
        with torch.no_grad():
            if len(rows) == 1 or rows.stride(0) == 0:  # one model for all samples: a single large product
                self._bind(rows[0], None)
                everything = f(_mode(self.module, training=False), self._laid_out(x.flatten(0, 1)))
                return everything.view(*x.shape[:2], *everything.shape[1:])
            if self._twin is not None:
                self._bind_twin(self._twin, rows, ())
                everything = f(_mode(self._twin, training=False), x.flatten(0, 1))
                self.release()
                return everything.view(*x.shape[:2], *everything.shape[1:])
            _mode(self.module, training=False)
            stacked = {f"module.{n}": t for n, t in self.layout.stacked(rows).items()}
            many: Tensor = vmap(lambda tensors, x: functional_call(self._call, tensors, (f, x)))(stacked, x)
            return many

    def tail(self, part: Part) -> tuple[Network, Output] | None:
        """The part as a network of its own, and what gives it its inputs; None where there is no such thing.

        The part must be the module's last layers, and those below settled: their outputs can be kept while it learns.
        """
        if part.names not in self._tails:
            self._tails[part.names] = self._cut(part)
        return self._tails[part.names]

    def _cut(self, part: Part) -> tuple[Network, Output] | None:
        layers = list(self.module.named_children()) if type(self.module) in CONTAINERS else []
        owners = {name.partition(".")[0] for name in part.names}
        first = next((i for i, (name, _) in enumerate(layers) if name in owners), 0)
        above = self.layout.part(*(name for name, _ in layers[first:]))
        below = [m for _, layer in layers[:first] for m in layer.modules()]
        settled = all(type(m) in SETTLED and not watched(m) for m in below)
        whole = (above.names, above.size) == (part.names, part.size)
        if first == 0 or not whole or not settled or self.drops or self.pairs or shares(self.module):
            return None

        def inputs(module: nn.Module, x: Tensor) -> Tensor:
            for layer in islice(module.children(), first):
                x = layer(x)
            return x

        last = nn.Sequential(*(layer for _, layer in layers[first:]))
        return Network(last, Layout(last)), inputs

    def _bind(self, row: Tensor, learning: tuple[str, ...] | None) -> list[Tensor]:
        """Make the module's tensors views of the row, so a step on it is a step of the module; those that learn."""
        if row.data_ptr() != self._bound or not row.is_contiguous():
            row = row.contiguous()
            for name, view in self.layout.views(row):
                self._tensors[name].data = view
            self._bound = row.data_ptr()
        if learning is not None and learning != self._learning:
            chosen = set(learning)
            for name in self.layout.parameter_names:
                self._tensors[name].requires_grad_(name in chosen)
            self._learning = learning
        return [self._tensors[name] for name in learning or ()]

    def _laid_out(self, x: Tensor) -> Tensor:
        """Images with channels last, where the module takes them so: pooling is several times faster then."""
        if not self._images or x.ndim != 4:
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
                self._images = False
            self.module.train(training)
        return laid if self._images else x


def _mode(module: nn.Module, *, training: bool) -> nn.Module:
    """The module, set to train or to evaluate; where it is already, no walk over its layers, which steps would feel."""
    return module if module.training == training else module.train(training)


def _forward(module: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = module(x)
    return out
