"""Standard tools as networks, kept in folders, used and taken home like any other model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fairlead
from fairlead.comparison.recheck import recheck
from fairlead.comparison.yardsticks import _fit, _Kind
from fairlead.models import Tool
from fairlead.prediction.export import export
from fairlead.prediction.predict import choose_run, load_run
from fairlead.runs.files import write_json
from fairlead.runs.summary import read_summary

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("name", ["majority", "linear", "trees"])
@pytest.mark.parametrize("known", [(0, 1, 2), (1, 3), (2,)])
def test_a_network_answers_as_the_tool_that_it_was_made_from(name: str, known: tuple[int, ...], balance: bool) -> None:
    """Three classes, two, and one, of four: a class that the client never saw is unlikely, not impossible."""
    x = RNG.standard_normal((90, 5)).astype(np.float32).astype(np.float64)
    y = np.array(known, dtype=np.float64)[np.digitize(x[:, 0], np.linspace(-1, 1, len(known) + 1)[1:-1])]
    fitted = _fit(_Kind(name, name, balance), 4, x, y)
    tool = tool_of(fitted, "class", 4)
    new = torch.from_numpy(RNG.standard_normal((200, 5))).float()
    found = tool(new).detach().numpy()
    assert np.allclose(found, fitted.predict(new.double().numpy()), atol=2e-4)
    assert np.allclose(np.exp(found).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("name", ["majority", "linear", "trees"])
def test_a_network_of_a_quantity_answers_as_its_tool(name: str) -> None:
    x = RNG.standard_normal((90, 5)).astype(np.float32).astype(np.float64)
    fitted = _fit(_Kind(name, name, False), 0, x, x[:, 0] - 3 * x[:, 1] + 100)
    new = torch.from_numpy(RNG.standard_normal((200, 5))).float()
    assert np.allclose(tool_of(fitted, "quantity", 1)(new).detach(), fitted.predict(new.double().numpy()), atol=1e-3)


def tool_of(fitted: Any, kind: Any, outputs: int) -> Tool:
    """The network of one fitted tool."""
    stages = fitted.trees()
    tool = Tool(outputs, kind, 5, len(stages), max((len(tree) for stage in stages for tree in stage), default=1))
    with torch.no_grad():
        fitted.write(tool, None)
    return tool


def test_no_row_changes_sides_where_thresholds_are_rounded_to_single_precision() -> None:
    """Neighbours in single precision: half way between them is a number that rounds to one of the two."""
    low = torch.linspace(1, 2, 40)
    high = torch.nextafter(low, torch.tensor(9.0))
    x = torch.stack([torch.stack([low, high], 1).flatten()], 1).double().numpy()
    for at in range(1, len(x), 7):
        y = (np.arange(len(x)) >= at).astype(np.float64)
        fitted = _fit(_Kind("trees", "trees", False), 0, x, y, trees=3)
        stages = fitted.trees()
        tool = Tool(1, "quantity", 1, len(stages), max(len(tree) for stage in stages for tree in stage))
        with torch.no_grad():
            fitted.write(tool, None)
            assert np.allclose(tool(torch.from_numpy(x).float()), fitted.predict(x), atol=1e-5)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """A table whose label is a rule that trees find and a linear network does not: trees alone are the bar."""
    folder, rng = tmp_path_factory.mktemp("rules"), np.random.default_rng(1)
    frame = pd.DataFrame(rng.uniform(-1, 1, (360, 3)).round(3), columns=["a", "b", "c"])
    frame["label"] = np.where(frame["a"] * frame["b"] > 0, "yes", "no")
    frame["site"] = np.repeat(["north", "south", "west"], 120)
    frame.to_csv(folder / "rules.csv", index=False)
    settings: dict[str, Any] = {"label": "label", "column": "site", "effort": "quick", "rounds": 4, "lr": 0.1}
    settings |= {"model": "logistic", "folds": 2, "engine": "vectorised", "data": str(folder / "rules.csv")}
    fairlead.compare(["fedavg"], out=folder / "run", **settings)
    return folder / "run", frame


def test_who_is_to_stay_alone_is_given_the_best_alone(rules: tuple[Path, pd.DataFrame]) -> None:
    run, frame = rules
    found = read_summary(run)["findings"]
    assert (found["bar"], found["alone"]) == ("trees", "trees")
    choice = choose_run(run, "north")
    assert choice.method == "trees"
    assert "the best that owners do alone" in choice.said
    assert "the model trained on all rows" in choice.said
    predictor = load_run(choice.run, "north")
    answers = predictor(frame.drop(columns="label"))
    assert (answers.iloc[:, 0].to_numpy() == frame["label"]).mean() > 0.9


def test_scores_of_tools_are_those_of_the_page_in_every_bit(rules: tuple[Path, pd.DataFrame]) -> None:
    again = recheck(rules[0])
    assert {one.method for one in again.scores} == {"local", "fedavg", "majority", "linear", "trees"}
    assert all(one.equal for one in again.scores)


def test_an_exported_tool_predicts_alone_and_its_card_tells_what_it_is(
    rules: tuple[Path, pd.DataFrame], tmp_path: Path
) -> None:
    run, frame = rules
    predictor, _ = export(run, "west", tmp_path / "model")
    again = fairlead.load_model(tmp_path / "model")
    pd.testing.assert_frame_equal(again(frame), predictor(frame))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "what the standard tool `trees` fitted (boosted trees), as a network" in card
    assert "rows of west, alone" in card
    assert "It is the best of the ways to train alone" in card
    onnx = tmp_path / "model" / "model.onnx"
    if onnx.exists():
        from onnx.reference import ReferenceEvaluator

        (given,) = ReferenceEvaluator(str(onnx)).run(None, {"samples": again.samples(frame).numpy()})
        assert np.allclose(given, again.outputs(frame).numpy(), atol=1e-5)


def test_a_folder_of_an_earlier_version_has_no_tools_to_use(rules: tuple[Path, pd.DataFrame], tmp_path: Path) -> None:
    summary: Any = dict(read_summary(rules[0]))
    del summary["tools"], summary["findings"]["alone"]
    write_json(tmp_path / "summary.json", summary)
    assert choose_run(tmp_path, "north").method == "local"
    with pytest.raises(fairlead.InputError, match="trees has no models for an owner"):
        choose_run(tmp_path, "north", "trees")
