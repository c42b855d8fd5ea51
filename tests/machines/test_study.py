"""A study between sites gives the numbers of a comparison in one place, and each site its own verdict."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import TypeAdapter
from sites import SETTINGS, write_images, write_sites

import fairlead
from fairlead import rounds
from fairlead.clients import InProcess, engine
from fairlead.clients.wire import Ask, pack_ask, pack_reply, unpack_ask, unpack_reply
from fairlead.comparison.decisions import Answers, cut, in_order
from fairlead.core import EngineError, InputError, Plan, RunError
from fairlead.data import Scenario
from fairlead.data.agreement import Agreed, Look, OwnColumn, agree, look, read_own, tell_own
from fairlead.data.preparation import Preparation
from fairlead.data.tables import Reading
from fairlead.effort import EFFORTS, Curve, search
from fairlead.machines import Site, Study, conduct
from fairlead.machines.conduct import Question
from fairlead.machines.site import VERSION
from fairlead.machines.study import Chosen, Run
from fairlead.methods.voices import ROUNDS, LeftOut, Weigh, decide
from fairlead.metrics import METRICS
from fairlead.runs.files import read_json, read_table
from fairlead.runs.records import validation_losses


class Direct:
    """Carries questions to sites in this process."""

    def __init__(self, study: Study, data: Path, folder: Path) -> None:
        self.study = study
        self.sites = [Site(name, data / f"{name}.csv", folder / name) for name in study.sites]
        self.asked: list[tuple[str, list[int]]] = []
        self.dead: set[int] = set()

    def tells(self, site: int) -> bytes:
        """What a site tells of its train rows."""
        plain = self.study.to_json()
        looks = [
            json.loads(s.answer(json.dumps({"what": "look", "study": plain, "version": VERSION}))) for s in self.sites
        ]
        own = dict(zip(self.study.sites, map(TypeAdapter(Look).validate_python, looks), strict=True))
        asked = {"what": "tell", "study": plain, "agreed": asdict(agree(own))}
        return self.sites[site].answer(json.dumps(asked))

    def __call__(self, questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
        texts = {json.loads(text)["what"] for text, _ in questions.values()}
        self.asked.append((texts.pop(), sorted(questions)))
        return {k: self.sites[k].answer(*q) for k, q in questions.items() if patient or k not in self.dead}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_sites(tmp_path / "data")
    return tmp_path / "data"


def a_study(data: Path, *methods: str, **settings: Any) -> Study:
    names = tuple(p.stem for p in data.glob("*.csv"))
    return Study(names, methods or ("fedrep+confree", "fedora"), SETTINGS | settings)


def in_one_place(study: Study, data: Path, method: str) -> list[float]:
    """The accuracies of the method's models at the kept round, all rows in one process."""
    s = study.scenario()
    here = Scenario(data=str(data), label="disease", split="column", clients=None, scaling=s.scaling)
    federation = here.build(0)
    assert federation.names == study.sites
    entry, run = study.entry(method), Run(method, 0)
    plan = study.plan(run)
    module = study.module(tuple(federation.train.x.shape[1:]), federation.outputs, 0)
    clients = InProcess(federation, study.training(run), engine("loop"))
    *_, (last, now) = rounds.federate(entry.method, clients, module, plan, average=entry.average)
    assert now.best is not None
    assert now.best.round == last.round or plan.select != "last"
    outputs = clients.outputs("test")
    y = [federation.test.client(k)[1] for k in range(federation.clients)]
    return [float((out.argmax(1) == t).float().mean()) for out, t in zip(outputs, y, strict=True)]


def chosen_in_one_place(study: Study, data: Path, method: str) -> tuple[float, int]:
    """The step size and the rounds that the search finds with all rows in one process."""
    federation = Scenario(data=str(data), label="disease", split="column", clients=None).build(0)
    sizes = federation.validation.sizes
    assert study.effort is not None

    def tried(lr: float, count: int) -> Curve:
        entry, run = study.entry(method), Run(method, 0, lr=lr)
        plan = replace(study.plan(run), rounds=count)
        found: dict[int, float] = {}
        with InProcess(federation, study.training(run), engine("vectorised")) as clients:
            module = study.module(tuple(federation.train.x.shape[1:]), federation.outputs, 0)
            for happened, _ in rounds.federate(entry.method, clients, module, plan, average=entry.average):
                for score in happened.scores:
                    assert score.split == "validation"
                    found[happened.round] = float((score.values["loss"].double() * sizes).sum() / sizes.sum())
        return Curve(list(found), list(found.values()), stopped=max(found) < count)

    best = search(tried, study.effort)
    return best.lr, best.round


def test_step_size_and_rounds_are_chosen_on_validation_rows_as_in_one_place(data: Path, tmp_path: Path) -> None:
    for name in ("switzerland", "va"):
        (data / f"{name}.csv").unlink()  # two sites are enough
    settings = {"label": "disease", "model": "mlp", "effort": "quick", "rounds": 14}
    study = Study(tuple(p.stem for p in data.glob("*.csv")), ("fedavg",), settings)
    post = Direct(study, data, tmp_path / "sites")
    results = conduct(study, post, tmp_path / "out")
    assert [what for what, _ in post.asked].count("begin") == 2  # the second says what was chosen
    chosen = {name: Chosen(**found) for name, found in results["chosen"].items()}
    for method in ("local", "fedavg"):
        assert chosen[method][:2] == chosen_in_one_place(study, data, method)
        there = results["runs"][f"{method}-seed0"]["scores"]["accuracy"]
        here = in_one_place(replace(study, chosen=chosen), data, method)
        assert [there[site] for site in study.sites] == pytest.approx(here, abs=1e-4)
    text = (tmp_path / "sites" / study.sites[0] / study.name / "verdict.txt").read_text()
    lr, many, _ = chosen["local"]
    assert f"on the validation rows of all sites: {lr:g} and {many} rounds for training alone, " in text
    asked = len(post.asked)
    (tmp_path / "out" / "results.json").unlink()
    (tmp_path / "out" / "chosen.json").unlink()  # as if the coordinator had been killed at the end of the search
    again = conduct(study, post, tmp_path / "out")
    assert again["chosen"] == results["chosen"]
    assert len(post.asked) == asked + 3  # begin twice and verdict: nothing is trained again


def test_given_values_are_kept_and_a_verdict_says_so(data: Path, tmp_path: Path) -> None:
    study = a_study(data, "fedavg")
    assert study.effort is None
    assert conduct(study, Direct(study, data, tmp_path / "sites"), tmp_path / "out")["chosen"] == {}
    text = (tmp_path / "sites" / study.sites[0] / study.name / "verdict.txt").read_text()
    assert "Step size 0.05 and 4 rounds were not searched for" in text

    def searches(**settings: Any) -> tuple[tuple[float, ...], int] | None:
        effort = Study(("a", "b"), ("fedavg",), settings).effort
        return None if effort is None else (effort.rates, effort.rounds)

    assert searches() == (EFFORTS["standard"].rates, EFFORTS["standard"].rounds)
    assert searches(lr=0.2) == ((0.2,), EFFORTS["standard"].rounds)
    assert searches(rounds=20) == (EFFORTS["standard"].rates, 20)
    assert searches(fractions=(0.7, 0.0, 0.3)) is None  # no rows to choose on
    with pytest.raises(InputError, match="effort chooses on validation rows, and fractions leaves none"):
        searches(effort="quick", fractions=(0.7, 0.0, 0.3))


def test_a_site_that_misses_a_score_has_no_say_in_what_is_chosen(data: Path, tmp_path: Path) -> None:
    settings = {"label": "disease", "model": "mlp", "effort": "quick", "rounds": 6}
    study = Study(tuple(p.stem for p in data.glob("*.csv")), ("fedavg",), settings)
    post = Direct(study, data, tmp_path / "sites")

    def ask(questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
        runs = [json.loads(text).get("run") for text, _ in questions.values()]
        post.dead = {1} if ["fedavg", 0, None, 0.1] in runs else set()
        return post(questions, patient)

    results = conduct(study, ask, tmp_path / "out")

    def without_it(lr: float, count: int) -> Curve:
        found = validation_losses(
            tmp_path / "out" / "runs" / Run("fedavg", 0, lr=lr).name / "records.parquet", [0, 2, 3]
        )
        return Curve(list(found), list(found.values()), stopped=False)

    assert study.effort is not None
    best = search(without_it, study.effort)
    found = results["chosen"]["fedavg"]
    assert (found["lr"], found["rounds"]) == (best.lr, best.round)
    assert math.isfinite(best.tried[0.1])
    assert results["unjudged"] == {}


def test_a_site_that_changes_how_many_rows_it_has_is_named(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = a_study(data, "fedavg")
    post = Direct(study, data, tmp_path / "sites")

    def claims(count: int, run: str) -> Callable[..., Mapping[int, bytes | str]]:
        def ask(questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
            came = dict(post(questions, patient))
            if post.asked[-1][0] == "ask":
                said = came[1]
                assert isinstance(said, bytes)
                reply = unpack_reply(said)
                if reply.ask.what == "greet" and reply.ask.run.startswith(run):
                    rows = {n: torch.full_like(x, count) if n == "samples.train" else x for n, x in reply.rows.items()}
                    came[1] = pack_reply(reply._replace(rows=rows))
            return came

        return ask

    with pytest.raises(EngineError, match=r"hungarian says in fedavg-seed0 that it has \[1000000, .* and said \[\d+, "):
        conduct(study, claims(1_000_000, "fedavg"), tmp_path / "out")
    assert conduct(study, post, tmp_path / "out")["unjudged"] == {}  # nothing of what it said was kept
    assert "of all" not in caplog.text
    conduct(study, claims(1_000_000, ""), tmp_path / "from the first")
    assert "hungarian says it has 1,000,000 of all 1,000,163" in caplog.text


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_site_whose_scores_are_never_finite_does_not_stop_the_search(
    value: float, data: Path, tmp_path: Path
) -> None:
    settings = {"label": "disease", "model": "mlp", "effort": "quick", "rounds": 6}
    study = Study(tuple(p.stem for p in data.glob("*.csv")), ("fedavg",), settings)
    post = Direct(study, data, tmp_path / "sites")

    def ask(questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
        came = dict(post(questions, patient))
        if post.asked[-1][0] == "ask" and 1 in came:
            said = came[1]
            assert isinstance(said, bytes)
            reply = unpack_reply(said)
            rows = {n: x * value if n == "loss" else x for n, x in reply.rows.items()}
            came[1] = pack_reply(reply._replace(rows=rows))
        return came

    results = conduct(study, ask, tmp_path / "out")
    without = Direct(study, data, tmp_path / "others")
    chosen = results["chosen"]

    def gone(questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
        runs = [unpack_ask(message)[0] for _, message in questions.values() if message]
        without.dead = {1} if any(ask.what == "score" for ask in runs) else set()
        return without(questions, patient)

    assert chosen.keys() == {"local", "fedavg"}
    assert conduct(study, gone, tmp_path / "away")["chosen"]["local"] == chosen["local"]
    assert results["unjudged"] == {}


@pytest.mark.parametrize("scaling", ["shared", "own"])
def test_a_study_gives_the_accuracies_of_one_place(data: Path, tmp_path: Path, scaling: str) -> None:
    study = a_study(data, scaling=scaling)
    post = Direct(study, data, tmp_path / "sites")
    results = conduct(study, post, tmp_path / "out")
    for method in ("local", "fedrep+confree", "fedora"):
        there = results["runs"][f"{method}-seed0"]["scores"]["accuracy"]
        assert [there[site] for site in study.sites] == pytest.approx(in_one_place(study, data, method), abs=1e-6)
    assert results["unjudged"] == {}


def test_a_round_is_one_message_and_the_control_is_trained_at_the_site(data: Path, tmp_path: Path) -> None:
    study = a_study(data, "fedrep", evaluate_every=1)
    post = Direct(study, data, tmp_path / "sites")
    conduct(study, post, tmp_path / "out")
    what = [what for what, _ in post.asked]
    assert what[:3] == ["look", "tell", "begin"]
    assert what[-1] == "verdict"
    # LOCAL: a greeting and four scores; fedrep: a greeting, the first round, then scores with the next round in them.
    assert what[3:-1] == ["ask"] * (5 + 6)


def test_a_site_is_told_its_own_verdict_and_nothing_of_the_others(data: Path, tmp_path: Path) -> None:
    study = a_study(data, "fedora")
    conduct(study, Direct(study, data, tmp_path / "sites"), tmp_path / "out")
    for site in study.sites:
        folder = tmp_path / "sites" / site
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        text = (folder / study.name / "verdict.txt").read_text()
        assert site in text
        assert "fedora" in text
        assert not any(other in text for other in study.sites if other != site)
        found = read_json(folder / study.name / "verdict.json")["fedora"]
        assert found["verdict"] in ("better", "worse", "no difference found", "too few rows to tell")
        assert found["rows"] > 0
        model = fairlead.load_model(folder / study.name / "models" / "fedora")
        answers = model(data / f"{site}.csv")
        assert len(answers) == len(pd.read_csv(data / f"{site}.csv"))


def decided_in_one_place(study: Study, data: Path, name: str, seed: int) -> list[list[float]]:
    """What each site decides to deploy, all rows in one process: a row of `Weigh` each."""
    whole = Scenario(data=str(data), label="disease", split="column", clients=None).build(0)
    how = study.decision(name)
    assert how is not None
    voices = how.voices

    def answered(how: LeftOut) -> Answers:
        parts = [replace(part, validation=whole.validation) for part in cut(whole, how, 0)]
        said: list[list[Any]] = []
        for voice in voices:
            said.append([])
            for part in parts:
                entry, plan = study.entry(voice), study.plan(Run(voice, seed))
                with InProcess(part, study.training(Run(voice, seed)), engine("loop")) as clients:
                    module = study.module(tuple(part.train.x.shape[1:]), part.outputs, seed)
                    for _ in rounds.federate(entry.method, clients, module, plan, average=entry.average):
                        pass
                    said[-1].append(clients.outputs("test"))
        return Answers(said, parts)

    training = study.training(Run(name, seed))
    with InProcess(in_order(answered(how.crossed[0]), answered(how.fewer[0])), training, engine("loop")) as clients:
        plan = Plan(rounds=ROUNDS, evaluate_every=ROUNDS, seed=seed)
        for _ in rounds.federate(decide(how, METRICS["accuracy"], "class"), clients, Weigh(2), plan):
            pass
        found: list[list[float]] = clients.models(torch.arange(whole.clients)).tolist()
        return found


def test_each_site_decides_by_itself_as_in_one_place(data: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"rounds": 6, "evaluate_every": 3, "set": {"guard": {"sure": 0.55, "parts": 3}}}
    study = Study(tuple(p.stem for p in data.glob("*.csv")), ("fedavg+guard",), settings)
    post = Direct(study, data, tmp_path / "sites")
    results = conduct(study, post, tmp_path / "out")
    assert results["unjudged"] == {}
    there = decided_in_one_place(study, data, "fedavg+guard", 0)
    deployed = set()
    for site, (alone, other, worse, gain, _) in zip(study.sites, there, strict=True):
        folder = tmp_path / "sites" / site / study.name
        found = read_json(folder / "verdict.json")
        assert set(found) == {"fedavg", "fedavg+guard"}
        own = found["fedavg+guard"]["decision"]
        assert own["weights"] == pytest.approx({"local": alone, "fedavg": other}, abs=1e-5)
        risk = own.get("declined", own)
        assert (risk["worse"], risk["gain"]) == pytest.approx((worse, gain), abs=1e-5)
        deployed.add(own["deploys"])
        text = (folder / "verdict.txt").read_text()
        assert "fedavg+guard decided, by accuracy: " in text
        assert not any(other in text for other in study.sites if other != site)
        rows = data / f"{site}.csv"
        model, single = (fairlead.load_model(folder / "models" / name) for name in ("fedavg+guard", "local"))
        if own["deploys"] == "local":
            assert (model(rows)["disease"] == single(rows)["disease"]).all()
            assert found["fedavg+guard"]["method_score"] == found["fedavg+guard"]["control_score"]
            assert found["fedavg+guard"]["verdict"] == "no difference found"
            assert "It deploys the very model that was trained alone" in text
        else:
            assert 0 < own["worse"] <= 0.45
    assert len(deployed) > 1  # some stay alone and some do not
    assert results["runs"]["fedavg+guard-seed0"]["scores"] == {}  # what a site deploys is told to nobody
    again = conduct(study, post, tmp_path / "out")
    assert again["runs"] == results["runs"]


def test_a_coordinator_that_starts_again_goes_on_from_its_checkpoint(data: Path, tmp_path: Path) -> None:
    study = a_study(data, "fedora", evaluate_every=1)
    whole = conduct(study, Direct(study, data, tmp_path / "a"), tmp_path / "whole")

    class Killed(Exception):
        pass

    def killed(run: str, round: int, of: int) -> None:
        if run == "fedora-seed0" and round == 2:
            raise Killed

    with pytest.raises(Killed):
        conduct(study, Direct(study, data, tmp_path / "b"), tmp_path / "out", killed)
    again = Direct(study, data, tmp_path / "b")
    results = conduct(study, again, tmp_path / "out")
    assert [what for what, _ in again.asked][:2] == ["begin", "ask"]  # what was agreed is not asked for again
    for run, found in results["runs"].items():
        assert found["scores"] == whole["runs"][run]["scores"]
        losses = [read_table(tmp_path / o / "runs" / run / "records.parquet")["loss"] for o in ("whole", "out")]
        assert losses[0] == losses[1]
    (event,) = results["runs"]["fedora-seed0"]["events"]
    assert event["what"] == "went on from its checkpoint"


def test_a_site_that_is_away_is_left_out_and_comes_back(data: Path, tmp_path: Path) -> None:
    study = a_study(data, "fedora", evaluate_every=1, rounds=6)
    post = Direct(study, data, tmp_path / "sites")

    def away(run: str, round: int, of: int) -> None:
        post.dead = {1} if run == "fedora-seed0" and round in (2, 3) else set()

    results = conduct(study, post, tmp_path / "out", away)
    left = read_table(tmp_path / "out" / "runs" / "fedora-seed0" / "rounds.parquet")["left_out"]
    assert left == [0, 0, 0, 1, 1, 0]
    events = results["runs"]["fedora-seed0"]["events"]
    assert {(e["who"], e["what"]) for e in events} == {(study.sites[1], "answer did not come")}
    assert results["unjudged"] == {}  # though it may have no model of the very round that is deployed


def test_a_site_that_missed_a_part_of_the_cross_fitting_decides_by_what_the_others_say(
    data: Path, tmp_path: Path
) -> None:
    settings = SETTINGS | {"rounds": 1, "evaluate_every": 1, "set": {"guard": {"parts": 3}}}
    study = Study(tuple(p.stem for p in data.glob("*.csv")), ("fedavg+guard",), settings, seeds=2)
    post = Direct(study, data, tmp_path / "sites")

    def ask(questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
        # The site says hello, and is then away for all rounds of one training.
        runs = [json.loads(text).get("run") for text, _ in questions.values()]
        post.dead = {1} if ["fedavg", 0, [1, 3, False], None] in runs else set()
        return post(questions, patient)

    results = conduct(study, ask, tmp_path / "out")
    assert results["unjudged"] == {}
    away_site = study.sites[1]
    assert not list((tmp_path / "sites" / away_site / study.name / "fedavg-part1of3-seed0").glob("model-*"))
    found = read_json(tmp_path / "sites" / away_site / study.name / "verdict.json")["fedavg+guard"]
    assert found["decision"]["deploys"] in ("local", "fedavg", "stack")
    text = (tmp_path / "sites" / study.sites[0] / study.name / "verdict.txt").read_text()
    assert " of 2 trainings; the model that is kept is the first one's." in text


def test_a_verdict_says_which_training_was_too_short(data: Path, tmp_path: Path) -> None:
    for name in ("switzerland", "va"):
        (data / f"{name}.csv").unlink()  # two sites are enough
    short = conduct(two := a_study(data, "fedavg", rounds=2), Direct(two, data, tmp_path / "s2"), tmp_path / "out2")
    assert short["short"] == {"local": "not known", "fedavg": "not known"}
    text = (tmp_path / "s2" / two.sites[0] / two.name / "verdict.txt").read_text()
    assert "Whether 2 rounds were enough for training alone is not known" in text
    slow = a_study(data, "fedavg", rounds=12, evaluate_every=1, lr=0.003)
    improving = conduct(slow, Direct(slow, data, tmp_path / "s12"), tmp_path / "out12")
    assert improving["short"] == {"local": "improving", "fedavg": "improving"}
    text = (tmp_path / "s12" / slow.sites[0] / slow.name / "verdict.txt").read_text()
    assert "Training alone was still improving after 12 rounds: a longer training may change the verdict." in text
    done = a_study(data, "fedavg", rounds=40, evaluate_every=2, lr=0.3)
    settled = conduct(done, Direct(done, data, tmp_path / "s60"), tmp_path / "out60")
    assert settled["short"] == {}


def test_the_sites_agree_on_what_one_table_would_be(data: Path, tmp_path: Path) -> None:
    study = a_study(data)
    conduct(study, Direct(study, data, tmp_path / "sites"), tmp_path / "out")
    there = Preparation.from_json(read_json(tmp_path / "out" / "agreed.json")["preparation"])
    here = Scenario(data=str(data), label="disease", split="column", clients=None).build(0).preparation
    assert isinstance(here, Preparation)
    assert there.features == here.features
    assert there.scales == here.scales
    assert there.classes == here.classes


def told(*columns: OwnColumn, classes: tuple[str, ...] = ("no", "yes")) -> Look:
    return Look(columns, ("y",), "classes", classes, ())


def test_columns_that_sites_see_differently_are_brought_together_or_refused() -> None:
    number, answer = OwnColumn("a", "number", False), OwnColumn("a", "yes/no", False)
    words, other = OwnColumn("a", "words", True, ("x", "y")), OwnColumn("A", "words", True, ("Y", "z"))
    kept = OwnColumn("b", "number", False)
    found = agree({"s": told(number, kept), "t": told(answer, kept, classes=("yes",))})
    assert [(c.name, c.role) for c in found.columns] == [("a", "number"), ("b", "number")]
    assert found.classes == ("no", "yes")
    (one,) = agree({"s": told(words), "t": told(other)}).columns
    assert [v.casefold() for v in one.values] == ["x", "y", "z"]
    kilos, plain = replace(number, text=True, form="kg"), replace(number, form="")
    (column, _) = agree({"s": told(kilos, kept), "t": told(plain, kept)}).columns
    assert (column.role, column.form) == ("number", "kg")
    with pytest.raises(InputError, match=r"the sites write the numbers in 'a' in different ways \(kg, lb\); drop it"):
        agree({"s": told(kilos, kept), "t": told(replace(kilos, form="lb"), kept)})
    left = agree({"s": told(replace(number, role="id"), kept), "t": told(number, kept)}).columns
    assert [c.kept for c in left] == [False, True]
    with pytest.raises(
        InputError, match=r"differ on what 'a' is \(number at s, words at t\); say numeric, words or drop"
    ):
        agree({"s": told(number, kept), "t": told(words, kept)})
    with pytest.raises(InputError, match="t has other data than s"):
        agree({"s": told(kept), "t": replace(told(kept), task="quantity")})
    with pytest.raises(
        InputError, match="t writes the classes as no, yes, and s writes the classes as 0, 1; all sites"
    ):
        agree({"s": told(kept, classes=("0", "1")), "t": told(kept), "u": told(kept, classes=("1",))})
    with pytest.raises(InputError, match="t has no column beside y to learn from"):
        agree({"s": told(kept), "t": told()})
    with pytest.raises(InputError, match="u has no column in common with another site; it has c"):
        agree({"s": told(kept), "t": told(number, kept), "u": told(OwnColumn("c", "number", False))})
    with pytest.raises(InputError, match="all rows of all sites are of one class"):
        agree({"s": told(kept, classes=("no",)), "t": told(kept, classes=("No",))})


def test_a_site_names_no_category_that_few_of_its_rows_have(tmp_path: Path) -> None:
    rows = {"word": ["common"] * 20 + ["rare"] * 2, "x": np.linspace(0, 1, 22), "y": [0, 1] * 11}
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    found = look(tmp_path / "a.csv", Reading(label="y"))
    by_name = {c.name: c for c in found.columns}
    assert by_name["word"].values == ("common",)
    assert "rare" not in json.dumps(asdict(found))


def test_a_site_tells_nothing_of_what_fewer_than_three_of_its_train_rows_have(tmp_path: Path) -> None:
    rows = {"word": ["u", "u", "u", None, None, None], "x": [1.5, 2.5, 4.0, None, 7.0, 8.0], "y": np.linspace(1, 2, 6)}
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    reading = Reading(label="y", task="quantity", words=("word",))
    agreed = agree({"a": look(tmp_path / "a.csv", reading)})
    source = read_own(tmp_path / "a.csv", reading, agreed, "a", "site")
    told = tell_own(source, np.array([2, 3]), "shared")
    assert told.known == told.mean == told.squares == (0.0, 0.0)
    assert told.words == ((0,), ())
    assert told.target == (0.0, 0.0, 0.0)
    assert tell_own(source, np.arange(6), "shared").words == ((3,), ())


def test_a_coordinator_cannot_ask_for_what_stays_at_a_site(data: Path, tmp_path: Path) -> None:
    study = a_study(data, "fedavg", rounds=1)
    post = Direct(study, data, tmp_path / "sites")
    conduct(study, post, tmp_path / "out")
    text = json.dumps({"what": "ask", "study": study.name, "run": Run("fedavg", 0), "kept": {}})
    asked = pack_ask(Ask("fedavg-seed0", "outputs", 1, split="train"), {})
    assert "a coordinator may not ask for outputs" in json.loads(post.sites[0].answer(text, asked))["refused"]
    other = text.replace("fedavg", "../../elsewhere")
    greeting = pack_ask(Ask("fedavg-seed0", "greet"), {})
    assert "no training of study-" in json.loads(post.sites[0].answer(other, greeting))["refused"]


def test_a_site_may_have_a_folder_of_images_and_lack_a_class(tmp_path: Path) -> None:
    write_images(tmp_path / "data", a="01", b="012")
    study = Study(("a", "b"), ("fedavg",), {"rounds": 2, "evaluate_every": 2, "lr": 0.05, "model": "mlp"})
    post = Direct(study, tmp_path, tmp_path / "sites")
    for one in post.sites:
        one.data = tmp_path / "data" / one.name
    results = conduct(study, post, tmp_path / "out")
    assert results["unjudged"] == {}
    assert read_json(tmp_path / "out" / "agreed.json")["agreed"]["classes"] == ["0", "1", "2"]
    assert set(results["runs"]["fedavg-seed0"]["scores"]["accuracy"]) == {"a", "b"}


def test_quantities_work_as_well(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site in "ab":
        x = rng.normal(size=(60, 3))
        frame = pd.DataFrame(x, columns=list("pqr")).assign(y=x @ [1.0, 2.0, -1.0] + 0.1 * rng.normal(size=60))
        (tmp_path / "data").mkdir(exist_ok=True)
        frame.to_csv(tmp_path / "data" / f"{site}.csv", index=False)
    study = Study(("a", "b"), ("fedavg",), {"label": "y", "rounds": 3, "evaluate_every": 3, "lr": 0.05, "model": "mlp"})
    results = conduct(study, Direct(study, tmp_path / "data", tmp_path / "sites"), tmp_path / "out")
    assert set(results["runs"]["fedavg-seed0"]["scores"]["loss"]) == {"a", "b"}
    assert "rmse" in (tmp_path / "sites" / "a" / study.name / "verdict.txt").read_text()


def test_a_site_refuses_what_is_not_its_study(data: Path, tmp_path: Path) -> None:
    study = a_study(data)
    site = Site("hungary", data / f"{study.sites[0]}.csv", tmp_path)

    def refused(**asked: Any) -> str:
        return str(json.loads(site.answer(json.dumps(asked)))["refused"])

    assert "question 'dance' is unknown" in refused(what="dance")
    asked = {"what": "ask", "run": ["fedora", 0, None], "kept": {}}
    assert "message of 0 bytes is none of fairlead's" in refused(study="study-x", **asked)
    assert "no name for a folder" in refused(what="verdict", study="../x", kept={})
    assert "has not begun study-x" in refused(what="verdict", study="study-x", kept={})
    assert "question is not as expected" in refused(what="ask", study="study-x", run=["fedora"], kept={})
    assert "question is not as expected" in refused(what="ask", study="study-x")
    assert "install the same" in refused(what="look", study=study.to_json(), version="0.0.0")
    assert "none of fairlead's" in json.loads(site.answer("noise"))["refused"]
    assert "none of fairlead's" in json.loads(site.answer("[" * 60_000))["refused"]
    assert refused(what="look") == "KeyError at the site, whose log explains it"
    for study_of_another_kind in (None, 3, {"sites": 5, "methods": ["x"], "settings": {}, "seeds": 1}):
        assert "at the site" in refused(what="begin", study=study_of_another_kind)


def test_a_second_coordinator_is_told_so_and_others_cannot_read_the_folder(data: Path, tmp_path: Path) -> None:
    study, out = a_study(data, "fedavg"), tmp_path / "out"
    post = Direct(study, data, tmp_path / "sites")
    said: list[str] = []

    def second(run: str, round: int, of: int) -> None:
        with pytest.raises(RunError, match=f"another process is at work on {out}") as error:
            conduct(study, post, out)
        said.append(str(error.value))

    assert conduct(study, post, out, second)["unjudged"] == {}
    assert len(said) == 8  # rounds
    assert stat.S_IMODE(out.stat().st_mode) == 0o700


DEEP = b"[" * 60_000
HEADED = [DEEP, b'{"__metadata__":null}', b'{"__metadata__":5}', b"5"]
HOSTILE = [DEEP, b'{"refused"', b'{"refused":' + DEEP, b'{"refused":1}x', b'{"refused":"\x1b[2J' + b"x" * 2000 + b'"}']
HOSTILE += [len(h).to_bytes(8, "little") + h for h in HEADED]


@pytest.mark.parametrize("answer", HOSTILE)
def test_bytes_of_one_site_never_stop_the_others(answer: bytes, data: Path, tmp_path: Path) -> None:
    study = a_study(data, "fedavg", rounds=2)
    post = Direct(study, data, tmp_path / "sites")

    def ask(questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
        came = dict(post(questions, patient))
        greets = [unpack_ask(message)[0].what == "greet" for _, message in questions.values() if message]
        return came | ({1: answer} if post.asked[-1][0] == "verdict" or greets == [False] * 4 else {})

    results = conduct(study, ask, tmp_path / "out")
    assert list(results["unjudged"]) == ["hungarian"]
    events = results["runs"]["fedavg-seed0"]["events"]
    assert {event["who"] for event in events} == {"hungarian"}
    assert all(len(event["what"]) < 1000 and event["what"].isprintable() for event in events)
    with pytest.raises(EngineError, match=r"^hungarian must answer before the study can begin, but its answer"):
        conduct(study, lambda questions, patient=False: {**post(questions, patient), 1: answer}, tmp_path / "new")


def test_a_site_does_not_tell_where_its_files_are(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = a_study(data, "fedavg")
    post = Direct(study, data, tmp_path / "sites")
    conduct(study, post, tmp_path / "out")
    site = post.sites[0]
    monkeypatch.chdir(tmp_path)
    site.folder = Path("sites") / site.name  # whatever way it was given
    (site.folder / study.name / "study.json").write_text("{")
    site._members = {}
    asked = json.dumps({"what": "verdict", "study": study.name, "kept": {}, "short": {}})
    said = json.loads(site.answer(asked))
    assert "study.json is not valid JSON" in said["refused"]
    site.folder = site.folder.resolve()
    assert json.loads(site.answer(asked)) == said
    site.data = tmp_path / "data" / "gone.csv"
    look = {"what": "look", "study": study.to_json(), "version": VERSION}
    assert str(tmp_path) not in str(said) + json.loads(site.answer(json.dumps(look)))["refused"]


def test_what_a_site_may_not_say_is_refused(data: Path, tmp_path: Path) -> None:
    study = a_study(data)

    class Odd(Direct):
        what: str
        answer: bytes | str

        def __call__(self, questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
            came = dict(super().__call__(questions, patient))
            if self.asked[-1][0] == self.what:
                came[1] = self.answer
            return came

    own = json.loads(Direct(study, data, tmp_path / "first").tells(1))

    def telling(**changed: float) -> bytes:
        return json.dumps(own | {n: [x] * len(own[n]) for n, x in changed.items()}).encode()

    for what, answer, reason in (
        ("look", b"noise", "must answer before the study can begin, but its answer is none of fairlead's"),
        ("look", b"{}", "answer is not as expected"),
        ("look", b"x" * 2**23, "answer has 8,388,608 bytes"),
        ("tell", b'{"rows": 9, "known": [9], "mean": [1], "squares": [1], "words": [[]]}', "does not fit the"),
        ("tell", telling(known=1e308), "does not fit the"),
        ("tell", telling(mean=1e308), "does not fit the"),
        ("tell", telling(squares=-1.0), "does not fit the"),
        ("tell", telling(mean=1e30), "hungarian says its '.*' is about 1e[+]30, .* times what is usual at the sites"),
        ("begin", "node is not reachable", "but its node is not reachable"),
    ):
        post = Odd(study, data, tmp_path / "sites")
        post.what, post.answer = what, answer
        with pytest.raises(EngineError, match=reason):
            conduct(study, post, tmp_path / "out")


def test_a_metric_for_other_targets_is_refused_before_anything_is_trained(data: Path, tmp_path: Path) -> None:
    post = Direct(study := a_study(data, metric="rmse"), data, tmp_path / "sites")
    with pytest.raises(InputError, match="metric 'rmse' is for quantity, and what is predicted is classes"):
        conduct(study, post, tmp_path / "out")
    assert [what for what, _ in post.asked] == ["look", "tell"]


def test_a_site_with_three_rows_or_few_columns_takes_part_and_two_rows_are_refused(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third, last = sorted(p.stem for p in data.glob("*.csv"))
    tables = {name: pd.read_csv(data / f"{name}.csv") for name in (first, second, third)}
    tables[first].iloc[:3].to_csv(data / f"{first}.csv", index=False)
    tables[second].drop(columns=["thalach", "chol"]).to_csv(data / f"{second}.csv", index=False)
    sick = tables[third][tables[third]["disease"] == 1]
    sick.to_csv(data / f"{third}.csv", index=False)
    study = a_study(data, "fedavg", rounds=2)
    results = conduct(study, Direct(study, data, tmp_path / "sites"), tmp_path / "out")
    assert results["unjudged"] == {}
    texts = {name: (tmp_path / "sites" / name / study.name / "verdict.txt").read_text() for name in study.sites}
    assert "too few to tell" in texts[first]
    assert f"{second} has no column chol, thalach, which others have" in caplog.text
    assert "because most train rows of" in texts[third]  # accuracy would tell nothing there
    assert "The measure is accuracy" in texts[last]
    tables[first].iloc[:2].to_csv(data / f"{first}.csv", index=False)
    reason = f"{first} must answer .* {first} has 2 rows, too few to train, choose and test with"
    with pytest.raises(EngineError, match=reason):
        conduct(study, Direct(study, data, tmp_path / "other"), tmp_path / "again")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "has no rows"),
        (bytes(range(256)) * 9, "cannot be read"),
        (b"a,b\n1,2\n", "has no label column 'disease'"),
        (None, "no file [a-z]+.csv; check the path"),
    ],
)
def test_a_table_that_cannot_be_used_is_told_in_one_sentence(
    data: Path, tmp_path: Path, content: bytes | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    study = a_study(data, "fedavg")
    path = data / f"{study.sites[0]}.csv"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    expected = f"{study.sites[0]} must answer before the study can begin, but its answer is an error: .*({reason})"
    with pytest.raises(EngineError, match=expected) as error:
        conduct(study, Direct(study, data, tmp_path / "sites"), tmp_path / "out")
    assert "\n" not in str(error.value)
    assert str(data) not in str(error.value)  # where its files lie is nobody else's business
    assert path.name in caplog.text  # at the site, too


def test_a_study_is_checked_before_it_begins() -> None:
    for arguments, reason in (
        ((("a",), ("fedora",), {}), "two sites at least"),
        ((("a", "b c"), ("fedora",), {}), "letters, digits"),
        ((("a", "b"), ("local",), {}), "a method beside the control"),
        ((("a", "b"), ("fedorra",), {}), "unknown"),
        ((("a", "b"), ("local+guard",), {}), "LOCAL cannot be worse than alone"),
        ((("a", "b"), ("fedora",), {"clients": 3}), "no setting of a study"),
        ((("a", "b"), ("fedora",), {"metric": "speed"}), "metric 'speed' is unknown"),
        ((("a", "b"), ("fedora",), {"rounds": 0}), "rounds must be >= 1, got 0"),
        ((("a", "b"), ("fedora",), {"lr": -1}), "lr must be > 0"),
        ((("a", "b"), ("fedora",), {"evaluate_every": -1}), "evaluate_every must be >= 1"),
        ((("a", "b"), ("fedora",), {"schedule": "cosine"}), "needs to know the rounds beforehand"),
    ):
        with pytest.raises(InputError, match=reason):
            Study(*arguments)
    flat = {"sites": "b, a", "methods": "fedora,fedrep+confree", "seeds": 2, "label": "y", "lr": 0.1, "model": ""}
    study = Study.from_config(flat | {"set": "fedora.a=0.8", "batch-size": 8, "out": "/x"})
    assert study.sites == ("a", "b")
    assert study.training(Run("local", 0)).batch_size == 8
    assert study.settings["set"] == {"fedora": {"a": "0.8"}}
    assert Study.from_json(json.loads(json.dumps(study.to_json()))) == study


def test_a_column_that_is_agreed_survives_a_file() -> None:
    from fairlead.machines.site import AGREED

    found = agree(
        {"s": told(OwnColumn("b", "words", True, ("x", "z"))), "t": told(OwnColumn("b", "words", True, ("y",)))}
    )
    assert AGREED.validate_python(json.loads(json.dumps(asdict(found)))) == found
    assert isinstance(found, Agreed)
