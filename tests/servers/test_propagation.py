"""Propagation over a graph that grows with the clients that have taken part."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fairlead.core import Cohort, InputError, Named, Server
from fairlead.functional import spread_matrix
from fairlead.servers import propagation

W = torch.tensor([[1.0, 2.0, 0.0, 0.5], [2.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.5, 0.0, 0.0, 1.0]])
FIRST = {"theta": torch.full((1, 3), 50.0)}
MODELS = torch.arange(12.0).view(4, 3)


def cohort(*ids: int) -> Cohort:
    return Cohort(torch.tensor(ids), torch.full((len(ids),), 1 / len(ids)), 4, 1, 0)


def updated(server: Server, *turns: Any) -> tuple[Named, Tensor]:
    """The last state and message after these clients have sent their models, turn by turn."""
    state, message = server.init(FIRST, {}, 4)
    for ids in turns:
        state, message = server.update(state, {"theta": MODELS[list(ids)]}, cohort(*ids))
    return state, message["theta"]


def test_with_everybody_present_it_is_the_closed_form() -> None:
    _, sent = updated(propagation(lambda hello: W, a=0.6), (0, 1, 2, 3))
    assert torch.equal(sent, spread_matrix(W, 0.6).float() @ MODELS)


def test_clients_that_join_one_by_one_end_where_all_at_once_do() -> None:
    server = propagation(lambda hello: W, a=0.6)
    together, in_turn = updated(server, (0, 1, 2, 3)), updated(server, (1,), (0, 2), (3,))
    torch.testing.assert_close(together[1], in_turn[1])
    assert bool(in_turn[0]["present"].all())


def test_the_graph_is_made_again_only_when_somebody_new_appears() -> None:
    asked = []

    def edges(similarity: Tensor, present: Tensor) -> Tensor:
        asked.append(present[:, 0].tolist())
        return similarity

    updated(propagation(lambda hello: W, edges), (0, 1), (0,), (1,), (2,), (0, 1, 2))
    assert asked == [[True, True, False, False], [True, True, True, False]]


def test_a_client_without_a_model_gets_its_neighbours_mixture_by_weight() -> None:
    """Client 1, away, knows 0 with weight 2 and 2 with weight 1, who keep their own: they are strangers."""
    _, sent = updated(propagation(lambda hello: W, a=0.6), (0, 2))
    torch.testing.assert_close(sent[[0, 2]], MODELS[[0, 2]])
    torch.testing.assert_close(sent[1], (2 * MODELS[0] + MODELS[2]) / 3)
    torch.testing.assert_close(sent[3], MODELS[0])


def test_a_client_that_knows_nobody_present_keeps_the_first_message() -> None:
    _, sent = updated(propagation(lambda hello: W, a=0.6), (2,))
    assert sent[3].tolist() == FIRST["theta"][0].tolist()
    assert sent[2].tolist() == MODELS[2].tolist()


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="weight of the neighbours"):
        propagation(lambda hello: W, a=1.0)
    with pytest.raises(InputError, match=r"\(5, 5\) matrix"):
        propagation(lambda hello: W).init(FIRST, {}, 5)
    with pytest.raises(InputError, match="no entry 'w'"):
        propagation(lambda hello: W, name="w").init(FIRST, {}, 4)
