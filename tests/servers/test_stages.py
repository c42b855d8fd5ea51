"""Stages: what each does to rows, how they compose, and what all of them promise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fairlead.catalogue import parse
from fairlead.core import Server
from fairlead.core.errors import InputError
from fairlead.core.layout import Layout
from fairlead.core.seeds import draw_key
from fairlead.core.types import Cohort
from fairlead.functional import confree as confree_rows
from fairlead.functional import spread_matrix
from fairlead.servers import (
    AFTER_AVERAGE,
    STAGES,
    cagrad,
    chain,
    clip,
    confree,
    fedadagrad,
    fedadam,
    fedyogi,
    krum,
    mean,
    per_name,
    propagation,
    step,
    trimmed,
    uniform,
)


def cohort(*weights: float, ids: list[int] | None = None, clients: int = 9) -> Cohort:
    shares = torch.tensor(weights) / sum(weights)
    return Cohort(torch.tensor(ids or range(len(weights))), shares, clients, round=3, seed=5)


@st.composite
def weighted_rows(draw: st.DrawFn) -> tuple[Tensor, list[int]] | None:
    count = draw(st.integers(1, 6))
    rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(draw(st.integers(0, 999))))
    return rows, draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))


def reduced(stage: Server, rows: Tensor, who: Cohort) -> Tensor:
    return stage.update({}, {"w": rows}, who)[1]["w"]


@settings(deadline=None)
@given(weighted_rows(), st.randoms(use_true_random=False))
def test_mean_ignores_order_and_stays_within_its_rows(drawn: tuple[Tensor, list[int]], random: Any) -> None:
    rows, weights = drawn
    out = reduced(mean(), rows, cohort(*weights))
    order = list(range(len(rows)))
    random.shuffle(order)
    torch.testing.assert_close(reduced(mean(), rows[order], cohort(*(weights[i] for i in order))), out)
    assert out.shape == (1, 4)
    assert (out <= rows.amax(0) + 1e-5).all()
    assert (out >= rows.amin(0) - 1e-5).all()


@settings(deadline=None)
@given(weighted_rows())
def test_mean_does_not_notice_a_row_split_in_two(drawn: tuple[Tensor, list[int]]) -> None:
    rows, weights = drawn
    split = reduced(mean(), torch.cat([rows[:1], rows]), cohort(weights[0] / 2, weights[0] / 2, *weights[1:]))
    torch.testing.assert_close(split, reduced(mean(), rows, cohort(*weights)))


def test_uniform_ignores_the_weights() -> None:
    rows = torch.tensor([[1.0], [2.0], [6.0]])
    assert reduced(uniform(), rows, cohort(1, 1, 98)).tolist() == [[3.0]]


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("rows", [torch.zeros(3, 5), torch.ones(1, 5), torch.eye(4)], ids=["zeros", "one", "eye"])
def test_every_stage_is_finite_and_keeps_names_shapes_and_inputs(name: str, rows: Tensor) -> None:
    before = rows.clone()
    who = cohort(*[1.0] * len(rows))
    shaped = {"w": rows, "proto": rows[:, :4].reshape(len(rows), 2, 2)}
    first, _ = STAGES[name]().init({entry: torch.zeros_like(x[:1]) for entry, x in shaped.items()}, {}, 9)
    state, out = STAGES[name]().update(first, shaped, who)
    assert {n: x.shape for n, x in state.items()} == {n: x.shape for n, x in first.items()}
    assert out.keys() == shaped.keys()
    for entry, x in out.items():
        assert x.shape[0] in (1, len(rows))
        assert x.shape[1:] == shaped[entry].shape[1:]
        assert x.dtype == rows.dtype
        assert x.isfinite().all()
    assert torch.equal(rows, before)
    again = STAGES[name]().update(first, shaped, who)[1]
    assert all(torch.equal(again[entry], x) for entry, x in out.items())


@pytest.mark.parametrize("name", sorted(STAGES.keys() - {"confree", "cagrad", "clip", "scaled", "dp"} - AFTER_AVERAGE))
def test_one_client_makes_every_average_the_identity(name: str) -> None:
    rows = torch.tensor([[1.0, -2.0, 0.5]])
    torch.testing.assert_close(reduced(STAGES[name](), rows, cohort(1.0)), rows)


def test_confree_takes_entries_apart() -> None:
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    out = confree(c=0.3).update({}, {"a": rows[:, :2], "b": rows[:, 2:]}, cohort(1, 1, 1, 97))[1]
    torch.testing.assert_close(out["a"][0], confree_rows(rows[:, :2], 0.3))
    torch.testing.assert_close(out["b"][0], confree_rows(rows[:, 2:], 0.3))


class Scale(nn.Module):
    """One tensor of so many numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


def test_released_confree_takes_the_tensors_of_an_entry_apart() -> None:
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    who = cohort(1, 1, 1, 97)._replace(parts={"w": Layout(nn.Sequential(Scale(2), Scale(4))).everything})
    out = confree(c=0.3, variant="released").update({}, {"w": rows}, who)[1]["w"][0]
    seed = draw_key(who.seed, "confree", who.round)
    torch.testing.assert_close(out, confree_rows(rows, 0.3, "released", blocks=[2, 4], seed=seed))
    assert not torch.allclose(out, confree_rows(rows, 0.3, "released", seed=seed))


def test_confree_length_alone_is_the_mean_made_as_long() -> None:
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    out = reduced(confree(c=0.3, variant="length"), rows, cohort(1, 1, 1, 97))
    torch.testing.assert_close(out.norm(), confree_rows(rows, 0.3).norm())
    torch.testing.assert_close(out[0] / out.norm(), rows.mean(0) / rows.mean(0).norm())
    opposite = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    assert reduced(confree(variant="length"), opposite, cohort(1, 1)).tolist() == [[0.0, 0.0]]


def test_step_moves_the_message_and_keeps_what_nobody_changed() -> None:
    message = {"w": torch.tensor([[1.0]]), "c": torch.tensor([[7.0]])}
    server = chain(mean(), step(lr=0.5))
    state, sent = server.init(message, {}, 2)
    assert sent == message
    for expected in (2.0, 3.0):
        state, sent = server.update(state, {"w": torch.tensor([[1.0], [3.0]])}, cohort(1, 1))
        assert sent["w"].item() == expected
    assert sent["c"].item() == 7.0
    assert message["w"].item() == 1.0


def test_step_refuses_a_change_to_what_was_never_sent() -> None:
    state, _ = step().init({"w": torch.zeros(1, 1)}, {}, 1)
    with pytest.raises(InputError, match="step: a reply changes v, but the message holds w"):
        step().update(state, {"v": torch.zeros(1, 1)}, cohort(1))


def test_chain_keeps_states_apart_under_flat_names() -> None:
    server = chain(chain(clip(bound=1.0), step()), step(lr=2.0))
    state, _ = server.init({"w": torch.zeros(1, 2)}, {}, 1)
    assert state.keys() == {"0.1.w", "1.w"}
    after, out = server.update(state, {"w": torch.tensor([[3.0, 4.0]])}, cohort(1))
    assert after.keys() == state.keys()
    torch.testing.assert_close(after["0.1.w"], torch.tensor([[0.6, 0.8]]))
    torch.testing.assert_close(out["w"], torch.tensor([[1.2, 1.6]]))


def test_per_name_gives_each_entry_its_stage() -> None:
    server = per_name(w=chain(mean(), step()), control=uniform())
    rows = torch.tensor([[0.0], [4.0]])
    state, sent = server.init({"w": torch.ones(1, 1), "other": torch.zeros(1, 1)}, {}, 2)
    assert sent.keys() == {"w", "other"}
    assert state.keys() == {"w.1.w"}
    state, out = server.update(state, {"w": rows, "control": rows}, cohort(3, 1))
    assert {name: x.item() for name, x in out.items()} == {"w": 2.0, "control": 2.0}
    state, out = server.update(state, {"control": rows}, cohort(3, 1))
    assert state["w.1.w"].item() == 2.0
    with pytest.raises(InputError, match="per_name: no stage for extra, only for w, control"):
        server.update(state, {"extra": rows}, cohort(1, 1))


def test_propagation_spreads_over_everybody_once_all_took_part() -> None:
    W = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    server = propagation(lambda hello: hello["graph"], a=0.5)
    state, _ = server.init({"theta": torch.zeros(1, 2)}, {"graph": W}, 3)
    theta = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
    state, out = server.update(state, {"theta": theta}, cohort(1, 1, 1, clients=3))
    torch.testing.assert_close(out["theta"], spread_matrix(W, 0.5).float() @ theta)
    state, out = server.update(state, {"theta": theta[:1] + 1}, cohort(1, ids=[1], clients=3))
    kept = torch.stack([theta[0], theta[0] + 1, theta[2]])
    torch.testing.assert_close(out["theta"], spread_matrix(W, 0.5).float() @ kept)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: confree(c=1.0), r"confree: c must lie in \(0, 1\), got 1.0"),
        (lambda: confree(variant="papre"), "did you mean 'paper'"),
        (lambda: cagrad(c=0.0), "cagrad: c must lie"),
        (lambda: trimmed(share=0.7), "trimmed: share must lie"),
        (lambda: krum(byzantine=-1), "krum: byzantine must be"),
        (lambda: clip(bound=0.0), "clip: bound must be"),
        (lambda: step(lr=0.0), "step: lr must be"),
        (lambda: propagation(lambda hello: hello["x"], a=1.0), "propagation: a must lie"),
    ],
)
def test_factories_check_at_the_front_door(build: Callable[..., Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize("name", sorted(AFTER_AVERAGE))
def test_adaptive_steps_are_those_of_the_paper_in_float64(name: str) -> None:
    """Algorithm 2 of Reddi et al. by hand: three rounds of a number that moves much and one that moves little."""
    make: dict[str, Callable[..., Server]] = {"fedadam": fedadam, "fedyogi": fedyogi, "fedadagrad": fedadagrad}
    beta1, beta2, tau, lr = 0.7, 0.9, 0.01, 0.3
    options = {"lr": lr, "beta1": beta1, "tau": tau} | ({} if name == "fedadagrad" else {"beta2": beta2})
    stage = make[name](**options)
    state, _ = stage.init({"w": torch.zeros(1, 2, dtype=torch.float64)}, {}, 2)
    m, v = [0.0, 0.0], [tau**2, tau**2]
    for round in ([[1.0, 0.02], [3.0, 0.0]], [[-2.0, 0.01], [-2.0, 0.01]], [[0.0, 0.0], [0.1, 0.4]]):
        rows = torch.tensor(round, dtype=torch.float64)
        state, out = stage.update(state, {"w": rows}, cohort(1, 3))
        expected = []
        for i in range(2):
            d = 0.25 * round[0][i] + 0.75 * round[1][i]
            m[i] = beta1 * m[i] + (1 - beta1) * d
            if name == "fedadagrad":
                v[i] += d * d
            elif name == "fedadam":
                v[i] = beta2 * v[i] + (1 - beta2) * d * d
            else:
                v[i] -= (1 - beta2) * d * d * ((v[i] > d * d) - (v[i] < d * d))
            expected.append(lr * m[i] / (v[i] ** 0.5 + tau))
        torch.testing.assert_close(out["w"], torch.tensor([expected], dtype=torch.float64))


def test_adaptive_steps_come_after_whatever_averages() -> None:
    rows = torch.tensor([[1.0, -2.0], [3.0, 0.5], [-1.0, 1.0]])
    who, first = cohort(1, 1, 6), {"w": torch.zeros(1, 2)}
    for name, average in (("fedavg+fedadam", mean()), ("apfl+fedadam", uniform()), ("fedavg+krum+fedadam", krum())):
        stage = parse(name).average
        assert stage is not None
        _, out = stage.update(stage.init(first, {}, 9)[0], {"w": rows}, who)
        one = reduced(average, rows, who)
        _, expected = fedadam().update(fedadam().init(first, {}, 9)[0], {"w": one}, who)
        torch.testing.assert_close(out["w"], expected["w"])
    with pytest.raises(InputError, match="put it before"):
        parse("fedavg+fedadam+median")


def test_adaptive_steps_refuse_what_cannot_work() -> None:
    for wrong in ({"lr": 0.0}, {"beta1": 1.0}, {"beta2": 1.0}, {"tau": 0.0}):
        with pytest.raises(InputError, match=f"fedadam: {next(iter(wrong))} must"):
            fedadam(**wrong)
