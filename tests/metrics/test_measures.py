"""Every measure against scikit-learn or a closed form, and its rows' numbers against leaving rows out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from fairlead.core.errors import InputError
from fairlead.metrics import METRICS, OwnerPairs, PairedRun, default_metric, judge, metric
from fairlead.metrics.measures import Metric, RowScores, _leave_out, probabilities


def example(target: str, n: int = 60, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if target == "classes":
        labels = rng.integers(0, classes, n)
        return labels, rng.normal(size=(n, classes)) + np.eye(classes)[labels]
    if target == "labels":
        several = (rng.random((n, classes)) < 0.4) * 1.0
        return several, rng.normal(size=(n, classes)) + 2 * several - 1
    if target == "survival":
        risk = rng.normal(size=n)
        return np.stack([rng.exponential(np.exp(-risk)), rng.random(n) < 0.6], 1), risk + rng.normal(size=n)
    y = rng.normal(size=n)
    return y, y + rng.normal(size=n) / 2


def test_labels_agree_with_scikit_learn() -> None:
    y, out = example("labels")
    assert metric("label-accuracy")(y, out).value == pytest.approx(1 - sk.hamming_loss(y, out > 0))
    p = 1 / (1 + np.exp(-out))
    expected = np.mean([sk.log_loss(y[:, j], p[:, j]) for j in range(y.shape[1])])
    assert metric("label-log-loss")(y, out).value == pytest.approx(expected)


def test_classes_agree_with_scikit_learn() -> None:
    y, out = example("classes")
    p, said = probabilities(out), out.argmax(1)
    wide = np.eye(3)[y]
    expected = {
        "accuracy": sk.accuracy_score(y, said),
        "balanced-accuracy": sk.balanced_accuracy_score(y, said),
        "auroc": sk.roc_auc_score(y, p, multi_class="ovr"),
        "auprc": sk.average_precision_score(wide, p),
        "f1": sk.f1_score(y, said, average="macro"),
        "log-loss": sk.log_loss(y, p),
        "brier": ((p - wide) ** 2).sum(1).mean(),
    }
    for name, value in expected.items():
        assert metric(name)(y, out).value == pytest.approx(value), name


def test_two_classes_agree_with_scikit_learn_ties_included() -> None:
    y, out = example("classes", classes=2)
    out = np.round(out)
    p = probabilities(out)[:, 1]
    assert metric("auroc")(y, out).value == pytest.approx(sk.roc_auc_score(y, p))
    assert metric("auprc")(y, out).value == pytest.approx(sk.average_precision_score(y, p))
    assert metric("brier")(y, out).value == pytest.approx(sk.brier_score_loss(y, p))


def test_quantities_agree_with_scikit_learn() -> None:
    y, out = example("quantity")
    assert metric("rmse")(y, out).value == pytest.approx(sk.root_mean_squared_error(y, out))
    assert metric("mae")(y, out).value == pytest.approx(sk.mean_absolute_error(y, out))
    assert metric("r2")(y, out).value == pytest.approx(sk.r2_score(y, out))


def test_calibration_error_is_the_gap_between_confidence_and_hits() -> None:
    y, p = np.array([0] * 8 + [1] * 2), np.tile([0.95, 0.05], (10, 1))
    assert metric("calibration")(y, p).value == pytest.approx(0.15)


def test_c_index_counts_pairs() -> None:
    y = np.array([[1.0, 1], [2.0, 0], [3.0, 1], [3.0, 0]])
    risk = np.array([3.0, 1.0, 2.0, 2.0])
    # Known orders: row 0 before 1, 2 and 3, all right; row 2 before row 3, which was still watched then: a tie.
    assert metric("c-index")(y, risk).value == pytest.approx(3.5 / 4)


@pytest.mark.parametrize("name", METRICS)
def test_the_rows_numbers_have_the_measure_as_mean_and_predict_what_leaving_a_row_out_does(name: str) -> None:
    m = metric(name)
    y, out = example(m.target, n=400)
    rows = m.row_scores(y, out).rows
    assert rows.shape == (400,)
    assert rows.mean() == pytest.approx(m(y, out).value)
    left = _leave_out(m.score, y, out).rows
    if name != "calibration":  # its bins change sides
        assert np.corrcoef(rows, left)[0, 1] > 0.99
        assert rows.std() == pytest.approx(left.std(), rel=0.05)


@pytest.mark.parametrize("name", ["auroc", "auprc", "balanced-accuracy"])
def test_one_class_is_undefined_with_the_reason(name: str) -> None:
    score = metric(name)(np.ones(5, dtype=int), np.random.default_rng(0).normal(size=(5, 2)))
    assert np.isnan(score.value)
    assert "two classes" in score.why


@pytest.mark.parametrize("name", METRICS)
def test_no_rows_and_broken_outputs_are_undefined_with_the_reason(name: str) -> None:
    m = metric(name)
    y, out = example(m.target, n=10)
    assert metric(name)(y[:0], out[:0]).why == "no test rows"
    out[3] = np.nan
    assert "finite" in m(y, out).why


def test_other_undefined_cases() -> None:
    assert "different targets" in metric("r2")(np.ones(4), np.arange(4.0)).why
    assert "event" in metric("c-index")(np.array([[1.0, 0], [2.0, 0]]), np.arange(2.0)).why
    assert "event" in metric("c-index")(np.array([[1.0, 0], [2.0, 1]]), np.arange(2.0)).why


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="expected classes"):
        metric("accuracy")([0, 1], [0.1, 0.9])
    with pytest.raises(InputError, match="did you mean 'auroc'"):
        metric("aurocc")


@settings(deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([m for m in METRICS if METRICS[m].target == "classes"]))
def test_probabilities_and_their_logarithms_score_alike(seed: int, name: str) -> None:
    y, out = example("classes", n=20, seed=seed)
    p = probabilities(out)
    assert metric(name)(y, p).value == pytest.approx(metric(name)(y, np.log(p)).value)


def test_an_own_measure_needs_a_score_alone() -> None:
    def largest(y: np.ndarray, o: np.ndarray) -> float:
        return float(np.abs(o - y).max())

    worst = Metric("worst", "largest error", "quantity", False, largest, unit="")
    y, out = example("quantity")
    assert worst(y, out).value == np.abs(out - y).max()
    assert isinstance(worst.row_scores(y, out), RowScores)


def test_the_default_follows_the_target_and_the_rarest_class() -> None:
    assert default_metric("quantity").metric.name == "rmse"
    assert default_metric("survival").metric.name == "c-index"
    assert default_metric("classes", {"a": [0, 1, 1]}).metric.name == "accuracy"
    two, three = default_metric("classes", {"a": [0, 1], "b": [1] * 27 + [0] * 3}), [0] * 27 + [1, 2] * 2
    assert (two.metric.name, "most train rows of b" in two.why) == ("auroc", True)
    assert default_metric("classes", {"a": three}).metric.name == "balanced-accuracy"
    rare = default_metric("classes", {str(k): [0] * 9 + [k % 2] for k in range(8)})
    assert rare.why.startswith("AUROC, because most train rows of all owners together are of one class")
    small = default_metric("classes", {"a": [0, 1] * 20, "b": [1] * 5})
    assert small.why.endswith("no class has over 80% of the train rows, nor of an owner's who has 20 or more")


def test_ranks_are_compared_within_a_fold_only() -> None:
    """Two folds whose models rank perfectly but on different scales."""
    y, folds = np.array([0, 1, 0, 1, 1]), np.array([0, 0, 1, 1, 1])
    scores = np.array([0.0, 1.0, 10.0, 11.0, 12.0])
    outputs = np.stack([-scores, scores], 1)
    assert metric("auroc")(y, outputs).value < 1
    assert metric("auroc").over_folds(y, outputs, folds).rows.mean() == pytest.approx(1)
    assert metric("auroc")(y, outputs, folds).value == pytest.approx(1)
    assert metric("accuracy").over_folds(y, outputs, folds).rows.mean() == metric("accuracy")(y, outputs).value
    one_each = metric("auroc")(y[:2], outputs[:2], np.array([0, 1]))  # no fold has both classes
    assert np.isnan(one_each.value)
    assert one_each.why.startswith("no fold has enough of its rows to rank: AUROC needs test rows of two classes")
    assert metric("accuracy")(y[:2], outputs[:2], np.array([0, 1])).value == 1


def test_an_owner_whose_folds_have_a_row_each_is_not_judged_by_ranks() -> None:
    """The most common answer of the other rows would have an AUROC of 0: each row left out moves it away from it."""
    y, shares = np.array([0, 1, 1]), np.array([1.0, 0.5, 0.5])  # of class 1 among the other rows
    outputs = np.stack([1 - shares, shares], 1)
    runs = [PairedRun([k], y[[k]], outputs[[k]], outputs[[k]], fold=k) for k in range(3)]
    (verdict,) = judge([OwnerPairs("tiny", runs)], metric("auroc"))
    assert (verdict.gain, verdict.method_score, verdict.verdict) == (None, None, "too few rows to tell")
    assert verdict.why.startswith("Not judged: no fold has enough of its rows to rank")
