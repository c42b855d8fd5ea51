"""What a comparison found."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from fairlead.comparison.assess import row_numbers
from fairlead.comparison.findings import Answers, Way, best_alone, find
from fairlead.metrics import metric

OWNERS = ("a", "b", "c")
ROWS = 2000


def answers(
    right: float, seed: int, *, fold: int = 0, folds: int = 1, repeat: int = 0, validation: float | None = None
) -> Answers:
    """Answers to two classes, of which this share is right; the same rows are hard for everybody."""
    rows, y, outputs = [], [], []
    for k in range(len(OWNERS)):
        mine = np.arange(ROWS)[fold::folds]
        truth = np.random.default_rng(k).integers(2, size=ROWS)[mine]
        hard = np.random.default_rng(100 + k).random(ROWS)[mine]
        luck = np.random.default_rng([seed, k]).normal(0, 0.02, ROWS)[mine]
        said = np.where(hard + luck < right, truth, 1 - truth)
        rows.append(10_000 * k + mine)
        y.append(truth)
        outputs.append(np.eye(2)[said] * 2)
    return Answers(rows, y, outputs, fold, repeat, checked(validation))


def checked(score: float | None) -> np.ndarray | None:
    """Numbers of 400 validation rows with this mean."""
    return None if score is None else score + 0.1 * np.tile([-1.0, 1.0], 200)


def way(name: str, kind: str, *runs: Answers) -> Way:
    return Way(name, name.upper(), kind, list(runs), [])  # type: ignore[arg-type]


def test_every_way_is_judged_against_the_best_alone_on_validation_rows() -> None:
    ways = [
        way("local", "alone", answers(0.80, 1, validation=0.80)),
        way("linear", "alone", answers(0.85, 2, validation=0.86)),
        way("good", "method", answers(0.95, 3)),
        way("between", "method", answers(0.83, 4)),
        way("bad", "method", answers(0.60, 5)),
        way("pooled", "pooled", answers(0.96, 6)),
    ]
    found = find(ways, OWNERS, metric("accuracy"), "because", [answers(0.80, 9)])
    assert (found.bar, found["linear"].verdicts) == ("linear", [])
    assert found["good"].owners("better") == list(OWNERS)
    assert found["bad"].owners("worse") == list(OWNERS)
    assert found["between"].owners("better") == [], "better than LOCAL, but not than the best alone"
    assert found["good"].gain == pytest.approx(0.1, abs=0.04)
    assert found["good"].score == pytest.approx(0.95, abs=0.03)
    assert found.recommendation is not None
    assert found.recommendation.federation.method == "good"
    assert {a.method for a in found.recommendation.owners} == {"good"}, "pooled is no method to join with"
    json.dumps(found.to_json(), allow_nan=False)


def test_the_bar_is_chosen_inside_each_fold() -> None:
    folds = range(3)
    local = way("local", "alone", *(answers(0.8, 1, fold=f, folds=3, validation=(0.9, 0.7, 0.7)[f]) for f in folds))
    trees = way("trees", "alone", *(answers(0.8, 2, fold=f, folds=3, validation=0.8) for f in folds))
    bar, name, why, _ = best_alone([local, trees], metric("accuracy"))
    assert name == "best alone"
    assert "TREES in 2, LOCAL in 1" in why
    assert [a is b for a, b in zip(bar, (local.answers[0], *trees.answers[1:]), strict=True)] == [True] * 3


@pytest.mark.parametrize(("rows", "bar"), [(25, "local"), (400, "trees")])
def test_a_tool_is_the_bar_where_it_is_better_by_more_than_chance(rows: int, bar: str) -> None:
    """Of 25 answers two more are right and one is wrong: of 25 rows that is within the standard error, of 400 not."""
    right = np.ones(25)
    right[:6] = 0
    more = right.copy()
    more[:2], more[10] = 1, 0
    local = way("local", "alone", dataclasses.replace(answers(0.8, 1), validation=np.tile(right, rows // 25)))
    trees = way("trees", "alone", dataclasses.replace(answers(0.8, 2), validation=np.tile(more, rows // 25)))
    assert best_alone([local, trees], metric("accuracy"))[1] == bar


def test_an_owner_with_most_of_the_rows_does_not_choose_the_bar_of_all_others() -> None:
    """Eight owners of 25 rows, for whom the trees are 20 points better, and one of 2,000, for whom they are 4 worse."""

    def of(*right: float) -> Answers:
        sizes = [25] * 8 + [2000]
        y = [np.zeros(n, dtype=int) for n in sizes]
        wrong = [np.arange(n) >= round(share * n) for n, share in zip(sizes, right, strict=True)]
        outputs = [np.stack([~w, w], 1).astype(float) for w in wrong]
        return Answers([np.arange(n) for n in sizes], y, outputs)

    local, trees = of(*[0.6] * 8, 0.8), of(*[0.8] * 8, 0.76)
    ways = [
        way(name, "alone", dataclasses.replace(one, validation=row_numbers(one, metric("accuracy"))))
        for name, one in (("local", local), ("trees", trees))
    ]
    means = [float(one.answers[0].validation.mean()) for one in ways]
    assert means == pytest.approx([(8 * 0.6 + 0.8) / 9, (8 * 0.8 + 0.76) / 9])
    assert best_alone(ways, metric("accuracy"))[1] == "trees"


def test_a_lower_error_is_better() -> None:
    def quantity(error: float, validation: float | None = None) -> Answers:
        y = [np.random.default_rng(k).normal(size=ROWS) for k in range(3)]
        noise = [np.random.default_rng([7, k]).normal(size=ROWS) for k in range(3)]
        outputs = [a + error * b for a, b in zip(y, noise, strict=True)]
        return Answers([np.arange(ROWS)] * 3, y, outputs, validation=checked(validation))

    ways = [
        way("local", "alone", quantity(0.5, 0.5)),
        way("linear", "alone", quantity(0.4, 0.4)),
        way("good", "method", quantity(0.2)),
    ]
    found = find(ways, OWNERS, metric("rmse"), "")
    assert found.bar == "linear"
    assert found["good"].owners("better") == list(OWNERS)
    assert found["good"].gain == pytest.approx(0.2, abs=0.03), "a gain is positive where the error falls"
    assert found["local"].lowest == max(s for s in found["local"].scores if s is not None)


def test_repeats_are_paired_and_a_way_with_one_run_meets_all_of_them() -> None:
    local = way("local", "alone", *(answers(0.8, 10 + r, repeat=r, validation=0.8) for r in range(3)))
    often = way("often", "method", *(answers(0.9, 20 + r, repeat=r) for r in range(3)))
    once = way("once", "method", answers(0.9, 30))
    found = find([local, often, once], OWNERS, metric("accuracy"), "")
    assert [v.runs for v in found["often"].verdicts] == [3, 3, 3]
    assert [v.runs for v in found["once"].verdicts] == [3, 3, 3]
    for way_, base in (("often", found["local"]), ("once", found["local"])):
        for k, v in enumerate(found[way_].verdicts):
            score, alone = found[way_].scores[k], base.scores[k]
            assert score is not None
            assert alone is not None
            assert v.gain == pytest.approx(score - alone), "the gain is the difference of the scores in the table"
    assert found.training == "seeds"


def test_an_owner_without_test_rows_is_not_judged() -> None:
    def without(a: Answers) -> Answers:
        rows, y, outputs = ([*part[:2], part[2][:0]] for part in (a.rows, a.y, a.outputs))
        return Answers(rows, y, outputs, validation=a.validation)

    ways = [
        way("local", "alone", without(answers(0.8, 1, validation=0.8))),
        way("m", "method", without(answers(0.9, 2))),
    ]
    found = find(ways, OWNERS, metric("accuracy"), "")
    assert [v.owner for v in found["m"].verdicts] == ["a", "b"]
    assert found["m"].scores[2] is None


def test_an_answer_that_is_the_same_for_every_row_is_learned_before_the_test() -> None:
    """Of six rows a method has 4 right, and the better of two guesses, chosen afterwards, 5."""
    owners = [str(k) for k in range(40)]
    truth = [np.array([0, 0, 0, 0, 0, 1]) if k % 2 else np.array([1, 1, 1, 1, 1, 0]) for k in range(40)]
    rows = [6 * k + np.arange(6) for k in range(40)]

    def right(count: int) -> Answers:
        said = [np.where(np.arange(6) >= 6 - count, y, 1 - y) for y in truth]
        return Answers(rows, truth, [np.eye(2)[s] for s in said], 0, 0, checked(None))

    ways = [way("local", "alone", right(3)), way("majority", "alone", right(3)), way("fedavg", "method", right(4))]
    found = find(ways, owners, metric("accuracy"), "because")
    assert found["fedavg"].verdicts[0].constant_score == pytest.approx(0.5)
    assert found.recommendation is not None
    assert "Nothing was learned" not in found.recommendation.federation.why
    found = find([ways[0], ways[2]], owners, metric("accuracy"), "because")
    assert found["fedavg"].verdicts[0].constant_score == pytest.approx(5 / 6), "nothing else is known"
