"""What all methods of a seed share: the clients' data, the model's initial weights, and the engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from fairlead.attacks import Attack, attacked, poisoned
from fairlead.clients import ENGINES, RAY, Engine, check_models, choose, engine, wrapped
from fairlead.core import FairleadError, Federation, InputError, Layout, check_targets, require
from fairlead.core.device import find_device, module_on
from fairlead.data import Scenario, Source
from fairlead.models import build
from fairlead.rounds import check_mixed
from fairlead.runs.files import read_json
from fairlead.runs.identity import fingerprint
from fairlead.runs.run import Job, Run
from fairlead.settings import Experiment, shown

Factory = Callable[[tuple[int, ...], int], nn.Module]  # sample shape, outputs -> module


@dataclass(frozen=True)
class Material:
    """The clients' data, and how the model for them is made; fingerprints and models are made once."""

    experiment: Experiment
    federation: Federation
    factory: Factory | None = None  # a user's own model
    _modules: dict[int, tuple[nn.Module, str]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def data(self) -> str:
        """The fingerprint of the clients' data."""
        return fingerprint(self.federation)

    def module(self, seed: int) -> nn.Module:
        """The model with its initial weights, which depend on the seed alone."""
        return self._made(seed)[0]

    def job(self, run: Run, fast: Engine | None = None) -> Job:
        """The run, ready to train, on this engine or on the one that made its folder or its neighbours'."""
        check_targets(run.name, run.entry.method, self.federation)
        module, made = self._made(run.seed)
        layout = Layout(module)
        check_models(run.experiment.select, self.federation.clients, layout.size)
        if layout.whose:
            check_mixed(run.name, run.entry.method, Layout(wrapped(run.entry.method, module, run.seed)))
        if fast is None:
            beside = sorted(run.folder.parent.glob("*/settings.json"))
            fast = self.engine(run.seed, engine_in(run.folder / "settings.json", *beside))
        plain = {f.name: getattr(run, f.name) for f in fields(Run)}
        prints, federation = {"data": self.data, "model": made}, self.federation
        if run.experiment.attack:
            attack = Attack.of(run.experiment.attack)
            method = attacked(run.entry.method, attack, federation.clients, run.seed)
            plain["entry"], federation = run.entry._replace(method=method), poisoned(federation, attack, run.seed)
        return Job(**plain, federation=federation, module=module, engine=fast, made=prints)

    def engine(self, seed: int, known: str | None = None) -> Engine:
        """The engine asked for; for "auto" the known one, else the fastest here."""
        e, device = self.experiment, find_device(self.experiment.device)
        module, federation = module_on(self.module(seed), device), self.federation.to(device)
        name = known if e.engine == "auto" and known else e.engine
        if name != "auto":
            chosen = engine(name)
            with chosen.start(module, Layout(module), federation, e.training, seed=0):
                return chosen  # an engine that cannot run the model has refused by now
        p, n = e.participation, self.federation.clients
        return choose(module, federation, e.training, max(1, int(p * n) if p <= 1 else int(p)))

    def _made(self, seed: int) -> tuple[nn.Module, str]:
        if seed not in self._modules:
            module = _module(self.experiment, self.factory, self.federation, seed)
            self._modules[seed] = (module, fingerprint(module))
        return self._modules[seed]


class Materials:
    """Builds material and keeps the last: neighbouring runs share it."""

    def __init__(self) -> None:
        self._source: tuple[object, Source | FairleadError] | None = None
        self._last: tuple[object, Material] | None = None

    def get(self, experiment: Experiment, seed: int) -> Material:
        """The material of an experiment, its samples divided by this seed."""
        key = (experiment.scenario, experiment.data_dir, experiment.model, seed)
        if self._last is None or self._last[0] != key:
            source = self._load(experiment)
            self._last = None  # the old one goes before the new one is built
            self._last = (key, Material(experiment, experiment.scenario.build(seed, source=source)))
        return self._last[1]

    def _load(self, experiment: Experiment) -> Source:
        key = (experiment.data_dir, _reading(experiment.scenario))
        if self._source is None or self._source[0] != key:
            self._source = self._last = None
            try:
                self._source = (key, experiment.scenario.load(experiment.data_dir))
            except FairleadError as error:
                self._source = (key, error)  # said for every run, without asking the hub again for each
        found = self._source[1]
        if isinstance(found, FairleadError):
            raise found
        return found


# What decides who gets which samples, once a data set is read.
DIVIDING = {"split", "clients", "beta", "classes_per_client", "skew", "samples", "fractions", "shift", "angle"}
DIVIDING |= {"image_size", "big", "pool", "scaling"}


def _reading(scenario: Scenario) -> dict[str, object]:
    return {name: value for name, value in vars(scenario).items() if name not in DIVIDING}


def engine_in(*paths: Path) -> str | None:
    """The engine that the first of these settings files names."""
    for path in paths:
        found = read_json(path) if path.exists() else {}
        name = found.get("experiment", {}).get("engine") if isinstance(found, dict) else None
        if name in ENGINES or name == RAY:
            return str(name)
    return None


def _module(experiment: Experiment, factory: Factory | None, federation: Federation, seed: int) -> nn.Module:
    shape, outputs = tuple(federation.train.x.shape[1:]), federation.outputs
    if factory is not None:
        try:
            inspect.signature(factory).bind(shape, outputs)
        except TypeError as error:
            raise InputError(
                f"the model function must take a sample's shape and the number of classes ({error}); "
                "write model=lambda shape, classes: ..."
            ) from error
        except ValueError:  # a builtin, which tells nothing of its arguments
            pass
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made: object = factory(shape, outputs)
        if not isinstance(made, nn.Module):
            raise InputError(f"the model function must give a torch.nn.Module, got {shown(made)}")
        return made
    require(
        federation.train.x.is_floating_point(),
        "the samples are whole numbers, which a model of your own may embed: pass model=function; if they are "
        "measurements, pass x.float()",
    )
    return build(experiment.model, shape, outputs, seed)
