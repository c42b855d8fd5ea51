"""deployment.json: what it takes to use a run's models on raw rows, written beside its checkpoint.

How raw rows become samples, whose models there are, what they predict and in which unit, and how the network is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from fairlead.catalogue import parse, parts_of
from fairlead.clients import wrapped
from fairlead.core import Federation, InputError, Method, RunError, nearest, require
from fairlead.core.targets import TargetKind
from fairlead.data.columns import as_keys
from fairlead.data.preparation import EVERYBODY, Preparation
from fairlead.models import Tool, build
from fairlead.models.networks import MODELS
from fairlead.runs.files import read_object

FILE = "deployment.json"
Factory = Callable[[tuple[int, ...], int], nn.Module]


@dataclass(frozen=True)
class Deployment:
    """What the models of a run have in common, in plain values."""

    method: str
    options: dict[str, dict[str, Any]]  # of the method
    wraps: bool  # whether the method adds to the network
    model: str | None  # the network's name in `fairlead.models`; None: a function of the user's own made it
    shape: tuple[int, ...]  # of a sample
    outputs: int
    kind: TargetKind
    classes: tuple[str, ...]
    labels: tuple[str, ...]  # the columns to predict
    column: str | None  # the column that says whose row it is
    owners: tuple[str, ...]
    train_rows: tuple[int, ...]  # of each owner
    mean: tuple[float, ...]  # of each owner's quantities; empty for classes
    sd: tuple[float, ...]
    balanced: bool  # whether every class weighed the same in training
    preparation: Preparation | None  # of a table's rows; images and tensors need none
    tool: dict[str, int] | None = None  # the size of a `fairlead.models.Tool`, where the model is one

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return asdict(self) | {"preparation": self.preparation.to_json() if self.preparation else None}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Deployment:
        """Back from a file."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        made = values["preparation"]
        values["preparation"] = Preparation.from_json(made) if made else None
        return Deployment(**values)

    def network(self, factory: Factory | None = None) -> nn.Module:
        """The network with any weights, with what the method adds to it."""
        module = self.bare(factory)
        return wrapped(parse(self.method, self.options).method, module, 0) if self.wraps else module

    def bare(self, factory: Factory | None = None) -> nn.Module:
        """The network with any weights, before the method adds to it."""
        if self.tool is not None:
            return Tool(self.outputs, self.kind, **self.tool)
        if factory is None and self.model is None:
            raise InputError(
                "a model function of your own made this network; give it again from Python: "
                "fairlead.load_model(DIR, model=function), or result.predictor(method, owner) where it was trained"
            )
        return factory(self.shape, self.outputs) if factory else build(str(self.model), self.shape, self.outputs, 0)

    def client(self, owner: str | int) -> int:
        """An owner's number, from its name or number."""
        if isinstance(owner, int):
            require(0 <= owner < len(self.owners), f"owner must be 0 to {len(self.owners) - 1} or a name, got {owner}")
            return owner
        keys = list(as_keys(pd.Series(self.owners, dtype=object)))
        (key,) = as_keys(pd.Series([owner], dtype=object))
        if key not in keys:
            raise InputError(f"no owner '{owner}' in the training data; {nearest(owner, self.owners)}")
        return keys.index(key)

    def only(self, client: int) -> Deployment:
        """What one owner needs: nothing of the others, neither their names nor their means."""
        name, made = self.owners[client], self.preparation
        if made is not None and EVERYBODY not in made.scales:
            made = replace(made, scales={name: made.scale(name)})
        unit = {key: getattr(self, key)[client : client + 1] for key in ("mean", "sd", "train_rows")}
        return replace(self, owners=(name,), preparation=made, **unit)


def describe(
    federation: Federation,
    module: nn.Module,
    name: str,
    method: Method,
    options: Mapping[str, Mapping[str, Any]],
    *,
    column: str | None = None,
    balanced: bool = False,
) -> Deployment:
    """What a run's models need, from what trained them."""
    shape, outputs = tuple(federation.train.x.shape[1:]), federation.outputs
    made = federation.preparation
    return Deployment(
        method=name,
        options={n: dict(v) for n, v in options.items() if n in parts_of(name)},
        wraps=method.wrap is not None,
        model=_name_of(module, shape, outputs),
        shape=shape,
        outputs=outputs,
        kind=federation.target_kind,
        classes=federation.classes,
        labels=federation.target.names,
        column=column,
        owners=federation.owners,
        train_rows=tuple(federation.train.sizes.tolist()),
        mean=federation.target.mean,
        sd=federation.target.sd,
        balanced=balanced,
        preparation=made if isinstance(made, Preparation) else None,
    )


def _name_of(module: nn.Module, shape: tuple[int, ...], outputs: int) -> str | None:
    """The named network that has the module's architecture."""
    for name in MODELS:
        try:
            like = build(name, shape, outputs, 0)
        except InputError:  # made for samples of another shape
            continue
        kinds = ([type(m) for m in one.modules()] for one in (like, module))
        if str(like) == str(module) and next(kinds) == next(kinds):
            return name
    return None


def read_deployment(run: Path) -> Deployment:
    """What a run's models need, from its folder."""
    if not (run / FILE).exists():
        raise RunError(f"{run / FILE} is missing: the run is unfinished, or an earlier version made it; run it again")
    plain = read_object(run / FILE)
    try:
        return Deployment.from_json(plain)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run / FILE} is damaged, or of another version ({error!r}); run it again") from error
