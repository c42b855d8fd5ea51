"""Clients of different architectures in one run: each is as if its own body were all there is."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fairlead import compare
from fairlead.clients import InProcess, engine
from fairlead.core import Federation, InputError, Layout, Method, Plan, Split, Training
from fairlead.methods import fedavg, fedproto, fedres, lg_fedavg, local
from fairlead.methods.fedres import silenced
from fairlead.models import Several, build
from fairlead.rounds import federate

CLIENTS, HOW = 4, Training(lr=0.1, batch_size=4, epochs=2, momentum=0.5)


def bodies() -> list[nn.Module]:
    return [
        nn.Sequential(nn.Linear(6, 5), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.ReLU()),
    ]


def several() -> Several:
    torch.manual_seed(3)
    return Several(bodies(), nn.Linear(5, 3), whose=[0, 1, 1])


def federation() -> Federation:
    rng = torch.Generator().manual_seed(0)
    sizes = torch.tensor([8, 12, 5, 9])
    x, y = torch.randn(34, 6, generator=rng), torch.arange(34) % 3
    split = Split(x, y, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))
    return Federation(split, split, split, ("a", "b", "c"))


def trained(method: Method, module: nn.Module, how: str = "loop", rounds: int = 3) -> tuple[Tensor, list[Tensor]]:
    clients = InProcess(federation(), HOW, engine(how))
    list(federate(method, clients, module, Plan(rounds=rounds, evaluate_every=rounds)))
    return clients.models(torch.arange(CLIENTS)), clients.outputs("test")


@pytest.mark.parametrize("how", ["loop", "vectorised", "threads"])
def test_local_trains_each_clients_own_architecture_and_leaves_the_others(how: str) -> None:
    models, _ = trained(local(), several(), how)
    layout, first = Layout(several()), several()
    for k, mine in enumerate((0, 1, 1, 0)):
        alone = nn.Sequential(first.bodies[mine], first.head)  # the same numbers to begin with
        own, _ = trained(local(), alone)
        row = dict(layout.views(models[k]))
        found = torch.cat([row[n].flatten() for n in row if n.startswith((f"bodies.{mine}.", "head."))])
        torch.testing.assert_close(found, own[k], atol=1e-5, rtol=1e-4)
        other = {n: v for n, v in row.items() if n.startswith(f"bodies.{1 - mine}.")}
        assert all(torch.equal(v, dict(first.named_parameters())[n]) for n, v in other.items())
        assert row["which"].argmax() == mine


def test_a_deployed_model_answers_by_its_own_body() -> None:
    models, outputs = trained(local(), several())
    x, _ = federation().test.client(1)
    module = several()
    Layout(module).write(models[1], module).eval()
    torch.testing.assert_close(outputs[1], module.head(module.bodies[1](x)).detach(), atol=1e-6, rtol=1e-5)


def test_fedproto_pools_the_features_of_different_architectures() -> None:
    how = InProcess(federation(), HOW, engine("vectorised"))
    *_, (_, snapshot) = federate(fedproto(), how, several(), Plan(rounds=2, evaluate_every=2))
    models, total, counts = how.models(torch.arange(CLIENTS)), torch.zeros(3, 5), torch.zeros(3)
    wrapped = fedproto().wrap
    assert wrapped is not None
    module = wrapped(several())
    for k in range(CLIENTS):
        Layout(module).write(models[k], module).eval()
        x, y = federation().train.client(k)
        total.index_add_(0, y, module.get_submodule("body")(x).detach())
        counts.index_add_(0, y, torch.ones(len(y)))
    torch.testing.assert_close(snapshot.message["prototypes"][0], total / counts[:, None], atol=1e-5, rtol=1e-4)


def test_local_models_of_fedres_may_differ_from_client_to_client() -> None:
    torch.manual_seed(1)
    shared = nn.Linear(6, 3)
    models, _ = trained(fedres(local=lambda _: silenced(several())), shared)
    layout = Layout(nn.ModuleDict({"shared": shared, "local": several()}))
    which = layout.part("local.which").columns
    assert models[:, which].argmax(1).tolist() == [0, 1, 1, 0]
    unused = layout.part("local.bodies.1").columns
    assert torch.equal(models[0, unused], models[3, unused])
    assert not torch.equal(models[0, unused], models[1, unused])


def test_what_is_shared_may_be_the_head_but_no_body() -> None:
    models, _ = trained(lg_fedavg(), several())
    head = Layout(several()).head.columns
    assert torch.equal(models[0, head], models[1, head])
    with pytest.raises(InputError, match="different architectures, and this method sends them"):
        trained(fedavg(), several())


def test_a_comparison_refuses_what_would_average_bodies_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="different architectures, and ditto sends them"):
        compare(["fedproto", "ditto"], model="mixed", out=tmp_path / "out", rounds=1)
    assert not (tmp_path / "out").exists()


def test_bodies_are_named() -> None:
    with pytest.raises(InputError, match="bodies 0 to 1, and whose names 2"):
        Several(bodies(), nn.Linear(5, 3), whose=[0, 2])
    assert build("mixed", (4, 4), 3, seed=0)(torch.zeros(2, 4, 4)).shape == (2, 3)
