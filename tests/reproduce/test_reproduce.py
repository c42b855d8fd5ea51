"""The published numbers, the cells behind them, and what is made of both."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fairlead.catalogue import parse
from fairlead.cli import app
from fairlead.core import InputError
from fairlead.data import Scenario, load
from fairlead.reproduce import (
    BUDGETS,
    STUDIES,
    Reproduction,
    across,
    cells,
    confree,
    fedora,
    plgu,
    reproduce,
    rewrite,
    study,
)
from fairlead.reproduce.cells import Found, Wanted, Workshop, collect, experiment_of, runs_of
from fairlead.reproduce.figures import by_number
from fairlead.reproduce.processes import side_by_side
from fairlead.reproduce.study import (
    Cell,
    Claim,
    Column,
    Computed,
    Entry,
    Gain,
    Study,
    above,
    keys_of,
    narrowed,
    restricted,
)
from fairlead.reproduce.table import Number, as_csv, blocks, judge, latex, markdown, plain, sentence
from fairlead.runs import run as runs
from fairlead.runs.material import Materials
from fairlead.runs.run import Job

NAMES = [
    "fedora-balanced",
    "fedora-imbalanced",
    "fedora-negative-transfer",
    "fedora-tuning",
    "fedora-baselines",
    "fedora-gtsrb",
    "fedora-yearbook",
    "fedora-communication",
    "fedora-efficiency",
    "fedora-iteration",
    "fedora-released",
    "confree-table1",
    "confree-table2",
    "confree-table3",
    "confree-figure1",
    "confree-figure2",
    "confree-rounds",
    "confree-negative-transfer",
    "fedres-synthetic1",
    "fedres-synthetic2",
    "fedres-never-worse",
    "plgu-table1",
    "plgu-table2",
    "plgu-table3",
    "plgu-table4",
    "plgu-figure",
    "pfllib-fashion-mnist",
    "flamby-heart-disease",
    "flamby-tcga-brca",
    "pacs-domains",
    "fedproto-networks",
    "where",
    "convoy",
]


def test_every_table_and_figure_has_a_name() -> None:
    assert list(STUDIES) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_name_builds_its_cells(name: str, budget: str) -> None:
    one = study(name, budget)
    assert one.name == name
    assert {c.key for c in one.columns} == {column for _, column in one.entries}
    for run in runs_of(one, 1):
        if isinstance(run.cell, Cell):
            parse(run.cell.method, experiment_of(run.cell, None).options)
    for claim in one.claims:
        for key in (key for pair in claim.pairs for side in pair for key in keys_of(side)):
            assert key in one.entries, f"{claim.text} speaks of {key}, which is not run"


def test_printed_tables_are_whole() -> None:
    assert [len(line) for line in fedora.BALANCED] == [9] * 16
    assert [len(line) for line in confree.TABLE1] == [8] * 16
    assert [len(line) for line in confree.TABLE2] == [8] * 12
    assert [len(line) for line in confree.TABLE3] == [10] * 12
    assert [len(line) for line in plgu.TABLE1] == [5, 10] * 5
    assert [len(line) for line in plgu.TABLE2] == [7, 14] * 5
    assert [len(line) for line in plgu.TABLE3] == [len(line) for line in plgu.TABLE4] == [3, 6] * 4


def test_printed_averages_and_relative_gains_fit_their_parts() -> None:
    """Numbers that the papers print twice, or that follow from one another, guard against slips of the pen."""
    for *clients, average in fedora.NEGATIVE.values():
        assert sum(clients) / 4 == pytest.approx(average, abs=6e-5)
    # Tables 2 and 3 share the hosts without ConFREE; Table 2 reports the best c.
    for i in range(6):
        for p in range(2):
            line = confree.TABLE3[6 * p + i]
            assert line[0] == confree.TABLE2[2 * i][6 + p]
            assert max(line[1:]) == confree.TABLE2[2 * i + 1][6 + p]
    for table in (plgu.TABLE3, plgu.TABLE4):
        at = 1 if table is plgu.TABLE3 else 0
        assert [table[2 * i][at] for i in range(4)] == [69.36, 71.18, 72.87, 72.64]


def test_known_entries_stand_in_their_places() -> None:
    balanced, first = study("fedora-balanced", "full"), study("confree-table1", "full")
    assert balanced.entries["FEDORA", "Rotated MNIST Acc"].published == 0.8251
    assert balanced.entries["FedAMP", "CIFAR-10 PTR"].published == 0.8
    assert first.entries["FedPAC + ConFREE", "Flowers-102, Dirichlet(0.1)"].published == 69.10
    assert first.entries["FedALA", "MB"].published == 683.23
    second = study("plgu-table2", "full")
    assert second.entries["PLGU-GHN", "CIFAR-100, C = 10, lowest 5%"].published == 63.02
    assert study("plgu-table1", "full").entries["PLGU-LF", "Tiny-ImageNet, C = 20, top 5%"].published == 43.56


def test_costs_of_confree_need_no_data(tmp_path: Path) -> None:
    result = reproduce("confree-table1", budget="quick", out=tmp_path, only=["=CIFAR-100, an iteration", "LG-FedAvg"])
    head = (512 + 1) * 100  # all that LG-FedAvg sends: to and from twenty clients, in four bytes a number
    for row in ("LG-FedAvg", "LG-FedAvg + ConFREE"):
        assert result.numbers[row, "MB"].ours == pytest.approx((2 * 20 * head * 4 / 1e6,))
        assert result.numbers[row, "seconds"].ours[0] > 0


def test_communication_is_exact(tmp_path: Path) -> None:
    result = reproduce("fedora-communication", budget="quick", out=tmp_path)
    counted = {row: number for (row, _), number in result.numbers.items()}
    assert counted["FedAvg"].ours == (118_282_000,)
    assert counted["FEDORA"].ours == (118_282_784,)
    assert counted["FedAvg"].difference == counted["FEDORA"].difference == 0
    assert all(found["remainder"] == 0 for found in result.found.results.values())
    page = json.loads((result.folder / "numbers.json").read_text())
    assert page["command"] == "fairlead reproduce fedora-communication --budget quick --seeds 1"


@pytest.fixture(scope="module")
def synthetic1(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    return reproduce("fedres-synthetic1", budget="quick", out=tmp_path_factory.mktemp("synthetic1"), only=["K = 10"])


def test_synthetic1_residual_beats_global_only(synthetic1: Reproduction) -> None:
    result = synthetic1
    loss = {row: number.mean for (row, column), number in result.numbers.items() if column == "K = 10"}
    assert loss["residual"] < loss["global only"]
    assert loss["residual, control"] < loss["global only, control"] < loss["global only"]
    assert (result.folder / "figure.svg").exists()
    assert (result.folder / "figure.png").exists()


def test_synthetic1_global_only_settles_where_the_algebra_says() -> None:
    """K steps take client 1 to (w + 50) q^K - 50 with q = 1 - 0.2 lr, and client 2 to w + 10 lr K."""
    from fairlead.reproduce.fedres import GLOBAL, RATE, run_synthetic1

    q = (1 - 0.2 * RATE) ** 100
    w = 10 * RATE * 100 / (1 - q) - 50
    loss = run_synthetic1(method=GLOBAL, steps=100, rounds=15, seed=0)["values"]["train"]
    assert loss == pytest.approx(0.05 * w**2, rel=1e-3)


def made_up(ours: dict[tuple[str, str], Number]) -> Study:
    columns = (Column("x Acc", "Acc", "x"), Column("y Acc", "Acc", "y"))
    cell = Computed("none", lambda seed: {"values": {}})
    entries = {key: Entry(cell, "Acc", 0.5 if key[1] == "x Acc" else None) for key in ours}
    claims = (
        above("A is best", "A", ["B"], ["x Acc", "y Acc"]),
        Claim("A gains", ((("A", "x Acc"), 0.0),)),
        Claim("B is at most as good, or equal", ((("B", "x Acc"), ("A", "x Acc")),), slack=0.2),
    )
    return Study("made-up", "Made up", "Table 0", columns, entries, claims)


def test_orderings_are_judged_seed_by_seed() -> None:
    numbers = {
        ("A", "x Acc"): Number(0.5, (0.75, 1.0)),
        ("B", "x Acc"): Number(0.5, (0.625, 0.875)),
        ("A", "y Acc"): Number(None, (0.1, 0.1)),
        ("B", "y Acc"): Number(None, (0.2, 0.2)),
    }
    one = made_up(numbers)
    best, gains, equal = (judge(claim, numbers) for claim in one.claims)
    assert (best.status, best.held, best.measured) == ("does not hold", 1, 2)
    assert best.against == ["A 0.1 against B 0.2 (y Acc; -0.1 ± 0)"]
    assert best.margin == pytest.approx(-0.1)
    assert gains.status == equal.status == "holds"
    assert sentence(best).startswith("does not hold: A is best [1 of 2]; against it: A 0.1")


@pytest.mark.parametrize(
    ("a", "b", "slack", "status"),
    [
        ((2.0, 3.0, 4.0), (1.0, 2.1, 2.9), 0.0, "holds"),  # +1.0 ± 0.1
        ((2.0, 3.0, 4.0), (1.0, 3.5, 2.6), 0.0, "within the spread"),  # +0.6 ± 1.0
        ((1.0, 3.5, 2.6), (2.0, 3.0, 4.0), 0.0, "within the spread"),  # -0.6 ± 1.0
        ((1.0, 2.1, 2.9), (2.0, 3.0, 4.0), 0.0, "does not hold"),
        ((1.0, 3.5, 2.6), (2.0, 3.0, 4.0), 0.7, "holds"),  # not below by more than the slack
        ((0.0, 1.5, 1.6), (2.0, 3.0, 4.0), 0.7, "does not hold"),  # -2.0 ± 0.5
        ((2.0,), (1.9,), 0.0, "holds"),  # one seed: the sign
        ((1.9,), (2.0,), 0.0, "does not hold"),
        ((1.9,), (), 0.0, "not run"),
    ],
)
def test_a_claim_has_three_answers(a: tuple[float, ...], b: tuple[float, ...], slack: float, status: str) -> None:
    numbers = {("A", "x"): Number(None, a), ("B", "x"): Number(None, b)}
    assert judge(Claim("A is above B", ((("A", "x"), ("B", "x")),), slack), numbers).status == status


def test_one_pair_against_decides_and_one_within_leaves_it_open() -> None:
    numbers = {
        ("A", "x"): Number(None, (5.0, 5.1)),
        ("A", "y"): Number(None, (5.0, 5.1)),
        ("B", "x"): Number(None, (1.0, 1.2)),
        ("B", "y"): Number(None, (4.0, 6.0)),
        ("C", "x"): Number(None, (9.0, 9.2)),
    }
    open_one = judge(above("A is above B", "A", ["B"], ["x", "y"]), numbers)
    assert (open_one.status, open_one.held, open_one.measured) == ("within the spread", 1, 2)
    assert open_one.within == ["A 5.05 against B 5 (y; +0.05 ± 1.3)"]
    assert sentence(open_one).startswith("within the spread: A is above B [1 of 2]; within the spread: A 5.05")
    assert judge(above("A is best", "A", ["B", "C"], ["x", "y"]), numbers).status == "does not hold"


def test_gains_can_be_claimed() -> None:
    numbers = {
        ("A+", "x"): Number(None, (5.0, 6.0)),
        ("A", "x"): Number(None, (4.0, 5.0)),
        ("A+", "y"): Number(None, (9.0, 7.0)),
        ("A", "y"): Number(None, (6.0, 4.0)),
    }
    x, y = (Gain("A+", "A", c) for c in "xy")
    assert judge(Claim("more in y", ((y, x),)), numbers).status == "holds"
    against = judge(Claim("more in x", ((x, y),)), numbers)
    assert against.against == ["A+ over A 1 against A+ over A 3 (x, y; -2 ± 0)"]
    assert judge(Claim("some", ((x, 0.5),)), numbers).status == "holds"
    entries = dict.fromkeys(numbers, Entry(Computed("none", lambda seed: {}), "Acc"))
    one = Study("n", "t", "s", (Column("x", "x"), Column("y", "y")), entries, (Claim("c", ((y, x),)),))
    assert restricted(one, [k for k in numbers if k[1] == "x"]).claims == ()


def test_claims_across_parts_of_a_table_that_are_saved_apart() -> None:
    few, many = "CIFAR-10, Dirichlet(0.1)", "Flowers-102, Dirichlet(0.1)"

    def page(column: str, gain: float) -> dict[str, Any]:
        rows = {"FedRep": (1.0, 2.0), "FedRep + ConFREE": (1.0 + gain, 2.0 + gain)}
        entries = [
            {"row": row, "column": column, "published": None, "ours": values, "not_run": None}
            for row, values in rows.items()
        ]
        return {"name": "confree-table1", "budget": "standard", "entries": entries}

    (found,) = across([page(few, 0.5), page(many, 2.0)])
    assert (found.status, found.held, found.pairs) == ("holds", 1, 1)
    assert "more classes" in found.text
    (other,) = across([page(few, 2.0), page(many, 0.5)])
    assert other.status == "does not hold"


def test_saved_numbers_are_judged_anew(synthetic1: Reproduction, tmp_path: Path) -> None:
    """What `rewrite` makes of numbers.json is what the reproduction wrote, and a changed number changes the answer."""
    shutil.copytree(synthetic1.folder, tmp_path / synthetic1.folder.name)
    result = replace(synthetic1, folder=tmp_path / synthetic1.folder.name)
    before = {p.name: p.read_text() for p in result.folder.iterdir() if p.suffix in (".md", ".tex", ".csv")}
    saved = json.loads((result.folder / "numbers.json").read_text())
    commits = {c for e in saved["entries"] for c in e["commits"]}
    assert len(commits) <= 1
    page = rewrite(result.folder)
    assert page["claims"] == [v._asdict() for v in result.verdicts]
    assert {name: (result.folder / name).read_text() for name in before} == before
    for entry in saved["entries"]:
        entry["ours"] = [-x for x in entry["ours"]]
    (result.folder / "numbers.json").write_text(json.dumps(saved))
    assert {c["status"] for c in rewrite(result.folder)["claims"]} != {c["status"] for c in page["claims"]}
    saved["entries"][0]["row"] = "a row of long ago"
    (result.folder / "numbers.json").write_text(json.dumps(saved))
    with pytest.raises(InputError, match="has no row and column"):
        rewrite(result.folder)


def test_equal_but_for_rounding_is_not_above() -> None:
    numbers = {("A", "x"): Number(None, (30.43333311,)), ("B", "x"): Number(None, (30.43333308,))}
    pair = (("A", "x"), ("B", "x"))
    assert judge(Claim("A is above B", (pair,)), numbers).status == "does not hold"
    assert judge(Claim("A is at least B", (pair[::-1],), slack=1e-9), numbers).status == "holds"


def test_what_was_not_run_neither_helps_nor_hurts() -> None:
    numbers = {
        ("A", "x Acc"): Number(0.5, (0.7,)),
        ("B", "x Acc"): Number(0.5, (0.6,)),
        ("A", "y Acc"): Number(None, why="no data"),
        ("B", "y Acc"): Number(None, why="no data"),
    }
    one = made_up(numbers)
    best = judge(one.claims[0], numbers)
    assert (best.status, best.measured, best.pairs) == ("holds", 1, 2)
    assert judge(Claim("B is best", ((("B", "y Acc"), ("A", "y Acc")),)), numbers).status == "not run"
    text = markdown(one, numbers, [best], "standard", 1)
    assert "| A | not run |" in text
    assert "- not run: no data" in text


def test_table_shows_paper_ours_spread_and_difference() -> None:
    numbers = {("A", "x Acc"): Number(0.5, (0.7, 0.9)), ("A", "y Acc"): Number(None, (0.25,))}
    one = made_up(numbers)
    first, second = blocks(one, numbers)
    assert first.head == ["", "Acc, paper", "ours", "difference"]
    assert first.rows == [["A", "0.5000", "0.8000 ± 0.1414", "+0.3000"]]
    assert second.rows == [["A", "0.2500"]]
    assert r"A & 0.5000 & 0.8000 $\pm$ 0.1414 & +0.3000 \\" in latex(one, numbers, "standard", 2)
    page = plain(one, numbers, [])
    assert as_csv(page).splitlines()[1].startswith("A,x Acc,0.5,0.8,0.1414213562373")


def digits_study() -> Study:
    plan = {"scenario": "rotated-digits", "clients": 3, "rounds": 2}
    cells = {row: Cell(row, plan) for row in ("fedavg", "fedrep")}
    missing = Cell("fedavg", {"scenario": "rotated-mnist", "rounds": 2})
    entries = {(row, "Acc"): Entry(cell, "accuracy", 0.9) for row, cell in cells.items()}
    entries |= {("fedavg", "PTR"): Entry(cells["fedavg"], "ptr"), ("fedavg", "MNIST"): Entry(missing, "accuracy")}
    columns = (Column("Acc", "Acc"), Column("PTR", "PTR"), Column("MNIST", "MNIST", "MNIST"))
    return Study("digits", "Digits", "no table", columns, entries)


def test_cells_are_run_once_and_missing_data_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    train = runs.train

    def noted(job: Job, tell: Callable[..., Any]) -> None:
        trained.append(job.name)
        train(job, tell)

    monkeypatch.setattr(runs, "train", noted)
    one, empty = digits_study(), tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr(Scenario, "load", lambda self, _: load(self.data, empty if self.data == "mnist" else None))
    told = []
    first = collect(one, tmp_path, data_dir=None, seeds=1, progress=lambda *step: told.append(step))
    # LOCAL, the control, is trained once for both methods.
    assert sorted(trained) == ["fedavg", "fedrep", "local"]
    assert told[-1][0] == pytest.approx(told[-1][1])
    assert not list(tmp_path.rglob("*.safetensors"))
    reasons = set(first.missing.values())
    assert len(reasons) == 1
    assert "no mnist/train-*.parquet" in reasons.pop()

    trained.clear()
    monkeypatch.setattr(Materials, "get", lambda *_: pytest.fail("a finished cell needs no data"))
    again = collect(narrowed_to_digits(one), tmp_path, data_dir=None, seeds=1)
    assert trained == []
    assert again.results.items() <= first.results.items()


def narrowed_to_digits(one: Study) -> Study:
    entries = {key: entry for key, entry in one.entries.items() if key[1] != "MNIST"}
    return Study("digits", "Digits", "no table", one.columns[:2], entries)


def test_cells_side_by_side_leave_what_one_after_another_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = narrowed_to_digits(digits_study())
    unknown = Entry(Cell("fedavg", {"scenario": "rotated-mnist", "rounds": 1, "data_dir": "nowhere"}), "")
    alone = collect(one, tmp_path / "alone", data_dir=None, seeds=1)
    told = []
    broken = replace(one, entries={**one.entries, ("FedAvg", "nowhere"): unknown})
    side_by_side(
        broken, tmp_path / "side by side", data_dir=None, seeds=1, jobs=2, progress=lambda *step: told.append(step)
    )
    assert told[-1][0] == pytest.approx(told[-1][1])
    monkeypatch.setattr(runs, "train", lambda *_: pytest.fail("a cell that another process has trained"))
    together = collect(one, tmp_path / "side by side", data_dir=None, seeds=1)
    assert together.results.keys() == alone.results.keys()
    for key, result in together.results.items():
        # Another engine may have been the faster one, and agrees but for rounding.
        assert result["accuracy"] == pytest.approx(alone.results[key]["accuracy"], abs=0.02)


def test_a_cell_that_another_process_is_at_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, trained = Cell("fedavg", {"scenario": "rotated-digits", "clients": 3, "rounds": 2}), []
    train, begun = runs.train, threading.Event()

    def slowly(job: Job, tell: Callable[..., Any]) -> None:
        trained.append(job.name)
        begun.set()
        time.sleep(0.3)  # long enough for the other to begin as well, if nothing held it
        return train(job, tell)

    monkeypatch.setattr(runs, "train", slowly)

    def one() -> dict[str, Any]:
        return Workshop(tmp_path, None).result(Wanted(cell, 0), lambda _: None)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one)
        begun.wait(60)
        second = pool.submit(one)
        assert first.result()["accuracy"] == second.result()["accuracy"]
    assert trained == ["fedavg"]


def test_a_stopped_cell_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("fedavg", {"scenario": "rotated-digits", "clients": 3, "rounds": 3})
    whole = Workshop(tmp_path / "whole", None).result(Wanted(cell, 0), lambda _: None)

    class Stop(Exception):
        pass

    def stop(share: float) -> None:
        if share > 0.5:
            raise Stop

    monkeypatch.setattr("fairlead.runs.run.CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Stop):
        Workshop(tmp_path / "stopped", None).result(Wanted(cell, 0), stop)
    assert (tmp_path / "stopped" / f"{cell.key}-seed0" / "checkpoint.safetensors").exists()
    resumed = Workshop(tmp_path / "stopped", None).result(Wanted(cell, 0), lambda _: None)
    assert resumed["accuracy"] == whole["accuracy"]


def test_global_model_is_scored_where_asked(tmp_path: Path) -> None:
    plan = {"scenario": "rotated-digits", "clients": 3, "rounds": 1}
    cell = Cell("ditto", plan | {"evaluate_global": True})
    entries = {("Ditto", "G"): Entry(cell, "global.accuracy"), ("Ditto", "P"): Entry(cell, "accuracy")}
    one = Study("digits", "Digits", "no table", (Column("G", "G"), Column("P", "P")), entries)
    numbers = cells.table_of(one, collect(one, tmp_path, data_dir=None, seeds=1), 1)
    assert numbers["Ditto", "G"] != numbers["Ditto", "P"]


def test_measures_of_a_run() -> None:
    result = {"accuracy": [0.5, 0.9], "n_test": [10, 10], "global": [0.2, 0.4]}
    alone = {"accuracy": [0.4, 0.9]}
    wanted = {"client.1": 0.9, "gain.0": 0.25, "gain.0+1": 0.125, "worse": 0, "global.accuracy": 0.3, "ptr": 0.5}
    for name, value in wanted.items():
        assert cells.measure(name, result, alone) == pytest.approx(value), name
    assert cells.measure("worse", alone, result) == 1
    found = Found({("k", 0): {"values": {"loss": 2.0}}})
    assert found.results["k", 0]["values"]["loss"] == 2.0


def test_only_leaves_rows_and_columns_out() -> None:
    one = narrowed(study("confree-table1", "quick"), ["CIFAR-10,", "FedRep"])
    assert list(one.groups) == ["CIFAR-10, Dirichlet(0.1)"]
    assert one.rows[0] == "FedRep"
    assert all(row.startswith("FedRep") for row in one.rows)
    assert one.claims[0].text == "ConFREE improves FedRep"
    assert [len(claim.pairs) for claim in one.claims] == [1, 1, 1]
    with pytest.raises(InputError, match="--only 'Mars'"):
        narrowed(one, ["Mars"])
    assert narrowed(one, ["=fedrep", "=FedRep + ConFREE"]).rows == ["FedRep", "FedRep + ConFREE"]


def test_gains_are_paired_by_seed() -> None:
    cell = Computed("none", lambda seed: {"values": {}})
    rows = {("with", "x"): (5.0, 9.0), ("without", "x"): (4.0, 7.0), ("never run", "x"): ()}
    one = Study(
        "n", "t", "s", (Column("x", "x", decimals=1),), {key: Entry(cell, "x") for key in rows},
        gains=(("with", "without"), ("with", "never run")),
    )  # fmt: skip
    numbers = {key: Number(None, values) for key, values in rows.items()}
    assert blocks(one, numbers)[-1].rows == [["with over without", "+1.5 ± 0.7"]]


def test_where_searches_for_every_method_and_scores_it_beside_local() -> None:
    from fairlead.reproduce.where import LINEAR, assessed

    settings: dict[str, Any] = {
        "data": "heart-disease",
        "metric": "rmse-of-nothing",
        "effort": "quick",
        "folds": 1,
        "rounds": 2,
    }
    with pytest.raises(InputError, match="rmse-of-nothing"):
        assessed(["fedavg"], seed=0, **settings)
    values = assessed(["fedavg", LINEAR], seed=0, **settings | {"metric": "accuracy"})["values"]
    assert {"local", "fedavg", LINEAR, "best alone", "pooled"} <= {name.rpartition(".")[0] for name in values}
    assert values["local.gain"] == values["local.below"] == 0
    assert {values[f"{name}.rounds"] for name in ("local", "fedavg", LINEAR)} <= {1, 2}
    assert 0.5 < values["local.score"] < 1
    assert 0 <= values["fedavg.below"] <= 4
    with pytest.raises(InputError, match="give --data-dir"):
        assessed(["fedavg"], seed=0, table="schools/Exam.csv")


def test_bad_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'fedora-communication'"):
        study("fedora-comunication")
    with pytest.raises(InputError, match="did you mean 'quick'"):
        study("fedora-communication", "quik")
    with pytest.raises(InputError, match="seeds must be at least 1"):
        reproduce("fedora-communication", seeds=0)
    with pytest.raises(InputError, match="jobs must be at least 1"):
        reproduce("fedora-communication", jobs=0)


def test_command_line_lists_and_runs(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in NAMES)
    command = ["reproduce", "fedora-communication", "--budget", "quick", "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    assert "118,282,784" in ran.output
    assert {p.name for p in (tmp_path / "fedora-communication" / "quick").iterdir()} == {
        "numbers.json",
        "numbers.csv",
        "table.md",
        "table.tex",
        "figure.png",
        "figure.svg",
    }


def test_a_tables_figure_has_the_papers_numbers_beside_ours_and_their_spread() -> None:
    cell = Computed("made-up", compute=lambda seed: {})
    columns = (Column("a", "accuracy, %", "Here", 100.0), Column("b", "seconds"))
    entries = {("X", "a"): Entry(cell, "value", 61.0), ("Y", "a"): Entry(cell, "other")}
    found = Found({(cell.key, s): {"values": {"value": 0.5 + 0.1 * s, "other": 0.3}} for s in (0, 1)})
    absent = Computed("absent", compute=lambda seed: {})
    found.missing[absent.key] = "no data"
    entries["X", "b"] = Entry(absent, "value", 1.0)
    points = by_number(Study("s", "S", "T", columns, entries), found, seeds=2)
    assert [(p["panel"], p["row"], p["of"]) for p in points] == [
        ("Here: accuracy, %", "X", "ours"),
        ("Here: accuracy, %", "X", "paper"),
        ("Here: accuracy, %", "Y", "ours"),
    ]
    ours, paper, _ = points
    assert (ours["x"], paper["x"]) == (pytest.approx(55), 61)
    assert ours["high"] - ours["x"] == pytest.approx(100 * np.std([0.5, 0.6], ddof=1))


def test_real_data_fill_a_column(real_data: Path, tmp_path: Path) -> None:
    result = reproduce(
        "fedora-balanced", budget="quick", data_dir=real_data, out=tmp_path, only=["Rotated MNIST", "FEDORA"]
    )
    assert result.numbers["FEDORA", "Rotated MNIST Acc"].mean is not None
    assert result.verdicts == [], "two rounds are not enough to judge a claim"


def test_a_column_without_its_data_set_says_why(tmp_path: Path) -> None:
    empty = tmp_path / "data"
    empty.mkdir()
    result = reproduce("fedora-yearbook", budget="quick", data_dir=empty, out=tmp_path / "out", only=["LOCAL"])
    number = result.numbers["LOCAL", "Yearbook Acc"]
    assert number.mean is None
    assert "no yearbook/train-*.parquet" in str(number.why)


def test_samples_of_the_released_loader(real_data: Path, tmp_path: Path) -> None:
    """Client k gets the k-th stretch of numpy's old shuffle, turned by 10k degrees."""
    from fairlead.data import load as read
    from fairlead.data import rotate
    from fairlead.reproduce.fedora_released import dealt

    federation = dealt("mnist", str(real_data), seed=42)
    np.random.seed(42)  # noqa: NPY002 - the generator whose order is at stake
    order = np.arange(60_000)
    np.random.shuffle(order)  # noqa: NPY002
    source = read("mnist", real_data)
    x, y = federation.train.client(2)
    assert torch.equal(y, source.y[order[256:384]])
    assert torch.equal(x, rotate(source.raw[order[256:384]] / 255, 20.0))
    assert torch.equal(federation.validation.client(1)[1], source.y[order[50_064:50_128]])
    assert federation.test.sizes.tolist() == [277] * 36
    result = reproduce("fedora-released", budget="quick", data_dir=real_data, out=tmp_path, only=["=Rotated MNIST"])
    assert 0.05 < result.numbers["FEDORA Acc", "Rotated MNIST"].mean < 0.9
    assert result.verdicts == [], "two rounds are not enough to judge a claim"
