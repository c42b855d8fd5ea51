"""ConFREE as a stage; the mathematics is in `fairlead.functional.confree`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fairlead import functional
from fairlead.core.errors import nearest, require
from fairlead.core.seeds import draw_key
from fairlead.core.types import Cohort, Server
from fairlead.servers.compose import reduce


def confree(*, c: float = 0.5, variant: str = "paper", blocks: Sequence[int] | None = None) -> Server:
    """The change that serves every client: conflicts projected away, then the worst-served client helped most.

    ConFREE (Zheng et al., AAAI 2025), Algorithm 1, lines 8 to 14, in place of the mean. Each named entry is treated by
    itself and every client counts the same. `c` in (0, 1) is how far the change may leave the guidance vector;
    `variant` and `blocks` (for the released code's arithmetic) are those of `fairlead.functional.confree`; the variant
    "length" is an ablation, the uniform mean made as long as the paper's change: what is left without its direction.
    """
    require(0 < c < 1, f"confree: c must lie in (0, 1), got {c}; the paper starts its search at 0.5")
    variants = ("paper", "released", "length")
    require(variant in variants, f"confree: unknown variant '{variant}'; {nearest(variant, variants)}")

    def rule(rows: Tensor, cohort: Cohort) -> Tensor:
        seed = draw_key(cohort.seed, "confree", cohort.round)
        if variant != "length":
            return functional.confree(rows, c, variant, blocks=blocks, seed=seed)
        mean = rows.mean(0)
        factor: Tensor = functional.confree(rows, c).norm() / mean.norm()
        return mean * factor.nan_to_num(0.0, 0.0, 0.0)

    return reduce(rule)
