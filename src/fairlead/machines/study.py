"""A study: which methods are trained at which sites, and how, in plain values that all parties can read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, NamedTuple

from numpy.typing import ArrayLike
from torch import nn

from fairlead.catalogue import Entry, check_options, decision, parse, with_voices
from fairlead.core import Federation, InputError, Method, Plan, Server, Training, nearest, require
from fairlead.core.targets import TargetKind
from fairlead.data import Scenario
from fairlead.data.tables import Reading
from fairlead.effort import Effort
from fairlead.methods import Decision
from fairlead.methods.voices import ROUNDS, LeftOut, Weigh, decide
from fairlead.metrics import METRICS, default_metric, metric
from fairlead.metrics.measures import Choice, Target
from fairlead.models import build
from fairlead.runs.identity import digest
from fairlead.settings import Settings, check, effort_of, protocol_of

CONTROL = "local"
SITE = "site"  # the column that says whose row it is, once a site has read its own
# The settings of `fairlead compare` that a study may have. What is left out there is about data that lie in one place.
SETTINGS = (
    *("label", "column", "group", "task", "positive", "drop", "numeric", "words", "scaling", "fractions"),
    *("image_size", "model", "rounds", "participation", "lr", "epochs", "steps", "batch_size", "momentum"),
    *("weight_decay", "schedule", "decay", "evaluate_every", "select", "metric", "set", "effort"),
)


class Run(NamedTuple):
    """One training of a study, at the coordinator and at the sites."""

    method: str
    seed: int
    part: LeftOut | None = None  # of each site's train rows, which is left out and answered for
    lr: float | None = None  # a trial with this step size; None: with what was chosen, or given

    @property
    def name(self) -> str:
        """What its folders are called."""
        left_out = f"-{self.part.name}" if self.part else ""
        tried = "" if self.lr is None else f"-lr{self.lr:.3g}"
        return f"{self.method}{left_out}{tried}-seed{self.seed}"


class Chosen(NamedTuple):
    """What the search found for a method on validation rows."""

    lr: float
    rounds: int
    improving: bool  # still, at the last round that was tried


class Ready(NamedTuple):
    """What a training takes besides the rows."""

    method: Method
    average: Server | None
    module: nn.Module
    plan: Plan


@dataclass(frozen=True)
class Study:
    """What is trained, where and how; the same for all sites."""

    sites: tuple[str, ...]  # their names, in ascending order: a site's place is its number
    methods: tuple[str, ...]  # beside the control, which is always trained
    settings: dict[str, Any]  # as for `fairlead compare`
    seeds: int = 1  # trainings of each method; several measure the luck of training
    chosen: dict[str, Chosen] = field(default_factory=dict)  # by method, once the search is done

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", tuple(sorted(self.sites)))
        object.__setattr__(self, "methods", tuple(m for m in dict.fromkeys(self.methods) if m != CONTROL))
        require(len(self.sites) >= 2, f"a study needs two sites at least, got {', '.join(self.sites) or 'none'}")
        require(len(set(self.sites)) == len(self.sites), f"two sites have one name: {', '.join(self.sites)}")
        for name in self.sites:
            plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name)
            require(plain is not None, f"site '{name}': use letters, digits, '-', '_' and '.' in names of sites")
        require(len(self.methods) >= 1, "a study needs a method beside the control, such as fedrep+confree")
        require(1 <= self.seeds <= 20, f"seeds must lie in 1..20, got {self.seeds}")
        for key in self.settings:
            if key not in SETTINGS:
                raise InputError(f"setting '{key}' is no setting of a study; {nearest(key, SETTINGS)}")
        chosen = self.checked.metric
        if chosen is not None and chosen not in METRICS:
            raise InputError(f"metric '{chosen}' is unknown; {nearest(chosen, METRICS)}")
        check_options(self.options)
        for method in self.methods:
            self.entry(method)
            how = self.decision(method)
            require(
                how is None or not how.distil, f"{method}: distil works in one place alone; leave it out of a study"
            )
        self.plan(Run(CONTROL, 0))
        self.training(Run(CONTROL, 0))
        _ = self.effort  # says so where it does not fit

    @property
    def checked(self) -> Settings:
        """The settings, each of its own type."""
        return check(self.settings)

    @property
    def name(self) -> str:
        """What the study's folder is called at a site; another study has another name, whatever is chosen in it."""
        return f"study-{digest([self.sites, self.methods, self.settings, self.seeds])}"

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """Of methods and stages, by their names."""
        return self.checked.set or {}

    @property
    def effort(self) -> Effort | None:
        """How hard step size and rounds are searched for; None: both are given, or nothing is there to choose on."""
        s = self.checked
        if (s.lr is not None and s.rounds is not None and s.effort is None) or (s.fractions and s.fractions[1] == 0):
            require(s.effort is None, "effort chooses on validation rows, and fractions leaves none; leave out one")
            return None
        found = effort_of(s, validated=True, preset=False)
        assert found is not None
        # A trial ends with a score, and goes on later as if it had not ended.
        return replace(found, trial=min(-(-found.trial // found.every) * found.every, found.rounds))

    @property
    def judged(self) -> list[str]:
        """The methods on which each site gets a verdict: those asked for, and what they decide between."""
        return [name for name in with_voices(self.methods, self.options) if name != CONTROL]

    @property
    def runs(self) -> list[Run]:
        """Every training, the control's first; what is decided after training comes after all it is decided by."""
        names = [CONTROL, *self.judged]
        found = {Run(name, seed): None for name in names if not self.decision(name) for seed in range(self.seeds)}
        for name in names:
            if how := self.decision(name):
                for seed in range(self.seeds):
                    runs = chain(*self.parts(how, seed, how.crossed), *self.parts(how, seed, how.fewer))
                    found |= dict.fromkeys([*runs, Run(name, seed)])
        return list(found)

    def parts(self, how: Decision, seed: int, each: Sequence[LeftOut]) -> list[list[Run]]:
        """For each voice the trainings that leave out parts of the rows: a decision looks at what they say of these."""
        return [[Run(voice, seed, part) for part in each] for voice in how.voices]

    def decision(self, method: str) -> Decision | None:
        """How a method decides after training; None where it does not."""
        return decision(method, self.options)

    def entry(self, method: str) -> Entry:
        """A method by its name."""
        return parse(method, self.options)

    def metric(self, kind: TargetKind, own: Mapping[str, ArrayLike] | None = None) -> Choice:
        """What verdicts and decisions are about, for targets of this kind, and why.

        Where the study does not say it, a site's verdict is about what suits the classes of its `own` train rows.
        """
        target: Target = "classes" if kind == "class" else kind
        asked = self.checked.metric
        if asked is None:
            return default_metric(target, own)
        chosen = metric(asked)
        require(
            chosen.target == target,
            f"metric '{asked}' is for {chosen.target}, and what is predicted is {target}; leave it out for a default",
        )
        return Choice(chosen, f"{chosen.title}, as the study asks")

    def ready(self, run: Run, federation: Federation) -> Ready:
        """What a training takes; `federation` has its samples, or some of their shapes."""
        how = self.decision(run.method)
        if how is not None:
            kind = federation.target_kind
            plan = Plan(rounds=ROUNDS, evaluate_every=ROUNDS, seed=run.seed)
            return Ready(decide(how, self.metric(kind).metric, kind), None, Weigh(len(how.voices)), plan)
        shape, outputs = tuple(federation.train.x.shape[1:]), federation.outputs
        return Ready(*self.entry(run.method), self.module(shape, outputs, run.seed), self.plan(run))

    def rounds(self, run: Run) -> int:
        """How many rounds a training has."""
        return ROUNDS if self.decision(run.method) else self.plan(run).rounds

    def reading(self) -> Reading:
        """How a site reads its table."""
        s = self.checked
        how = self._scenario_fields()
        lists = {key: how[key] for key in ("drop", "numeric", "words")}
        return Reading(s.label, s.column, s.group, task=s.task or "auto", positive=s.positive, **lists)

    def scenario(self) -> Scenario:
        """How a site cuts and prepares its rows."""
        names = ("group", "fractions", "scaling", "image_size")
        kept = {k: v for k, v in self._scenario_fields().items() if k in names}
        return Scenario(split="column", column=SITE, clients=None, **kept)

    def training(self, run: Run) -> Training:
        """How a site trains in a round."""
        chosen = self._chosen(run)
        return Training(**{f.name: chosen[f.name] for f in fields(Training) if chosen.get(f.name) is not None})

    def plan(self, run: Run) -> Plan:
        """The rounds of a training."""
        chosen = self._chosen(run)
        rounds = int(chosen["rounds"])
        every = chosen.get("evaluate_every") or max(1, min(10, rounds // 10))
        rest = {f.name: chosen[f.name] for f in fields(Plan) if chosen.get(f.name) is not None}
        return Plan(**rest | {"seed": run.seed, "evaluate_every": every})

    def module(self, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
        """The network with its first weights."""
        return build(str(self._settled()["model"]), shape, outputs, seed)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a message."""
        own = {"sites": self.sites, "methods": self.methods, "settings": self.settings, "seeds": self.seeds}
        return own | ({"chosen": self.chosen} if self.chosen else {})

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Study:
        """Back from a message."""
        chosen = {
            name: Chosen(float(lr), int(n), bool(more)) for name, (lr, n, more) in plain.get("chosen", {}).items()
        }
        sites, methods = tuple(plain["sites"]), tuple(plain["methods"])
        return Study(sites, methods, dict(plain["settings"]), int(plain["seeds"]), chosen)

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Study:
        """From flat values, as Flower and NVFlare pass them: dashes for underscores, lists with commas, "" left out."""
        given = {k.replace("-", "_"): v for k, v in config.items() if v not in ("", None)}
        options: dict[str, dict[str, str]] = {}
        for pair in str(given.pop("set", "")).split():
            name, _, value = pair.partition("=")
            method, _, key = name.partition(".")
            require(bool(method and key and value), f"set '{pair}': expected NAME.KEY=VALUE, e.g. fedora.a=0.8")
            options.setdefault(method, {})[key] = value
        settings = {k: v for k, v in given.items() if k in SETTINGS} | ({"set": options} if options else {})
        seeds = int(given.get("seeds", 1))
        return Study(_list(given.get("sites", "")), _list(given.get("methods", "")), settings, seeds)

    def _chosen(self, run: Run) -> dict[str, Any]:
        """The settings of a training, a trial's or with what was chosen."""
        settled = self._settled()
        if run.lr is not None and (effort := self.effort) is not None:
            tried = {"lr": run.lr, "rounds": effort.rounds, "evaluate_every": effort.every}
            return settled | tried | {"patience": effort.patience, "select": "loss", "tested": False}
        if run.method in self.chosen:
            lr, rounds, _ = self.chosen[run.method]
            return settled | {"lr": lr, "rounds": rounds, "evaluate_every": rounds, "select": "last"}
        return settled

    def _settled(self) -> dict[str, Any]:
        given = {k: v for k, v in self.checked.model_dump().items() if v is not None}
        settled = protocol_of(None) | given
        if "fractions" in given and given["fractions"][1] == 0 and "select" not in given:
            settled["select"] = "last"
        return settled

    def _scenario_fields(self) -> dict[str, Any]:
        names = {f.name for f in fields(Scenario)}
        given = {k: v for k, v in self.checked.model_dump().items() if v is not None and k in names}
        return vars(Scenario(**{k: given[k] for k in given if k not in ("label", "column")}))


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
