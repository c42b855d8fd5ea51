"""What a user may set, and the experiment it resolves to.

`Settings` has one optional field per choice; the same names serve the command line, a settings file and Python. What is
left out comes from the named scenario's published protocol. `Experiment` is the result with nothing left open: plain
values, saved with every run, enough to run it again.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from fairlead.attacks import Attack
from fairlead.core import InputError, RunError, Training, nearest, require
from fairlead.core.device import Device, find_device
from fairlead.core.faults import Faults
from fairlead.data import Scenario, owner_column, scenario
from fairlead.data.files import table_files
from fairlead.data.sources import EXAMPLES
from fairlead.effort import Effort
from fairlead.effort import effort as named_effort

# The published settings, by the paper they come from; a scenario's own come after.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "default": {"model": "auto", "rounds": 50, "lr": 0.05, "batch_size": 32, "select": "validation"},
    "digits": {"model": "mlp", "rounds": 40, "lr": 0.05, "epochs": 2, "batch_size": 16, "momentum": 0.5},
    "fedora": {"model": "mlp", "rounds": 500, "lr": 0.005, "epochs": 5, "batch_size": 64}
    | {"momentum": 0.9, "weight_decay": 5e-5, "select": "validation"},
    # A user's own data: the step size and the rounds are searched for.
    "own": {"batch_size": 16, "momentum": 0.9},
    "confree": {"model": "cnn", "rounds": 500, "lr": 0.005, "epochs": 1, "batch_size": 10, "select": "last"},
}


def protocol_of(name: str | None) -> dict[str, Any]:
    """The training protocol that belongs to a preset."""
    if name is None:
        return PROTOCOLS["default"] | PROTOCOLS["own"]
    if name in ("yearbook", "pacs"):
        return PROTOCOLS["default"]
    if name == "rotated-digits":
        return PROTOCOLS["default"] | PROTOCOLS["digits"]
    if name.endswith(("-dirichlet", "-pathological")):
        return PROTOCOLS["default"] | PROTOCOLS["confree"]
    colour = {"model": "lenet"} if name in ("cifar10-labels", "gtsrb-rotated") else {}
    return PROTOCOLS["default"] | PROTOCOLS["fedora"] | colour


def _text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _numbers(value: object) -> object:
    return tuple(value.split(",")) if isinstance(value, str) else value


Name = Annotated[str, BeforeValidator(_text)]
Triple = Annotated[tuple[float, float, float], BeforeValidator(_numbers)]
Counts = Annotated[tuple[int, int, int], BeforeValidator(_numbers)]


class Settings(BaseModel):
    """Everything a user may set; None leaves the choice to the scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    scenario: str | None = Field(None, description="A preset; `fairlead scenarios` lists them.")
    data: Name | None = Field(None, description="Data set: a known name, a table, or a folder of tables.")
    data_dir: Path | None = Field(None, description="Folder that holds data sets as parquet folders.")
    label: str | None = Field(None, description="Label column of a table; several yes/no labels as a,b,c.")
    event: str | None = Field(None, description="Makes the label a time: column that says whether the event came then.")
    column: str | None = Field(None, description="Column that names the owner of a sample, for --split column.")
    group: str | None = Field(None, description="Column that says whom a row is about, e.g. patient: kept together.")
    task: str | None = Field(None, description="Whether a table's label is one of classes or a quantity.")
    positive: str | None = Field(None, description="Makes two classes of a table's label: '>0', yes or 'a|b'.")
    drop: str | tuple[str, ...] | None = Field(None, description="Columns of a table to leave out, e.g. visit,notes.")
    numeric: str | tuple[str, ...] | None = Field(None, description="Columns of a table that hold numbers.")
    words: str | tuple[str, ...] | None = Field(None, description="Columns of a table that hold categories.")
    scaling: str | None = Field(None, description="shared: by all owners' train rows; own: by each owner's.")
    split: str | None = Field(None, description="iid, dirichlet, pathological, consecutive, quantity or column.")
    clients: int | None = Field(None, description="Number of clients.")
    beta: float | None = Field(None, description="Dirichlet concentration; small is skewed.")
    classes_per_client: int | None = Field(
        None, description="Classes a client sees, for --split pathological or consecutive."
    )
    skew: float | None = Field(None, description="How unequal sizes are, for --split quantity.")
    samples: Counts | None = Field(None, description="Train,validation,test samples of every client, e.g. 128,64,277.")
    fractions: Triple | None = Field(None, description="Train,validation,test shares, e.g. 0.6,0.2,0.2.")
    shift: str | None = Field(None, description="none or rotation.")
    angle: float | None = Field(None, description="Degrees between neighbouring clients, for --shift rotation.")
    image_size: int | None = Field(None, description="Pixels a side that images are brought to.")
    pool: str | None = Field(None, description="all: mix the published parts; train: keep the published test part.")
    model: str | None = Field(None, description="auto, logistic, wide, mlp, lenet, cnn or mixed.")
    rounds: int | None = Field(None, description="Rounds of training.")
    participation: float | None = Field(None, description="Share of clients in a round, or a count above 1.")
    unseen: float | None = Field(None, description="Share of clients held out and scored as newcomers.")
    newcomer_epochs: int | None = Field(None, description="Epochs a newcomer trains on its own data.")
    lr: float | None = Field(None, description="Learning rate of the clients.")
    epochs: int | None = Field(None, description="Local epochs a round.")
    steps: int | None = Field(None, description="Local batches a round, and in what a method counts as an epoch.")
    batch_size: int | None = Field(None, description="Samples in a local batch.")
    momentum: float | None = Field(None, description="Momentum of local SGD, reset every round.")
    weight_decay: float | None = Field(None, description="Weight decay of local SGD.")
    balance: bool | None = Field(None, description="Every class weighs the same in an owner's loss, however rare.")
    schedule: Literal["constant", "cosine", "exponential"] | None = Field(None, description="Learning rate by round.")
    decay: float | None = Field(None, description="Factor a round, for --schedule exponential.")
    evaluate_every: int | None = Field(None, description="Rounds between evaluations.")
    select: Literal["validation", "last"] | None = Field(
        None, description="Which round is reported: best on validation data, or the last."
    )
    effort: Literal["quick", "standard", "thorough"] | None = Field(
        None, description="How hard every method is tried, LOCAL included; on your own data standard."
    )
    folds: int | None = Field(None, description="Folds that test every row once; 1: a single test part.")
    metric: str | None = Field(None, description="What verdicts are about, e.g. accuracy, auroc, rmse.")
    engine: str | None = Field(
        None, description="auto, loop, vectorised, threads, threads+vectorised, ray or ray:ADDRESS."
    )
    device: Device | None = Field(None, description="cpu unless you say otherwise; auto is a GPU where there is one.")
    faults: str | None = Field(None, description="Clients that fail on purpose, e.g. dropout=0.1,crash=0.1@20.")
    attack: str | None = Field(None, description="Hostile clients on purpose, KIND:SHARE, e.g. sign-flip:0.17.")
    set: dict[str, dict[str, Any]] | None = Field(None, description="Options of methods and stages.")


@dataclass(frozen=True)
class Experiment:
    """One comparison's settings with nothing left open."""

    name: str  # the preset it started from, or "custom"
    scenario: Scenario
    training: Training
    model: str
    rounds: int
    participation: float
    evaluate_every: int
    select: Literal["validation", "loss", "last"]
    engine: str
    data_dir: str | None
    options: dict[str, dict[str, Any]]
    unseen: float = 0.0
    newcomer_epochs: int = 5
    evaluate_global: bool = False  # score the server's model too, where there is one
    tested: bool = True  # whether test samples are scored on the way; where nothing but choices is made, they are not
    patience: int | None = None  # evaluations without improvement that end the training; None: never
    effort: Effort | None = None  # how hard step size and rounds are searched for; None: they are as given here
    folds: int | None = None  # None: several for a small table, else one
    metric: str | None = None  # None: chosen for the target
    faults: str = ""  # clients that fail on purpose, see `core.faults`; LOCAL is trained without
    attack: str = ""  # hostile clients, see `attacks`; LOCAL is trained without
    device: str = "cpu"  # where models, samples and messages live

    def alone(self) -> Experiment:
        """The experiment of a client that trains alone: without held-out clients, faults and attacks.

        So the control of a newcomer is trained in all rounds.
        """
        return replace(self, unseen=0.0, faults="", attack="")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        plain = asdict(self)
        plain["training"].pop("criterion")
        # Through JSON and back, so that what is compared with a file's content looks like it: lists, text keys.
        return dict(json.loads(json.dumps(plain)))

    @staticmethod
    def from_json(plain: object, path: Path) -> Experiment:
        """Back from the file at that path; what does not fit is said in one sentence."""
        _check_fields(plain, Experiment, path, "experiment")
        assert isinstance(plain, dict)
        for key, kind in (("scenario", Scenario), ("training", Training), ("effort", Effort)):
            if plain.get(key) is not None:
                _check_fields(plain[key], kind, path, f"experiment.{key}")
        try:
            return TypeAdapter(Experiment).validate_python(plain)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in ("experiment", *first["loc"]))
            raise RunError(f"{path}: {where}: {first['msg']}; {DAMAGED}") from error


LONGEST = 4000  # signs in a setting
LONGEST_NAME = 255  # bytes in the name of a file or folder
DAMAGED = "restore the file, or train anew with --fresh"


def _check_fields(plain: object, kind: type, path: Path, where: str) -> None:
    """Refuse what is no mapping, and fields that this version does not have."""
    if not isinstance(plain, dict):
        raise RunError(f"{path}: {where} is a {type(plain).__name__}, expected settings by name; {DAMAGED}")
    unknown = sorted(map(str, plain.keys() - {f.name for f in fields(kind)}))
    if unknown:
        raise RunError(
            f"{path}: {where} has {', '.join(unknown)[:200]}, which this version does not know; use the version of "
            f"fairlead that wrote it, or {DAMAGED}"
        )


# What is done where a setting is left out, if it is more than one value.
LEFT_OUT = {
    "scenario": "rotated-digits; none with --data",
    "data": "the scenario's",
    "data_dir": "none, data sets are fetched by name",
    "label": "the column called label",
    "column": "none; of data sets that are known, their owners",
    "split": "iid; column with --column",
    "clients": "12; with --column one for every value",
    "rounds": "searched on your own data, else as published",
    "lr": "searched on your own data, else as published",
    "evaluate_every": "4 on your own data, else a tenth of the rounds and 10 at most",
    "select": "validation where there are validation rows, else last",
    "effort": "standard on your own data, else none",
    "folds": "5 for tables of less than 2,500 rows, else 1",
    "metric": "chosen for the label",
    "engine": "auto",
    "participation": "1",
    "set": "the methods' own, which `fairlead methods NAME` shows",
}


def default_of(name: str) -> str:
    """What a setting is where it is left out, in words for the command line.

    >>> default_of("batch_size"), default_of("beta"), default_of("drop")
    ('16 on your own data, else as published', '0.1', 'none')
    """
    if name in LEFT_OUT:
        return LEFT_OUT[name]
    plan = protocol_of(None)
    if name in plan:
        return f"{plan[name]} on your own data, else as published"
    known = {f.name: f.default for kind in (Experiment, Training, Scenario) for f in fields(kind)}
    value = known[name]
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return "none" if value in (None, "") else str(value)


def check(values: dict[str, Any]) -> Settings:
    """Settings from plain values; one sentence for the first that does not fit."""
    known = list(Settings.model_fields)
    for key in values:
        if key not in known:
            raise InputError(f"setting '{key}' is unknown; {nearest(key, known)}")
        field = Settings.model_fields[key]
        if isinstance(values[key], bool) and field.annotation != bool | None:  # Python would take it for 0 or 1
            raise InputError(f"setting {key}: got {values[key]}; expected: {field.description}")
        text = _text(values[key])
        if isinstance(text, str) and (len(text) > LONGEST or "\0" in text):
            raise InputError(
                f"setting {key} must be text of at most {LONGEST} signs without zero bytes, got {shown(text[:40])}"
            )
        if key in ("data", "data_dir") and isinstance(text, str):
            # Asked for longer names, a file system raises an error where it would say that there is no such file.
            long = [part for part in re.split(r"[/,]", text) if len(part.encode(errors="replace")) > LONGEST_NAME]
            if long:
                raise InputError(f"setting {key}: {shown(long[0][:40])}... is too long for a file; check the path")
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        hint = Settings.model_fields[key].description
        raise InputError(f"setting {key}={shown(values[key])}: {first['msg']}; expected: {hint}") from error


def shown(value: object) -> str:
    """A value for a sentence: plain ones as they are, others by their kind.

    >>> shown("iid"), shown(object())
    ("'iid'", 'an object of type object')
    """
    value = _text(value)
    plain = isinstance(value, str | int | float | list | tuple | dict | None)
    text = repr(value) if plain else ""
    return text if plain and len(text) <= 60 else f"an object of type {type(value).__name__}"


def resolve(settings: Settings, own: str | None = None) -> Experiment:
    """Fill in what was left out, and check the whole before any work; `own` is the name of the caller's own samples."""
    given = settings.model_dump(exclude_none=True)
    name = settings.scenario or (None if settings.data or own else "rotated-digits")
    chosen = _scenario(settings, name, own)
    validated = (chosen.samples or chosen.fractions)[1] > 0
    usual: dict[str, Any] = {"participation": 1.0, "engine": "auto"} | protocol_of(name)
    plan = usual | ({} if validated else {"select": "last"}) | given
    require(plan["rounds"] >= 1, f"rounds must be >= 1, got {plan['rounds']}")
    effort = effort_of(settings, validated, preset=name is not None)
    rounds = plan["rounds"] if effort is None else effort.rounds
    plan = {"evaluate_every": max(1, min(10, rounds // 10))} | plan
    resolved = {
        "name": name or "custom",
        "scenario": chosen,
        "training": Training(**_fields_of(Training, plan) | {"rounds": rounds}),
        "rounds": rounds,
        "data_dir": None if settings.data_dir is None else str(settings.data_dir.resolve()),
        "options": settings.set or {},
        "effort": effort,
        "device": find_device(settings.device or "cpu").type,
    }
    experiment = Experiment(**_fields_of(Experiment, plan) | resolved)
    _check(experiment, validated)
    if settings.attack is not None:
        Attack.of(settings.attack)
    _refuse_idle(given, experiment, own)
    return experiment


def _fields_of(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values that are fields of a dataclass."""
    return {f.name: values[f.name] for f in fields(kind) if f.name in values}


def _check(e: Experiment, validated: bool) -> None:
    """Refuse numbers that are out of range or do not go together."""
    require(
        validated or e.select == "last",
        "select 'validation' needs validation samples and this scenario has none; use --select last or --fractions",
    )
    require(e.evaluate_every >= 1, f"evaluate_every must be >= 1, got {e.evaluate_every}")
    rate, count = e.participation, e.scenario.clients
    require(rate > 0, f"participation must be a rate in (0, 1] or a count above 1, got {rate:g}")
    require(
        count is None or rate <= max(count, 1),
        f"participation {rate:g} is more than the {count} clients; give a rate or a smaller count",
    )
    require(0 <= e.unseen < 1, f"unseen must be a share in [0, 1), got {e.unseen:g}; 0 lets everybody train")
    require(e.newcomer_epochs >= 1, f"newcomer_epochs must be >= 1, got {e.newcomer_epochs}")
    Faults.of(e.faults)


def effort_of(settings: Settings, validated: bool, *, preset: bool) -> Effort | None:
    """How hard methods are tried: not at all where a published protocol says how, or there is nothing to choose with.

    A step size or a number of rounds that the user gives is not searched for.
    """
    asked = settings.effort or (None if preset or not validated else "standard")
    if asked is None:
        return None
    require(validated, f"effort '{asked}' chooses on validation samples and this scenario has none; use --fractions")
    require(settings.select is None, "select has no effect with an effort: rounds are chosen by the validation loss")
    fixed = settings.schedule != "cosine"
    require(fixed, "schedule 'cosine' needs to know the rounds beforehand, and an effort searches for them")
    found = named_effort(asked)
    if settings.lr is not None:
        found = replace(found, rates=(settings.lr,), further=0)
    if settings.rounds is not None:
        trial = min(found.trial, settings.rounds)
        found = replace(found, rounds=settings.rounds, patience=None, trial=trial)
    every = settings.evaluate_every or min(found.every, found.rounds)
    require(settings.folds is None or settings.folds >= 1, f"folds must be at least 1, got {settings.folds}")
    return replace(found, every=every)


def _scenario(settings: Settings, name: str | None, own: str | None) -> Scenario:
    """Whose data: the preset of that name, or a plain scenario, with what the user says replaced."""
    changes = settings.model_dump(include={f.name for f in fields(Scenario)}, exclude_none=True)
    if own is not None:
        changes["data"] = own
    elif name is None and (owner := owner_column(changes["data"])) is not None:
        changes = {"column": owner} | changes
    if name is None and "column" in changes:
        changes = {"split": "column"} | changes
    # One client per value of the column, unless a number is given, here or by a preset.
    counted = name is not None and "clients" not in settings.model_fields_set
    if changes.get("split") == "column" and not counted:
        changes = {"clients": None} | changes
    return Scenario(**changes) if name is None else scenario(name, **changes)


def _refuse_idle(given: dict[str, Any], experiment: Experiment, own: str | None) -> None:
    """Refuse settings that change nothing: whoever gives one expects that it does."""
    who = experiment.scenario
    digits = who.data == "digits" and own is None
    table = own is None and (who.data in EXAMPLES or bool(table_files(who.data)))
    of_table = dict.fromkeys(("event", "task", "positive", "drop", "numeric", "words"), (table, "a table"))
    columns = table or who.split == "column"
    needs = {
        "beta": (who.split == "dirichlet", "split 'dirichlet'"),
        "classes_per_client": (who.split in ("pathological", "consecutive"), "split 'pathological' or 'consecutive'"),
        "skew": (who.split == "quantity", "split 'quantity'"),
        "column": (not digits and columns, "a table, or split 'column' and data with columns"),
        "group": (not digits and (columns or own is not None), "a table, or data with columns"),
        "fractions": (who.samples is None, "a scenario that does not fix the samples of every client"),
        "angle": (who.shift == "rotation", "shift 'rotation'"),
        "decay": (experiment.training.schedule == "exponential", "schedule 'exponential'"),
        "newcomer_epochs": (experiment.unseen > 0, "unseen clients (--unseen)"),
        "data": (own is None, "no source of your own"),
        "label": (own is None and not digits, "a table, or data in files with a label column"),
        "data_dir": (own is None and not digits and not table, "data that lie in a folder by their name"),
        "scaling": (table or own is not None, "a table"),
    } | of_table
    needs |= dict.fromkeys(("folds", "metric"), (experiment.effort is not None, "--effort, say standard"))
    for key, (works, what) in needs.items():
        require(key not in given or works, f"{key}={shown(given.get(key))} has no effect here: it needs {what}")
