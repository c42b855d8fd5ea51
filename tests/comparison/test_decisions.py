"""`+guard` and `+stack` in comparisons: what is decided is what is scored, kept, exported and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fairlead
from fairlead.comparison.decisions import halved, in_parts
from fairlead.core import Federation, InputError, Split
from fairlead.methods.voices import Voices
from fairlead.prediction.export import export, load_model
from fairlead.prediction.predict import load_run, predict
from fairlead.report import verdict_lines, write_page
from fairlead.runs.run import kept_outputs

SMALL: dict[str, Any] = {"scenario": "rotated-digits", "clients": 4, "rounds": 4, "model": "logistic", "engine": "loop"}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> fairlead.Comparison:
    out = tmp_path_factory.mktemp("guard")
    return fairlead.compare(["fedavg+guard", "fedora+stack"], out=out, set={"guard": {"parts": 3}}, **SMALL)


def test_guarded_and_unguarded_stand_beside_each_other(published: fairlead.Comparison) -> None:
    methods = published.summary["methods"]
    assert list(methods) == ["local", "fedavg", "fedavg+guard", "fedora", "fedora+stack"]
    assert published.summary["findings"]["bar"] == "local-all-rows"
    for client, alone in zip(
        methods["fedavg+guard"]["clients"], methods["fedavg+guard"]["decisions"][0]["test_scores"]["local"], strict=True
    ):
        assert client["local_accuracy"] == pytest.approx(alone)
    (told,) = methods["fedavg+guard"]["decisions"]
    assert (told["voices"], told["sure"], told["parts"]) == (["local", "fedavg"], 0.9, 3)
    for decided in told["clients"]:
        weights = decided["weights"]
        assert (decided["deploys"] == "local") == (weights == {"local": 1.0, "fedavg": 0.0})
        assert 0 <= decided["worse"] <= 0.1
        assert (decided["deploys"] == "local") == ("declined" in decided)
        assert "declined" not in decided or 0.1 < decided["declined"]["worse"] <= 1
    (stacked,) = methods["fedora+stack"]["decisions"]
    assert stacked["sure"] is None
    assert {client["deploys"] for client in stacked["clients"]} == {"stack"}
    (line,) = (line for line in verdict_lines(published.summary) if line.startswith("fedavg+guard: of 4 decisions"))
    assert ("being worse off with another" in line) == any("declined" in client for client in told["clients"])


def test_the_page_says_what_owners_deploy(published: fairlead.Comparison) -> None:
    page = write_page(published.folder).read_text(encoding="utf-8")
    assert "What owners deploy" in page
    assert "Weight of fedavg" in page
    assert "Listens to" in page
    assert "Chance of being worse off" in page


def test_the_deployed_module_is_what_was_scored(published: fairlead.Comparison) -> None:
    for name in ("fedavg+guard", "fedora+stack"):
        job = published.jobs[name, 0]
        outputs = kept_outputs(job, "test")
        right = []
        for k in range(4):
            model = published.model(name, k)
            assert isinstance(model, Voices)
            x, y = job.federation.test.client(k)
            with torch.no_grad():
                assert torch.allclose(model(x), outputs[k], atol=1e-4)
            right.append(float((outputs[k].argmax(1) == y).double().mean()))
            used = load_run(job.folder, k)  # built from the folder alone
            assert torch.allclose(used.outputs(x), outputs[k], atol=1e-4)
        assert published.summary["methods"][name]["accuracy"] == pytest.approx(np.mean(right))


def test_sent_home_is_the_model_that_learned_from_all_rows(published: fairlead.Comparison) -> None:
    (told,) = published.summary["methods"]["fedavg+guard"]["decisions"]
    local = published.jobs["local-all-rows", 0]
    for k, client in enumerate(told["clients"]):
        if client["deploys"] != "local":
            continue
        x, _ = local.federation.test.client(k)
        with torch.no_grad():
            ours, alone = published.model("fedavg+guard", k)(x), published.model("local-all-rows", k)(x)
        assert torch.equal(ours.argmax(1), alone.argmax(1))


def test_nothing_is_trained_twice_and_more_rounds_decide_anew(published: fairlead.Comparison) -> None:
    names = ["fedavg+guard", "fedora+stack"]
    before = {p: p.stat().st_mtime_ns for p in published.folder.glob("runs/*/summary.json")}
    again = fairlead.compare(names, out=published.folder, set={"guard": {"parts": 3}}, **SMALL)
    assert {p: p.stat().st_mtime_ns for p in published.folder.glob("runs/*/summary.json")} == before
    assert again.summary["methods"] == published.summary["methods"]


def test_more_rounds_decide_anew(tmp_path: Path) -> None:
    options = SMALL | {"rounds": 1}
    fairlead.compare(["fedavg+guard"], out=tmp_path, set={"guard": {"parts": 3}}, **options)
    longer = fairlead.resume(tmp_path, rounds=3)
    direct = fairlead.compare(["fedavg+guard"], set={"guard": {"parts": 3}}, **SMALL | {"rounds": 3})
    ours, theirs = (c.summary["methods"]["fedavg+guard"] for c in (longer, direct))
    assert ours["accuracy"] == theirs["accuracy"]
    assert ours["decisions"] == theirs["decisions"]


def test_newcomers_and_absent_clients_decide_too(tmp_path: Path) -> None:
    options = SMALL | {"clients": 5, "unseen": 0.4, "participation": 0.5, "rounds": 3}
    found = fairlead.compare(["fedavg+guard"], out=tmp_path, set={"guard": {"parts": 3}}, **options)
    (told,) = found.summary["methods"]["fedavg+guard"]["decisions"]
    assert len(told["clients"]) == 5
    assert found.summary["methods"]["fedavg+guard"]["unseen"]["accuracy"] is not None


def test_every_row_is_left_out_once_and_trains_in_all_other_parts() -> None:
    whole = fairlead.data.scenario("rotated-digits", clients=3).build(seed=0, refit=True)
    for share in (0.0, 0.25):
        parts = in_parts(whole, 4, 0, share)
        for k in range(3):
            own = sorted(whole.train.rows[int(whole.train.starts[k]) : int(whole.train.starts[k + 1])].tolist())
            left_out = []
            for part in parts:
                splits = [part.train, part.validation, part.test]
                rows = [s.rows[int(s.starts[k]) : int(s.starts[k + 1])].tolist() for s in splits]
                assert sorted(rows[0] + rows[1] + rows[2]) == own
                assert bool(rows[1]) == bool(share)
                left_out += rows[2]
            assert sorted(left_out) == own


def test_a_client_with_two_rows_has_one_to_learn_from_and_to_look_at() -> None:
    rows, none = (Split(torch.zeros(n, 3), torch.arange(n), torch.tensor([0, n])) for n in (2, 0))
    for part in in_parts(Federation(rows, none, none, ("a", "b")), 2, 0, 0.25):
        for one in (part, halved(part, 0)):
            assert [len(split.y) for split in (one.train, one.validation, one.test)] == [1, 1, 1]
            assert torch.equal(one.train.y, one.validation.y)
            assert not torch.equal(one.train.y, one.test.y)


def test_half_of_the_rows_of_every_client_are_left_out_and_the_part_is_still_answered_for() -> None:
    whole = fairlead.data.scenario("rotated-digits", clients=3).build(seed=0, refit=True)
    for part in in_parts(whole, 2, 0, 0.25):
        half = halved(part, 0)
        assert half.train.sizes.tolist() == (part.train.sizes // 2).tolist()
        assert half.validation.sizes.tolist() == (part.validation.sizes // 2).tolist()
        assert half.test is part.test
        assert set(half.train.rows.tolist()) < set(part.train.rows.tolist())
        assert set(half.validation.rows.tolist()) < set(part.validation.rows.tolist())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites whose quantity follows one rule, and one with a rule of its own."""
    rng = np.random.default_rng(0)
    frames = []
    for site, sign, n in (("north", 1, 40), ("south", 1, 36), ("west", 1, 30), ("odd", -1, 60)):
        x = rng.normal(size=(n, 3))
        y = sign * (x @ [1.0, -0.5, 0.3]) + 0.3 * rng.normal(size=n)
        frames.append(pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": 10 + 4 * y, "site": site}))
    path = tmp_path_factory.mktemp("table") / "sites.csv"
    pd.concat(frames).to_csv(path, index=False)
    return path


def test_quantities_in_folds_from_search_to_export(table: Path, tmp_path: Path) -> None:
    found = fairlead.compare(
        ["fedavg+guard"],
        data=str(table),
        label="y",
        column="site",
        model="logistic",
        effort="quick",
        rounds=12,
        folds=2,
        engine="loop",
        set={"guard": {"parts": 3}},
        out=tmp_path / "run",
    )
    entry = found.summary["methods"]["fedavg+guard"]
    owners = found.summary["findings"]["owners"]
    for told in entry["decisions"]:
        odd = told["clients"][owners.index("odd")]
        assert odd["deploys"] == "local"  # the others' rule is wrong for it
    worse = {
        v["owner"]
        for v in next(w for w in found.summary["findings"]["ways"] if w["name"] == "fedavg+guard")["verdicts"]
        if v["verdict"] == "worse"
    }
    assert "odd" not in worse
    predictor, _ = export(found.folder, "north", tmp_path / "model", method="fedavg+guard", fold=0)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "Decided on rows that no model had learned from" in card
    rows = pd.read_csv(table).query("site == 'north'")
    exported = load_model(tmp_path / "model")(rows)
    assert np.allclose(exported["y"], predictor(rows)["y"])
    told = predict(found.folder, table, "north", "fedavg+guard", 0)
    assert len(told) == 166


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("local+guard", "LOCAL cannot be worse than alone"),
        ("fedavg+guard+ft", "nothing comes after it"),
        ("fedavg+gard", "did you mean 'guard'"),
        ("fedavgg+guard", "did you mean 'fedavg'"),
    ],
)
def test_names_that_make_no_sense_are_refused(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        fairlead.compare([name], **SMALL)
