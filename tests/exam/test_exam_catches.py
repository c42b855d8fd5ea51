"""The exam itself: methods that cheat or slip in one way each, and the question that catches them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_exam as exam
import torch
from exam_runs import Case, run, with_dropout

from fairlead.core import Cohort, FairleadError, Method, Named, Server, Task
from fairlead.methods import METHODS, ditto, fedavg, fedrep
from fairlead.servers import averaging


def after(method: Method, change: Callable[[Named, Named, Task], tuple[Named, Named]]) -> Method:
    """The method, with something done to what its client function gives: `change(state, reply, task)`."""

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        return change(*method.client(state, message, task), task)

    return method._replace(client=client)


def in_place() -> Method:
    method = ditto()

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        state["v"].add_(1e-3)
        return method.client(state, message, task)

    return method._replace(client=client)


def server_in_place() -> Method:
    def server(average: Server) -> Server:
        inner = averaging(average)

        def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
            rows["w"].mul_(0.5)
            return inner.update(state, rows, cohort)

        return Server(inner.init, update)

    return fedavg()._replace(server=server)


def reads_test_data() -> Method:
    return after(fedavg(), lambda s, r, task: (s, {"w": r["w"] * task.loss(r["w"], "test").tanh()}))


def draws_from_the_process() -> Method:
    return after(fedavg(), lambda s, r, task: (s, {"w": r["w"] + 1e-3 * torch.randn_like(r["w"])}))


def looks_at_its_neighbours() -> Method:
    return after(fedavg(), lambda s, r, task: (s, {"w": r["w"] + 0.1 * r["w"].mean(0, keepdim=True)}))


def deploys_initial_weights() -> Method:
    return fedrep()._replace(personal=lambda s, m, task: task.layout.read(with_dropout()).expand(len(task), -1))


def says_more_in_later_rounds() -> Method:
    def more(state: Named, reply: Named, task: Task) -> tuple[Named, Named]:
        return state, reply | ({"extra": reply["w"]} if task.round > 1 else {})

    def server(average: Server) -> Server:
        inner = averaging(average)
        return Server(inner.init, lambda s, rows, c: inner.update(s, {"w": rows["w"]}, c))

    return after(fedavg(), more)._replace(server=server)


def remembers_outside_its_state() -> Method:
    """A running mean of the changes that no snapshot holds."""
    memory: Named = {}

    def server(average: Server) -> Server:
        inner = averaging(average)

        def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
            memory["w"] = 0.5 * memory.get("w", torch.zeros(1)) + rows["w"].mean(0, keepdim=True)
            return inner.update(state, {"w": rows["w"] + memory["w"]}, cohort)

        return Server(inner.init, update)

    return fedavg()._replace(server=server)


def lets_nan_through() -> Method:
    """A client's NaN reaches those stacked with it."""
    method = fedavg()

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        state, reply = method.client(state, message, task)
        return state, {"w": reply["w"] + 0 * reply["w"].sum(0)}

    return method._replace(client=client)


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that sits a mutant down to one question and expects it to fail."""

    def expect(factory: Callable[..., Any], question: Callable[..., Any], *args: Any) -> None:
        monkeypatch.setitem(METHODS, "mutant", factory)
        with pytest.raises((AssertionError, FairleadError)):
            question(Case("mutant"), *args)

    return expect


def test_each_slip_is_caught(caught: Callable[..., Any], tmp_path: Path) -> None:
    caught(in_place, exam.test_inputs_are_left_alone)
    caught(server_in_place, exam.test_inputs_are_left_alone)
    caught(reads_test_data, exam.test_test_data_never_matter_and_the_same_seed_gives_the_same_bits)
    caught(draws_from_the_process, exam.test_test_data_never_matter_and_the_same_seed_gives_the_same_bits)
    caught(looks_at_its_neighbours, exam.test_engines_agree, "vectorised")
    caught(says_more_in_later_rounds, exam.test_names_and_shapes_stay_the_same)
    caught(remembers_outside_its_state, exam.test_resuming_equals_running_on, tmp_path)
    caught(lets_nan_through, exam.test_a_client_that_diverges_harms_nobody_else)


def test_disguises_are_caught(caught: Callable[..., Any]) -> None:
    local, averaged = run("local"), run("fedavg")
    question = exam.test_it_is_not_secretly_something_else
    caught(METHODS["local"], question, local, averaged)
    caught(fedavg, question, local, averaged)
    caught(deploys_initial_weights, question, local, averaged)
