"""Adapters: what travels, the frozen weights, the first model unchanged, and a full rank that can be any weight."""

import pytest
import torch
from helpers import CLASSES, blobs, net, run
from torch import nn

from fairlead.catalogue import parse
from fairlead.core import InputError, Layout, Training
from fairlead.methods import METHODS
from fairlead.methods.lora import Adapted, adapted, lora, parts

FEDERATION = blobs((8, 9, 12))


def test_the_adapted_network_starts_as_the_network() -> None:
    x = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, 3)
    )
    twin = adapted(module, rank=2, scale=2.0)
    torch.testing.assert_close(twin(x), module(x))
    assert [type(m) for m in twin.children()] == [Adapted, nn.ReLU, nn.Flatten, Adapted, nn.Linear]
    layer, was = twin.get_submodule("3"), module.get_submodule("3")
    assert isinstance(layer, Adapted)
    assert isinstance(was, nn.Linear)
    nn.init.normal_(layer.up)
    weight = was.weight + 2.0 * layer.up @ layer.down
    torch.testing.assert_close(layer(torch.ones(1, 64)), torch.ones(1, 64) @ weight.T + was.bias)


def test_only_adapters_and_the_head_travel_and_the_rest_stays_as_it_began() -> None:
    entry = parse("fedavg+lora", {"lora": {"rank": 2}})
    models, snapshot = run(entry.method, FEDERATION, net(), rounds=3, how=CLASSES)
    # 6-5-4-3: rank 2 beside 5x6 and 4x5, and the head of 15 numbers.
    assert snapshot.message["w"].shape == (1, 2 * (6 + 5) + 2 * (5 + 4) + 15)
    layout = Layout(adapted(net(), 2, 2.0))
    _, frozen = parts(layout)
    first = Layout(net()).read(net())[:, : frozen.size]
    assert torch.equal(models[:, frozen.columns].sort(1).values, first.sort(1).values.expand(3, -1))
    assert float((models[:, parts(layout)[0].columns] - snapshot.message["w"]).abs().max()) == 0


def test_a_step_is_the_gradient_by_up_and_down_in_float64() -> None:
    """One client, one batch: up and down move by the chain rule through W_0 + s B A; W_0 does not."""
    alone = blobs((4,))
    how = Training(lr=0.1, batch_size=4)
    models, _ = run(lora(METHODS["local"](), rank=2), alone, net(), rounds=2, how=how)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # as the run's seed is
        module = adapted(net(), 2, 2.0)
    module = module.double()
    x, y = alone.train.client(0)
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(module(x.double()), y)
        grads = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for w, g in zip(module.parameters(), grads, strict=True):
                w.sub_(0.1 * g)
    torch.testing.assert_close(models.double(), Layout(module).read(module), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_it(name: str) -> None:
    module = net()
    if name == "fedbn":
        *below, head = module.children()
        module = nn.Sequential(*below, nn.BatchNorm1d(4), head)
    plain = run(METHODS[name](), FEDERATION, module, rounds=2, how=CLASSES)[1].message
    models, snapshot = run(lora(METHODS[name]()), FEDERATION, module, rounds=2, how=CLASSES)
    assert bool(models.isfinite().all())
    assert float((models - models.mean(0)).abs().max()) > 0 or name in (
        "fedavg",
        "fedprox",
        "scaffold",
        "fedsam",
        "cfl",
    )
    assert snapshot.message.keys() == plain.keys()


def test_running_statistics_are_learned() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    models, _ = run(lora(METHODS["fedavg"]()), FEDERATION, module, rounds=3, how=CLASSES)
    layout = Layout(adapted(module, 4, 2.0))
    moved = models[:, layout.part("1.running_mean").columns]
    assert float(moved.abs().min()) > 0


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="rank must be >= 1"):
        lora(METHODS["fedavg"](), rank=0)
    with pytest.raises(InputError, match="nothing to adapt"):
        run(lora(METHODS["fedavg"]()), FEDERATION, nn.Linear(6, 3), how=CLASSES)
