"""What looks wrong in a table is said before training, and what is all right is not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fairlead.data import Scenario, scenario, survey
from fairlead.data.survey import Survey


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Any]:
    """A function that writes a table and surveys it."""

    def survey_of(frame: Any, **fields: Any) -> Survey:
        frame.to_csv(tmp_path / "t.csv", index=False)
        plan = Scenario(data=str(tmp_path / "t.csv"), column="site", split="column", clients=None, **fields)
        return survey(plan, plan.load())

    return survey_of


def sound(n: int = 300, seed: int = 0) -> Any:
    """A table with nothing wrong: three sites, one strong and honest predictor."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return pd.DataFrame(
        {
            "site": np.array(["a", "b", "c"])[np.arange(n) % 3],
            "strong": (x + 0.4 * rng.normal(size=n)).round(4),
            "weak": rng.normal(size=n).round(4),
            "label": (x > 0).astype(int),
        }
    )


def test_a_sound_table_has_no_warnings(look: Callable[..., Any]) -> None:
    found = look(sound())
    assert found.notes == ()
    assert (found.rows, found.target) == (300, "'label', one of 2 classes: 0, 1")
    assert [owner["name"] for owner in found.owners] == ["a", "b", "c"]
    assert sum(sum(owner["classes"].values()) for owner in found.owners) == 300
    assert [column["role"] for column in found.columns] == ["owner", "number", "number", "label"]
    assert json.loads(json.dumps(found.to_json()))["rows"] == 300


def warned(found: Survey, text: str) -> list[str]:
    return [sentence for sentence in found.notes if text in sentence]


@pytest.mark.parametrize("kind", ["copy", "words", "noisy", "missing"])
def test_a_column_that_gives_the_label_away(look: Callable[..., Any], kind: str) -> None:
    frame = sound()
    rng = np.random.default_rng(1)
    frame["leak"] = {
        "copy": frame["label"] * 7 + 3,
        "words": np.where(frame["label"] == 1, "treated", "sent home"),
        "noisy": frame["label"] + rng.normal(0, 0.1, len(frame)),
        "missing": np.where(frame["label"] == 1, rng.normal(size=len(frame)).round(4), np.nan),
    }[kind]
    (sentence,) = look(frame).notes
    assert sentence.startswith("'leak' alone predicts 'label' almost without error (balanced accuracy ")
    assert "leave it out with --drop leak" in sentence


def test_a_column_that_gives_one_of_several_classes_away(look: Callable[..., Any]) -> None:
    frame = sound()
    rng = np.random.default_rng(1)
    frame["label"] = np.where(frame["label"] == 1, "ill", rng.choice(["well", "unclear"], len(frame)))
    assert not warned(look(frame), "alone tells")
    frame["cycles"] = np.where(frame["label"] == "ill", rng.uniform(15, 35, len(frame)).round(2), 45)
    assert warned(look(frame), "'cycles' alone tells 'ill' from every other 'label' almost without error")


def test_a_column_that_gives_a_quantity_away(look: Callable[..., Any]) -> None:
    frame = sound().drop(columns="label")
    frame["label"] = frame["strong"] * 3 + frame["weak"]
    assert not warned(look(frame), "alone predicts")
    frame["pounds"] = (frame["label"] * 2.2 + 1).round(3)
    assert warned(look(frame), "'pounds' alone predicts 'label'")
    assert warned(look(frame.assign(label=np.exp(3 * frame["label"]).round(6))), "'pounds' alone predicts 'label'")


def test_two_columns_that_give_a_quantity_away_together(look: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    frame = sound().drop(columns="label").assign(casual=rng.integers(0, 90, 300), members=rng.integers(5, 400, 300))
    assert not warned(look(frame.assign(label=frame["members"] + rng.normal(size=300))), "together give")
    (sentence,) = warned(look(frame.assign(label=frame["casual"] + frame["members"])), "together give")
    assert sentence.startswith("'casual' and 'members' together give 'label' almost exactly, as a sum or difference")
    assert "--drop casual or --drop members" in sentence
    rate = frame.assign(label=(1000 * frame["casual"] / frame["members"]).round(3)).rename(columns={"casual": "no, of"})
    (sentence,) = warned(look(rate), "together give")
    assert "as a product or ratio" in sentence
    assert "--drop 'no, of' or --drop members" in sentence
    assert not warned(look(rate, drop="no, of"), "together give")
    copied = frame.assign(label=rng.exponential(3, 300), log=lambda f: np.log(f["label"]))
    assert not warned(look(copied), "together give"), "one of them does alone"


def test_two_dates_that_give_a_time_away(look: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    start, days = (
        pd.Timestamp("2001-03-04") + pd.to_timedelta(rng.integers(0, 2000, 300), "D"),
        rng.integers(5, 900, 300),
    )
    end = start + pd.to_timedelta(days, "D")
    frame = sound().rename(columns={"label": "died"}).assign(label=days, seen=start.strftime("%d-%m-%Y"), last=end)
    frame.loc[::20, "last"] = None
    assert warned(look(frame, event="died"), "'seen' and 'last' together give 'label' almost exactly")


def test_a_column_that_gives_an_event_or_its_time_away(look: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    frame = sound().rename(columns={"label": "died"}).assign(label=rng.exponential(3, 300).round(3))
    assert look(frame, event="died").notes == ()
    frame["cause"] = np.where(frame["died"] == 1, rng.choice(["heart", "other"], 300), None)
    frame["months"] = (frame["label"] * 12).round(1)
    found = look(frame, event="died")
    assert len(found.notes) == 2
    assert warned(found, "'cause' alone predicts 'died' almost without error (balanced accuracy 1.000")
    assert warned(found, "'months' alone predicts 'label' almost without error (R2 of ranks ")


def test_a_column_that_gives_one_of_several_labels_away(look: Callable[..., Any]) -> None:
    frame = sound().assign(other=np.random.default_rng(1).integers(0, 2, 300), code=lambda f: 3 - f["other"])
    (sentence,) = look(frame, label="label,other").notes
    assert sentence.startswith("'code' alone predicts 'other' almost without error")


def test_owners_with_one_class_few_rows_or_an_empty_column(look: Callable[..., Any]) -> None:
    frame = sound()
    frame.loc[frame["site"] == "a", "label"] = 1
    frame = frame[(frame["site"] != "b") | (np.arange(300) < 30)]
    frame.loc[frame["site"] == "c", "weak"] = np.nan
    extra = frame.head(2).assign(site="d", strong=[9.0, 8.0])
    found = look(pd.concat([frame, extra]))
    assert warned(found, "1 owner has rows of one class alone: a (all '1')")
    assert warned(found, "1 owner has fewer than 20 rows, too few to be sure of much: b (10)")
    assert warned(found, "'weak' is empty in all rows of c")
    assert warned(found, "so they take no part: d (2)")


def test_rows_that_are_dealt_to_owners_at_random(tmp_path: Path) -> None:
    sound().drop(columns="site").to_csv(tmp_path / "t.csv", index=False)
    plan = Scenario(data=str(tmp_path / "t.csv"), clients=4)
    (sentence,) = survey(plan, plan.load()).notes
    assert sentence.startswith("rows are dealt to 4 owners at random, since nobody said whose they are; --column NAME")


def test_a_number_that_recurs_at_other_owners(look: Callable[..., Any]) -> None:
    frame = sound().sort_values("site").reset_index(drop=True)
    frame["firm"] = np.tile(np.cumsum(np.random.default_rng(1).integers(1, 9, 100)) + 400, 3)
    (sentence,) = look(frame).notes
    assert sentence.startswith("'firm' is another number in each row of an owner, and most of these numbers are at ")
    assert sentence.endswith("leave it out with --drop firm")
    assert look(frame.assign(firm=np.tile(np.arange(1901, 2001), 3))).notes == (), "a year"


def test_an_event_whose_name_says_censored(look: Callable[..., Any]) -> None:
    frame = sound().rename(columns={"label": "cens"}).assign(label=np.random.default_rng(1).exponential(3, 300))
    came = int(frame["cens"].sum())
    (sentence,) = look(frame, event="cens").notes
    assert sentence.startswith(
        f"the event is taken to have come where 'cens' is 1 ({came} of 300 rows); where 1 means "
    )
    assert sentence.endswith("say --positive 0")
    found = look(frame, event="cens", positive="0")
    assert found.notes == ()
    assert sum(owner["events"] for owner in found.owners) == 300 - came


def test_owners_who_write_the_same_in_two_ways(look: Callable[..., Any]) -> None:
    frame = sound().assign(sex=lambda f: np.where(f["weak"] > 0, 1, 2).astype(object))
    here = frame["site"] == "c"
    frame.loc[here, "sex"] = frame.loc[here, "sex"].map({1: "male", 2: "female"})
    (sentence,) = look(frame).notes
    assert sentence.startswith(
        "'sex' is written as numbers by a, b (1, 2) and as words by c (female, male), which count"
    )
    swapped = frame.rename(columns={"label": "was", "sex": "label"})
    assert warned(look(swapped), "'label' is written as numbers by a, b (1, 2) and as words by c (female, male)")
    frame.loc[0, "sex"] = "unknown"
    frame.loc[1, "sex"] = "unknown"
    assert look(frame.assign(sex=frame["sex"].map(str).replace("male", "1").replace("female", "2"))).notes == ()


def test_rows_that_are_there_twice(look: Callable[..., Any]) -> None:
    frame = sound()
    copies = frame.head(6).assign(site="c")
    (sentence,) = look(pd.concat([frame, copies[copies.index % 3 != 2]])).notes
    assert sentence == (
        "8 rows are the same, cell by cell, as a row of another owner (a, b, c): who trains together learns from rows "
        "that it is tested on, and looks better"
    )
    (sentence,) = look(pd.concat([frame, frame.head(5)])).notes
    assert sentence.startswith("10 rows occur more than once with their owner")
    coarse = sound().assign(strong=lambda f: f["strong"].round(0), weak=lambda f: f["weak"].round(0))
    assert not warned(look(coarse), "rows are the same")  # whole numbers of few values are equal by chance


def test_rare_classes(look: Callable[..., Any]) -> None:
    frame = sound()
    frame["label"] = np.where(np.arange(300) % 33 == 0, "yes", "no")
    found = look(frame)
    assert warned(found, "rare: 'yes' (3.3%, 10 rows); accuracy says little")
    assert warned(found, "3 owners have nearly all rows in one class") == []  # each 33rd row is site a's
    assert warned(found, "1 owner has nearly all rows in one class")


def test_columns_that_are_treated_alike_make_one_line(look: Callable[..., Any]) -> None:
    frame = sound().assign(**{f"m{i}": np.random.default_rng(i).normal(size=300) for i in range(6)})
    lines = [name for name, _ in look(frame).column_groups()]
    assert lines == ["site", "strong", "weak", "label", "m0 to m5 (6 columns)"]


def test_images_have_owners_and_no_columns() -> None:
    plan = scenario("rotated-digits", clients=4)
    found = survey(plan, plan.load())
    assert found.columns == ()
    assert found.rows == 1797
    assert len(found.owners) == 4


def test_a_quantity(look: Callable[..., Any]) -> None:
    frame = sound().assign(label=lambda f: (f["weak"] + f["strong"]).round(2))
    found = look(frame)
    assert found.target == "'label', a quantity"
    assert found.owners[0]["sd"] == pytest.approx(frame[frame["site"] == "a"]["label"].std(ddof=0))
    assert warned(found, "predicted as a quantity")
