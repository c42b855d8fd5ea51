"""FEDORA: closed forms of the tie and the propagation, its limits, and clients that join late."""

import pytest
import torch
from helpers import Point, quadratic, run, training
from torch import Tensor

from fairlead.core import Cohort, FastNetwork, Federation, Layout, Split, Task
from fairlead.functional import spread_matrix, subspace_similarity
from fairlead.methods import fedora, local
from fairlead.methods.fedora import leading, nearest_only, summed_loss
from fairlead.servers import mean

CENTRES = [[0.0, 0.0], [1.0, 0.0], [4.0, 2.0]]
INPUTS = [[1.0, 0.0], [1.0, 0.5], [0.0, 1.0]]
LR = 0.1


def everybody(n: int) -> Tensor:
    return torch.ones(n, 1, dtype=torch.bool)


def test_one_round_of_the_paper_spreads_the_models_over_the_graph_of_subspaces() -> None:
    """One step from 0 gives θ_k = lr c_k; the message is S Θ with W the cosines between the clients' inputs."""
    method = fedora(variant="paper", a=0.5)
    theta, snapshot = run(method, quadratic(CENTRES, inputs=INPUTS), [0.0, 0.0])
    expected = LR * torch.tensor(CENTRES)
    torch.testing.assert_close(theta, expected)
    x = torch.nn.functional.normalize(torch.tensor(INPUTS))
    W = subspace_similarity(x[:, :, None])
    torch.testing.assert_close(W, (x @ x.T).clamp(0, 1))
    torch.testing.assert_close(snapshot.message["theta"], spread_matrix(W, 0.5).float() @ expected)


def test_the_tie_is_the_gradient_of_the_gain_times_the_squared_distance() -> None:
    """Second round of the paper: θ <- θ + lr (c - θ) - lr 2λ (θ - θ̂), λ the drop of the validation loss."""
    method = fedora(variant="paper", a=0.5)
    federation = quadratic(CENTRES, inputs=INPUTS)
    theta, first = run(method, federation, [0.0, 0.0])
    hat = first.message["theta"].clone()
    c = torch.tensor(CENTRES)
    gain = ((theta - c).square() - (hat - c).square()).sum(1, keepdim=True) / 2
    lam = gain.clamp(min=1e-8)
    assert bool((lam > 1e-3).any())
    second, _ = run(method, federation, [0.0, 0.0], rounds=2)
    torch.testing.assert_close(second, theta + LR * (c - theta) - LR * 2 * lam * (theta - hat))


def test_without_propagation_the_paper_is_local() -> None:
    """a = 0 gives θ̂ = θ: nothing is gained and the tie is 1e-8."""
    federation = quadratic(CENTRES, inputs=INPUTS, sizes=[3, 1, 2])
    methods = (fedora(variant="paper", a=0.0), local())
    mine, alone = (run(m, federation, [1.0, -1.0], rounds=3, how=training(steps=3))[0] for m in methods)
    torch.testing.assert_close(mine, alone)


def test_without_a_pull_it_is_local_and_with_all_of_it_a_step_from_the_neighbourhood() -> None:
    federation = quadratic(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 8.0]]))
    mine, alone = (run(m, federation, [4.0, 4.0], rounds=3)[0] for m in (fedora(variant="paper", pull=0.0), local()))
    assert torch.equal(mine, alone)
    gentle, firm = (run(fedora(variant="paper", pull=p), federation, [4.0, 4.0], rounds=3)[0] for p in (1e9, 1e12))
    assert torch.equal(gentle, firm)
    assert float((firm - alone).abs().max()) > 0.01


def test_the_released_losses_are_sums_over_batches() -> None:
    """Validation samples in batches of 2: of three samples, the mean of two plus the third; of one, itself."""
    x, y = torch.zeros(4, 1), torch.tensor([[0.0], [2.0], [6.0], [4.0]])
    split = Split(x, y, torch.tensor([0, 3, 4]))
    module = Point([1.0])
    layout = Layout(module)
    how = training(batch_size=2)
    task = Task(FastNetwork(module, layout), Federation(split, split, split, ()), [0, 1], how, round=1, seed=0)
    rows = torch.tensor([[0.0], [1.0]])
    halves = 0.5 * torch.tensor([[(0 + 4) / 2 + 36], [9.0]])
    torch.testing.assert_close(summed_loss(task, rows), halves)
    torch.testing.assert_close(task.loss(rows), 0.5 * torch.tensor([[40 / 3], [9.0]]))


def test_the_released_tie_and_graph_against_float64() -> None:
    """Two rounds: edges exp(10 cos) to the two nearest, λ = exp(gain/2) or 0, and a step of lr λ towards θ̂."""
    centres, start = (torch.tensor(x, dtype=torch.float64) for x in (CENTRES, [[5.0, -3.0]]))
    theta = start + LR * (centres - start)
    x = torch.nn.functional.normalize(torch.tensor(INPUTS, dtype=torch.float64))
    W = (10 * x @ x.T).exp().fill_diagonal_(0)  # with three clients, everybody's two nearest are the others
    hat = spread_matrix(W, 0.8) @ theta
    gain = ((theta - centres).square() - (hat - centres).square()).sum(1, keepdim=True) / 2
    lam = torch.where(gain < 0, 0.0, (gain / 2).exp()).clamp(max=1 / LR)
    assert bool((lam == 0).any())
    assert bool((lam > 0).any())
    expected = theta + LR * (centres - theta) + LR * lam * (hat - theta)
    models, _ = run(fedora(variant="released"), quadratic(CENTRES, inputs=INPUTS), [5.0, -3.0], rounds=2)
    torch.testing.assert_close(models.double(), expected, atol=1e-5, rtol=1e-5)


def test_the_paper_is_the_default() -> None:
    federation = quadratic(CENTRES, inputs=INPUTS)
    usual, paper, released = (
        run(m, federation, [5.0, -3.0], rounds=3)[0]
        for m in (fedora(), fedora(variant="paper"), fedora(variant="released"))
    )
    assert torch.equal(usual, paper)
    assert not torch.allclose(usual, released, atol=1e-3)


def test_edges_lead_to_the_nearest_others_that_are_present() -> None:
    w = torch.tensor([[9.0, 3.0, 2.0, 1.0], [3.0, 9.0, 2.0, 1.0], [2.0, 1.0, 9.0, 3.0], [1.0, 2.0, 3.0, 9.0]])
    kept = nearest_only(w, everybody(4), 2)
    assert kept.tolist() == [[0, 3, 2, 0], [3, 0, 2, 0], [2, 0, 0, 3], [0, 2, 3, 0]]
    present = torch.tensor([[True], [False], [True], [True]])
    kept = nearest_only(w, present, 2)
    assert kept.tolist() == [[0, 0, 2, 1], [3, 0, 2, 0], [2, 0, 0, 3], [1, 0, 3, 0]]


def test_who_never_took_part_pollutes_nobody_and_hears_its_neighbours() -> None:
    """Clients 0 and 1 reply; the initial model 100 of client 2 shows up nowhere, nor in what client 2 receives."""
    method = fedora(variant="paper", a=0.5)
    message = {"theta": torch.tensor([[100.0]])}
    hello = {"subspace": torch.nn.functional.normalize(torch.tensor(INPUTS))[:, :, None]}
    server = method.server(mean())
    state, _ = server.init(message, hello, 3)
    cohort = Cohort(torch.tensor([0, 1]), torch.tensor([0.5, 0.5]), 3, 1, 0)
    state, sent = server.update(state, {"theta": torch.tensor([[0.0], [1.0]])}, cohort)
    assert bool((sent["theta"] <= 1).all())
    torch.testing.assert_close(sent["theta"][2], sent["theta"][1])  # its only neighbour: client 0 is orthogonal
    assert torch.equal(method.newcomer({}, {"theta": sent["theta"][2:]}, None), sent["theta"][2:])


def test_with_noise_one_input_is_hidden_and_many_alike_are_seen() -> None:
    x = torch.zeros(400, 30)
    x[:, 0] = 5.0  # counts with length 1
    one, many, plain = (leading(rows, 1, noise, key=3)[:, 0] for rows, noise in ((x[:1], 2.0), (x, 2.0), (x, 0.0)))
    assert float(plain[0].abs()) == pytest.approx(1.0)
    assert float(many[0].abs()) > 0.95, "400 against noise of about 2 * 2 * sqrt(30)"
    assert float(one[0].abs()) < 0.7
    assert float(many.norm()) == pytest.approx(1.0, abs=1e-5)
    assert not torch.equal(many, leading(x, 1, 2.0, key=4)[:, 0])
