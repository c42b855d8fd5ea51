"""Networks that are nothing but known layers, one after another."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from fairlead.core.dropout import KeyedDropout
from fairlead.core.stacked import CONTAINERS, SAMPLE_BY_SAMPLE, shares, watched

# Layers that give a sample the same numbers in training and evaluation, whatever else is in its batch. Exact types.
SETTLED = (SAMPLE_BY_SAMPLE | {nn.Sequential, nn.Flatten, nn.Linear, nn.GroupNorm, nn.LayerNorm}) - {KeyedDropout}
SETTLED |= {nn.Conv1d, nn.Conv2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d}


class Chain(nn.Module):
    """The layers of a network in their order, and what the linear ones made of what."""

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self._layers = [(f"{n}.weight" if type(m) is nn.Linear else "", m) for n, m in layers.items()]
        self.learning: set[str] = set()
        self.seen: list[tuple[str, Tensor, Tensor]] = []  # weight, inputs and outputs

    def listen(self, names: Iterable[str]) -> None:
        """From now on keep what passes through the linear layers with these weights; `learning` are those there are."""
        self.learning = {weight for weight, _ in self._layers}.intersection(names)
        self.seen = []

    def forward(self, x: Tensor) -> Tensor:
        """As the network."""
        for weight, layer in self._layers:
            y: Tensor = layer(x)
            if weight in self.learning:
                self.seen.append((weight, x, y if y.requires_grad else y.requires_grad_()))
            x = y
        return x


def chain(module: nn.Module) -> Chain | None:
    """The module as a chain; None where a layer is not known, watched by a hook, or occurs twice.

    Nor where one works in place: it would overwrite the outputs that are kept of the layer before.
    """
    if shares(module) or any(watched(m) or getattr(m, "inplace", False) for m in module.modules()):
        return None
    layers = {n: m for n, m in module.named_modules() if type(m) not in CONTAINERS}
    return Chain(layers) if all(type(m) in SETTLED | {KeyedDropout} for m in layers.values()) else None
