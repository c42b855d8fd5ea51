"""Clients as a graph: how alike their data is, and models that flow along it (FEDORA)."""

from __future__ import annotations

import torch
from torch import Tensor

from fairlead.core.errors import require


def propagate(theta: Tensor, similarity: Tensor, a: float = 0.8, *, iterations: int | None = None) -> Tensor:
    """Each client's model, drawn towards the models of the clients it resembles.

    FEDORA (Wu et al., KDD 2023), server update:  Θ̂ = (1 - a) (I - a D⁻¹W)⁻¹ Θ  with a = α / (1 + α).

    paper    here             meaning
    Θ        theta            (K, d) one model per client
    W        similarity       (K, K) not negative; D is the diagonal of its row sums
    α        a / (1 - a)      weight of the neighbours; a = 0 changes nothing

    `iterations` runs that many steps of the fixed point Θ̂ <- a D⁻¹W Θ̂ + (1 - a) Θ in place of the closed form. A
    client that resembles nobody (a row of zeros) keeps its own model. Cost: K³ + K² d, or K² d per iteration.

    >>> propagate(torch.tensor([[0.0], [3.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]), a=0.5)
    tensor([[1.],
            [2.]])
    """
    require(
        theta.ndim == 2 and theta.is_floating_point(),
        f"propagate: theta must be a floating-point matrix (clients, parameters), got {theta.dtype} of shape "
        f"{tuple(theta.shape)}; stack one flat model per client",
    )
    require(
        len(similarity) == len(theta),
        f"propagate: similarity is for {len(similarity)} clients, theta for {len(theta)}; give both for the same ones",
    )
    require(
        iterations is None or iterations >= 0,
        f"propagate: iterations must be >= 0, got {iterations}; None solves exactly",
    )
    if iterations is None:
        return spread_matrix(similarity, a).to(theta) @ theta
    walk = _walk("propagate", similarity, a).to(theta)
    hat = theta
    for _ in range(iterations):
        hat = a * (walk @ hat) + (1 - a) * theta
    return hat


def spread_matrix(similarity: Tensor, a: float = 0.8) -> Tensor:
    """The matrix S of `propagate`: Θ̂ = S Θ. Its rows are not negative and sum to one. (K, K), float64.

    >>> spread_matrix(torch.tensor([[0.0, 2.0], [0.0, 0.0]]), a=0.5).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    walk = _walk("spread_matrix", similarity, a)
    identity = torch.eye(len(walk), dtype=walk.dtype, device=walk.device)
    spread: Tensor = torch.linalg.solve(identity - a * walk, (1 - a) * identity)
    return spread


def principal_cosines(U: Tensor, V: Tensor) -> Tensor:
    """Cosines of the principal angles between the column spaces of U (d, p) and V (d, q), largest first.

    Björck and Golub (Math. Comp. 1973): singular values of Q_U' Q_V. The columns of each must be independent.

    >>> U, V = torch.eye(3)[:, :2], torch.eye(3)[:, 1:]
    >>> principal_cosines(U, V).tolist()
    [1.0, 0.0]
    """
    require(
        U.ndim == V.ndim == 2 and len(U) == len(V),
        f"principal_cosines: U and V must be matrices with as many rows, got {tuple(U.shape)} and {tuple(V.shape)}; "
        "put one basis vector in each column",
    )
    cosines: Tensor = torch.linalg.svdvals(torch.linalg.qr(U).Q.T @ torch.linalg.qr(V).Q)
    return cosines.clamp(0, 1)


def subspace_similarity(U: Tensor) -> Tensor:
    """How alike clients' subspaces are: the sum of the cosines of their principal angles, for every pair, (K, K).

    FEDORA, step 0, with U (K, d, p) the p leading left singular vectors of each client's inputs (any basis of the
    same space will do). Symmetric, p on the diagonal. Cost: K² p² d for the products, K² small decompositions.

    >>> subspace_similarity(torch.tensor([[[1.0], [0.0]], [[3.0], [4.0]]]))
    tensor([[1.0000, 0.6000],
            [0.6000, 1.0000]])
    """
    require(
        U.ndim == 3 and U.shape[1] >= U.shape[2],
        f"subspace_similarity: U must be (clients, d, p) with p <= d, got {tuple(U.shape)}; "
        "stack one basis per client, a vector in each column",
    )
    Q = torch.linalg.qr(U).Q
    cosines: Tensor = torch.linalg.svdvals(torch.einsum("idp,jdq->ijpq", Q, Q))
    return cosines.clamp(0, 1).sum(-1)


def _walk(caller: str, similarity: Tensor, a: float) -> Tensor:
    """D⁻¹W in float64; a row without neighbours points at itself."""
    require(0 <= a < 1, f"{caller}: a must lie in [0, 1), got {a}; it is the weight of the neighbours, 0 for none")
    require(
        similarity.ndim == 2 and len(similarity) == similarity.shape[1],
        f"{caller}: similarity must be a square matrix (clients, clients), got shape {tuple(similarity.shape)}",
    )
    W = similarity.double()
    require(
        bool((W.isfinite() & (W >= 0)).all()),
        f"{caller}: similarity must be finite and not negative, got values from {float(W.amin())} to "
        f"{float(W.amax())}; clamp it at zero",
    )
    degree = W.sum(1, keepdim=True)
    return torch.where(degree > 0, W / degree.where(degree > 0, 1), torch.eye(len(W), dtype=W.dtype, device=W.device))
