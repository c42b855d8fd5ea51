"""The catalogue of methods: a plain list, read by the command line, the docs and the tests."""

from collections.abc import Callable

from fairlead.core import Method
from fairlead.methods.apfl import apfl
from fairlead.methods.cfl import cfl
from fairlead.methods.convoy import convoy
from fairlead.methods.ditto import ditto
from fairlead.methods.dp_sgd import dp_sgd
from fairlead.methods.fedala import fedala
from fairlead.methods.fedamp import fedamp
from fairlead.methods.fedas import fedas
from fairlead.methods.fedavg import fedavg
from fairlead.methods.fedbabu import fedbabu
from fairlead.methods.fedbn import fedbn
from fairlead.methods.fedcp import fedcp
from fairlead.methods.fedfomo import fedfomo
from fairlead.methods.fedora import fedora
from fairlead.methods.fedpac import fedpac
from fairlead.methods.fedper import fedper
from fairlead.methods.fedproto import fedproto
from fairlead.methods.fedprox import fedprox
from fairlead.methods.fedrep import fedrep
from fairlead.methods.fedres import fedres
from fairlead.methods.fedrod import fedrod
from fairlead.methods.fedsam import fedsam
from fairlead.methods.fedu import fedu
from fairlead.methods.fesem import fesem
from fairlead.methods.finetune import ft
from fairlead.methods.guard import guard
from fairlead.methods.ifca import ifca
from fairlead.methods.knnper import knnper
from fairlead.methods.lg_fedavg import lg_fedavg
from fairlead.methods.local import local
from fairlead.methods.lora import lora
from fairlead.methods.neighbours import neighbours
from fairlead.methods.per_fedavg import per_fedavg
from fairlead.methods.pfedhn import pfedhn
from fairlead.methods.pfedme import pfedme
from fairlead.methods.plgu_ghn import plgu_ghn
from fairlead.methods.plgu_grep import plgu_grep
from fairlead.methods.plgu_lf import plgu_lf
from fairlead.methods.scaffold import scaffold
from fairlead.methods.stack import stack
from fairlead.methods.voices import Decision

METHODS: dict[str, Callable[..., Method]] = {
    "local": local,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "fedrep": fedrep,
    "ditto": ditto,
    "fedora": fedora,
    "fedsam": fedsam,
    "lg-fedavg": lg_fedavg,
    "fedper": fedper,
    "apfl": apfl,
    "pfedme": pfedme,
    "per-fedavg": per_fedavg,
    "fedres": fedres,
    "plgu-lf": plgu_lf,
    "plgu-grep": plgu_grep,
    "fedrod": fedrod,
    "fedcp": fedcp,
    "fedala": fedala,
    "fedpac": fedpac,
    "ifca": ifca,
    "fedamp": fedamp,
    "fedu": fedu,
    "fesem": fesem,
    "fedfomo": fedfomo,
    "pfedhn": pfedhn,
    "plgu-ghn": plgu_ghn,
    "fedbn": fedbn,
    "fedbabu": fedbabu,
    "fedproto": fedproto,
    "fedas": fedas,
    "knnper": knnper,
    "cfl": cfl,
    "neighbours": neighbours,
}

WRAPPERS: dict[str, Callable[..., Method]] = {"ft": ft, "lora": lora, "dp-sgd": dp_sgd}

# What a client deploys, decided after training between LOCAL and the method before the plus sign.
DECISIONS: dict[str, Callable[..., Decision]] = {"guard": guard, "stack": stack}

# The same between methods of their own choice.
CONVOYS: dict[str, Callable[..., Decision]] = {"convoy": convoy}

__all__ = [
    "CONVOYS",
    "DECISIONS",
    "METHODS",
    "WRAPPERS",
    "Decision",
    "apfl",
    "cfl",
    "convoy",
    "ditto",
    "dp_sgd",
    "fedala",
    "fedamp",
    "fedas",
    "fedavg",
    "fedbabu",
    "fedbn",
    "fedcp",
    "fedfomo",
    "fedora",
    "fedpac",
    "fedper",
    "fedproto",
    "fedprox",
    "fedrep",
    "fedres",
    "fedrod",
    "fedsam",
    "fedu",
    "fesem",
    "ft",
    "guard",
    "ifca",
    "knnper",
    "lg_fedavg",
    "local",
    "lora",
    "neighbours",
    "per_fedavg",
    "pfedhn",
    "pfedme",
    "plgu_ghn",
    "plgu_grep",
    "plgu_lf",
    "scaffold",
    "stack",
]
