"""FedPAC: the mixtures against another solver, prototypes against pooled means, FedRep for a client alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import CLASSES, Sum, blobs, cohorts, net, run
from scipy.optimize import minimize
from torch import Tensor

from fairlead.clients import InProcess, engine
from fairlead.clients.exchange import wrapped
from fairlead.core import BodyAndHead, Cohort, FastNetwork, Federation, InputError, Layout, Plan, Split, Task, Training
from fairlead.core.features import class_sums, features
from fairlead.methods import fedpac, fedrep
from fairlead.methods.fedpac import collaboration, combine, divided
from fairlead.models import build

FEDERATION = blobs()


def task(federation: Federation = FEDERATION, ids: tuple[int, int, int] = (0, 1, 2)) -> tuple[Task, Tensor]:
    module = BodyAndHead(net())
    layout = Layout(module)
    return Task(FastNetwork(module, layout), federation, list(ids), CLASSES, round=1, seed=0), layout.read(module)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("seed", range(3))
def test_mixtures_agree_with_slsqp(seed: int, scale: float) -> None:
    g = torch.Generator().manual_seed(seed)
    h = (torch.randn(7, 4, generator=g, dtype=torch.float64) + 1) * scale
    variance = torch.rand(7, generator=g, dtype=torch.float64) * scale**2
    alpha = combine(h, variance).numpy()
    np.testing.assert_allclose(alpha.sum(1), 1)
    assert (alpha >= 0).all()
    H, V = h.numpy() / scale, variance.numpy() / scale**2
    for i, a in enumerate(alpha):

        def objective(a: np.ndarray, i: int = i) -> Any:
            return a**2 @ V + ((H[i] - a @ H) ** 2).sum()

        simplex = {"type": "eq", "fun": lambda a: a.sum() - 1}
        best = minimize(
            objective, np.full(7, 1 / 7), bounds=[(0, 1)] * 7, constraints=simplex, method="SLSQP", tol=1e-12
        )
        assert objective(a) <= best.fun + 1e-9
        np.testing.assert_allclose(a, best.x, atol=1e-3)


def test_equal_means_are_weighted_by_precision() -> None:
    alpha = combine(torch.ones(3, 5), torch.tensor([1.0, 2.0, 4.0]))
    torch.testing.assert_close(alpha, torch.tensor([4.0, 2.0, 1.0]).expand(3, 3) / 7)


def test_means_known_exactly_and_apart_leave_everyone_with_its_own_head() -> None:
    torch.testing.assert_close(combine(torch.eye(4), torch.zeros(4)), torch.eye(4))
    torch.testing.assert_close(combine(torch.ones(1, 3), torch.ones(1)), torch.ones(1, 1))
    assert bool(combine(torch.zeros(3, 2), torch.zeros(3)).isfinite().all())


def test_statistics_are_those_of_the_one_hot_label_times_the_feature() -> None:
    t, start = task()
    method = fedpac()
    _, message = method.init(start, t.layout)
    _, reply = method.client({}, message, t)
    module = BodyAndHead(net())
    for k in range(3):
        x, y = FEDERATION.train.client(k)
        z = module.body(x).detach()
        products = torch.nn.functional.one_hot(y, 3)[:, :, None] * z[:, None]  # (n, K, d)
        torch.testing.assert_close(reply["means"][k], products.mean(0))
        spread = (products - products.mean(0)).square().sum((1, 2)).mean() / len(y)
        torch.testing.assert_close(reply["variance"][k, 0], spread)


def test_prototypes_pool_the_features_of_all_clients_under_their_trained_bodies() -> None:
    t, start = task()
    method = fedpac()
    _, message = method.init(start, t.layout)
    _, reply = method.client({}, message, t)
    bodies = t.layout.join((t.layout.body, message["w"] + reply["w"]), (t.layout.head, reply["head"]))
    sums, counts = class_sums(t.outputs(bodies, "train", features), t)
    _, snapshot = run(method, FEDERATION, net(), how=CLASSES)
    torch.testing.assert_close(snapshot.message["prototypes"][0], sums.sum(0) / counts.sum(0)[:, None])
    assert snapshot.message["known"].tolist() == [[1.0, 1.0, 1.0]]


def test_a_class_nobody_brings_keeps_its_prototype() -> None:
    stage = collaboration("mean")
    message = {
        "w": torch.zeros(1, 1),
        "head": torch.zeros(1, 2),
        "prototypes": torch.full((1, 2, 3), 7.0),
        "known": torch.tensor([[0.0, 1.0]]),
    }
    state, _ = stage.init(message, {}, 3)
    rows = {
        "w": torch.ones(1, 1),
        "head": torch.ones(1, 2),
        "prototypes": torch.ones(1, 2, 3),
        "counts": torch.tensor([[4.0, 0.0]]),
        "means": torch.ones(1, 2, 3),
        "variance": torch.ones(1, 1),
    }
    cohort = Cohort(torch.tensor([1]), torch.ones(1), 3, 1, 0)
    _, out = stage.update(state, rows, cohort)
    assert out["prototypes"][0].tolist() == [[1.0] * 3, [7.0] * 3]
    assert out["known"].tolist() == [[1.0, 1.0]]
    assert out["head"].tolist() == [[1.0, 1.0]] * 3  # the only head there is


def test_one_hostile_client_moves_the_mean_of_prototypes_and_not_their_median() -> None:
    hostile = 1e3
    rows = {
        "w": torch.ones(5, 1),
        "head": torch.ones(5, 2),
        "prototypes": torch.tensor([1.0, 2.0, 3.0, 4.0, hostile]).view(5, 1, 1).expand(5, 2, 3),
        "counts": torch.tensor([[4.0, 1.0]] * 4 + [[4.0, 0.0]]),
        "means": torch.ones(5, 2, 3),
        "variance": torch.ones(5, 1),
    }
    cohort = Cohort(torch.arange(5), torch.full((5,), 0.2), 5, 1, 0)
    first = {
        "w": torch.zeros(1, 1),
        "head": torch.zeros(1, 2),
        "prototypes": torch.zeros(1, 2, 3),
        "known": torch.zeros(1, 2),
    }
    for pool, expected in (("mean", [202.0, 2.5]), ("median", [3.0, 2.5])):
        stage = collaboration(pool)  # type: ignore[arg-type]
        _, out = stage.update(stage.init(first, {}, 5)[0], rows, cohort)
        assert out["prototypes"][0].tolist() == [[x] * 3 for x in expected]


def test_one_client_without_alignment_is_fedrep() -> None:
    alone, how = blobs((9,)), replace(CLASSES, lr=0.05)  # a step size that is not the paper's 0.1 for the head
    mine, _ = run(fedpac(pull=0), alone, net(), rounds=3, how=how)
    theirs, _ = run(fedrep(head_epochs=1, body_epochs=how.epochs), alone, net(), rounds=3, how=how)
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    faster, _ = run(fedpac(pull=0, head_lr=10 * how.lr), alone, net(), rounds=3, how=how)
    assert float((faster - mine).abs().max()) > 0.01


def test_alignment_draws_features_to_the_prototypes() -> None:
    def distance(pull: float) -> float:
        t, start = task()
        method = fedpac(pull=pull)
        _, message = method.init(start, t.layout)
        message |= {"prototypes": torch.eye(3, 4)[None], "known": torch.ones(1, 3)}
        _, reply = method.client({}, message, t)
        return float((reply["prototypes"] - message["prototypes"]).square().mean())

    assert distance(20.0) < 0.7 * distance(0.0)


def test_unknown_prototypes_do_not_pull() -> None:
    def body(pull: float) -> Tensor:
        t, start = task()
        method = fedpac(pull=pull)
        return method.client({}, method.init(start, t.layout)[1], t)[1]["w"]

    assert torch.equal(body(0.0), body(50.0))


def test_a_client_that_never_took_part_gets_the_mean_of_the_heads() -> None:
    there = cohorts(2, 3, 1)[0]
    models, snapshot = run(fedpac(), FEDERATION, net(), participation=2, how=CLASSES)
    (absent,) = {0, 1, 2} - set(there)
    heads = snapshot.server["0.head"]
    torch.testing.assert_close(snapshot.message["head"][absent], heads[there].mean(0))
    torch.testing.assert_close(models[absent, Layout(BodyAndHead(net())).head.columns], heads[there].mean(0))


def test_what_cannot_work_is_refused() -> None:
    for keywords in ({"pull": -1}, {"head_lr": 0}, {"head_epochs": -1}, {"least": 0}, {"pool": "x"}):
        with pytest.raises(InputError, match=f"fedpac: {next(iter(keywords))} must"):
            fedpac(**keywords)
    with pytest.raises(InputError, match=r"must be nn\.Linear, got Point"):
        divided(Sum([0.0], [0.0]))


def test_of_a_class_with_few_samples_nothing_is_told() -> None:
    x, y = torch.randn(9, 4), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2])
    split = Split(x, y, torch.tensor([0, 9]))
    told = []
    for least in (1, 2):
        method = fedpac(least=least)
        module = wrapped(method, build("wide", (4,), 3, 0), 0)
        layout = Layout(module)
        with InProcess(
            Federation(split, split, split, ("a", "b", "c")), Training(batch_size=4), engine("loop")
        ) as clients:
            clients.start(method, module, Plan(rounds=1))
            told.append(clients.train(torch.arange(1), 1, method.init(layout.read(module), layout)[1]).rows)
    assert told[0]["counts"].tolist() == [[4.0, 4.0, 1.0]]
    assert told[1]["counts"].tolist() == [[4.0, 4.0, 0.0]]
    for name in ("prototypes", "means"):
        assert torch.equal(told[0][name][:, :2], told[1][name][:, :2])
        assert told[0][name][:, 2].abs().sum() > 0
        assert not told[1][name][:, 2].any()
