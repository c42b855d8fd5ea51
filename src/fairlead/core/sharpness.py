"""Where a loss rises fastest within a small radius: what sharpness-aware methods differentiate at."""

from __future__ import annotations

import torch
from torch import Tensor

from fairlead.core.layout import Layout


def ascent(g: Tensor, rho: float, scale: Tensor | float = 1.0) -> Tensor:
    """The step of length rho up each row's gradient, ε = ρ Λ g/‖g‖, the norm over the whole row; zero where g is.

    >>> ascent(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), rho=0.5)
    tensor([[0.3000, 0.4000],
            [0.0000, 0.0000]])
    """
    norm: Tensor = torch.linalg.vector_norm(g, dim=1, keepdim=True).clamp(min=torch.finfo(g.dtype).tiny ** 0.5)
    return g * (rho / norm * scale)  # one pass over the rows where the scale is a number


def personalization(theta: Tensor, w: Tensor, layout: Layout) -> Tensor:
    """How far each layer of θ has left w, ξ_l = ‖θ_l - w_l‖ / dim(w_l), scaled to sum to one, (C, L).

    Weights count, buffers do not; where θ equals w every layer gets the same score.
    """
    away = theta - w
    weights = [layout.part(*layer.names) for layer in layout.layers.values()]
    xi = torch.cat([torch.linalg.vector_norm(away[:, p.columns], dim=1, keepdim=True) / p.size for p in weights], 1)
    total = xi.sum(1, keepdim=True)
    return torch.where(total > 0, xi / total.clamp(min=torch.finfo(xi.dtype).tiny), 1 / xi.shape[1])
