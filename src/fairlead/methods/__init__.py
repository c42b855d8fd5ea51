"""The catalogue of methods: a plain list, read by the command line, the docs and the tests."""

from collections.abc import Callable

from fairlead.core import Method
from fairlead.methods.ditto import ditto
from fairlead.methods.fedavg import fedavg
from fairlead.methods.fedora import fedora
from fairlead.methods.fedprox import fedprox
from fairlead.methods.fedrep import fedrep
from fairlead.methods.finetune import ft
from fairlead.methods.local import local
from fairlead.methods.scaffold import scaffold

METHODS: dict[str, Callable[..., Method]] = {
    "local": local,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "fedrep": fedrep,
    "ditto": ditto,
    "fedora": fedora,
}

WRAPPERS: dict[str, Callable[..., Method]] = {"ft": ft}

__all__ = ["METHODS", "WRAPPERS", "ditto", "fedavg", "fedora", "fedprox", "fedrep", "ft", "local", "scaffold"]
