"""What an owner would do alone with standard tools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairlead.comparison.yardsticks import network, pooled, yardsticks
from fairlead.core import Layout
from fairlead.core.types import Federation, Split

SIZES = ((30, 10, 12), (40, 12, 15), (5, 2, 3))  # train, validation and test rows of three clients


def made(kind: str, seed: int = 0) -> tuple[Federation, Federation]:
    """Three clients whose target depends on the first two features, and the same with validation rows joined."""
    rng = np.random.default_rng(seed)
    rows: list[list[tuple[Tensor, Tensor]]] = [[], [], []]
    for sizes in SIZES:
        for part, n in zip(rows, sizes, strict=True):
            x = torch.from_numpy(rng.standard_normal((n, 4))).float()
            score = 2 * x[:, 0] - x[:, 1]
            part.append((x, (score > 0).long() if kind == "classes" else score))
    both = [(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in zip(rows[0], rows[1], strict=True)]
    empty = [(x[:0], y[:0]) for x, y in rows[0]]
    classes = ("no", "yes") if kind == "classes" else ()
    return (
        Federation(joined(rows[0]), joined(rows[1]), joined(rows[2]), classes),
        Federation(joined(both), joined(empty), joined(rows[2]), classes),
    )


def joined(parts: list[tuple[Tensor, Tensor]]) -> Split:
    starts = torch.tensor([0, *np.cumsum([len(y) for _, y in parts]).tolist()])
    return Split(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), starts)


def test_the_most_common_answer_is_the_share_of_each_class_with_one_added() -> None:
    federation, whole = made("classes")
    (majority, *_) = yardsticks(federation, whole)
    y = whole.train.client(1)[1]
    expected = (torch.bincount(y, minlength=2) + 1) / (len(y) + 2)
    assert torch.allclose(majority.test[1].exp(), expected.expand(15, 2))
    assert [len(o) for o in majority.validation] == [10, 12, 2]


def test_tools_that_look_at_the_features_beat_the_most_common_answer() -> None:
    federation, whole = made("classes")
    right = {
        s.name: float((s.test[1].argmax(1) == whole.test.client(1)[1]).float().mean())
        for s in yardsticks(federation, whole)
    }
    assert right["linear"] > right["majority"]
    assert right["trees"] > right["majority"]


def test_ridge_regression_finds_a_linear_target_and_the_mean_is_the_mean() -> None:
    federation, whole = made("quantity")
    majority, linear, trees = yardsticks(federation, whole)
    y = whole.test.client(1)[1]
    assert torch.allclose(majority.test[1], whole.train.client(1)[1].mean().expand(15, 1))
    errors = [float((s.test[1][:, 0] - y).square().mean()) for s in (majority, linear, trees)]
    assert errors[1] < 0.05 * errors[0]
    assert errors[2] < errors[0]


@pytest.mark.parametrize("kind", ["classes", "quantity"])
def test_a_client_learns_from_its_own_rows_alone_and_from_no_test_label(kind: str) -> None:
    federation, whole = made(kind)
    other, other_whole = (
        replace(f, train=replace(f.train, x=f.train.x.clone()), test=replace(f.test, y=torch.zeros_like(f.test.y)))
        for f in (federation, whole)
    )
    for f in (other, other_whole):
        f.train.x[: int(f.train.starts[1])] += 1  # the first client's rows change
    for before, after in zip(yardsticks(federation, whole), yardsticks(other, other_whole), strict=True):
        assert torch.equal(before.test[1], after.test[1])
        if before.name != "majority":
            assert not torch.equal(before.test[0], after.test[0])


def test_a_client_with_one_class_or_no_validation_rows_is_served() -> None:
    federation, whole = made("classes")
    for f in (federation, whole):
        f.train.y[: int(f.train.starts[1])] = 1
    for s in yardsticks(federation, whole):
        assert bool((s.test[0].argmax(1) == 1).all()), s.name
    for s in yardsticks(whole, whole):
        assert [len(o) for o in s.validation] == [0, 0, 0]
        assert bool(torch.cat(s.test).isfinite().all())


def test_several_labels_are_fitted_one_by_one() -> None:
    federation, whole = made("classes")

    def twice(f: Federation) -> Federation:
        parts: dict[str, Any] = {
            name: replace(s, y=torch.stack([s.y, 1 - s.y], 1).float())
            for name, s in (("train", f.train), ("validation", f.validation), ("test", f.test))
        }
        return replace(f, **parts)

    single, double = yardsticks(federation, whole)[1], yardsticks(twice(federation), twice(whole))[1]
    odds = single.test[1][:, 1] - single.test[1][:, 0]
    assert torch.allclose(double.test[1][:, 0], odds, atol=1e-4)
    assert torch.allclose(double.test[1][:, 1], -odds, atol=1e-3)


def test_images_are_measured_against_the_most_common_class_alone() -> None:
    federation, whole = made("classes")
    images = [
        replace(
            f, **{n: replace(getattr(f, n), x=getattr(f, n).x[:, None, None]) for n in ("train", "validation", "test")}
        )
        for f in (federation, whole)
    ]
    assert [s.name for s in yardsticks(images[0], images[1])] == ["majority"]


def test_pooled_is_a_federation_of_one_with_the_rows_in_the_same_order() -> None:
    federation, _ = made("classes")
    one = pooled(federation)
    assert one.clients == 1
    assert torch.equal(one.test.client(0)[1], federation.test.y)


@pytest.mark.parametrize("groups", [False, True])
def test_answers_for_validation_rows_are_no_better_than_for_rows_that_nothing_was_chosen_on(groups: bool) -> None:
    rng = np.random.default_rng(3)

    def noise(n: int) -> tuple[Tensor, Tensor]:
        """Rows whose target has nothing to do with the features; of a group all are alike."""
        copies = 2 if groups else 1
        x, y = (torch.from_numpy(rng.standard_normal(shape)).float() for shape in ((n, 6), (n,)))
        return x.repeat_interleave(copies, 0), y.repeat_interleave(copies, 0)

    parts = [[noise(n) for _ in range(150)] for n in (10, 5, 40)]
    train, validation, test = (joined(part) for part in parts)
    if groups:
        validation = replace(validation, groups=torch.arange(len(validation.y)) // 2)
    federation = Federation(train, validation, test, ())
    linear = next(s for s in yardsticks(federation, federation) if s.name == "linear")
    error = [
        np.mean([float((out[:, 0] - y).square().mean()) for out, (_, y) in zip(outputs, part, strict=True)])
        for outputs, part in ((linear.validation, parts[1]), (linear.test, parts[2]))
    ]
    assert error[0] > 0.95 * error[1]


@pytest.mark.parametrize("kind", ["classes", "quantity"])
def test_models_are_those_that_answered_for_the_test_rows(kind: str) -> None:
    federation, whole = made(kind)
    for found in yardsticks(federation, whole):
        tool = network(whole, found.size)
        for k in range(whole.clients):
            Layout(tool).write(found.models[k], tool)
            assert torch.equal(tool(whole.test.client(k)[0]), found.test[k]), found.name


def test_images_have_a_most_common_class_that_looks_at_nothing() -> None:
    x, y = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 1, 1, 0, 1])
    rows = joined([(x[:4], y[:4]), (x[4:], y[4:])])
    images = Federation(rows, rows, rows, ("a", "b"))
    (found,) = yardsticks(images, images)
    assert found.size["features"] == 0
    assert torch.allclose(found.test[0].exp(), torch.tensor([2 / 6, 4 / 6]))
