"""A folder answers only for what made it: the same question is answered again, any other is refused or trained anew."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fairlead
from fairlead.core import Method, Training
from fairlead.data import from_tensors
from fairlead.runs import identity
from fairlead.runs.files import read_parts
from fairlead.runs.run import comparison_of, finished

PLAN: dict[str, Any] = {"clients": 3, "rounds": 2, "engine": "loop", "model": "logistic"}
SMALL = PLAN | {"steps": 3}  # a round is little work
TABLE = PLAN | {"column": "site", "folds": 1, "effort": "quick"}
NEW = r"train anew with --fresh \(from Python: fresh=True\)"


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file()}


def samples(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(90, 5, generator=draw), torch.randint(0, 2, (90,), generator=draw)


def own(scale: float) -> Method:
    usual = fairlead.parse("fedavg").method

    def client(state: Any, message: Any, task: Any) -> Any:
        states, replies = usual.client(state, message, task)
        return states, {n: scale * x for n, x in replies.items()}

    return usual._replace(client=client)


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


def deeper(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 4), nn.ReLU(), nn.Linear(4, classes))


def write_csv(path: Path, seed: int, rows: int = 90) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    lines = [f"{a:.6f},{b:.6f},{c:.6f},{int(a > 0)},s{i % 3}" for i, (a, b, c) in enumerate(x)]
    path.write_text("a,b,c,label,site\n" + "\n".join(lines) + "\n")


def test_a_changed_table_is_refused_and_the_same_content_elsewhere_is_not(tmp_path: Path) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "out"
    write_csv(table, 0)
    fairlead.compare(["fedavg"], data=table, out=out, **TABLE)
    before = contents(out / "runs")
    table.rename(tmp_path / "moved.csv")
    fairlead.compare(["fedavg"], data=tmp_path / "moved.csv", out=out, **TABLE)
    assert contents(out / "runs") == before
    write_csv(table, 1)
    with pytest.raises(fairlead.RunError, match=f"the data changed; {NEW}"):
        fairlead.compare(["fedavg"], data=table, out=out, **TABLE)
    write_csv(tmp_path / "moved.csv", 1)
    with pytest.raises(fairlead.RunError, match="the data changed"):
        fairlead.resume(out)
    assert contents(out / "runs") == before
    fresh = fairlead.compare(["fedavg"], data=table, out=out, fresh=True, **TABLE)
    other = fairlead.compare(["fedavg"], data=table, **TABLE)
    assert fresh.summary["methods"]["fedavg"]["clients"] == other.summary["methods"]["fedavg"]["clients"]


def test_another_source_model_or_method_is_refused_and_each_is_named(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"clients": 3, "rounds": 2, "engine": "loop", "out": tmp_path}

    def ask(scale: float = 1.0, model: Any = linear, seed: int = 0, **more: Any) -> fairlead.Comparison:
        return fairlead.compare({"mine": own(scale)}, model=model, source=from_tensors(*samples(seed)), **asked, **more)

    first = ask()
    before = contents(tmp_path)
    assert ask().summary["methods"]["mine"] == first.summary["methods"]["mine"]
    with pytest.raises(fairlead.RunError, match=f"/mine/.*: the method changed, its code or its options; {NEW}"):
        ask(scale=0.5)
    with pytest.raises(fairlead.RunError, match=r"else: the model changed, its architecture or its initial weights;"):
        ask(model=deeper)
    with pytest.raises(fairlead.RunError, match=r"else: the data changed;"):
        ask(seed=1)
    assert {k: v[0] for k, v in contents(tmp_path).items()} == {k: v[0] for k, v in before.items()}
    assert ask(scale=0.5, fresh=True).summary["methods"]["mine"] != first.summary["methods"]["mine"]


def test_a_model_of_the_same_shape_with_other_weights_is_refused(tmp_path: Path) -> None:
    def biased(shape: tuple[int, ...], classes: int) -> nn.Module:
        made = linear(shape, classes)
        nn.init.constant_(made[1].bias, 0.5)  # type: ignore[index]
        return made

    asked = {k: v for k, v in SMALL.items() if k != "model"}
    fairlead.compare(["fedavg"], model=linear, out=tmp_path, **asked)
    with pytest.raises(fairlead.RunError, match="the model changed"):
        fairlead.compare(["fedavg"], model=biased, out=tmp_path, **asked)


def test_what_cannot_be_compared_is_trained_once_and_never_reused(tmp_path: Path) -> None:
    stream = (1.0 for _ in range(10**9))
    usual = fairlead.parse("fedavg").method

    def client(state: Any, message: Any, task: Any) -> Any:
        next(stream)
        return usual.client(state, message, task)

    def ask(**more: Any) -> fairlead.Comparison:
        return fairlead.compare({"mine": usual._replace(client=client)}, out=tmp_path, **SMALL, **more)

    ask()
    with pytest.raises(fairlead.RunError, match=rf"cannot be .*type generator \(method\.client\.stream\); {NEW}"):
        ask()
    ask(fresh=True)


def test_another_arithmetic_and_a_folder_without_identity_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    now = identity.ARITHMETIC
    monkeypatch.setattr(identity, "ARITHMETIC", 99)
    with pytest.raises(fairlead.RunError, match=rf"computes other numbers \(arithmetic: {now} there, 99 here\)"):
        fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    monkeypatch.undo()
    path = tmp_path / "runs" / "fedavg-seed0" / "settings.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "identity"}))
    with pytest.raises(fairlead.RunError, match=r"data cannot be compared .* the folder does not say"):
        fairlead.compare(["fedavg"], out=tmp_path, **SMALL)


def test_one_more_method_trains_only_that_method_even_with_options(tmp_path: Path) -> None:
    fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    before = contents(tmp_path / "runs")
    result = fairlead.compare(["fedavg", "fedora"], out=tmp_path, set={"fedora": {"a": 0.5}}, **SMALL)
    assert {k: v for k, v in contents(tmp_path / "runs").items() if "fedora" not in k} == before
    assert list(result.summary["methods"]) == ["local", "fedavg", "fedora"]
    with pytest.raises(fairlead.RunError, match=r"options\.fedora\.a: 0\.5 there, 0\.6 here"):
        fairlead.compare(["fedavg", "fedora"], out=tmp_path, set={"fedora": {"a": 0.6}}, **SMALL)


def test_engine_auto_takes_the_engine_that_made_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {k: v for k, v in SMALL.items() if k != "engine"}
    made: list[str] = []

    def unsteady(*_: object) -> Any:
        made.append(("threads", "threads+vectorised")[len(made) % 2])
        return fairlead.clients.engine(made[-1])

    monkeypatch.setattr("fairlead.runs.material.choose", unsteady)
    for methods in (["fedavg"], ["fedavg"], ["fedavg", "fedprox"]):
        result = fairlead.compare(methods, out=tmp_path, **asked)
        assert result.summary["settings"]["engine"] == "threads"
    assert made == ["threads"]
    with pytest.raises(fairlead.RunError, match="engine: 'threads' there, 'loop' here"):
        fairlead.compare(["fedavg"], out=tmp_path, engine="loop", **asked)
    again = fairlead.compare(["fedavg"], out=tmp_path, fresh=True, **asked)
    assert again.summary["settings"]["engine"] == "threads+vectorised"


def test_fresh_deletes_only_the_comparisons_own_files(tmp_path: Path) -> None:
    fairlead.compare(["fedavg", "fedprox"], out=tmp_path, **SMALL)
    kept = [tmp_path / "notes.txt", tmp_path / "runs" / "mine" / "x.txt", tmp_path / "runs" / "fedavg-seed0" / "y.txt"]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    fairlead.compare(["fedavg"], out=tmp_path, fresh=True, **(SMALL | {"rounds": 1}))
    assert [path.read_text() for path in kept] == ["mine"] * 3
    assert not (tmp_path / "runs" / "fedprox-seed0").exists()
    before = contents(tmp_path)
    with pytest.raises(fairlead.InputError):
        fairlead.compare(["fedavgg"], out=tmp_path, fresh=True, **SMALL)
    assert contents(tmp_path) == before, "wrong input deletes nothing"


def test_your_own_samples_are_taken_as_they_are() -> None:
    x = torch.rand(60, 1, 8, 8)
    result = fairlead.compare(["fedavg"], source=from_tensors(x, torch.arange(60) % 2), **SMALL)
    scenario = result.summary["scenario"]
    assert (scenario["name"], scenario["split"], scenario["shift"]) == ("custom", "iid", "none")
    federation = result.jobs["fedavg", 0].federation
    rows = {tuple(row.flatten().tolist()) for row in x}
    splits = (federation.train, federation.validation, federation.test)
    assert {tuple(row.flatten().tolist()) for split in splits for row in split.x} == rows


@pytest.mark.parametrize("settings", [{"column": "site"}, {"column": "site", "split": "column", "clients": None}])
def test_a_column_divides_your_own_samples_and_a_table(tmp_path: Path, settings: dict[str, Any]) -> None:
    x, y = samples()
    plan = {k: v for k, v in PLAN.items() if k != "clients"} | {"folds": 1, "effort": "quick"}
    sites = ["abc"[i % 3] for i in range(90)]
    result = fairlead.compare(["fedavg"], source=from_tensors(x, y, {"site": sites}), **plan, **settings)
    assert [c["name"] for c in result.summary["methods"]["local"]["clients"]] == ["a", "b", "c"]
    write_csv(tmp_path / "t.csv", 0)
    result = fairlead.compare(["fedavg"], data=tmp_path / "t.csv", **plan, **settings)
    assert [c["name"] for c in result.summary["methods"]["local"]["clients"]] == ["s0", "s1", "s2"]


def test_resume_says_what_it_needs_and_goes_on_with_it(tmp_path: Path) -> None:
    source = from_tensors(*samples())
    asked: dict[str, Any] = {"clients": 3, "rounds": 2, "engine": "loop", "out": tmp_path}
    whole = fairlead.compare({"mine": own(0.9)}, model=linear, source=source, **asked)
    for path in tmp_path.glob("runs/**/mine/**/summary.json"):
        path.unlink()
    needs = re.escape(f"fairlead.resume({str(tmp_path)!r}, methods=..., model=..., source=...)")
    with pytest.raises(fairlead.RunError, match=needs):
        fairlead.resume(tmp_path)
    write_csv(tmp_path / "moved.csv", 1)
    with pytest.raises(fairlead.RunError, match="the data changed"):
        fairlead.resume(tmp_path, methods={"mine": own(0.9)}, model=linear, source=from_tensors(*samples(1)))
    again = fairlead.resume(tmp_path, methods={"mine": own(0.9)}, model=linear, source=source)
    assert again.summary["methods"]["mine"] == whole.summary["methods"]["mine"]


def test_a_model_function_is_seeded() -> None:
    asked = {k: v for k, v in SMALL.items() if k != "model"}
    torch.manual_seed(1)
    first = fairlead.compare(["fedavg"], model=deeper, **asked).summary["methods"]["fedavg"]["clients"]
    torch.manual_seed(2)
    before = torch.get_rng_state()
    result = fairlead.compare(["fedavg"], model=deeper, seeds=2, **asked)
    assert torch.equal(before, torch.get_rng_state()), "the caller's own draws are left alone"
    one = fairlead.compare(["fedavg"], model=deeper, seeds=[0], **asked)
    assert one.summary["methods"]["fedavg"]["clients"] == first
    weights = [next(iter(result.jobs["fedavg", s].module.parameters())) for s in (0, 1)]
    assert not torch.equal(*weights)


def curves(folder: Path, run: str) -> tuple[dict[str, list[Any]], dict[str, torch.Tensor]]:
    from safetensors.torch import load_file

    here = folder / "runs" / run
    return read_parts(here / "records.parquet").to_pydict(), load_file(here / "checkpoint.safetensors")


@pytest.mark.parametrize("rounds", [1, 4, 5])
def test_more_rounds_end_with_the_bits_of_one_long_run(tmp_path: Path, rounds: int) -> None:
    methods = ["fedavg", "ditto", "scaffold"]
    plan = SMALL | {"evaluate_every": 2, "select": "validation", "participation": 0.7, "momentum": 0.5, "unseen": 0.3}
    long, short = tmp_path / "long", tmp_path / "short"
    whole = fairlead.compare(methods, out=long, **(plan | {"rounds": 10}))
    fairlead.compare(methods, out=short, **(plan | {"rounds": rounds}))
    chosen = json.loads((short / "summary.json").read_text())["methods"]
    if rounds == 5:  # evaluated only because it was the last: a long run does not look at it
        assert any(entry["round"]["rounds"] == [5] for entry in chosen.values()), "choose another seed"
    result = fairlead.resume(short, rounds=10)
    for run in [f"{name}-seed0" for name in ("local", *methods)]:
        (records, tensors), (expected, bits) = curves(short, run), curves(long, run)
        assert records == expected
        assert tensors.keys() == bits.keys()
        assert all(torch.equal(tensors[n], bits[n]) for n in bits)
    for name in methods:
        assert result.summary["methods"][name]["clients"] == whole.summary["methods"][name]["clients"]
        assert result.summary["methods"][name]["round"] == whole.summary["methods"][name]["round"]
    assert result.summary["settings"]["rounds"] == 10


def test_more_rounds_are_refused_where_they_would_not_be_one_long_run(tmp_path: Path) -> None:
    cosine = tmp_path / "cosine"
    fairlead.compare(["fedavg"], out=cosine, schedule="cosine", **SMALL)
    before = contents(cosine)
    with pytest.raises(fairlead.RunError, match=f"the cosine schedule of 2 rounds has come to its end; {NEW}"):
        fairlead.resume(cosine, rounds=4)
    assert contents(cosine) == before
    with pytest.raises(fairlead.InputError, match="at least the 2 of"):
        fairlead.resume(cosine, rounds=1)


def test_other_rounds_are_refused_with_the_way_to_more(tmp_path: Path) -> None:
    fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    way = rf"rounds: 2 there, 4 here; `fairlead resume {re.escape(str(tmp_path))} --rounds 4` goes on"
    with pytest.raises(fairlead.RunError, match=way):
        fairlead.compare(["fedavg"], out=tmp_path, evaluate_every=1, **(SMALL | {"rounds": 4}))
    with pytest.raises(fairlead.RunError) as fewer:
        fairlead.compare(["fedavg"], out=tmp_path, **(SMALL | {"rounds": 1}))
    assert "resume" not in str(fewer.value)


def test_the_comparison_of_a_run_is_found_however_deep_the_run_lies(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{}")
    for run in ("runs/fedavg-seed0", "runs/fold0/choose/fedavg/lr0.1"):
        assert comparison_of(tmp_path / run) == tmp_path
    alone = tmp_path / "cells" / "fedavg-seed0"
    assert comparison_of(alone) == alone


def test_more_rounds_after_a_stop_in_between(tmp_path: Path) -> None:
    """Stopped on the way to more rounds, a comparison goes on to as many without being told again."""
    fairlead.compare(["fedavg", "fedprox"], out=tmp_path, **SMALL)

    def stop(method: str, seed: int, round: int, rounds: int) -> None:
        if method == "fedavg":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fairlead.resume(tmp_path, rounds=4, progress=stop)
    result = fairlead.resume(tmp_path)
    assert result.summary["settings"]["rounds"] == 4
    whole = fairlead.compare(["fedavg", "fedprox"], evaluate_every=1, **(SMALL | {"rounds": 4}))
    for name in ("local", "fedavg", "fedprox"):
        assert result.summary["methods"][name]["clients"] == whole.summary["methods"][name]["clients"]


def test_print_is_the_table() -> None:
    result = fairlead.compare(["fedavg"], **SMALL)
    assert str(result) == result.table()
    assert "| fedavg |" in str(result)


class Frame:
    """What a data frame looks like from afar."""

    columns = ("a", "b")


def call(**more: Any) -> Callable[[], object]:
    return lambda: fairlead.compare(**({"methods": ["fedavg"]} | SMALL | more))


# Wrong in most places, as a type checker would say.
FEDAVG: Any = fairlead.parse("fedavg").method
DATASET: Any = torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.zeros(3))
FEDERATION = fairlead.Scenario(clients=2).build(0)
LOOP: Any = "loop"
TWENTY: Any = 20
CLIENTS = fairlead.InProcess(FEDERATION, Training(), fairlead.engine("loop"))
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a method for methods": (call(methods=FEDAVG), r"got a Method; give your own as \{'mine': Method\(\.\.\.\)\}"),
    "methods in a list": (call(methods=["fedavg", FEDAVG]), "got a Method"),
    "a text": (call(methods="fedavg"), r"must be a list of names, got 'fedavg'; write \['fedavg'\]"),
    "a number": (call(methods=3), "methods must be"),
    "nothing": (call(methods=[]), "no method given"),
    "a factory": (call(methods={"mine": fairlead.methods.fedavg}), r"call it: \{'mine': fedavg\(\)\}"),
    "a path for a name": (call(methods={"a/b": FEDAVG}), "without slashes"),
    "the control": (call(methods={"local": FEDAVG}), "is the control"),
    "a dataset": (call(source=DATASET), r"from_dataset\(dataset\), got an object of type TensorDataset"),
    "a frame": (call(source=Frame()), r"got an object of type Frame; for a table write a \.csv or \.parquet file"),
    "a frame as data": (call(data=Frame()), "data=an object of type Frame.* expected: Data set"),
    "a dataset as data": (call(data=DATASET), "data=an object of type TensorDataset"),
    "a module": (call(model=nn.Linear(2, 2)), "model must be a name, or a function .* got an object of type Linear"),
    "a model of nothing": (call(model=lambda shape, classes: None), "must give a torch.nn.Module, got None"),
    "a number for a model": (call(model=3), "model must be a name"),
    "a model of the shape alone": (
        call(model=lambda shape: None),
        "must take a sample's shape and the number of classes",
    ),
    "a text for progress": (
        call(progress="x"),
        "progress must be a function of method, seed, round and rounds, got 'x'",
    ),
    "a method to parse": (
        lambda: fairlead.parse(FEDAVG),
        "a method's name must be of type str, got an object of type Method",
    ),
    "a dataset for clients": (
        lambda: fairlead.InProcess(DATASET, Training(), fairlead.engine("loop")),
        "federation must be",
    ),
    "an engine's name": (
        lambda: fairlead.InProcess(FEDERATION, Training(), LOOP),
        "engine must be of type Engine, got",
    ),
    "a dataset to train": (
        lambda: next(fairlead.federate(FEDAVG, DATASET, nn.Linear(2, 2), fairlead.Plan(rounds=1))),
        "clients must",
    ),
    "rounds for a plan": (
        lambda: next(fairlead.federate(FEDAVG, CLIENTS, nn.Linear(2, 2), TWENTY)),
        "plan must be of type Plan",
    ),
    "a scenario object": (call(scenario=fairlead.Scenario()), "scenario=an object of type Scenario"),
    "seeds as text": (call(seeds="3"), "seeds must be a number of seeds or a list of whole numbers, got '3'"),
    "seeds as parts": (call(seeds=[0.5]), "seeds must be"),
    "no seeds": (call(seeds=0), "seeds must be at least 1"),
    "out as a number": (call(out=3), "a folder must be a path, got 3"),
    "out is a file": (call(out=__file__), "is a file, expected a folder"),
    "resume of nothing": (lambda: fairlead.resume(None), "a folder must be a path, got None"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_wrong_thing_in_the_wrong_place_is_one_sentence(case: str) -> None:
    ask, sentence = WRONG[case]
    with pytest.raises(fairlead.InputError, match=sentence):
        ask()


def test_a_client_that_is_no_number_is_one_sentence() -> None:
    result = fairlead.compare(["fedavg"], **SMALL)
    with pytest.raises(fairlead.InputError, match="client must be a number from 0 to 2 or a name, got 'x'"):
        result.model("fedavg", "x")


IDLE: dict[str, dict[str, Any]] = {
    "beta": {"beta": 0.5},
    "classes_per_client": {"classes_per_client": 3, "split": "iid"},
    "skew": {"skew": 0.2, "split": "iid"},
    "angle": {"angle": 5, "shift": "none"},
    "decay": {"decay": 0.5},
    "label": {"label": "y"},
    "column": {"column": "site"},
    "fractions": {"fractions": (0.5, 0.2, 0.3), "samples": (10, 5, 5), "split": "iid"},
    "newcomer_epochs": {"newcomer_epochs": 2},
    "data_dir": {"data_dir": "."},
    "folds": {"folds": 2},
    "metric": {"metric": "auroc"},
    "data": {"data": "mnist", "source": from_tensors(*samples())},
    "option fedora.a": {"set": {"fedora": {"a": 0.5}}},
    "option ft.epochs": {"set": {"ft": {"epochs": 2}}},
}


@pytest.mark.parametrize("name", IDLE)
def test_a_setting_without_effect_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(fairlead.InputError, match=rf"^{name}.* has no effect"):
        fairlead.compare(["fedavg"], out=tmp_path / "o", **(SMALL | IDLE[name]))
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "used",
    [
        {"beta": 0.5, "split": "dirichlet"},
        {"classes_per_client": 3, "split": "pathological"},
        {"skew": 0.2},
        {"angle": 5},
        {"decay": 0.5, "schedule": "exponential"},
        {"newcomer_epochs": 2, "unseen": 0.4},
        {"set": {"local": {}}},
    ],
)
def test_a_setting_with_its_partner_is_taken(used: dict[str, Any]) -> None:
    assert fairlead.compare(["fedavg"], **(SMALL | used)).summary["methods"].keys() == {"local", "fedavg"}


def test_a_run_is_found_finished_only_with_its_summary(tmp_path: Path) -> None:
    result = fairlead.compare(["fedavg"], out=tmp_path, **SMALL)
    job = result.jobs["fedavg", 0]
    assert finished(job)
    elsewhere = replace(job, folder=tmp_path / "nowhere")
    assert not finished(elsewhere)
    (job.folder / "settings.json").write_text("{}")
    with pytest.raises(fairlead.RunError, match="has no experiment"):
        finished(job)
