"""The clients' own states, kept between rounds; a client that never took part still has the first one."""

from __future__ import annotations

import torch
from torch import Tensor

from fairlead.core.types import Named


class States:
    """A row per client and name, allocated when first written."""

    def __init__(self, clients: int, first: Named) -> None:
        self.clients = clients
        self.first = first
        self.touched = torch.zeros(clients, dtype=torch.bool)
        self._rows: Named = {}
        self._own = True  # whether the rows are this object's alone

    def get(self, ids: Tensor) -> Named:
        """The states of these clients, (C, ...); one row while nobody has a state of its own."""
        if not bool(self.touched.any()):
            return dict(self.first)
        if len(ids) == self.clients and bool(self.touched.all()):
            return dict(self._rows)  # ids are ascending, so they are all rows in order; saves a copy
        fresh = ~self.touched[ids]
        out = {n: x[ids] for n, x in self._rows.items()}
        for n, x in out.items():
            x[fresh] = self.first[n]
        return out

    def put(self, ids: Tensor, states: Named) -> None:
        """Keep these clients' new states."""
        if not states:
            return
        if len(ids) == self.clients:
            self._rows, self._own = states, False
        else:
            if not self._own:  # a server may hold the same rows
                self._rows, self._own = {n: x.clone() for n, x in self._rows.items()}, True
            for n, x in states.items():
                if n not in self._rows:
                    self._rows[n] = x.new_empty(self.clients, *x.shape[1:])
                self._rows[n][ids] = x
        self.touched[ids] = True

    def save(self) -> Named:
        """Everything as named tensors, for a checkpoint."""
        ids = self.touched.nonzero().view(-1)
        return {"ids": ids} | {f"row.{n}": x[ids].contiguous() for n, x in self._rows.items()}

    def load(self, saved: Named) -> None:
        """Take back what `save` gave."""
        self.put(saved["ids"], {n.removeprefix("row."): x for n, x in saved.items() if n != "ids"})
