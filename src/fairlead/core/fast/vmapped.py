"""Many clients at once in a module of any kind, by `torch.func.vmap`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from threading import Lock

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fairlead.core.batches import Batch
from fairlead.core.dropout import KeyedDropout
from fairlead.core.fast.views import set_mode
from fairlead.core.gradient import Output
from fairlead.core.layout import Layout
from fairlead.core.loss import BatchLoss
from fairlead.core.surroundings import unchanged
from fairlead.core.types import Named

LATE = "torch._dynamo"  # which `grad` imports when it is first called
_importing = Lock()


def import_late() -> None:
    """Import what `grad` would, and leave the environment and the warning filters, which it changes, as they were."""
    if LATE not in sys.modules:
        with _importing, unchanged():
            import_module(LATE)


class _Call(nn.Module):
    """Lets a plain function run with other parameters: `functional_call` only knows modules."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, f: Callable[..., Tensor], *args: object) -> Tensor:
        return f(self.module, *args)


class Vmapped:
    """A module whose calls are lifted to many clients."""

    def __init__(self, module: nn.Module, layout: Layout, dropouts: list[KeyedDropout]) -> None:
        self.module, self._layout = module, layout
        names = {m: n for n, m in module.named_modules()}
        self._keys = [f"module.{names[d]}.key" for d in dropouts]
        self._call = _Call(module)

    def gradient(self, rows: Tensor, batch: Batch, loss: BatchLoss, names: tuple[str, ...]) -> list[Tensor]:
        """Each row's gradient, tensor by tensor, (C, *shape)."""
        import_late()
        set_mode(self.module, training=True)
        fixed = {f"module.{n}": t for n, t in self._layout.stacked(rows).items()}
        moving = {f"module.{n}": fixed.pop(f"module.{n}") for n in names}

        def value(moving: Named, fixed: Named, one: Named, weight: Tensor | None, given: Named) -> Tensor:
            keys = dict.fromkeys(self._keys, one["key"])
            args = (loss.value, Batch(one["x"], one["y"], one["key"], weight), given)
            result: Tensor = functional_call(self._call, moving | fixed | keys, args)
            return result

        given = {n: g.expand(len(rows), *g.shape[1:]) for n, g in loss.given.items()}
        samples = {"x": batch.x, "y": batch.y, "key": batch.key}
        dims = (0, 0, 0, None if batch.weight is None else 0, 0)
        found = vmap(grad(value), in_dims=dims)(moving, fixed, samples, batch.weight, given)
        return [found[f"module.{n}"] for n in names]

    def outputs(self, rows: Tensor, x: Tensor, f: Output) -> Tensor:
        """What `f` makes of each client's samples, evaluating, (C, B, ...)."""
        set_mode(self.module, training=False)
        tensors = {f"module.{n}": t for n, t in self._layout.stacked(rows).items()}
        many: Tensor = vmap(lambda tensors, x: functional_call(self._call, tensors, (f, x)))(tensors, x)
        return many
