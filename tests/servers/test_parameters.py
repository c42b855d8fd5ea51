"""Servers treat parameters apart from buffers, and know a model's tensors by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairlead.catalogue import parse
from fairlead.clients import InProcess, engine, wrapped
from fairlead.core import Cohort, Federation, InputError, Layout, Method, Named, Plan, Server, Split, Training
from fairlead.methods import METHODS, fedavg, pfedme
from fairlead.rounds import assemble, federate
from fairlead.servers import STAGES, confree, mean, parameters_only


def clients_of_different_scale(sizes: tuple[int, ...] = (24, 12, 18, 30, 12)) -> Federation:
    """Two classes in four dimensions; client k's features are three times as large as client k - 1's."""
    g = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *sizes]).cumsum(0)
    y = torch.arange(int(starts[-1])) % 2
    x = torch.randn(len(y), 4, generator=g) + y[:, None]
    for k in range(len(sizes)):
        x[starts[k] : starts[k + 1]] *= 3.0**k
    split = Split(x, y, starts)
    return Federation(split, split, split, ("no", "yes"))


def normalised() -> nn.Module:
    """4-6-2 with BatchNorm between, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


LAYOUT = Layout(normalised())
LAST = slice(-6, None)  # running_var ends the vector, and the body's part of it


def test_the_variances_are_where_the_tests_look() -> None:
    assert list(LAYOUT.slots)[-1] == "1.running_var"
    assert LAYOUT.slots["1.running_var"].shape == (6,)


TAKE_BUFFERS = [stage for stage in STAGES if stage != "dp"]  # which refuses them: they would travel without noise
IN_OTHER_METHODS = ["fedrep+confree", "ifca+confree", "fesem+cagrad"]


@pytest.mark.parametrize("name", [*(f"fedavg+{stage}" for stage in TAKE_BUFFERS), *IN_OTHER_METHODS])
def test_running_variances_stay_variances_whatever_the_stage(name: str) -> None:
    method, average = parse(name)
    plan = Plan(rounds=30, evaluate_every=1)
    how = Training(lr=0.05, epochs=2, batch_size=6)
    clients = InProcess(clients_of_different_scale(), how, engine("loop"))
    for happened, snapshot in federate(method, clients, normalised(), plan, average=average):
        for score in happened.scores:
            assert score.values["loss"].isfinite().all()
        for x in snapshot.message.values():
            assert (x[..., LAST] >= 0).all()


def cohort(weights: Tensor) -> Cohort:
    return Cohort(torch.arange(len(weights)), weights / weights.sum(), len(weights), round=3, seed=5)


@pytest.mark.parametrize("stage", [*TAKE_BUFFERS, "confree released"])
def test_parameters_get_the_stage_and_buffers_the_weighted_mean(stage: str) -> None:
    average = confree(variant="released") if stage == "confree released" else STAGES[stage]()
    rows = torch.randn(4, LAYOUT.size, generator=torch.Generator().manual_seed(0))
    who, part = cohort(torch.tensor([1.0, 2.0, 3.0, 4.0])), LAYOUT.everything
    out = assemble(fedavg(), average, LAYOUT)
    state, sent = out.init({"w": torch.zeros(1, LAYOUT.size)}, {}, 4)
    assert sent["w"].shape == (1, LAYOUT.size)
    _, sent = out.update(state, {"w": rows}, who)
    first, _ = average.init({"w": torch.zeros(1, part.trainable)}, {}, 4)
    alone = average.update(first, {"w": rows[:, : part.trainable]}, who._replace(parts={"w": part}))[1]["w"]
    assert torch.equal(sent["w"][:, : part.trainable], alone)
    averaged = (who.weights[None] @ rows[:, part.trainable :]).expand(len(alone), -1)
    torch.testing.assert_close(sent["w"][:, part.trainable :], averaged)


def momentum() -> Server:
    """A stage that remembers: half of the last change comes again."""

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        return {name: torch.zeros_like(x) for name, x in message.items()}, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        moved = {name: 0.5 * state[name] + x.mean(0, keepdim=True) for name, x in rows.items()}
        return moved, moved

    return Server(init, update)


def test_a_stage_that_remembers_is_shown_parameters_from_the_start() -> None:
    server = assemble(fedavg(), momentum(), LAYOUT)
    state, _ = server.init({"w": torch.zeros(1, LAYOUT.size)}, {}, 2)
    who = cohort(torch.ones(2))
    for expected in (1.0, 2.5):
        state, sent = server.update(state, {"w": torch.ones(2, LAYOUT.size)}, who)
        assert sent["w"][0, 0].item() == expected
    assert sent["w"][0, -1].item() == 2.0, "a running variance has no momentum"


def test_a_long_server_step_leaves_buffers_at_the_mean() -> None:
    server = assemble(pfedme(beta=2.0), mean(), LAYOUT)
    state, _ = server.init({"w": torch.full((1, LAYOUT.size), 1.0)}, {}, 2)
    _, sent = server.update(state, {"w": torch.full((2, LAYOUT.size), -0.75)}, cohort(torch.ones(2)))
    assert sent["w"][0, 0].item() == -0.5
    assert sent["w"][0, -1].item() == 0.25


def test_entries_may_come_to_the_stage_one_by_one() -> None:
    """A method may average two parts of the model, each with a stage of its own."""
    parts = {"w": LAYOUT.body, "head": LAYOUT.head}
    stage = parameters_only(confree(), parts)
    rows = torch.randn(2, LAYOUT.size, generator=torch.Generator().manual_seed(0))
    for name, part in parts.items():
        _, out = stage.update({}, {name: rows[:, part.columns]}, cohort(torch.ones(2)))
        assert out.keys() == {name}
        assert out[name].shape == (1, part.size)


def test_a_model_without_buffers_passes_as_it_is() -> None:
    layout = Layout(nn.Linear(3, 2))
    rows = {"w": torch.randn(2, layout.size)}
    seen: list[Tensor] = []

    def look(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        seen.append(rows["w"])
        return state, {"w": rows["w"][:1]}

    stage = parameters_only(Server(lambda m, h, n: ({}, m), look), {"w": layout.everything})
    stage.update({}, rows, cohort(torch.ones(2)))
    assert seen[0] is rows["w"]


@pytest.mark.parametrize("name", [n for n, method in METHODS.items() if method().average is not None])
@pytest.mark.parametrize("module", [normalised, lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))])
def test_what_a_method_says_of_its_rows_is_so(name: str, module: Callable[..., Any]) -> None:
    """Given the columns' numbers for a model, a method sends those of the part it declares."""
    method = METHODS[name]()
    plain = nn.Sequential(nn.LayerNorm(3), module()) if name == "fedbn" else module()  # refused without such a layer
    layout = Layout(wrapped(method, plain, seed=0))
    columns = torch.arange(layout.size, dtype=torch.float32)
    message = method.init(columns[None], layout)[1]
    (entry, part), *more = method.averaged(layout).items()
    assert not more
    sent = message["centre" if name == "fesem" else entry]
    sent = sent[0, 0] if name == "ifca" else sent[0]
    assert torch.equal(sent, columns[part.columns])
    assert list(part.sizes) == [n for n in layout.parameter_names if layout.slots[n].start in sent.long().tolist()]
    assert part.trainable == int((sent < layout.trainable).sum())


@pytest.mark.parametrize(
    ("averaged", "said"),
    [(lambda layout: {}, "says nothing about it"), (lambda layout: {"w": layout.head}, "says 14 columns of the model")],
)
def test_a_method_that_does_not_say_what_it_averages_is_told_so(averaged: Callable[..., Any], said: str) -> None:
    method: Method = fedavg()._replace(averaged=averaged)
    clients = InProcess(clients_of_different_scale(), Training(lr=0.05, batch_size=6), engine("loop"))
    with pytest.raises(InputError, match=rf"replies 'w' in rows of shape \(68,\).*{said}.*name there the part"):
        list(federate(method, clients, normalised(), Plan(rounds=1)))


def test_noise_refuses_buffers_which_would_travel_without_it() -> None:
    method, average = parse("fedavg+dp")
    with (
        pytest.raises(InputError, match=r"running statistics in 'w', which travel without noise; use GroupNorm"),
        InProcess(clients_of_different_scale(), Training(batch_size=6), engine("loop")) as clients,
    ):
        next(federate(method, clients, normalised(), Plan(rounds=1), average=average))
