"""FedProto: prototypes against pooled means, the tie against float64, answers by the nearest prototype."""

import pytest
import torch
from helpers import CLASSES, Sum, blobs, net, run
from torch.func import functional_call

from fairlead.core import BodyAndHead, Cohort, FastNetwork, InputError, Layout, Task, Training
from fairlead.methods import fedproto, local
from fairlead.methods.fedproto import Pool, Prototypical, own, pooling

FEDERATION = blobs()


def task(ids: list[int], how: Training = CLASSES) -> tuple[Task, torch.Tensor]:
    module = Prototypical(net())
    layout = Layout(module)
    return Task(FastNetwork(module, layout), FEDERATION, ids, how, round=1, seed=0), layout.read(module)


def test_prototypes_are_the_mean_features_of_all_clients_samples() -> None:
    t, start = task([0, 1, 2])
    method = fedproto()
    state, message = method.init(start, t.layout)
    after, _ = method.client(state, message, t)
    module, total, counts = Prototypical(net()), torch.zeros(3, 4), torch.zeros(3)
    for k in range(3):
        row = t.layout.join(
            (own(t.layout), after["theta"][k : k + 1]), (t.layout.part("prototypes", "known"), torch.zeros(1, 15))
        )
        t.layout.write(row[0], module)
        x, y = FEDERATION.train.client(k)
        total.index_add_(0, y, module.body(x).detach())
        counts.index_add_(0, y, torch.ones(len(y)))
    _, snapshot = run(method, FEDERATION, net(), how=CLASSES)
    torch.testing.assert_close(snapshot.message["prototypes"][0], total / counts[:, None])
    assert snapshot.message["known"].tolist() == [[1.0, 1.0, 1.0]]


def test_a_step_is_that_of_the_loss_with_its_tie_in_float64() -> None:
    """CE(head(z), y) + λ ‖z - C_y‖²/d, C known for two of three classes; one batch, one step."""
    t, start = task([0], Training(lr=0.1, batch_size=5))
    method = fedproto(pull=3.0)
    state, message = method.init(start, t.layout)
    prototypes = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    message = {"prototypes": prototypes[None], "known": torch.tensor([[1.0, 0.0, 1.0]])}
    after, _ = method.client(state, message, t)

    module = BodyAndHead(net().double())
    tensors = dict(module.named_parameters())
    x, y = FEDERATION.train.client(0)
    z = functional_call(module.body, {n[5:]: v for n, v in tensors.items() if n.startswith("body.")}, (x.double(),))
    tie = (z - prototypes.double()[y]).square().mean(1) * torch.tensor([1.0, 0.0, 1.0]).double()[y]
    loss = (torch.nn.functional.cross_entropy(module.head(z), y, reduction="none") + 3.0 * tie).mean()
    grads = torch.autograd.grad(loss, list(tensors.values()))
    expected = torch.cat([(p - 0.1 * g).flatten() for p, g in zip(tensors.values(), grads, strict=True)]).detach()
    torch.testing.assert_close(after["theta"][0].double(), expected, atol=1e-6, rtol=1e-5)


def test_the_nearest_prototype_answers_and_an_unknown_class_never() -> None:
    module = Prototypical(net()).eval()
    x = FEDERATION.train.client(1)[0]
    z = module.body(x).detach()
    module.prototypes.copy_(torch.stack([z[0], z[1], z[2]]))
    assert torch.equal(module(x), module.head(z))  # nothing is known yet
    module.known.copy_(torch.tensor([1.0, 0.0, 1.0]))
    out = module(x)
    apart = torch.cdist(z, module.prototypes) ** 2
    torch.testing.assert_close(out[:, [0, 2]], -apart[:, [0, 2]], atol=1e-5, rtol=1e-4)
    assert bool((out.argmax(1) != 1).all())
    assert [int(out[0].argmax()), int(out[2].argmax())] == [0, 2]


def test_without_the_tie_and_by_its_head_it_is_local() -> None:
    mine, _ = run(fedproto(pull=0.0, answer="head"), FEDERATION, net(), rounds=3, how=CLASSES)
    alone, _ = run(local(), FEDERATION, BodyAndHead(net()), rounds=3, how=CLASSES)
    torch.testing.assert_close(mine[:, own(Layout(Prototypical(net()))).columns], alone, atol=1e-6, rtol=1e-5)


def pooled(pool: Pool, prototypes: list[list[list[float]]], counts: list[list[float]]) -> tuple[list[object], object]:
    """Five clients' prototypes of three classes, one number each, after a round in which class 2 was known as 7."""
    stage = pooling(pool)
    state, _ = stage.init(
        {"prototypes": torch.tensor([[[0.0], [0.0], [7.0]]]), "known": torch.tensor([[0.0, 0.0, 1.0]])}, {}, 5
    )
    cohort = Cohort(torch.arange(5), torch.full((5,), 0.2), 5, 1, 0)
    rows = {"prototypes": torch.tensor(prototypes), "counts": torch.tensor(counts)}
    after, sent = stage.update(state, rows, cohort)
    assert all(torch.equal(after[n], sent[n]) for n in ("prototypes", "known"))
    return sent["prototypes"][0, :, 0].tolist(), sent["known"].tolist()


def test_the_median_is_over_those_that_have_the_class_whatever_their_samples() -> None:
    prototypes = [[[1.0], [4.0], [0.0]], [[2.0], [0.0], [0.0]], [[3.0], [6.0], [0.0]], [[9e3], [-9e3], [0.0]]]
    prototypes.append([[-9e3], [0.0], [0.0]])
    counts = [[2.0, 1.0, 0.0], [2.0, 0.0, 0.0], [4.0, 3.0, 0.0], [9.0, 4.0, 0.0], [3.0, 0.0, 0.0]]
    # Class 0: the middle of -9000, 1, 2, 3 and 9000. Class 1: of -9000, 4 and 6. Class 2: nobody has it.
    assert pooled("median", prototypes, counts) == ([2.0, 4.0, 7.0], [[1.0, 1.0, 1.0]])
    mean = (2 * 1 + 2 * 2 + 4 * 3 + 9 * 9e3 - 3 * 9e3) / 20
    assert pooled("mean", prototypes, counts)[0] == pytest.approx([mean, (4 + 3 * 6 - 4 * 9e3) / 8, 7.0])


@pytest.mark.parametrize("pool", ["mean", "median"])
def test_a_client_that_says_it_has_fewer_than_no_samples_is_not_heard(pool: Pool) -> None:
    prototypes = [[[2.0], [4.0], [0.0]]] * 4 + [[[9e3], [9e3], [9e3]]]
    counts = [[1.0, 2.0, 0.0]] * 4 + [[-4.0, -8.0, -1.0]]
    assert pooled(pool, prototypes, counts) == ([2.0, 4.0, 7.0], [[1.0, 1.0, 1.0]])


def test_of_a_class_with_few_samples_nothing_is_told() -> None:
    t, start = task([0, 1, 2])
    _, usual = fedproto().client(*fedproto().init(start, t.layout), t)
    fewest = int(usual["counts"].min())
    method = fedproto(least=fewest + 1)
    _, told = method.client(*method.init(start, t.layout), t)
    rare = usual["counts"] == fewest
    assert rare.any()
    assert not rare.all()
    assert not told["counts"][rare].any()
    assert not told["prototypes"][rare].any()
    assert usual["prototypes"][rare].abs().sum() > 0
    assert torch.equal(told["counts"][~rare], usual["counts"][~rare])
    assert torch.equal(told["prototypes"][~rare], usual["prototypes"][~rare])


def test_what_cannot_work_is_refused() -> None:
    for wrong in ({"pull": -1.0}, {"answer": "x"}, {"least": 0}, {"pool": "x"}):
        with pytest.raises(InputError, match=f"fedproto: {next(iter(wrong))} must"):
            fedproto(**wrong)
    with pytest.raises(InputError, match=r"fedproto: the last layer must be nn\.Linear, got Point"):
        Prototypical(Sum([0.0], [0.0]))
