"""Clients' states on disk, for federations whose states do not fit in memory.

Each round writes one file with the rows of those that took part, and an index in memory says in which file and row each
client's latest state is. So a round costs what its participants cost, however many clients there are, and reading is a
memory map. Files are never changed: what the last checkpoint refers to is there until the next one is on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fairlead.clients import Saved
from fairlead.core import Named, RunError
from fairlead.core.device import on_host
from fairlead.core.files import atomically, private_folder
from fairlead.runs.files import FORMAT, read_tensors, sealed

# Rows that nobody needs any more may take up to this many times the space of those in use before they are cleared.
WASTE = 2.0


class StateFiles:
    """What `States` does, in a folder."""

    def __init__(self, clients: int, first: Named, folder: Path) -> None:
        self.clients, self.first, self._folder = clients, first, folder
        private_folder(folder)
        self._file = torch.full((clients,), -1)  # (N,) which file holds the client's latest state; -1: none yet
        self._row = torch.zeros(clients, dtype=torch.int64)  # (N,) and in which row of it
        self._next = 0
        self._sizes: dict[int, int] = {}  # rows in each file
        self._unflushed: set[int] = set()
        self._kept: set[int] = set()  # what the last checkpoint refers to

    def get(self, ids: Tensor) -> Named:
        """The states of these clients, (C, ...)."""
        out = {n: x.expand(len(ids), *x.shape[1:]).clone() for n, x in self.first.items()}
        files = self._file[ids]
        for number in sorted(set(files[files >= 0].tolist())):
            position = (files == number).nonzero().view(-1).tolist()
            try:
                with safe_open(self._path(number), framework="pt") as file:
                    slices = {n: file.get_slice(n) for n in out}
                    for p in position:
                        row = int(self._row[ids[p]])
                        for n, x in slices.items():
                            out[n][p] = x[row : row + 1][0]
            except (SafetensorError, OSError) as error:
                raise RunError(
                    f"{self._path(number)} cannot be read ({error}); delete the run to train it anew"
                ) from error
        return out

    def put(self, ids: Tensor, states: Named) -> None:
        """Keep these clients' new states."""
        if not states:
            return
        number = self._next
        rows = {n: on_host(x).contiguous() for n, x in states.items()}
        facts = sealed({"format": FORMAT}, rows)
        atomically(self._path(number), lambda p: save_file(rows, p, metadata=facts), flush=False)
        self._next += 1
        self._sizes[number] = len(ids)
        self._unflushed.add(number)
        self._file = self._file.index_fill(0, ids, number)  # new ones: a saved index stays as it is
        self._row = self._row.index_copy(0, ids, torch.arange(len(ids)))

    def save(self) -> Saved:
        """The index, for a checkpoint; when it is made, the rows it refers to are brought to the disk.

        Rows that neither the newest index nor the one made before it refers to are then deleted: an older one is
        refused.
        """
        file, row = self._file, self._row

        def named() -> Named:
            if file is self._file:
                return self._save()
            gone = set(file[file >= 0].tolist()) - self._sizes.keys()
            if gone:
                raise RunError(f"states of {len(gone)} files in {self._folder} were deleted after a later checkpoint")
            return self._index(file, row)

        return named

    def _save(self) -> Named:
        self._compact()
        for number in self._unflushed:
            with self._path(number).open("rb+") as file:
                os.fsync(file.fileno())
        self._unflushed = set()
        needed = set(self._file[self._file >= 0].tolist())
        for number in [n for n in self._sizes if n not in needed | self._kept]:
            self._path(number).unlink(missing_ok=True)
            del self._sizes[number]
        self._kept = needed
        return self._index(self._file, self._row)

    def _index(self, file: Tensor, row: Tensor) -> Named:
        sizes = torch.tensor(sorted(self._sizes.items()), dtype=torch.int64).view(-1, 2)
        return {"file": file, "row": row, "next": torch.tensor([self._next]), "sizes": sizes}

    def load(self, saved: Named) -> None:
        """Take back what `save` gave; files written after it are written again."""
        self._check(saved)
        self._file, self._row, self._next = saved["file"].clone(), saved["row"].clone(), int(saved["next"][0])
        self._sizes = dict(saved["sizes"].tolist())
        self._kept = set(self._file[self._file >= 0].tolist())
        for path in self._folder.glob("*.safetensors"):
            if int(path.stem) not in self._sizes:
                path.unlink()

    def _check(self, saved: Named) -> None:
        """Refuse an index that `save` did not give, and files whose bits are not those that were written."""
        shapes = {n: tuple(x.shape) for n, x in saved.items()}
        each = (self.clients,)
        wanted = {"file": each, "row": each, "next": (1,), "sizes": (len(saved.get("sizes", ())), 2)}
        whole = shapes == wanted and all(x.dtype == torch.int64 for x in saved.values())
        sizes = dict(saved["sizes"].tolist()) if whole else {}
        held = saved["file"] >= 0 if whole else torch.zeros(0)
        places = zip(saved["file"][held].tolist(), saved["row"][held].tolist(), strict=True) if whole else ()
        if not whole or not all(0 <= row < sizes.get(number, 0) for number, row in places):
            raise RunError(f"the checkpoint's index of the states in {self._folder} is damaged; train the run anew")
        for number in sorted(set(saved["file"][held].tolist())):
            read_tensors(self._path(number))

    def _compact(self) -> None:
        """Move the rows still in use out of files that are mostly out of date."""
        live = torch.bincount(self._file[self._file >= 0], minlength=self._next)
        if sum(self._sizes.values()) <= WASTE * int(live.sum()):
            return
        sparse = torch.tensor([n for n, size in self._sizes.items() if 0 < live[n] < size / 2], dtype=torch.int64)
        owners = torch.isin(self._file, sparse).nonzero().view(-1)
        # As many rows at a time as a round has: memory stays what the participants need.
        for ids in _pieces(owners, max(self._sizes.values())):
            self.put(ids, self.get(ids))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:09d}.safetensors"


def _pieces(ids: Tensor, size: int) -> Iterator[Tensor]:
    return (ids[i : i + size] for i in range(0, len(ids), size))
