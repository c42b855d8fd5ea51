"""The shape of `summary.json`, of a run and of a comparison: stated here, checked whenever one is written or read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from fairlead.core.errors import RunError
from fairlead.runs.files import read_json, write_json

AGAIN = "run the comparison again to rewrite it"
Number = float | None  # None: not known


class RunRound(TypedDict):
    """Which round a run reports, by which rule, of how many."""

    rule: str
    round: int
    of: int


class RunSummary(TypedDict):
    """One method with one seed, on test data at the chosen round; lists are by client."""

    method: str
    seed: int
    model: str
    round: RunRound
    average: str
    accuracy: list[Number]
    n_test: list[int]
    n_train: list[int]
    names: list[str]  # empty where clients go by number
    bytes_up: int
    bytes_down: int
    passes: int  # samples over which gradients were taken, each time counted
    train_seconds: float
    samples_per_second: float
    left_out: int


class Client(TypedDict):
    """One client, with the method and alone."""

    id: int
    name: str
    n_train: int
    n_test: int
    accuracy: Number
    local_accuracy: Number
    difference: Number
    interval: Annotated[list[Number], Field(min_length=2, max_length=2)] | None
    verdict: str
    why: NotRequired[str]
    newcomer: NotRequired[float]  # the share of seeds in which it was one


class Chosen(TypedDict):
    """Which rounds were reported, one for every seed or fold, by which rule."""

    rule: str
    rounds: list[int]


class Risk(TypedDict):
    """Of a model that a client might deploy in place of its own."""

    worse: float  # the chance of being worse than alone, as estimated
    gain: float  # over LOCAL, to be expected; in the metric's unit


class Decided(Risk):
    """What one client deploys."""

    name: str
    deploys: str  # a voice's name, or "stack"
    weights: dict[str, float]  # by voice
    declined: NotRequired[Risk]  # of a client that deploys its own model: what the surest alternative was


class Decisions(TypedDict):
    """What was decided after training, in one fold or with one seed."""

    voices: list[str]  # LOCAL first
    dropped: list[str]  # those that nobody listened to in the first part of the rows
    sure: float | None  # None: no guard
    parts: int
    distilled: bool  # whether one network stands for the stack
    metric: str
    clients: list[Decided]
    test_scores: dict[str, list[Number]]  # of each voice deployed by everybody; no choice was made by them


class Entry(TypedDict):
    """One method: means over clients, then over seeds or folds; `spread` is the deviation over seeds."""

    accuracy: Number
    accuracy_samples: Number
    r_accuracy: Number
    ptr: Number
    low5: Number
    top5: Number
    std: Number
    bytes_up: Number
    bytes_down: Number
    passes: Number  # times that gradients were taken over all train rows
    train_seconds: Number
    samples_per_second: Number
    spread: dict[str, Number]
    model: str
    round: Chosen
    average: str
    worse: list[int]  # ids of clients
    clients: list[Client]
    runs: list[str]  # folders, one for every seed or fold
    notes: list[str]
    unseen: NotRequired[dict[str, Number]]  # the same numbers, of the newcomers
    final: NotRequired[list[list[str]]]  # folders of the runs whose models answer, by fold and repeat
    all_rows: NotRequired[str | None]  # folder of the run on all rows, after the folds
    search: NotRequired[list[dict[str, Any]]]  # what was tried and chosen in every fold
    decisions: NotRequired[list[Decisions]]  # what clients deploy, one for every seed or fold, where that is decided


class Way(TypedDict):
    """One way to train, judged: `fairlead.comparison.findings.Finding` in plain values."""

    name: str
    title: str
    kind: str
    score: Number
    lowest: Number
    scores: list[Number]
    others: dict[str, Number]
    gain: Number
    ptr: dict[str, float] | None
    verdicts: list[dict[str, Any]]  # `fairlead.metrics.OwnerVerdict`
    notes: list[str]


class Found(TypedDict):
    """What was found: `fairlead.comparison.findings.Findings` in plain values."""

    metric: str
    higher: NotRequired[bool]
    why_metric: str
    owners: list[str]
    bar: str
    why_bar: str
    alone: NotRequired[str]
    training: str
    ways: list[Way]
    recommendation: dict[str, Any] | None  # `fairlead.metrics.Recommendation`
    by_run: dict[str, list[list[Number]]]


class DataOwner(TypedDict):
    """One owner's rows: how many, and what they hold of the target."""

    name: str
    rows: int
    classes: NotRequired[dict[str, int]]  # rows of each class, or with each label
    mean: NotRequired[float]  # of a quantity
    sd: NotRequired[float]
    events: NotRequired[int]  # of survival times
    median_time: NotRequired[float]
    missing: NotRequired[dict[str, int]]  # empty cells by column, where there are any


class DataColumn(TypedDict):
    """One column of a table, and what is done with it: `fairlead.data.columns.Column` in plain values."""

    name: str
    role: str
    missing: int
    done: str
    why: str
    kept: bool


class Data(TypedDict):
    """What there is to know of the data before training: `fairlead.data.Survey` in plain values."""

    notes: list[str]  # sentences
    name: NotRequired[str]
    rows: NotRequired[int]
    target: NotRequired[str]  # what is predicted, in words
    owners: NotRequired[list[DataOwner]]
    columns: NotRequired[list[DataColumn]]  # empty where the data is no table


class Kept(TypedDict):
    """Where the models of a standard tool are, each owner's its own."""

    final: list[list[str]]  # folders, one for each fold
    all_rows: str | None  # folder of the models that learned from all rows, after the folds


class Summary(TypedDict):
    """A comparison. `scenario`, `settings` and `versions` say what was run; `settings` has the seeds, or the folds."""

    scenario: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, str]
    control: str
    methods: dict[str, Entry]
    tools: NotRequired[dict[str, Kept]]  # beside LOCAL, by name
    findings: Found
    data: Data


_RUN, _ALL = TypeAdapter(RunSummary), TypeAdapter(Summary)


def write_run_summary(folder: Path, summary: RunSummary) -> None:
    """A run's `summary.json`."""
    write_json(folder / "summary.json", _checked(_RUN, summary, folder / "summary.json"))


def read_run_summary(folder: Path) -> RunSummary:
    """What `write_run_summary` wrote."""
    return _checked(_RUN, read_json(folder / "summary.json"), folder / "summary.json")


def write_summary(folder: Path, summary: Summary) -> None:
    """A comparison's `summary.json`."""
    _check_names(_checked(_ALL, summary, folder / "summary.json"), folder / "summary.json")
    write_json(folder / "summary.json", summary)


def read_summary(folder: Path) -> Summary:
    """What `write_summary` wrote; `RunError` where it is missing or is no summary."""
    path = Path(folder) / "summary.json"
    if not path.is_file():
        raise RunError(f"{path}: no such file, expected a finished comparison; run `fairlead compare` into {folder}")
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path}: not readable as JSON ({error}), expected a summary; {AGAIN}") from error
    summary = _checked(_ALL, plain, path)
    _check_names(summary, path)
    return summary


T = TypeVar("T")


def _checked(shape: TypeAdapter[T], plain: object, path: Path) -> T:
    """The same object, once it is known to have this shape."""
    try:
        shape.validate_python(plain, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise RunError(f"{path}: {where}: {first['msg'].lower()}, expected the shape of a summary; {AGAIN}") from error
    return cast(T, plain)


def _check_names(summary: Summary, path: Path) -> None:
    """Refuse what refers to nothing."""
    seeds, found = summary["settings"].get("seeds"), summary["findings"]
    _check(isinstance(seeds, list) and bool(seeds), path, f"settings.seeds is {seeds!r}", "a list of seeds")
    control = summary["control"]
    _check(control in summary["methods"], path, f"the control {control!r} is not among the methods", "one of them")
    for name, entry in summary["methods"].items():
        strangers = sorted(set(entry["worse"]) - {client["id"] for client in entry["clients"]})
        _check(not strangers, path, f"{name!r} calls {strangers} worse off", "clients it lists")
    names = [way["name"] for way in found["ways"]]
    _check(found["bar"] in names, path, f"the bar {found['bar']!r} is not among the ways to train", "one of them")
    for way in found["ways"]:
        fits = len(way["scores"]) == len(found["owners"])
        _check(fits, path, f"{way['name']!r} has {len(way['scores'])} scores", "one for every owner")


def _check(condition: bool, path: Path, came: str, expected: str) -> None:
    if not condition:
        raise RunError(f"{path}: {came}, expected {expected}; {AGAIN}")
