"""FedALA: shares of the global model, their gradient, and when they are learned."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from helpers import CLASSES, Sum, blobs, net, quadratic, run, training
from torch import Tensor, nn

from fairlead.core import Batch, FastNetwork, Federation, InputError, Layout, Task, Training
from fairlead.methods import fedala, fedavg, local
from fairlead.methods.fedala import sampled, upper

FEDERATION = blobs()


def task(federation: Federation, module: nn.Module, ids: list[int], how: Training) -> Task:
    return Task(FastNetwork(module, Layout(module)), federation, ids, how, round=1, seed=0)


def test_no_learning_is_fedavg() -> None:
    mine, _ = run(fedala(rate=0), FEDERATION, net(), rounds=4, how=CLASSES)
    theirs, _ = run(fedavg(), FEDERATION, net(), rounds=4, how=CLASSES)
    assert torch.equal(mine, theirs)


def test_learning_makes_every_client_its_own_model() -> None:
    mine, snapshot = run(fedala(), FEDERATION, net(), rounds=4, how=CLASSES)
    weights = snapshot.clients()["state.row.weights"]
    assert bool(((weights >= 0) & (weights <= 1)).all())
    assert bool((weights < 1).any(1).all())
    part = upper(Layout(net()), 1)
    assert not torch.allclose(mine[0, part.columns], mine[1, part.columns], atol=1e-4)
    below = Layout(net()).body.columns
    assert torch.equal(mine[:, below], snapshot.message["w"][:, below].expand(3, -1))


def test_one_client_has_nothing_to_mix() -> None:
    alone = blobs((9,))
    mine, _ = run(fedala(), alone, net(), rounds=3, how=CLASSES)
    theirs, _ = run(local(), alone, net(), rounds=3, how=CLASSES)
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_shares_of_one_take_the_global_model_and_shares_of_zero_keep_the_own_layers() -> None:
    layout = Layout(net())
    theta, w = torch.randn(2, layout.size), torch.randn(1, layout.size)
    part, ones = upper(layout, 2), torch.ones(2, upper(layout, 2).size)
    data = task(FEDERATION, net(), [0, 1], CLASSES)

    def deployed(weights: Tensor) -> Tensor:
        state = {"theta": theta[:, part.columns], "weights": weights, "rounds": torch.full((2, 1), 2.0)}
        return fedala(rate=0, layers=2).personal(state, {"w": w}, data)

    assert torch.equal(deployed(ones), w.expand(2, -1))
    kept = deployed(0 * ones)
    assert torch.equal(kept[:, part.columns], theta[:, part.columns])
    lower = layout.cut(2)[0].columns
    assert torch.equal(kept[:, lower], w[:, lower].expand(2, -1))


def test_a_step_on_the_shares_in_closed_form() -> None:
    """The loss |a + b - c|²/2 has gradient a + b - c in b, so W' = W - η (w - θ)(a + b̂ - c), kept within [0, 1]."""
    federation = quadratic([[1.0, -1.0, 0.0]])
    module = Sum([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    t = task(federation, module, [0], training())
    theta = torch.tensor([[9.0, 9.0, 9.0, 0.0, 0.5, 1.0]])
    w = torch.tensor([[0.2, 0.2, 0.2, 1.0, -0.5, 0.0]])
    weights = torch.tensor([[0.5, 0.5, 0.5]])
    state = {"theta": theta[:, 3:], "weights": weights, "rounds": torch.tensor([[2.0]])}
    after, _ = fedala(rate=0.4).client(state, {"w": w}, t)
    towards = (w - theta)[:, 3:]
    b_hat = theta[:, 3:] + towards * weights
    g = towards * (w[:, :3] + b_hat - torch.tensor([[1.0, -1.0, 0.0]]))
    torch.testing.assert_close(after["weights"], (weights - 0.4 * g).clamp(0, 1))
    huge, _ = fedala(rate=100.0).client(state, {"w": w}, t)
    assert set(huge["weights"].flatten().tolist()) <= {0.0, 1.0}


def test_the_first_round_mixes_nothing_and_the_second_learns_until_the_losses_settle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = []

    class Counted(list[Batch]):
        """A sample that counts how often it is gone over."""

        def __iter__(self) -> Iterator[Batch]:
            passes.append(len(self))
            return super().__iter__()

    def counted(task: Task, share: float, start: int) -> list[Batch]:
        return Counted(sampled(task, share, start))

    monkeypatch.setattr(import_module("fairlead.methods.fedala"), "sampled", counted)
    t = task(FEDERATION, net(), [0, 1], CLASSES)
    layout, params = t.layout, Layout(net()).read(net())
    _, message = fedala().init(params, layout)
    message = {"w": message["w"] + 0.3 * torch.randn(1, layout.size, generator=torch.Generator().manual_seed(1))}

    def count(rounds: list[float], **keywords: Any) -> tuple[int, list[float]]:
        passes.clear()
        method = fedala(**keywords)
        state = {**method.init(params, layout)[0], "rounds": torch.tensor(rounds)[:, None]}
        after, _ = method.client(state, message, t)
        return len(passes), after["rounds"][:, 0].tolist()

    assert count([0.0, 0.0]) == (0, [1.0, 1.0])
    assert count([1.0, 2.0], threshold=1e9) == (11, [2.0, 2.0])  # more losses than the window of 10
    assert count([1.0, 1.0], threshold=1e-30, passes=3) == (3, [2.0, 2.0])
    assert count([2.0, 2.0]) == (1, [2.0, 2.0])


def test_the_first_round_starts_from_the_global_model() -> None:
    t = task(FEDERATION, net(), [0, 1], CLASSES)
    state, message = fedala().init(Layout(net()).read(net()), t.layout)
    message = {"w": message["w"] + 1}
    assert torch.equal(fedala().personal(state, message, t), message["w"].expand(2, -1))


def test_a_sample_holds_its_share_of_every_client() -> None:
    t = task(FEDERATION, net(), [0, 1, 2], CLASSES)  # 5, 9 and 12 samples in batches of 4
    batches = sampled(t, 0.7, start=0)
    weights = [b.weight for b in batches if b.weight is not None]
    taken = torch.stack([(weight > 0).sum(1) for weight in weights])
    assert taken.sum(0).tolist() == [4, 7, 9]
    for b, weight in zip(batches, weights, strict=True):
        torch.testing.assert_close(weight.sum(1, keepdim=True), b.active)


def test_what_cannot_work_is_refused() -> None:
    for keywords in ({"layers": 0}, {"share": 0}, {"rate": -1}, {"threshold": 0}, {"window": 1}, {"passes": 0}):
        with pytest.raises(InputError, match=f"fedala: {next(iter(keywords))} must"):
            fedala(**keywords)
    with pytest.raises(InputError, match="at most the model's 3, got 4"):
        fedala(layers=4).init(Layout(net()).read(net()), Layout(net()))
    assert upper(Layout(net()), 3).size == Layout(net()).size
