"""`Layout` alone knows the names inside a model's vector.

Trainable parameters come first, in the module's own order; floating-point buffers (running means, say) follow, so that
averaging, saving and sending a model treats them alike and a gradient step leaves them alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from fairlead.core.errors import require
from fairlead.core.several import Several

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Slot:
    """Where one named tensor lives in the vector."""

    name: str
    shape: torch.Size
    start: int
    stop: int


class Part:
    """Some of a vector's columns: `rows[:, part.columns]` reads or writes them.

    `names` are the trainable parameters among its `tensors`, which `Task.descend(only=...)` moves. As in the vector,
    parameters come first: `sizes` has the number of columns of each by name, `trainable` is their sum, and the columns
    after these are buffers.
    """

    def __init__(self, slots: list[Slot], trainable: int, device: torch.device) -> None:
        self.tensors = tuple(s.name for s in slots)
        self.sizes = {s.name: s.stop - s.start for s in slots if s.start < trainable}
        self.names = tuple(self.sizes)
        self.trainable = sum(self.sizes.values())
        self.size = sum(s.stop - s.start for s in slots)
        touching = all(a.stop == b.start for a, b in pairwise(slots))
        # A slice where possible: it reads as a view, where an index would copy.
        self.columns: slice | Tensor = (
            slice(slots[0].start, slots[-1].stop)
            if slots and touching
            else torch.cat([torch.arange(s.start, s.stop, device=device) for s in slots] or [torch.arange(0)])
        )


class Layout:
    """The map between a module and its vector.

    >>> layout = Layout(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))
    >>> layout.size, layout.head.names, layout.body.size
    (17, ('2.weight', '2.bias'), 9)
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = dict(module.named_parameters())
        for name, tensor in parameters.items():
            require(tensor.is_floating_point(), f"model: parameter {name} is {tensor.dtype}; floating point is needed")
        require(len(parameters) > 0, "model: no parameters to train; give a module with at least one")
        buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
        #: Where the module's tensors are.
        self.device = next(iter(parameters.values())).device
        self._head: str | None = getattr(module, "head_name", None)
        self._norms = [n for n, m in module.named_modules() if isinstance(m, NORMS)]
        #: By module: which of its several bodies each client uses.
        self.whose = {n: m.whose for n, m in module.named_modules() if isinstance(m, Several)}
        self._arrange({n: t.shape for n, t in parameters.items()}, {n: t.shape for n, t in buffers.items()})

    def _arrange(self, parameters: dict[str, torch.Size], buffers: dict[str, torch.Size]) -> None:
        ends = list(accumulate((s.numel() for s in (*parameters.values(), *buffers.values())), initial=0))
        shapes = parameters | buffers
        self.slots = {n: Slot(n, shapes[n], a, b) for n, (a, b) in zip(shapes, pairwise(ends), strict=True)}
        self.size, self.trainable = ends[-1], ends[len(parameters)]
        self.parameter_names = tuple(parameters)
        #: The whole vector as a part.
        self.everything = self.rest()
        owners = dict.fromkeys(_owner(n) for n in self.parameter_names)
        #: One part per module that owns parameters, in order: what papers call the layers.
        self.layers: dict[str, Part] = {o: self._owned({o}) for o in owners}
        #: The last layer, or what the module's `head_name` says; the body is everything else.
        self.head_name: str = self._head or list(owners)[-1]
        self.head = self.part(self.head_name)
        self.body = self.rest(self.head_name)
        self.norms = self.part(*self._norms)

    def alone(self, part: Part) -> Layout:
        """The layout of a part's own vector, whose columns are the part's."""
        layout = copy.copy(self)
        parameters = {n: self.slots[n].shape for n in part.names}
        layout._arrange(parameters, {n: self.slots[n].shape for n in part.tensors if n not in parameters})
        return layout

    def part(self, *prefixes: str) -> Part:
        """The columns of the modules or tensors with these names."""
        return Part([s for s in self.slots.values() if _under(s.name, prefixes)], self.trainable, self.device)

    def rest(self, *prefixes: str) -> Part:
        """Every column that `part` with the same names leaves out."""
        return Part([s for s in self.slots.values() if not _under(s.name, prefixes)], self.trainable, self.device)

    def cut(self, last: int | None) -> tuple[Part, Part]:
        """Everything below the last so many layers, and these layers; None cuts below the head."""
        if last is None:
            return self.body, self.head
        require(
            1 <= last < len(self.layers),
            f"model: cannot cut below the last {last} of {len(self.layers)} layers; both sides need one at least",
        )
        above = set(list(self.layers)[-last:])
        below = {_owner(name) for name in self.slots} - above
        return self._owned(below), self._owned(above)

    def _owned(self, owners: set[str]) -> Part:
        return Part([s for s in self.slots.values() if _owner(s.name) in owners], self.trainable, self.device)

    def join(self, *pieces: tuple[Part, Tensor]) -> Tensor:
        """Whole rows from parts that together cover the vector: `join((body, b), (head, h))`."""
        rows = max(len(values) for _, values in pieces)
        out = pieces[0][1].new_empty(rows, self.size)
        require(sum(p.size for p, _ in pieces) == self.size, "layout: the parts to join do not cover the model")
        for part, values in pieces:
            out[:, part.columns] = values
        return out

    def read(self, module: nn.Module) -> Tensor:
        """The module's current values as one row, (1, D)."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.slots])[None].clone()

    def write(self, row: Tensor, module: nn.Module) -> nn.Module:
        """Copy one row (D,) into the module, in place, and return it: a model to deploy."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in self.views(row):
                tensors[name].copy_(value)
        return module

    def marked(self, rows: Tensor, ids: Sequence[int]) -> Tensor:
        """Rows (..., C, D) in which each client's own body is the one that answers, where a module has several."""
        for name, whose in self.whose.items():
            slot = self.slots.get(f"{name}.which".removeprefix("."))
            if slot is not None:
                mine = torch.eye(slot.stop - slot.start).to(rows)[[whose[k % len(whose)] for k in ids]]
                rows = rows.expand(*rows.shape[:-2], len(mine), -1).clone()
                rows[..., slot.start : slot.stop] = mine
        return rows

    def views(self, row: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each named tensor as a view of the row (D,)."""
        for slot in self.slots.values():
            yield slot.name, row[slot.start : slot.stop].view(slot.shape)

    def stacked(self, rows: Tensor) -> dict[str, Tensor]:
        """Each named tensor as a view of the rows, (C, *shape)."""
        return {s.name: rows[:, s.start : s.stop].view(-1, *s.shape) for s in self.slots.values()}

    def per_layer(self, scores: Tensor) -> Tensor:
        """Spread one number per layer, (C, L), over its columns, (C, D); buffers of no layer get zero."""
        out = scores.new_zeros(len(scores), self.size)
        for i, part in enumerate(self.layers.values()):
            out[:, part.columns] = scores[:, i : i + 1]
        out[:, self.trainable :] = 0
        return out


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(p == "" or name == p or name.startswith(p + ".") for p in prefixes)
