"""ConFREE as a stage; the mathematics is in `fairlead.functional.confree`."""

from __future__ import annotations

from torch import Tensor

from fairlead import functional
from fairlead.core.errors import nearest, require
from fairlead.core.seeds import draw_key
from fairlead.core.types import Cohort, Named, Server
from fairlead.servers.compose import no_state


def confree(*, c: float = 0.5, variant: str = "paper") -> Server:
    """The change that serves every client: conflicts projected away, then the worst-served client helped most.

    ConFREE (Zheng et al., AAAI 2025), Algorithm 1, lines 8 to 14, in place of the mean. Each named entry is treated by
    itself and every client counts the same. `c` in (0, 1) is how far the change may leave the guidance vector. Variants
    are those of `fairlead.functional.confree`: "paper", and "released", the published code's arithmetic, each of the
    model's tensors by itself; "length" is an ablation, the uniform mean made as long as the paper's change: what is
    left without its direction.
    """
    require(0 < c < 1, f"confree: c must lie in (0, 1), got {c}; the paper starts its search at 0.5")
    variants = ("paper", "released", "length")
    require(variant in variants, f"confree: unknown variant '{variant}'; {nearest(variant, variants)}")

    def rule(name: str, rows: Tensor, cohort: Cohort) -> Tensor:
        if variant != "length":
            seed = draw_key(cohort.seed, "confree", cohort.round)
            blocks = [*cohort.parts[name].sizes.values()] if name in cohort.parts else None
            return functional.confree(rows, c, variant, blocks=blocks, seed=seed)
        mean = rows.mean(0)
        factor: Tensor = functional.confree(rows, c).norm() / mean.norm()
        return mean * factor.nan_to_num(0.0, 0.0, 0.0)

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        return state, {name: rule(name, x.flatten(1), cohort).view(1, *x.shape[1:]) for name, x in rows.items()}

    return Server(no_state, update)
