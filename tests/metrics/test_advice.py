"""Advice claims no more than the verdicts corrected over all methods carry."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fairlead.core.errors import InputError
from fairlead.metrics import OwnerPairs, PairedRun, judge, metric, positive_transfer, recommend
from fairlead.metrics.advice import Recommendation
from fairlead.metrics.evidence import Evidence, mean_of
from fairlead.metrics.verdict import OwnerVerdict


def owner(name: str, gain: float, n: int = 600, control: float = 0.7, seeds: int = 3, seed: int = 0) -> OwnerPairs:
    """Hits of both models: `gain` more or fewer right answers with the method, the same in all seeds but a few."""
    rng = np.random.default_rng([seed, len(name), *name.encode()])
    alone = rng.random(n) < control
    flips = rng.random(n)
    wrong, right = (~alone).mean(), alone.mean()
    ours = alone | (flips < gain / wrong) if gain > 0 else alone & ~(flips < -gain / right)
    runs = []
    y = np.arange(n) % 2
    for s in range(seeds):
        noise = rng.random((2, n)) < 0.02
        method, local = ours ^ noise[0], alone ^ noise[1]
        ours_said, alone_said = (np.eye(2)[np.where(h, y, 1 - y)] for h in (method, local))
        runs.append(PairedRun(np.arange(n), y, ours_said, alone_said, repeat=s))
    return OwnerPairs(name, runs)


def verdicts(**gains: float) -> list[OwnerVerdict]:
    return judge([owner(name, gain) for name, gain in gains.items()], metric("accuracy"))


def test_an_owner_joins_with_the_method_that_surely_helps_most() -> None:
    advice = recommend({"one": verdicts(a=0.08, b=0.0), "two": verdicts(a=0.15, b=0.0)})
    a, b = advice.owners
    assert (a.action, a.method) == ("join", "two")
    assert a.why.startswith("Join with two: 1")
    assert "sure at 95% after correction for 2 owners and 2 methods" in a.why
    assert (b.action, b.method) == ("makes no difference", None)
    assert advice.federation.method == "two"
    assert "1 of 2 owners is better off than alone and none was found worse off" in advice.federation.why
    assert json.loads(json.dumps(advice.to_json()))["owners"][0]["method"] == "two"


def test_all_better_off() -> None:
    told = recommend({"m": verdicts(a=0.15, b=0.1)}).federation
    assert (told.method, told.better, told.worse) == ("m", 2, 0)
    assert told.why.startswith("With m all 2 owners are better off than alone")


def test_stay_alone_where_every_method_is_worse() -> None:
    advice = recommend({"one": verdicts(a=-0.15), "two": verdicts(a=-0.1)})
    assert advice.owners[0].action == "stay alone"
    assert "every method is worse" in advice.owners[0].why
    assert advice.federation.method is None
    assert "No method was found to help anybody" in advice.federation.why


def test_one_wins_and_one_loses() -> None:
    told = recommend({"m": verdicts(a=0.15, b=-0.15)}).federation
    assert told.method is None
    assert (told.better, told.worse) == (1, 1)
    assert "worse off: b" in told.why


def test_nothing_differs() -> None:
    advice = recommend({"m": verdicts(a=0.0, b=0.0)})
    assert [o.action for o in advice.owners] == ["makes no difference"] * 2
    assert advice.federation.why == "No difference from training alone was found, with any method."


KINDS = {"+": (0.15, 600), "-": (-0.15, 600), "=": (0.0, 600), "?": (0.0, 8)}
SAID = {"stay alone": "worse off", "makes no difference": "o difference", "cannot tell": "oo few rows to tell"}


def advice_of(*methods: str) -> Recommendation:
    """Of each method the verdicts on owners a, b, ...: + better, - worse, = no difference found, ? too few rows."""
    return recommend(
        {
            f"m{i}": judge([owner(chr(97 + k), *KINDS[kind]) for k, kind in enumerate(kinds)], metric("accuracy"))
            for i, kinds in enumerate(methods)
        }
    )


@pytest.mark.parametrize("kinds", ["".join(three) for three in product("+-=?", repeat=3)])
def test_the_headline_says_what_the_owners_are_told(kinds: str) -> None:
    found = advice_of(kinds)
    actions, why = [one.action for one in found.owners], found.federation.why
    meant = {"+": "join", "-": "stay alone", "=": "makes no difference", "?": "cannot tell"}
    assert actions == [meant[kind] for kind in kinds]
    if "+" in kinds:
        assert (found.federation.better, found.federation.worse) == (kinds.count("+"), kinds.count("-"))
        assert "better off than alone" in why
        return
    assert (found.federation.better, found.federation.worse) == (0, 0)
    assert {action for action, words in SAID.items() if words in why} == set(actions)
    if "-" not in kinds:
        first = "No difference from" if kinds.count("=") > kinds.count("?") else "have too few rows to tell whether any"
        assert first in why.split(".")[0]


@pytest.mark.parametrize(
    ("methods", "actions", "why"),
    [
        (["?=?"], "cannot tell,makes no difference,cannot tell", "2 of 3 owners have too few rows to tell"),
        (["=?"], "makes no difference,cannot tell", "1 of 2 owners has too few rows to tell"),
        (["=", "?"], "cannot tell", "The owner has too few rows to tell"),
        (["=", "=", "?"], "makes no difference", "No difference from training alone was found, with any method."),
        (
            ["-?", "=?"],
            "makes no difference,cannot tell",
            "No method was found to help anybody; owners worse off: m0 (1)",
        ),
        (
            ["--", "=="],
            "makes no difference,makes no difference",
            "owners worse off: m0 (2). Makes no difference: a, b.",
        ),
        (["-" * 6 + "+"], ",".join(["stay alone"] * 6 + ["join"]), "but worse off: 6 owners."),
        (["?" * 7], ",".join(["cannot tell"] * 7), "The owners have too few rows to tell whether any method helps."),
    ],
)
def test_several_methods_and_owners_in_one_sentence(methods: list[str], actions: str, why: str) -> None:
    found = advice_of(*methods)
    assert ",".join(one.action for one in found.owners) == actions
    assert why in found.federation.why


def test_what_other_methods_say_stands_in_the_owners_reason() -> None:
    assert advice_of("=", "?").owners[0].why.endswith("No difference found: m0.")
    assert advice_of("=", "=", "?").owners[0].why.endswith("Too few rows or runs to tell: m2.")


def test_a_method_that_looks_better_by_itself_is_not_called_no_difference() -> None:
    found = verdicts(a=0.035)
    told = recommend({f"m{k}": verdicts(a=0.0) for k in range(200)} | {"m": found})
    assert found[0].verdict == "better"
    assert told.owners[0].action == "cannot tell"
    assert "m by itself looks better, but not once all methods count" in told.owners[0].why
    assert told.federation.why == "It cannot be told whether any method helps."


def test_a_method_is_not_called_safe_where_its_own_verdict_on_an_owner_is_worse() -> None:
    """With the 200 methods beside it, b's loss is no longer sure; the table of verdicts still calls it worse."""
    one = verdicts(a=0.2, b=-0.035)
    assert [v.verdict for v in one] == ["better", "worse"]
    told = recommend({"m": one} | {f"m{k}": verdicts(a=0.0, b=0.0) for k in range(200)})
    assert told.federation.method is None
    assert told.federation.why.endswith("With m 1 owner is better off than alone, but worse off: b.")


def test_owners_with_too_few_rows_tell_together() -> None:
    """Thirty owners with 40 rows each: nobody's own rows tell a gain of 8 points, the mean over all does."""
    small = {
        name: judge([owner(f"o{k}", gain, n=40) for k in range(30)], metric("accuracy"))
        for name, gain in (("up", 0.08), ("down", -0.08), ("same", 0.0))
    }
    told = recommend(small)
    assert {v.verdict for own in small.values() for v in own} == {"too few rows to tell"}
    assert [told.means[name].sure for name in small] == [True, True, False]
    up, down = told.means["up"], told.means["down"]
    assert 0 < up.lower < up.gain == pytest.approx(np.mean([v.gain for v in small["up"] if v.gain is not None]))
    assert down.upper < 0
    assert up.owners == 30
    assert told.federation.method is None
    assert "On average over the owners up is" in told.federation.why
    assert told.federation.why.endswith("Worse than alone on average over the owners: down.")
    assert json.loads(json.dumps(told.to_json()))["means"]["up"]["lower"] == up.lower


def test_training_luck_that_owners_share_does_not_average_out() -> None:
    one = Evidence(gain=0.03, rows=1000, spread=0.1, step=1.0, jump=1.0, training=0.02**2)
    few, many = mean_of([one] * 4), mean_of([one] * 400)
    assert many.variance(0.03) == pytest.approx(0.02**2, rel=1e-2)
    assert few.variance(0.03) == pytest.approx(0.1 / 4000 + 0.02**2)
    assert many.p_value() > 0.1


def test_runs_that_move_all_owners_together_make_the_mean_less_sure() -> None:
    together = np.array([-0.05, 0.0, 0.05])

    def moved(by: np.ndarray) -> Evidence:
        own = Evidence(gain=0.02, rows=200, spread=0.1, step=1.0, jump=1.0, training=1e-4, within=0.1)
        return replace(own, gain=0.02 + float(by.mean()), runs=tuple((0.02 + float(x),) for x in by))

    joint, single = mean_of([moved(together)] * 39), mean_of([moved(np.roll(together, k)) for k in range(39)])
    assert joint.training > 20 * single.training
    assert joint.training == pytest.approx(float(together.var(ddof=1)) / 3, rel=0.7)


def test_owners_that_were_not_in_every_run_do_not_say_how_much_runs_differ() -> None:
    whole = Evidence(0.1, 100, 0.04, 1.0, 1.0, runs=((0.1, 0.12, 0.08, 0.1, 0.1),), within=0.04)
    small = replace(whole, rows=3, runs=((0.9, 0.0, -0.9),))
    assert mean_of([whole, whole, small]).training == pytest.approx(mean_of([whole, whole]).training, rel=5)
    assert mean_of([whole, whole, small]).variance(0.1) > mean_of([whole, whole]).variance(0.1)


def test_the_mean_of_owners_of_unequal_size_has_the_variance_of_their_mean() -> None:
    sizes, spreads = (10, 1000, 50), (0.2, 0.05, 0.1)
    own = [Evidence(0.1, n, s, 1.0, 1.0, limit=1.0) for n, s in zip(sizes, spreads, strict=True)]
    exact = sum(s / n for n, s in zip(sizes, spreads, strict=True)) / 9
    assert mean_of(own).variance(0.1) == pytest.approx(exact, rel=1e-9)
    assert mean_of(own).gain == pytest.approx(0.1)


def test_one_owner_has_no_mean() -> None:
    assert recommend({"m": verdicts(a=0.1)}).means == {}


def test_one_row_is_singular() -> None:
    told = judge([owner("a", 0.0, n=1)], metric("accuracy"))[0].why
    assert told.startswith("1 test row is too few to tell")


def test_where_more_rows_would_not_tell_runs_are_too_few() -> None:
    few = judge([owner(name, 0.0, n=8) for name in "ab"], metric("accuracy"))
    few = [replace(v, more_rows=None) for v in few]
    assert recommend({"m": few}).federation.why.startswith("The owners have too few rows or runs to tell whether")


def test_too_few_rows() -> None:
    advice = recommend({"m": judge([owner("a", 0.1, n=8)], metric("accuracy"))})
    assert advice.owners[0].action == "cannot tell"
    assert "rows are too few to tell" in advice.owners[0].why
    assert advice.federation.why == "The owner has too few rows to tell whether any method helps."


def test_nothing_was_learned() -> None:
    """Better than alone, yet no better than the same answer for every row."""
    advice = recommend({"m": judge([owner("a", 0.15, control=0.2)], metric("accuracy"))})
    assert advice.owners[0].action == "cannot tell"
    assert "no better than the same answer for every row" in advice.owners[0].why
    assert advice.federation.method is None
    assert "Nothing was learned" in advice.federation.why


def test_many_methods_need_more_evidence_than_one() -> None:
    """A gain that one method's verdicts just carry is not claimed as the best of forty."""
    found = verdicts(a=0.035)
    assert found[0].verdict == "better"
    assert recommend({"m": found}).owners[0].action == "join"
    many = {f"m{k}": verdicts(a=0.0) for k in range(200)} | {"m": found}
    assert recommend(many).owners[0].action != "join"


def test_methods_must_have_the_same_owners() -> None:
    with pytest.raises(InputError, match="other owners"):
        recommend({"one": verdicts(a=0.0), "two": verdicts(b=0.0)})
    with pytest.raises(InputError, match="no method"):
        recommend({})


def test_chance_puts_half_of_equal_owners_above_the_control_less_ties() -> None:
    rng = np.random.default_rng(0)
    twins = []
    for k in range(40):
        ease = np.where(rng.random(100) < 0.8, 1.0, rng.random(100))
        hits = rng.random((2, 100)) < ease
        ours, alone = (np.stack([h, ~h], 1).astype(float) for h in hits)
        twins.append(OwnerPairs(str(k), [PairedRun(np.arange(100), np.zeros(100, int), ours, alone)]))
    found = positive_transfer(judge(twins, metric("accuracy")))
    assert found.low <= found.share <= found.high
    assert 0.35 < found.expected < 0.5
    assert 0.2 < found.low < found.high < 0.7


def test_where_nothing_differs_chance_puts_nobody_above() -> None:
    same = owner("a", 0.0, seeds=1)
    same = OwnerPairs("a", [PairedRun(r.rows, r.y, r.control, r.control) for r in same.runs])
    found = positive_transfer(judge([same], metric("accuracy")))
    assert (found.share, found.expected, found.low, found.high) == (0, 0, 0, 0)
    assert positive_transfer([]) is None


def test_a_method_that_is_worse_by_its_own_verdict_never_makes_no_difference() -> None:
    # One owner and many methods: sure of a loss by itself, not once all of them are counted.
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 60)
    right = np.eye(2)[y] * 4
    wrong = right.copy()
    wrong[:9] = np.eye(2)[1 - y[:9]] * 4
    pairs = [OwnerPairs("a", [PairedRun(np.arange(60), y, wrong, right, s) for s in range(3)])]
    own = judge(pairs, metric("accuracy"))
    assert own[0].verdict == "worse"
    for many in (1, 5, 200):
        advice = recommend({f"m{i}": own for i in range(many)}).owners[0]
        assert advice.action == "stay alone", (many, advice)


def test_owners_with_too_few_rows_are_named_and_no_absurd_loss_is_told() -> None:
    judged = judge([owner("a", 0.15), owner("b", 0.0), owner("c", 0.0, n=6)], metric("accuracy"))
    told = recommend({"m": judged}).federation.why
    assert "1 of 3 owners is better off than alone and none was found worse off" in told
    assert "Too few rows or runs to tell: c." in told
    assert "is not ruled out (b)." in told
    assert "100.0 points" not in told


def test_an_owner_that_cannot_be_judged_is_told_why_in_one_sentence() -> None:
    y = np.zeros(30, dtype=int)
    outputs = np.tile([0.9, 0.1], (30, 1))
    pairs = [OwnerPairs("a", [PairedRun(np.arange(30), y, outputs, outputs)])]
    verdicts = {name: judge(pairs, metric("auroc")) for name in ("fedavg", "ditto")}
    (advice,) = recommend(verdicts).owners
    assert advice.why == "Cannot tell: AUROC needs test rows of two classes, all 30 are of one class."


def test_what_was_still_improving_is_not_judged_for_good() -> None:
    found = {"fedavg": verdicts(a=0.2, b=0.2), "fedora": verdicts(a=-0.2, b=-0.2)}
    done = recommend(found)
    assert "still improving" not in done.federation.why
    early = recommend(found, improving={"fedora"}, alone_improving=True)
    assert early.federation.why == done.federation.why + (
        " Training alone was still improving at its last round, so that more of it may change this."
        " fedora was still improving at the last round, so that more training may change this."
    )
    assert "fedora was still improving" in early.owners[0].why
