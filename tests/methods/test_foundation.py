"""The methods everything else is compared with: LOCAL, FedAvg, FedProx, SCAFFOLD, FedRep, Ditto and fine-tuning."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import CLASSES, Sum, blobs, net, quadratic, run, training
from torch import Tensor

from fairlead.core import InputError, Layout
from fairlead.methods import ditto, fedavg, fedprox, fedrep, ft, local, scaffold
from fairlead.servers import uniform

CENTRES = torch.tensor([[3.0, 0.0], [-1.0, 4.0], [1.0, 1.0]])
SIZES = [2, 6, 2]
MEAN = torch.tensor([[0.2, 2.6]])  # of the centres, weighted by the sizes
START = torch.tensor([0.5, -1.0])


def assert_same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def assert_differ(a: Tensor, b: Tensor) -> None:
    assert (a - b).norm() > 1e-3


def test_local_goes_to_each_clients_own_minimum_and_sends_nothing() -> None:
    models, snapshot = run(local(), quadratic(CENTRES), START, rounds=40, how=training(lr=0.2, steps=5))
    torch.testing.assert_close(models, CENTRES)
    assert snapshot.message == {}


def test_fedavg_contracts_towards_the_weighted_mean() -> None:
    # K steps shrink every distance by (1 - lr)^K, so the mean of the copies is at that factor from the mean centre.
    models, _ = run(fedavg(), quadratic(CENTRES, SIZES), START, rounds=3, how=training(lr=0.2, steps=4))
    torch.testing.assert_close(models, (MEAN + 0.8 ** (4 * 3) * (START - MEAN)).expand(3, -1))


def test_one_client_makes_fedavg_local() -> None:
    alone = quadratic(CENTRES[:1])
    assert_same(run(fedavg(), alone, START, rounds=3)[0], run(local(), alone, START, rounds=3)[0])


def test_fedprox_settles_where_pull_and_data_agree() -> None:
    # Long local training ends at (c_k + μ w)/(1 + μ); the next w is the mean of these, so w converges to mean(c).
    models, _ = run(fedprox(mu=1.0), quadratic(CENTRES), START, how=training(lr=0.2, steps=200))
    torch.testing.assert_close(models, ((CENTRES + START) / 2).mean(0).expand(3, -1))


def test_fedprox_without_pull_is_fedavg_and_pull_matters() -> None:
    plain = run(fedavg(), blobs(), net(), rounds=3, how=CLASSES)[0]
    assert_same(run(fedprox(mu=0.0), blobs(), net(), rounds=3, how=CLASSES)[0], plain)
    assert_differ(run(fedprox(mu=1.0), blobs(), net(), rounds=3, how=CLASSES)[0], plain)


def test_scaffold_variates_become_the_clients_gradients_and_drift_is_gone() -> None:
    """After a round from w, c_k is the mean gradient along the client's path; corrected steps are alike for all."""
    how = training(lr=0.1, steps=1)
    _, snapshot = run(scaffold(), quadratic(CENTRES), START, how=how)
    torch.testing.assert_close(snapshot.clients()["state.row.c"], START - CENTRES)
    torch.testing.assert_close(snapshot.message["c"][0], START - CENTRES.mean(0))
    # With gradients u - c_k, subtracting c_k and adding c makes every client descend towards the common mean.
    _, later = run(scaffold(), quadratic(CENTRES), START, rounds=60, how=training(lr=0.1, steps=10))
    torch.testing.assert_close(later.message["w"], CENTRES.mean(0)[None])


def test_scaffold_is_fedavg_in_its_first_round_and_not_later() -> None:
    assert_same(run(scaffold(), blobs(), net(), how=CLASSES)[0], run(fedavg(), blobs(), net(), how=CLASSES)[0])
    later = [run(method, blobs(), net(), rounds=3, how=CLASSES)[0] for method in (scaffold(), fedavg())]
    assert_differ(*later)


def test_scaffold_with_momentum_keeps_variates_the_size_of_gradients() -> None:
    how = training(lr=0.01, steps=20, momentum=0.9)
    _, snapshot = run(scaffold(), quadratic(CENTRES), START, how=how)
    c = snapshot.clients()["state.row.c"]
    gradients = START - CENTRES
    assert (c.norm(dim=1) <= gradients.norm(dim=1) + 1e-5).all()
    assert (c.norm(dim=1) >= 0.2 * gradients.norm(dim=1)).all()


def test_fedrep_moves_heads_first_then_the_shared_body() -> None:
    """Prediction body + head: the head takes K steps towards c - body, then the body one towards c - head."""
    how = training(lr=0.5, steps=None, epochs=2, batch_size=10)
    models, snapshot = run(fedrep(), quadratic(CENTRES), Sum([0.0, 0.0], [0.0, 0.0]), how=how)
    head = CENTRES * (1 - 0.5**2)
    body = 0.5 * (CENTRES - head)
    torch.testing.assert_close(models[:, 2:], head)
    torch.testing.assert_close(models[:, :2], body.mean(0).expand(3, -1))
    torch.testing.assert_close(snapshot.message["w"], body.mean(0)[None])


def test_fedrep_takes_the_rounds_steps_with_the_head_and_again_with_the_body() -> None:
    how = training(lr=0.5, steps=3, epochs=2, batch_size=10)
    models, snapshot = run(fedrep(), quadratic(CENTRES), Sum([0.0, 0.0], [0.0, 0.0]), how=how)
    head = CENTRES * (1 - 0.5**3)
    torch.testing.assert_close(models[:, 2:], head)
    torch.testing.assert_close(snapshot.message["w"], (1 - 0.5**3) * (CENTRES - head).mean(0)[None])


def test_fedrep_with_one_layer_would_be_local_and_is_refused() -> None:
    with pytest.raises(InputError, match="no body to share"):
        run(fedrep(), quadratic(CENTRES), [0.0, 0.0])


def test_fedrep_keeps_heads_at_home() -> None:
    layout = Layout(net())
    models, snapshot = run(fedrep(), blobs(), net(), rounds=2, how=CLASSES)
    assert snapshot.message["w"].shape == (1, layout.body.size)
    assert torch.equal(models[0, : layout.body.size], models[1, : layout.body.size])
    assert_differ(models[0, layout.body.size :], models[1, layout.body.size :])


def test_ditto_settles_between_its_data_and_the_global_model() -> None:
    lam = 0.5
    models, snapshot = run(ditto(pull=lam), quadratic(CENTRES), START, rounds=120, how=training(lr=0.2, steps=5))
    w = snapshot.message["w"]
    torch.testing.assert_close(w, CENTRES.mean(0)[None])
    torch.testing.assert_close(models, (CENTRES + lam * w) / (1 + lam))


def test_ditto_untied_is_local_and_the_tie_matters() -> None:
    alone = run(local(), blobs(), net(), rounds=3, how=CLASSES)[0]
    assert_same(run(ditto(pull=0.0), blobs(), net(), rounds=3, how=CLASSES)[0], alone)
    assert_differ(run(ditto(), blobs(), net(), rounds=3, how=CLASSES)[0], alone)


def test_dittos_global_model_is_fedavgs() -> None:
    assert_same(
        run(ditto(), blobs(), net(), rounds=3, how=CLASSES)[1].message["w"],
        run(fedavg(), blobs(), net(), rounds=3, how=CLASSES)[1].message["w"],
    )


def test_fine_tuning_starts_from_what_the_method_deploys_and_changes_nothing_else() -> None:
    how = training(lr=0.5, steps=None, epochs=1, batch_size=10)
    models, snapshot = run(ft(fedavg(), epochs=3), quadratic(CENTRES), START, how=how)
    w = snapshot.message["w"]
    assert_same(w, run(fedavg(), quadratic(CENTRES), START, how=how)[1].message["w"])
    torch.testing.assert_close(models, CENTRES + 0.5**3 * (w - CENTRES))


def test_another_average_takes_the_place_of_the_methods_own() -> None:
    weighted, plain = (
        run(fedavg(), quadratic(CENTRES, SIZES), START, average=stage)[1].message["w"] for stage in (None, uniform())
    )
    torch.testing.assert_close(weighted, START + 0.1 * (MEAN - START))
    torch.testing.assert_close(plain, START + 0.1 * (CENTRES.mean(0)[None] - START))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: fedprox(mu=-1.0), "mu must be >= 0, got -1.0"),
        (lambda: ditto(pull=-0.1), "pull must be >= 0, got -0.1"),
        (lambda: fedrep(body_epochs=0), "body_epochs must be >= 1, got 0"),
        (lambda: ft(fedavg(), epochs=0), "epochs must be >= 1, got 0"),
    ],
)
def test_impossible_settings_are_refused(build: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build()
