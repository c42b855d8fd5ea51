"""FedCP: what the gate lets through, how features are held together, and which parts move."""

import pytest
import torch
from helpers import CLASSES, Sum, blobs, net, run
from torch import Tensor, nn

from fairlead.core import FastNetwork, InputError, Layout, Named, Task
from fairlead.methods import fedcp
from fairlead.methods.fedcp import WIDTHS, Gated, mmd

FEDERATION = blobs()


def gated() -> Gated:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Gated(net())
        for p in module.own.parameters():
            p.data += torch.randn_like(p)
    return module


def force(module: Gated, to_head: float, to_own: float) -> None:
    """Make the gate answer with these two numbers for every feature."""
    norm = module.gate[1]
    assert isinstance(norm, nn.LayerNorm)
    k = norm.bias.numel() // 2
    with torch.no_grad():
        norm.weight.zero_()
        norm.bias.copy_(torch.tensor([to_head, to_own]).repeat_interleave(k))


@pytest.mark.parametrize(("to_head", "to_own", "r"), [(50.0, 0.0, 1.0), (0.0, 50.0, 0.0), (0.0, 0.0, 0.5)])
def test_a_forced_gate_sends_features_where_it_is_told(to_head: float, to_own: float, r: float) -> None:
    module, x = gated(), FEDERATION.test.x
    force(module, to_head, to_own)
    z = module.body(x)
    torch.testing.assert_close(module(x), module.head(r * z) + module.own((1 - r) * z))


def test_nothing_is_random() -> None:
    module, x = gated(), FEDERATION.test.x
    assert torch.equal(module.train()(x), module.eval()(x))


def test_the_gate_looks_at_the_sample_and_at_the_personal_head() -> None:
    module, x = gated(), FEDERATION.test.x
    force(module, 0.0, 0.0)
    even = module(x)
    assert not torch.allclose(gated()(x), even)
    v = module.own.weight.sum(0)
    seen: list[Tensor] = []

    def look(gate: nn.Module, inputs: tuple[Tensor]) -> None:
        seen.append(inputs[0])

    module.gate.register_forward_pre_hook(look)
    module(x)
    torch.testing.assert_close(seen[0], v / v.norm() * module.body(x))


def test_mmd_of_two_points_in_closed_form() -> None:
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    expected = sum(2 - 2 * torch.tensor(-5 / width / 2).exp() for width in WIDTHS)
    torch.testing.assert_close(mmd(a, b), expected)


def test_mmd_of_equal_sets_is_zero_and_ignores_order_and_padding() -> None:
    a, b = torch.randn(6, 3), torch.randn(6, 3)
    assert float(mmd(a, a[torch.randperm(6)])) == pytest.approx(0, abs=1e-5)
    weight = torch.tensor([0.25] * 4 + [0.0] * 2)
    torch.testing.assert_close(mmd(a, b, weight), mmd(a[:4], b[:4]), atol=1e-6, rtol=1e-5)


def one_round(pull: float) -> tuple[Named, Named, Named, Task]:
    """What a client sends, and its task."""
    module = gated()
    layout = Layout(module)
    method = fedcp(pull=pull)
    state, message = method.init(layout.read(module), layout)
    task = Task(FastNetwork(module, layout), FEDERATION, [2], CLASSES, round=1, seed=0)
    return *method.client(state, message, task), message, task


def features(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, Gated)
    z: Tensor = module.body(x)
    return z


def test_lambda_holds_the_features_near_the_global_ones() -> None:
    def drift(pull: float) -> float:
        state, reply, message, task = one_round(pull)
        before, after = (
            task.outputs(fedcp().personal(state, m, task), "train", features)[0]
            for m in (message, message | {"w": message["w"] + reply["w"]})
        )
        return float(mmd(before, after))

    free, held = drift(0.0), drift(5.0)
    assert held < 0.2 * free


def test_the_global_head_is_the_mean_of_the_personal_ones_and_does_not_train() -> None:
    state, reply, message, _ = one_round(5.0)
    torch.testing.assert_close(message["head"] + reply["head"], state["own"])
    _, snapshot = run(fedcp(), FEDERATION, net(), rounds=2, how=CLASSES)
    own = snapshot.clients()["state.row.own"]
    shares = FEDERATION.train.sizes / FEDERATION.train.sizes.sum()
    torch.testing.assert_close(snapshot.message["head"][0], shares @ own)


def test_one_client_shares_a_head_with_itself() -> None:
    _, snapshot = run(fedcp(), blobs((9,)), net(), rounds=2, how=CLASSES)
    torch.testing.assert_close(snapshot.message["head"], snapshot.clients()["state.row.own"])


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="pull must be >= 0"):
        fedcp(pull=-1)
    with pytest.raises(InputError, match=r"must be nn\.Linear, got Point"):
        Gated(Sum([0.0], [0.0]))
