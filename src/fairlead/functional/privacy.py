"""The privacy budget that rounds with noise spend, by Google's accountant (`dp-accounting`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.core.errors import InputError, require

ORDERS = (*range(2, 65), 80, 96, 128, 256, 512, 1024)  # of Rényi divergences; the best of them counts


def epsilon(noise: float, rounds: int, clients: int, cohort: int, delta: float) -> float:
    """ε of (ε, δ) differential privacy for one client, after so many rounds of clipped sums with normal noise.

    `noise` is the deviation of the noise in units of the clipping bound. With all clients in every round, two runs
    are neighbours if they differ in whether one client's change counts or is zero. With a cohort drawn anew without
    replacement, they differ in one client replaced by another, which can change the sum by twice the bound. Rényi
    accounting (Mironov, CSF 2017). Needs the package `dp-accounting` (`pip install 'fairlead[dp]'`).
    """
    require(noise > 0 and rounds >= 1, f"epsilon: noise must be > 0 and rounds >= 1, got {noise} and {rounds}")
    require(0 < delta < 1, f"epsilon: delta must lie in (0, 1), got {delta}")
    require(1 <= cohort <= clients, f"epsilon: a cohort of {cohort} cannot be drawn from {clients} clients")
    dp_accounting, rdp = _accountant()
    relation = dp_accounting.NeighboringRelation
    if cohort == clients:
        accountant = rdp.RdpAccountant(neighboring_relation=relation.ADD_OR_REMOVE_ONE)
        event: object = dp_accounting.GaussianDpEvent(noise)
    else:
        accountant = rdp.RdpAccountant(neighboring_relation=relation.REPLACE_ONE)
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            clients, cohort, dp_accounting.GaussianDpEvent(noise / 2)
        )
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def sample_epsilon(noise: float, steps: Mapping[float, int], delta: float) -> float:
    """ε of (ε, δ) differential privacy for one sample, after so many steps of DP-SGD at each rate of sampling.

    A step takes every sample into its batch with a chance, its rate, shortens its gradient to the bound, and adds noise
    of deviation noise * bound to the sum. Two runs are neighbours if they differ in whether one sample is there. Rényi
    accounting of the Gaussian mechanism with Poisson sampling (Mironov et al., 2019).
    """
    require(noise > 0, f"sample_epsilon: noise must be > 0, got {noise}")
    require(0 < delta < 1, f"sample_epsilon: delta must lie in (0, 1), got {delta}")
    dp_accounting, rdp = _accountant()
    # Whole orders: between them sampling has no closed form, and the accountant warns of series that do not end.
    accountant = rdp.RdpAccountant(orders=ORDERS)
    for rate, count in steps.items():
        require(0 < rate <= 1, f"sample_epsilon: a rate of sampling must lie in (0, 1], got {rate}")
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _accountant() -> tuple[Any, Any]:
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ModuleNotFoundError as error:
        raise InputError("the privacy budget needs dp-accounting: pip install 'fairlead[dp]'") from error
    return dp_accounting, rdp
