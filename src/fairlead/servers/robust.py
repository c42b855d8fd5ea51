"""Stages for clients one cannot trust, or that pull apart; the mathematics is in `fairlead.functional`."""

from __future__ import annotations

from fairlead import functional
from fairlead.core.errors import require
from fairlead.core.seeds import draw_key
from fairlead.core.types import Cohort, Named, Server
from fairlead.servers.compose import no_state, reduce


def median() -> Server:
    """The median of every coordinate, which half of the clients cannot carry away (Yin et al., ICML 2018)."""
    return reduce(lambda rows, cohort: functional.coordinate_median(rows))


def trimmed(*, share: float = 0.1) -> Server:
    """The mean of every coordinate without the largest and smallest values (Yin et al., ICML 2018).

    `share` of the clients is left out at each end.
    """
    require(0 <= share < 0.5, f"trimmed: share must lie in [0, 0.5), got {share}; 0 is the plain mean")
    return reduce(lambda rows, cohort: functional.trimmed_mean(rows, share))


def krum(*, byzantine: int = 1, keep: int = 1) -> Server:
    """The one change that sits closest among its neighbours (Krum, Blanchard et al., NeurIPS 2017).

    `byzantine` is the number of clients not trusted; with `keep` > 1, the mean of the best few (Multi-Krum).
    """
    require(byzantine >= 0, f"krum: byzantine must be >= 0, got {byzantine}; it counts the clients not trusted")
    require(keep >= 1, f"krum: keep must be >= 1, got {keep}; 1 is Krum, more is Multi-Krum")
    return reduce(lambda rows, cohort: functional.krum(rows, byzantine, keep))


def clip(*, bound: float = 10.0) -> Server:
    """Shorten every client's change to a norm of at most `bound`; goes before a stage that averages.

    Each named entry is measured by itself.
    """
    require(bound > 0, f"clip: bound must be > 0, got {bound}; it is the longest norm let through")

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        return state, {name: functional.clip_norm(x.flatten(1), bound).view_as(x) for name, x in rows.items()}

    return Server(no_state, update)


def pcgrad() -> Server:
    """The mean of the changes after each has given way to those it conflicts with (Yu et al., NeurIPS 2020)."""
    return reduce(lambda rows, cohort: functional.pcgrad(rows, draw_key(cohort.seed, "pcgrad", cohort.round)))


def cagrad(*, c: float = 0.5) -> Server:
    """The change near the mean that serves the worst-served client best (CAGrad, Liu et al., NeurIPS 2021)."""
    require(0 < c < 1, f"cagrad: c must lie in (0, 1), got {c}; it is the distance from the mean, as a share of it")
    return reduce(lambda rows, cohort: functional.cagrad(rows, c))
