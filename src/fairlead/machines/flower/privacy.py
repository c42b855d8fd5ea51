"""Secure aggregation shows the server a sum alone, and many methods must see each client's update."""

from __future__ import annotations

from fairlead.core import InputError
from fairlead.machines.study import Study

# Methods whose server is a weighted mean of what clients send, and nothing else.
SUMS = ("fedavg", "fedprox", "fedper", "fedrep", "lg-fedavg", "ditto", "apfl", "fedrod", "per-fedavg", "fedsam")


def needs_single_updates(method: str) -> bool:
    """Whether a method's server must see the update of each client by itself."""
    base, *stages = method.split("+")
    return base not in SUMS or any(stage != "ft" for stage in stages)


def refuse_secure_aggregation(study: Study) -> None:
    """Say why a study cannot run with secure aggregation."""
    single = [method for method in study.methods if needs_single_updates(method)]
    if single:
        raise InputError(
            f"{', '.join(single)} must see the update of each site by itself, and secure aggregation shows the server "
            "their sum alone; leave out secure-aggregation, or use a method whose server is a mean, such as fedrep"
        )
    raise InputError(
        "Flower's secure aggregation (SecAgg+) does not work with its message API, which this app uses; leave out "
        "secure-aggregation: TLS protects the updates on their way, and the coordinator sees each of them"
    )
