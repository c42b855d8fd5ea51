"""Verdicts agree with their intervals, do not depend on order or direction, and err as rarely as they say."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InputError
from fairlead.metrics import METRICS, OwnerPairs, OwnerVerdict, PairedRun, judge, metric
from fairlead.metrics.evidence import Evidence, Ratio, correct, training_shares
from fairlead.metrics.measures import Metric

ACCURACY = metric("accuracy")


def answers(hits: list[int] | np.ndarray) -> np.ndarray:
    """Outputs of two classes that are right where `hits` says so, for targets of class 0."""
    hits = np.asarray(hits, dtype=float)
    return np.stack([hits, 1 - hits], 1)


def pairs(
    name: str,
    method: list[int] | np.ndarray,
    control: list[int] | np.ndarray,
    rows: None = None,
    folds: int | None = None,
) -> OwnerPairs:
    """One OwnerPairs from hits (repeats, n)."""
    method, control = np.atleast_2d(method), np.atleast_2d(control)
    n = method.shape[1]
    runs = []
    for s in range(len(method)):
        for f in range(folds or 1):
            i = np.flatnonzero(np.arange(n) % (folds or 1) == f)
            runs.append(PairedRun(i, np.zeros(len(i), int), answers(method[s, i]), answers(control[s, i]), s, f))
    return OwnerPairs(name, runs)


@st.composite
def federations(draw: st.DrawFn) -> tuple[Metric, list[OwnerPairs]]:
    """Owners with 1 to 60 rows, 1 to 4 seeds or 3 folds, any kind of difference, any measure."""
    m = METRICS[draw(st.sampled_from(sorted(METRICS)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    seeds, folds, gap = (*draw(st.sampled_from([(1, 1), (3, 1), (1, 3), (2, 3)])), draw(st.sampled_from([0, 0.5, 3])))
    owners = []
    for k in range(draw(st.integers(1, 4))):
        n = draw(st.integers(1, 60))
        y = rng.integers(0, 3, n)
        quantity = rng.normal(size=n)
        runs = []
        for s in range(seeds):
            for f in range(folds):
                i = np.flatnonzero(np.arange(n) % folds == f)
                noise = rng.normal(size=(2, len(i), 3))
                t: np.ndarray
                if m.target == "labels":
                    t = np.stack([y[i] > 0, y[i] > 1], 1) * 1.0
                    out = noise[0, :, :2] + (1 + gap) * (2 * t - 1), noise[1, :, :2] + (2 * t - 1)
                elif m.target == "classes":
                    t, good = y[i], np.eye(3)[y[i]]
                    out = noise[0] + (1 + gap) * good, noise[1] + good
                else:
                    t = quantity[i] if m.target == "quantity" else np.stack([np.exp(quantity[i]), y[i] > 0], 1)
                    sign = 1 if m.target == "quantity" else -1
                    out = sign * quantity[i] + noise[0, :, 0] / (1 + gap), sign * quantity[i] + noise[1, :, 0]
                runs.append(PairedRun(i, t, *out, s, f))
        owners.append(OwnerPairs(f"owner {k}", runs))
    return m, owners


def mirrored(owner: OwnerPairs) -> OwnerPairs:
    return OwnerPairs(owner.owner, [PairedRun(r.rows, r.y, r.control, r.method, r.repeat, r.fold) for r in owner.runs])


@settings(max_examples=60, deadline=None)
@given(federations())
def test_verdict_interval_and_gain_agree(drawn: tuple[Metric, list[OwnerPairs]]) -> None:
    m, owners = drawn
    for v in judge(owners, m):
        if v.gain is None:
            assert v.verdict == "too few rows to tell"
            assert v.why.startswith("Not judged")
            continue
        lower, upper = (-math.inf if v.lower is None else v.lower), (math.inf if v.upper is None else v.upper)
        assert lower <= v.gain <= upper
        assert (v.verdict == "better") == (lower > 0) == (v.p <= 0.05 and v.gain > 0)
        assert (v.verdict == "worse") == (upper < 0) == (v.p <= 0.05 and v.gain < 0)
        assert v.gain == pytest.approx((v.method_score - v.control_score) * (1 if m.higher else -1), abs=1e-9)
        assert v.more_rows is None or v.more_rows > 0
        assert OwnerVerdict.from_json(json.loads(json.dumps(v.to_json(), allow_nan=False))) == v


@settings(max_examples=30, deadline=None)
@given(federations(), st.randoms(use_true_random=False))
def test_the_order_of_owners_and_runs_does_not_matter(drawn: tuple[Metric, list[OwnerPairs]], random: Any) -> None:
    m, owners = drawn
    mixed = [OwnerPairs(o.owner, random.sample(list(o.runs), len(o.runs))) for o in random.sample(owners, len(owners))]
    before = {v.owner: v for v in judge(owners, m)}
    for v in judge(mixed, m):
        was = before[v.owner]
        assert v.verdict == was.verdict
        if v.gain is not None:
            assert (v.gain, v.p) == (pytest.approx(was.gain, abs=1e-9), pytest.approx(was.p, rel=1e-6))


@settings(max_examples=40, deadline=None)
@given(federations())
def test_swapping_method_and_control_mirrors(drawn: tuple[Metric, list[OwnerPairs]]) -> None:
    m, owners = drawn
    opposite = {"better": "worse", "worse": "better"}
    for v, w in zip(judge(owners, m), judge([mirrored(o) for o in owners], m), strict=True):
        assert w.verdict == opposite.get(v.verdict, w.verdict)
        assert (v.verdict in opposite) == (w.verdict in opposite)
        if v.gain is not None:
            assert w.gain == pytest.approx(-v.gain, abs=1e-12)
            assert w.p == pytest.approx(v.p, rel=1e-6)
            if v.lower is not None and v.upper is not None and w.upper is not None and w.lower is not None:
                assert (w.upper, w.lower) == (pytest.approx(-v.lower, abs=1e-6), pytest.approx(-v.upper, abs=1e-6))


def test_single_differences_are_tested_as_by_mcnemar() -> None:
    """Without training luck, b against c rows that only one model has right."""
    for b, c in [(12, 3), (20, 5), (30, 12), (40, 20)]:
        d = np.array([1] * b + [-1] * c + [0] * (300 - b - c))
        e = Evidence(float(d.mean()), 300, float(d.var()), 1.0, 1.0)
        assert e.p_value() == pytest.approx(math.erfc((b - c) / math.sqrt(2 * (b + c))), rel=1e-9)


def test_no_difference_in_n_rows_bounds_the_truth_as_the_exact_limit_does() -> None:
    e = Evidence(0.0, 1000, 0.0, 1.0, 1.0)
    exact = 1 - 0.025 ** (1 / 1000)
    assert e.bound(0.05, 1) == pytest.approx(exact, rel=0.05)
    assert e.bound(0.05, -1) == pytest.approx(-exact, rel=0.05)


@pytest.mark.parametrize(("up", "down"), [(0.02, 0.0), (0.05, 0.05), (0.15, 0.05), (0.3, 0.3)])
@pytest.mark.parametrize("n", [10, 50, 200])
def test_intervals_of_single_differences_cover(n: int, up: float, down: float) -> None:
    """Rows alone, differences of -1, 0 and 1: at least 94% of 95% intervals hold the truth."""
    rng = np.random.default_rng(n)
    counts = rng.multinomial(n, [up, down, 1 - up - down], 400)
    held = 0
    for b, c, _ in counts:
        mean = (b - c) / n
        e = Evidence(mean, n, (b + c) / n - mean**2, 1.0, 1.0, limit=1.0)
        held += e.bound(0.05, -1) <= up - down <= e.bound(0.05, 1)
    assert held >= 0.94 * 400


def test_few_rows_never_tell() -> None:
    """Three rows, or three rows of the rarer class under AUROC, whatever they show."""
    (v,) = judge([pairs("a", [1, 1, 1], [0, 0, 0])], ACCURACY)
    assert (v.verdict, v.lower, v.upper) == ("too few rows to tell", -1.0, 1.0)
    assert v.why.startswith("3 test rows are too few to tell")
    y = np.array([0] * 3 + [1] * 200)
    good, bad = np.eye(2)[y], np.eye(2)[1 - y]
    (v,) = judge([OwnerPairs("b", [PairedRun(np.arange(203), y, good, bad)])], metric("auroc"))
    assert (v.gain, v.verdict) == (1.0, "too few rows to tell")


def test_owners_too_small_to_tell_do_not_count_in_the_correction() -> None:
    large = Evidence(0.1, 200, 0.2, 1.0, 1.0)
    small = Evidence(0.5, 3, 0.25, 1.0, 1.0)
    alone, among = correct([large], 0.95)[0], correct([large] + [small] * 30, 0.95)[0]
    assert (alone.p, alone.lower) == (among.p, among.lower)


def test_holm_is_surer_than_bonferroni_and_its_interval_still_excludes_zero() -> None:
    found = [Evidence(0.3, 400, 0.3, 1.0, 1.0)] * 9 + [Evidence(0.065, 400, 0.3, 1.0, 1.0)]
    last = correct(found, 0.95)[-1]
    assert found[-1].p_value() > 0.05 / 10
    assert last.p <= 0.05
    assert 0 < last.lower < 0.065


def test_runs_that_differ_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    control = rng.random((5, 400)) < 0.8
    steady = np.where(rng.random((5, 400)) < 0.3, True, control)
    wild = steady.copy()
    wild[0], wild[1] = rng.random(400) < 0.55, True
    quiet, loud = (judge([pairs("a", m, control)], ACCURACY)[0] for m in (steady, wild))
    assert quiet.verdict == "better"
    assert loud.evidence.training > 10 * quiet.evidence.training
    assert loud.verdict != "better"


def test_where_training_luck_comes_from_is_told() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 3, 40)) < 0.8
    twins = [pairs("a", a[:1], b[1:2])]
    assert judge([pairs("a", a, b)], ACCURACY)[0].training == "seeds"
    assert judge([pairs("a", a[:1], b[:1], folds=4)], ACCURACY)[0].training == "folds"
    assert judge([pairs("a", a[:1], b[:1])], ACCURACY, twins=twins)[0].training == "twins"
    assert judge([pairs("a", a[:1], b[:1])], ACCURACY)[0].training == "assumed"


def test_noisy_twins_make_verdicts_less_sure() -> None:
    rng = np.random.default_rng(1)
    control = rng.random(500) < 0.8
    method = control | (rng.random(500) < 0.3)
    calm, noisy = control ^ (rng.random(500) < 0.05), control & (rng.random(500) < 0.85)
    sure, unsure = (
        judge([pairs("a", method, control)], ACCURACY, twins=[pairs("a", t, control)])[0].p for t in (calm, noisy)
    )
    assert sure < unsure


def test_owners_with_few_runs_learn_from_the_others() -> None:
    loud = [Ratio(12.0, 4, 400, 100)]
    unknown: list[Ratio] = []
    mean, _ = training_shares([loud] * 6 + [unknown])
    assert mean[-1] > 0.5 * mean[0]
    assert training_shares([unknown])[0][0] < 0.2 * mean[-1]


def test_owners_who_are_lucky_together_tell_less_of_training_luck() -> None:
    """Luck of the same size: in the same runs for all owners it is known less well than in each one's own."""
    rng = np.random.default_rng(1)
    owners, folds, n = 20, 5, 500
    fold = np.arange(n) % folds

    def evidence(luck: np.ndarray) -> Evidence:
        owner = []
        for k in range(owners):
            method = 10 - rng.normal(size=n) - luck[k, fold]
            runs = [
                PairedRun(i, np.zeros(len(i)), method[i], np.full(len(i), 10.0), fold=f)
                for f in range(folds)
                for i in [np.flatnonzero(fold == f)]
            ]
            owner.append(OwnerPairs(str(k), runs))
        found = judge(owner, metric("mae"))[0].evidence
        assert found is not None
        return found

    luck = np.tile([-0.25, -0.1, 0.0, 0.1, 0.25], (owners, 1))
    shared, alone = evidence(luck), evidence(rng.permuted(luck, axis=1))
    assert shared.training_spread**0.5 / shared.training > 1.5 * alone.training_spread**0.5 / alone.training


def test_a_control_whose_rows_score_nothing_changes_no_verdict_when_it_is_swapped() -> None:
    """Three rows whose differences are the same in all runs, up to rounding, tell nothing of luck either way."""
    rng = np.random.default_rng(2)
    y = np.array([1.0, 2, 3])
    nothing = [PairedRun(np.arange(3), y, y + 0.1 * (s + 1), y, s) for s in range(3)]
    others = [
        OwnerPairs(str(k), [PairedRun(np.arange(20), y, y + a, y + b, s) for s, (a, b) in enumerate(noise)])
        for k, (y, noise) in enumerate((rng.normal(size=20), rng.normal(size=(3, 2, 20))) for _ in range(4))
    ]
    owners = [OwnerPairs("nothing", nothing), *others]
    there, back = judge(owners, metric("mae")), judge([mirrored(o) for o in owners], metric("mae"))
    assert [v.p for v in there] == pytest.approx([v.p for v in back])


def test_more_rows_that_would_tell_are_about_right() -> None:
    """With so many rows a difference of that size is found at least four times in five, and not much more often."""
    rng = np.random.default_rng(0)
    e = Evidence(0.0, 50, 0.1, 1.0, 1.0)
    needed = e.rows_to_find(0.05, 0.05)
    d = rng.choice([1, 0, -1], p=[0.075, 0.9, 0.025], size=(300, needed))
    found = np.mean([Evidence(float(x.mean()), needed, float(x.var()), 1.0, 1.0).p_value() <= 0.05 for x in d])
    assert 0.75 < found < 0.95
    assert Evidence(0.0, 50, 0.1, 1.0, 1.0, training=0.01).rows_to_find(0.05, 0.05) is None


@settings(max_examples=60, deadline=None)
@given(federations())
def test_rows_that_would_tell_are_asked_for_exactly_where_these_cannot(drawn: tuple[Metric, list[OwnerPairs]]) -> None:
    m, owners = drawn
    for v in judge(owners, m):
        if v.verdict in ("better", "worse") or v.gain is None:
            assert v.more_rows is None
            continue
        assert v.asked is not None
        told = v.detectable is not None and v.detectable <= v.asked
        assert (v.more_rows is None) or not told
        if v.verdict == "too few rows to tell":
            assert not told, "what the rows can tell is not asked of more"
            assert v.why.endswith(("more would.", "would not be enough.")) == (v.more_rows is not None)
        else:
            upper, lower = (math.inf if x is None else abs(x) for x in (v.upper, v.lower))
            plausible = m.plausible * (1.0 if m.unit else abs(v.control_score or 0.0))
            assert max(upper, lower) <= 2 * plausible * (1 + 1e-6)


def test_with_the_rows_that_were_asked_for_the_verdict_can_tell() -> None:
    """An owner with too few rows, and the same with as many as the sentence says: no longer too few."""
    rng = np.random.default_rng(0)
    ease = np.where(rng.random(40) < 0.8, 0.98, 0.5)
    hits = rng.random((2, 3, 40)) < ease
    (few,) = judge([pairs("a", *hits)], ACCURACY)
    assert few.verdict == "too few rows to tell"
    assert few.more_rows is not None
    n = 40 + few.more_rows
    times = -(-n // 40)
    many = np.tile(hits, times)[..., :n]
    (enough,) = judge([pairs("a", *many)], ACCURACY)
    assert few.asked is not None
    assert enough.detectable == pytest.approx(few.asked, rel=0.2)


def test_false_verdicts_on_any_of_ten_owners_are_rare_with_training_luck() -> None:
    """Twins whose accuracy moves by 3 points from run to run, 150 rows, three seeds: at most 5%, and 3 sd of chance."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(60):
        owners = []
        for k in range(10):
            ease = np.where(rng.random(150) < 0.8, 0.97, rng.random(150))
            luck = 0.03 * rng.normal(size=(2, 3, 1)) / np.sqrt(2)
            owners.append(pairs(str(k), *(rng.random((2, 3, 150)) < ease + luck)))
        wrong += any(v.verdict in ("better", "worse") for v in judge(owners, ACCURACY))
    assert wrong <= 8


def test_what_does_not_fit_is_refused() -> None:
    one = pairs("a", [1, 0], [0, 1])
    with pytest.raises(InputError, match="an owner comes twice"):
        judge([one, one], ACCURACY)
    with pytest.raises(InputError, match="no run"):
        judge([OwnerPairs("a", [])], ACCURACY)
    with pytest.raises(InputError, match="tested twice"):
        judge([OwnerPairs("a", [*one.runs, *one.runs])], ACCURACY)
    other = PairedRun([7, 8], [0, 0], answers([1, 0]), answers([1, 1]), repeat=1)
    with pytest.raises(InputError, match="differ between repeats"):
        judge([OwnerPairs("a", [*one.runs, other])], ACCURACY)
    with pytest.raises(InputError, match="2 ids"):
        judge([OwnerPairs("a", [PairedRun([1, 2], [0], answers([1]), answers([1]))])], ACCURACY)
    with pytest.raises(InputError, match="level"):
        judge([one], ACCURACY, level=95)


def test_runs_that_are_all_the_same_have_no_training_luck() -> None:
    rng = np.random.default_rng(0)
    y, quantity = np.arange(200), rng.normal(size=200)
    near, far = quantity + 0.1 * rng.normal(size=200), quantity + rng.normal(size=200) / 3
    runs = [PairedRun(y, quantity, near, far, repeat=s) for s in range(3)]
    (v,) = judge([OwnerPairs("a", runs)], metric("rmse"))
    assert v.evidence.training == pytest.approx(0, abs=1e-20)
    assert v.verdict == "better"


def test_a_long_tail_makes_less_sure_on_its_side_only() -> None:
    """Small gains on most rows: large losses on a few might just not have been seen."""
    plain, tailed = (Evidence(0.1, 60, 0.1, 0.3, 0.01, skew=skew) for skew in (0.0, -3.0))
    assert tailed.p_value() > 1.5 * plain.p_value()
    assert tailed.bound(0.05, -1) < plain.bound(0.05, -1)
    assert tailed.bound(0.05, 1) == plain.bound(0.05, 1)


def test_skewed_differences_are_covered() -> None:
    """Lognormal about a mean of zero, 100 rows: at least 92% of 95% intervals, where Student's t covers about 90%."""
    rng = np.random.default_rng(0)
    held = 0
    for d in np.exp(rng.normal(size=(400, 100))) - math.exp(0.5):
        skew = ((d - d.mean()) ** 3).mean() / d.std() ** 3
        e = Evidence(float(d.mean()), 100, float(d.var()), 1.0, 0.01, skew=float(skew))
        held += e.bound(0.05, -1) <= 0 <= e.bound(0.05, 1)
    assert held >= 0.92 * 400
