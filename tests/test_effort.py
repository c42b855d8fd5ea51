"""The search for a step size and a number of rounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from fairlead.core import DivergedError
from fairlead.effort import EFFORTS, Curve, Effort, search

SMALL = Effort(rates=(0.01, 0.1), further=2, trial=10, rounds=100, patience=2, every=5, repeats=1)


def falling(best: float, enough: int, calls: list[tuple[float, int]]) -> Callable[[float, int], Curve]:
    """A made-up training: the loss falls until `enough` rounds, and more so near the best step size."""

    def train(lr: float, rounds: int) -> Curve:
        calls.append((lr, rounds))
        if lr > 10 * best:
            raise DivergedError("too large")
        steps, end = range(SMALL.every, rounds + 1, SMALL.every), enough + SMALL.patience * SMALL.every
        done = [r for r in steps if r <= end]
        losses = [1 + abs(math.log(lr / best)) + max(enough - r, 0) / enough for r in done]
        return Curve(done, losses, stopped=rounds > end)

    return train


def test_the_best_step_size_goes_on_until_nothing_improves() -> None:
    calls: list[tuple[float, int]] = []
    found = search(falling(0.1, 25, calls), SMALL)
    assert calls == [(0.01, 10), (0.1, 10), (pytest.approx(0.3), 10), (0.1, 100), (0.01, 100)]
    assert (found.lr, found.round, found.improving) == (0.1, 30, False), "the middle of three that are as low"
    assert found.followed == 35, "until ten rounds brought no improvement"
    assert found.trained == 10 + 35 + 35, "one step size for ten rounds; the best and the next smaller until they stop"


@pytest.mark.parametrize(("best", "lr"), [(0.003, 0.01 / 3), (0.9, 0.9)])
def test_the_grid_grows_where_its_end_is_the_best(best: float, lr: float) -> None:
    found = search(falling(best, 30, []), SMALL)
    assert found.lr == pytest.approx(lr)
    assert len(found.tried) == 4


def test_a_step_size_that_is_best_at_first_and_then_breaks_gives_way_to_a_smaller_one() -> None:
    def train(lr: float, rounds: int) -> Curve:
        steps = list(range(SMALL.every, rounds + 1, SMALL.every))
        fast = [1 - 0.02 * r if r <= 10 else 2.0 for r in steps]  # falls quickly, then one owner's model breaks
        slow = [1 - 0.01 * min(r, 60) for r in steps]
        return Curve(steps, fast if lr == 0.1 else slow if lr < 0.1 else [9.0] * len(steps), stopped=rounds > 60)

    found = search(train, SMALL)
    assert (found.lr, found.round) == (0.01, 65)
    assert found.tried[0.1] == pytest.approx(0.85), "the mean of its first two; the third breaks"


def test_a_loss_that_jumps_is_not_as_low_as_its_luckiest_round_and_a_smaller_step_size_goes_on_too() -> None:
    def train(lr: float, rounds: int) -> Curve:
        steps = list(range(SMALL.every, rounds + 1, SMALL.every))
        jumping = [0.3 if r % 15 == 0 and r > 40 else 0.6 if r > 10 else 0.8 for r in steps]
        slow = [0.9 - 0.005 * r for r in steps]
        return Curve(steps, jumping if lr == 0.1 else slow if lr < 0.1 else [9.0] * len(steps), stopped=False)

    found = search(train, SMALL)
    assert found.tried[0.1] == pytest.approx(0.5)
    assert (found.lr, found.round) == (0.01, 100)
    assert found.tried[0.01] == pytest.approx(0.4125)


def test_a_method_that_still_improves_at_the_cap_says_so() -> None:
    assert search(falling(0.1, 300, []), SMALL).improving
    assert not search(falling(0.1, 80, []), SMALL).improving


def test_a_step_size_that_diverges_is_a_result_and_all_of_them_an_error() -> None:
    found = search(falling(0.005, 30, []), SMALL)
    assert math.isinf(found.tried[0.1])
    assert found.lr == 0.01 or found.lr < 0.01
    with pytest.raises(DivergedError, match="every step size"):
        search(falling(1e-9, 30, []), SMALL)


def test_losses_that_are_not_numbers_are_never_the_best() -> None:
    curve = Curve([5, 10, 15], [math.nan, 0.4, 0.5], stopped=True)
    assert (curve.best, curve.loss) == (2, 0.45), "nor is the one beside them"
    assert math.isinf(Curve([5], [math.nan], stopped=False).loss)


def test_more_effort_is_never_less() -> None:
    quick, standard, thorough = (EFFORTS[n] for n in ("quick", "standard", "thorough"))
    for less, more in ((quick, standard), (standard, thorough)):
        assert len(less.rates) <= len(more.rates)
        assert less.trial < more.trial
        assert less.rounds < more.rounds
        assert less.patience is not None
        assert more.patience is not None
        assert less.patience * less.every < more.patience * more.every
    assert "150 rounds at most" in standard.about
