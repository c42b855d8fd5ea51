"""pFedHN: the server's step against plain autograd and SGD, its start, and clients that join late."""

from typing import Any

import pytest
import torch
from helpers import Point, cohorts, quadratic, run, training
from torch import nn

from fairlead.core import Cohort, FastNetwork, InputError, Layout, Method, Named, Server, Task
from fairlead.methods import pfedhn
from fairlead.methods.pfedhn import generate, under
from fairlead.servers import mean

CENTRES = torch.tensor([[0.0, 4.0], [4.0, 0.0], [-4.0, -4.0]])
START = [0.5, -0.5]
LR = 0.1


def begun(method: Method, start: list[float] = START, clients: int = 3) -> tuple[Server, Named, Named]:
    """The server, its first state and its first message."""
    module = Point(start)
    layout = Layout(module)
    server = method.server(mean())
    _, message = method.init(layout.read(module), layout)
    return server, *server.init(message, {}, clients)


def whole_cohort(n: int, round: int = 1) -> Cohort:
    return Cohort(torch.arange(n), torch.full((n,), 1 / n), n, round, 0)


def as_module(state: Named) -> nn.Sequential:
    """The hypernetwork as a module: four linear layers with ReLU between them, and the head right after."""
    reference = nn.Sequential(
        nn.Linear(1, 100),
        *(layer for _ in range(3) for layer in (nn.ReLU(), nn.Linear(100, 100))),
        nn.Linear(100, 2),
    )
    linear = [layer for layer in reference if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for name, layer in zip(["0", "1", "2", "3", "head"], linear, strict=True):
            layer.weight.copy_(state[f"phi.{name}.weight"])
            layer.bias.copy_(state[f"phi.{name}.bias"])
    return reference


def test_a_step_for_each_client_is_the_paper_s_one_after_another() -> None:
    """Plain SGD on one client's -Δθ·h(v_i) at a time, the whole of h moving between them, in float64."""
    server, state, message = begun(pfedhn(steps="client", weight_decay=0.0, momentum=0.5))
    reference = as_module(state).double()
    v = [nn.Parameter(row[None].double()) for row in state["v"]]
    sgd = torch.optim.SGD(reference.parameters(), lr=0.01, momentum=0.5)
    each = [torch.optim.SGD([row], lr=0.01, momentum=0.5) for row in v]
    for t in (1, 2):
        delta = LR * (CENTRES - message["theta"])
        state, message = server.update(state, {"theta": delta}, whole_cohort(3, t))
        for k in range(3):
            sgd.zero_grad()
            each[k].zero_grad()
            (-(delta[k].double() * reference(v[k])[0]).sum()).backward()
            sgd.step()
            each[k].step()
        expected = reference(torch.cat([*v])).detach()
        torch.testing.assert_close(message["theta"].double(), expected, atol=1e-5, rtol=1e-5)


def test_with_one_client_a_round_both_ways_to_step_are_the_same() -> None:
    found = []
    for method in (pfedhn(steps="client"), pfedhn(steps="round")):
        server, state, _ = begun(method)
        for k in (1, 0, 1):
            one = Cohort(torch.tensor([k]), torch.ones(1), 3, 1, 0)
            state, message = server.update(state, {"theta": torch.ones(1, 2)}, one)
        found.append(message["theta"])
    assert torch.equal(*found)


def test_a_long_gradient_of_a_client_is_shortened() -> None:
    """100 away from its centre a client moves by lr times the clip, not by lr times 100."""
    far = torch.tensor([[100.0, 0.0]])
    method = pfedhn(clip=7.0)
    module = Point([0.0, 0.0])
    layout = Layout(module)
    task = Task(FastNetwork(module, layout), quadratic(far), [0], training(LR), round=1, seed=0)
    state, message = method.init(layout.read(module), layout)
    _, reply = method.client(state, message, task)
    torch.testing.assert_close(reply["theta"], torch.tensor([[LR * 7.0, 0.0]]))


@pytest.mark.parametrize("clip", [50.0, 0.1])
def test_two_steps_are_those_of_torch_sgd_on_the_chain_rule(clip: float) -> None:
    """θ = h(v; φ) written as a module, the loss -Σ Δθ_i·θ_i / C, a step of C lr, momentum, decay and clipping."""
    options: dict[str, Any] = {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.1, "clip": clip}
    server, state, message = begun(pfedhn(**options))
    v = nn.Parameter(state["v"].clone())
    reference = as_module(state)
    moving = [*reference.parameters(), v]
    sgd = torch.optim.SGD(moving, lr=3 * 0.01, momentum=0.5, weight_decay=0.1)
    torch.testing.assert_close(message["theta"], reference(v).detach())
    for t in (1, 2):
        delta = LR * (CENTRES - message["theta"])
        state, message = server.update(state, {"theta": delta}, whole_cohort(3, t))
        sgd.zero_grad()
        (-(delta * reference(v)).sum() / 3).backward()
        length = nn.utils.clip_grad_norm_(moving, clip)
        assert (float(length) > clip) == (clip < 1)
        sgd.step()
        torch.testing.assert_close(message["theta"], reference(v).detach())
        torch.testing.assert_close(state["v"], v.detach())


def test_the_first_weights_are_the_initial_model_with_a_small_deviation_per_client() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 30), nn.LayerNorm(30), nn.Linear(30, 5))
    layout = Layout(module)
    params = layout.read(module)
    method = pfedhn()
    _, first = method.init(params, layout)
    _, message = method.server(mean()).init(first, {}, 8)
    for name, slot in layout.slots.items():
        usual, made = (x[:, slot.start : slot.stop] for x in (params, message["theta"]))
        if name.startswith("1."):
            assert torch.equal(made, usual.expand_as(made))  # a scale of ones and a bias of zeros
        else:
            assert 0 < float((made - usual).std()) < 0.5 * float(usual.std())
            assert not torch.equal(made[0], made[1])


def test_clients_get_models_of_their_own() -> None:
    models, _ = run(pfedhn(weight_decay=0.0), quadratic(CENTRES), START, rounds=80, how=training(0.5))
    assert float((models - CENTRES).norm(dim=1).max()) < 0.5


def test_one_client_reaches_its_own_optimum() -> None:
    models, _ = run(pfedhn(weight_decay=0.0, lr=0.1), quadratic(CENTRES[:1]), START, rounds=80, how=training(0.5))
    torch.testing.assert_close(models, CENTRES[:1], atol=0.1, rtol=0)


def test_many_clients_do_not_overshoot() -> None:
    """64 clients that ask for the same change: the step stays below what momentum can bear."""
    server, state, message = begun(pfedhn(), clients=64)
    for t in range(1, 61):
        state, message = server.update(state, {"theta": 2.0 - message["theta"]}, whole_cohort(64, t))
    assert float((message["theta"] - 2.0).abs().max()) < 0.5


def test_who_sits_out_keeps_its_embedding_and_who_never_came_gets_the_mean_one() -> None:
    method = pfedhn()
    seed = next(s for s in range(99) if cohorts(0.7, 3, 2, s) == [[0, 1], [1, 2]])
    _, first = run(method, quadratic(CENTRES), START, participation=0.7, seed=seed)
    v, message = first.server["v"].clone(), first.message["theta"].clone()
    torch.testing.assert_close(v[2], v[:2].mean(0))
    torch.testing.assert_close(message[2:], generate(under("phi.", first.server), v[:2].mean(0, keepdim=True)))
    models, second = run(method, quadratic(CENTRES), START, rounds=2, participation=0.7, seed=seed)
    assert torch.equal(second.server["v"][0], v[0])
    assert not torch.equal(second.server["v"][2], v[2])
    assert bool(second.server["present"].all())
    assert torch.equal(models, second.message["theta"])


def test_an_embedding_never_used_pollutes_nobody() -> None:
    """Another embedding for the client that is away changes nothing for the others."""
    server, state, _ = begun(pfedhn())
    other = state | {"v": torch.cat([state["v"][:2], state["v"][2:] + 7])}
    cohort = Cohort(torch.tensor([0, 1]), torch.tensor([0.5, 0.5]), 3, 1, 0)
    (_, one), (_, two) = (server.update(s, {"theta": torch.ones(2, 2)}, cohort) for s in (state, other))
    assert torch.equal(one["theta"], two["theta"])


def test_what_cannot_work_is_refused() -> None:
    for wrong in ({"lr": 0.0}, {"momentum": 1.0}, {"weight_decay": -1.0}, {"clip": 0.0}, {"hidden": 0}, {"steps": "x"}):
        with pytest.raises(InputError, match=f"pfedhn: {next(iter(wrong))}"):
            pfedhn(**wrong)
