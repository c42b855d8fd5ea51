"""Client-level differential privacy; the accounting is in `fairlead.functional.privacy`."""

from __future__ import annotations

import torch

from fairlead.core.errors import require
from fairlead.core.seeds import draw_key
from fairlead.core.types import Cohort, Named, Server
from fairlead.functional.robust import clip_norm
from fairlead.servers.compose import no_state


def dp(*, bound: float = 1.0, noise: float = 1.0) -> Server:
    """The plain mean of the changes, each shortened to `bound`, with noise: whether a client took part is hard to tell.

    DP-FedAvg (McMahan et al., ICLR 2018) with the mean over those that took part. A client's change is measured over
    all its entries together. The noise on their sum is normal with deviation noise * bound; `noise` is what the privacy
    budget depends on, `fairlead.functional.privacy.epsilon`. It covers what the clients' changes reveal, and so the
    models made of them; not the numbers of samples and the scores that clients send beside. The noise derives from the
    run's seed: keep the seed secret where the promise matters.
    """
    require(bound > 0, f"dp: bound must be > 0, got {bound}; it is the longest change let through")
    require(noise > 0, f"dp: noise must be > 0, got {noise}; without noise use +clip")

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        for name, part in cohort.parts.items():
            require(
                part.trainable == part.size,
                f"dp: the model has running statistics in '{name}', which travel without noise; use GroupNorm",
            )
        count = len(cohort.ids)
        flat = torch.cat([x.reshape(count, -1) for x in rows.values()], 1)
        clipped = clip_norm(flat, bound).sum(0)
        draw = torch.Generator().manual_seed(draw_key(cohort.seed, "dp", cohort.round))
        noisy = (clipped + noise * bound * torch.randn(clipped.shape, generator=draw).to(clipped)) / count
        pieces = torch.split(noisy, [x[0].numel() for x in rows.values()])
        return state, {name: p.view(1, *x.shape[1:]) for (name, x), p in zip(rows.items(), pieces, strict=True)}

    return Server(no_state, update)
