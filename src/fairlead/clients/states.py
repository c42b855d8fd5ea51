"""The clients' own states, kept between rounds; a client that never took part still has the first one."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fairlead.clients.door import Saved
from fairlead.core.errors import RunError
from fairlead.core.types import Named


class StateStore(Protocol):
    """Where the clients' states live between rounds: in memory (`States`) or on disk (`StateFiles`)."""

    def get(self, ids: Tensor) -> Named:
        """The states of these clients, (C, ...)."""

    def put(self, ids: Tensor, states: Named) -> None:
        """Keep these clients' new states."""

    def save(self) -> Saved:
        """All that is kept now, as named tensors; what is put later does not change it."""

    def load(self, saved: Named) -> None:
        """Take back what `save` gave."""


class States:
    """A row per client and name, in memory. Rows are replaced, never changed, so that what was saved stays as it is."""

    def __init__(self, clients: int, first: Named) -> None:
        self.clients, self.first = clients, first
        self._all: Named | None = None  # everybody's, (N, ...), where all of them came together
        self._rows: list[Named | None] = [None] * clients  # else each client's own; None: still the first

    def get(self, ids: Tensor) -> Named:
        """The states of these clients, (C, ...); one row while nobody has a state of its own."""
        if self._all is not None:
            # ids are ascending, so they are all rows in order; saves a copy
            return dict(self._all) if len(ids) == self.clients else {n: x[ids] for n, x in self._all.items()}
        if not any(self._rows):
            return dict(self.first)
        first = {n: x[0] for n, x in self.first.items()}
        return _stack([self._rows[k] or first for k in ids.tolist()])

    def put(self, ids: Tensor, states: Named) -> None:
        """Keep these clients' new states."""
        if not states:
            return
        if len(ids) == self.clients:
            self._all, self._rows = states, []
            return
        self._rows = self._apart()
        for i, k in enumerate(ids.tolist()):
            self._rows[k] = {n: x[i].clone() for n, x in states.items()}
        self._all = None

    def save(self) -> Saved:
        """All that is kept now, as named tensors; what is put later does not change it."""
        rows, everybody = self._rows, self._all

        def named() -> Named:
            if everybody is not None:
                ids, states = torch.arange(self.clients), everybody
            else:
                ids = torch.tensor([k for k, row in enumerate(rows) if row], dtype=torch.int64)
                states = _stack([row for row in rows if row])
            return {"ids": ids} | {f"row.{n}": x.contiguous() for n, x in states.items()}

        return named

    def load(self, saved: Named) -> None:
        """Take back what `save` gave; anything else is refused."""
        ids, rows = saved.get("ids"), {n.removeprefix("row."): x for n, x in saved.items() if n != "ids"}
        if ids is None:
            raise RunError("a checkpoint without the clients' states cannot be gone on from; train the run anew")
        check_ids(ids, self.clients)
        wanted = {n: (len(ids), *x.shape[1:]) for n, x in self.first.items()} if len(ids) else {}
        found = {n: tuple(x.shape) for n, x in rows.items()}
        if found != wanted:
            raise RunError(f"a checkpoint's states are {found}, expected {wanted}; train the run anew with --fresh")
        self.put(ids, rows)

    def _apart(self) -> list[Named | None]:
        """Each client's own row, in a new list."""
        if self._all is None:
            return list(self._rows)
        names, columns = list(self._all), [x.unbind() for x in self._all.values()]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def check_ids(ids: Tensor, clients: int) -> None:
    """Refuse ids from a file that are not of different clients, ascending."""
    whole = ids.ndim == 1 and ids.dtype == torch.int64
    if not whole or bool((ids.diff() <= 0).any()) or (len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < clients):
        raise RunError(f"a checkpoint names other clients than 0 to {clients - 1}, ascending; train the run anew")


def _stack(rows: list[Named]) -> Named:
    return {n: torch.stack([row[n] for row in rows]) for n in rows[0]} if rows else {}
