"""kNN-Per: the neighbours' answer by hand, the share chosen on validation samples, FedAvg's global model underneath."""

import pytest
import torch
from helpers import CLASSES, Sum, blobs, net, run

from fairlead.core import BodyAndHead, FastNetwork, Federation, InputError, Layout, Split, Task
from fairlead.methods import fedavg, knnper
from fairlead.methods.knnper import SHARES, Memory, remembered, shared

FEDERATION = blobs()


def test_the_global_model_is_fedavgs() -> None:
    models, mine = run(knnper(neighbours=2, capacity=20), FEDERATION, net(), rounds=3, how=CLASSES)
    _, theirs = run(fedavg(), FEDERATION, BodyAndHead(net()), rounds=3, how=CLASSES)
    torch.testing.assert_close(mine.message["w"], theirs.message["w"])
    layout = Layout(Memory(net(), 2, 20))
    assert torch.equal(models[:, shared(layout).columns], mine.message["w"].expand(3, -1))


def test_the_neighbours_answer_by_hand() -> None:
    """Two nearest of three kept: weights exp(-distance), scaled to sum to one, in float64."""
    module = Memory(net(), neighbours=2, capacity=5).eval()
    x, y = FEDERATION.train.client(2)
    z = module.body(x).detach()
    module.keys[:3], module.labels[:3] = z[:3], torch.nn.functional.one_hot(y[:3], 3).float()
    module.share.fill_(0.3)
    apart = torch.cdist(z.double(), z[:3].double())
    near = apart.topk(2, largest=False)
    weight = (-near.values).exp()
    knn = torch.zeros(len(x), 3, dtype=torch.float64)
    for i in range(len(x)):
        for j in range(2):
            knn[i, y[:3][near.indices[i, j]]] += weight[i, j] / weight[i].sum()
    usual = module.head(z).softmax(1).double()
    torch.testing.assert_close(module(x).double().exp(), 0.7 * usual + 0.3 * knn, atol=1e-3, rtol=1e-3)
    empty = Memory(net(), 2, 5).eval()
    torch.testing.assert_close(empty(x).exp(), usual.float())


def test_a_client_keeps_its_own_train_samples_up_to_the_capacity() -> None:
    module = Memory(net(), 2, 7)
    layout = Layout(module)
    task = Task(FastNetwork(module, layout), FEDERATION, [0, 2], CLASSES, round=1, seed=0)
    keys, labels = remembered(layout.read(module), task, 7)
    assert labels.sum((1, 2)).tolist() == [5.0, 7.0]  # 5 of 5 samples, 7 of 12
    for i, k in enumerate((0, 2)):
        x, y = FEDERATION.train.client(k)
        z = module.body(x).detach()
        n = int(labels[i].sum())
        found = torch.cdist(keys[i, :n], z).argmin(1)
        assert len(set(found.tolist())) == n
        assert torch.equal(labels[i, :n].argmax(1), y[found])


@pytest.mark.parametrize("flipped", [False, True], ids=["memory helps", "memory misleads"])
def test_the_share_is_chosen_on_validation_samples(flipped: bool) -> None:
    train = FEDERATION.train
    other = Split(train.x, (train.y + 1) % 3, train.starts) if flipped else train
    models, _ = run(
        knnper(neighbours=1, capacity=20), Federation(train, other, other, ("a", "b", "c")), net(), how=CLASSES
    )
    found = models[:, Layout(Memory(net(), 1, 20)).part("share").columns]
    expected = min(SHARES) if flipped else max(SHARES)
    assert found.flatten().tolist() == [pytest.approx(expected)] * 3


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="neighbours must be >= 1"):
        knnper(neighbours=0)
    with pytest.raises(InputError, match="capacity must be at least the 10 neighbours, got 9"):
        knnper(capacity=9)
    with pytest.raises(InputError, match="knnper: the last layer"):
        Memory(Sum([0.0], [0.0]), 1, 1)
