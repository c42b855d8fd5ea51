"""PLGU-LF and PLGU-GRep."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from helpers import CLASSES, Point, Sum, blobs, net, quadratic, run, training
from torch import Tensor, nn

from fairlead.core import InputError, Layout, Training
from fairlead.core.sharpness import personalization
from fairlead.methods import fedavg, fedrep, local, plgu_grep, plgu_lf
from fairlead.servers import uniform

CENTRES = torch.tensor([[3.0, 0.0], [-1.0, 4.0]])
A, B = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0])


def unit(r: Tensor) -> Tensor:
    return torch.nn.functional.normalize(r)


def test_scores_are_distances_per_parameter() -> None:
    """Layers of 6 and 2 weights, away by 3 and 2: 3/6 to 2/2, one third to two thirds."""
    layout = Layout(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False)))
    theta = torch.tensor([[3.0, 0, 0, 0, 0, 0, 0, 2.0], [0.0] * 8])
    xi = personalization(theta, torch.zeros(1, 8), layout)
    torch.testing.assert_close(xi, torch.tensor([[1 / 3, 2 / 3], [1 / 2, 1 / 2]]))


def test_scores_leave_buffers_out() -> None:
    layout = Layout(nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)))
    theta = torch.zeros(1, layout.size)
    theta[:, layout.trainable :] = 5
    theta[:, 0] = 1
    assert personalization(theta, torch.zeros(1, layout.size), layout).tolist() == [[1.0, 0.0]]


def test_lf_first_round() -> None:
    """Both layers have gradient r, together of norm √2 |r|, and score 1/2: uphill it is r + ρ/√2 r/|r|."""
    r = A + B - CENTRES
    models, snapshot = run(plgu_lf(rho=0.4), quadratic(CENTRES, sizes=[1, 3]), Sum(A, B), how=training(lr=0.1))
    torch.testing.assert_close(models, torch.cat([A - 0.1 * r, B - 0.1 * r], 1))
    change = -0.1 * (r + 0.4 / 2**0.5 * unit(r)).mean(0)
    torch.testing.assert_close(snapshot.message["w"][0], torch.cat([A + change, B + change]))


def test_lf_keeps_the_layers_that_have_left_most() -> None:
    """Layers of one and of two parameters are as far from w; the small one scores higher and is kept."""

    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Point([0.0]), Point([0.0, 0.0])

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.first(x), self.second(x)], 1)

    centres = torch.tensor([[2.0, 2.0, 0.0], [-4.0, -4.0, 0.0]])
    theta = 0.1 * centres  # after the first round
    w = theta.mean(0)
    start = torch.cat([theta[:, :1], w[1:].expand(2, -1)], 1)
    places: list[tuple[Literal["w", "theta"], Tensor]] = [("w", w), ("theta", start)]
    for at, points in places:
        method = plgu_lf(rho=0.0, personal_layers=1, at=at)
        models, snapshot = run(method, quadratic(centres), Uneven(), rounds=2, how=training(lr=0.1))
        torch.testing.assert_close(models, start - 0.1 * (start - centres))
        torch.testing.assert_close(snapshot.message["w"][0], w - 0.1 * (points - centres).mean(0))


def test_lf_moves_w_by_gradients_at_w() -> None:
    """So w goes the way of FedAvg where there is no sharpness, whatever layers clients keep."""
    _, fed = run(fedavg(), blobs(), net(), rounds=3, how=CLASSES, average=uniform())
    at_w, at_theta = (
        run(plgu_lf(rho=0.0, at=at), blobs(), net(), rounds=3, how=CLASSES)[1].message["w"] for at in ("w", "theta")
    )
    torch.testing.assert_close(at_w, fed.message["w"])
    assert (at_theta - at_w).norm() > 1e-3
    with pytest.raises(InputError, match="at must be 'w' or 'theta'"):
        plgu_lf(at="x")  # type: ignore[arg-type]


def test_lf_without_personal_layers_or_sharpness_is_fedavg() -> None:
    _, ours = run(plgu_lf(rho=0.0, personal_layers=0), blobs(), net(), rounds=3, how=CLASSES)
    _, theirs = run(fedavg(), blobs(), net(), rounds=3, how=CLASSES, average=uniform())
    torch.testing.assert_close(ours.message["w"], theirs.message["w"])


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_lf_with_every_layer_personal_deploys_local_models(rho: float) -> None:
    ours, _ = run(plgu_lf(rho=rho, personal_layers=3), blobs(), net(), rounds=3, how=CLASSES)
    alone, _ = run(local(), blobs(), net(), rounds=3, how=CLASSES)
    torch.testing.assert_close(ours, alone)


def test_lf_sharpness_and_personal_layers_matter() -> None:
    def both(**keywords: Any) -> tuple[Tensor, Tensor]:
        models, snapshot = run(plgu_lf(**keywords), blobs(), net(), rounds=4, how=CLASSES)
        return models, snapshot.message["w"]

    usual, flat, shared = both(), both(rho=0.0), both(personal_layers=0)
    assert (usual[1] - flat[1]).norm() > 1e-4
    assert (usual[0] - shared[0]).norm() > 1e-3


def test_lf_more_personal_layers_than_layers_are_refused() -> None:
    with pytest.raises(InputError, match="the model has 3 layers"):
        run(plgu_lf(personal_layers=4), blobs(), net(), how=CLASSES)


def test_grep_first_round() -> None:
    """The head steps by -η r; the body has gradient r' = (1 - η) r then, and score 1: uphill r' + ρ r'/|r'|."""
    r = A + B - CENTRES
    how = training(lr=0.1, steps=None)
    models, _ = run(plgu_grep(rho=0.4), quadratic(CENTRES, sizes=[1, 3]), Sum(A, B), how=how)
    body = A - 0.1 * (0.9 * r + 0.4 * unit(r)).mean(0)
    torch.testing.assert_close(models, torch.cat([body.expand(2, -1), B - 0.1 * r], 1))


def test_grep_scores_come_from_where_the_client_left_the_body() -> None:
    """With three layers, the second round's scores weigh the two of the body by how far each had moved."""
    how = replace(CLASSES, momentum=0.0)
    _, first = run(plgu_grep(rho=0.5), blobs(), net(), rounds=1, how=how)
    state = {n.removeprefix("state.row."): x for n, x in first.clients().items()}
    layout = Layout(net())
    xi = personalization(state["body"], first.message["w"], layout.alone(layout.body))
    assert xi.shape == (3, 2)
    assert (xi > 0).all()
    torch.testing.assert_close(xi.sum(1), torch.ones(3))


def test_grep_scores_of_the_body_sum_to_one_in_the_first_round() -> None:
    """Both layers of the body count one half; the head, which does not move with it, counts nothing."""
    rho, module, (x, y) = 0.7, net().double(), blobs((4,)).train.client(0)
    tensors: dict[str, Tensor] = dict(module.named_parameters())
    body = [n for n in tensors if not n.startswith("4.")]

    def gradients(at: dict[str, Tensor]) -> dict[str, Tensor]:
        out = torch.func.functional_call(module, at, (x.double(),))
        value = torch.nn.functional.cross_entropy(out, y)
        return dict(zip(body, torch.autograd.grad(value, [at[n] for n in body]), strict=True))

    g = gradients(tensors)
    length = torch.stack([v.square().sum() for v in g.values()]).sum().sqrt()
    ahead = {n: v + rho / 2 * g[n] / length if n in body else v for n, v in tensors.items()}
    expected = torch.cat([(tensors[n] - 0.1 * v).flatten() for n, v in gradients(ahead).items()]).detach()
    how = Training(lr=0.1, batch_size=4)
    models, _ = run(plgu_grep(rho=rho, head_epochs=0), blobs((4,)), net(), how=how)
    torch.testing.assert_close(models[0, Layout(net()).body.columns], expected.float())


def test_grep_without_sharpness_is_fedrep() -> None:
    for keywords in ({}, {"head_epochs": 3, "body_epochs": 2}):
        ours, _ = run(plgu_grep(rho=0.0, **keywords), blobs(), net(), rounds=3, how=CLASSES)
        theirs, _ = run(fedrep(**keywords), blobs(), net(), rounds=3, how=CLASSES, average=uniform())
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)  # the same, but for the rounding of gradients


def test_grep_sharpness_matters() -> None:
    ours, _ = run(plgu_grep(rho=0.5), blobs(), net(), rounds=3, how=CLASSES)
    flat, _ = run(plgu_grep(rho=0.0), blobs(), net(), rounds=3, how=CLASSES)
    assert (ours - flat).norm(dim=1).min() > 1e-3


def test_grep_needs_a_body() -> None:
    with pytest.raises(InputError, match="no body to share"):
        run(plgu_grep(), quadratic(CENTRES), [0.0, 0.0])
