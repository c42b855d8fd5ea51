"""Named tensors as views of rows, remembered from one step to the next."""

from __future__ import annotations

from torch import Tensor, nn

from fairlead.core.layout import Layout


def place_of(rows: Tensor) -> tuple[object, ...]:
    """Where the rows lie in memory: views of other rows at the same place are the same views."""
    return rows.data_ptr(), rows.shape, rows.stride()


class Views:
    """The views that were asked for last; every step asks for the same ones."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._asked: tuple[object, ...] = ()
        self._found: list[Tensor] = []

    def of(self, names: tuple[str, ...], rows: Tensor) -> list[Tensor]:
        """These tensors as views of the rows: of one row without a leading axis, of more with it."""
        asked = (*place_of(rows), names)
        if asked != self._asked:
            views = dict(self._layout.views(rows[0])) if len(rows) == 1 else self._layout.stacked(rows)
            self._asked, self._found = asked, [views[n] for n in names]
        return self._found

    def clear(self) -> None:
        """Forget them, and so the rows."""
        self._asked, self._found = (), []


def set_mode(module: nn.Module, *, training: bool) -> nn.Module:
    """The module, set to train or to evaluate; if it is already, its layers are not visited, which would take time."""
    return module if module.training == training else module.train(training)
