"""How stages become a server: one after another, or one for each name."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fairlead.core.errors import require
from fairlead.core.types import Cohort, Named, Server


def no_state(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
    """The `init` of a stage that remembers nothing: the first message passes through."""
    return {}, message


def reduce(rule: Callable[[Tensor, Cohort], Tensor]) -> Server:
    """A stage that turns each named entry's rows, by themselves, into one row for everybody.

    `rule` takes a matrix (C, d) to a vector (d,); entries with more axes are flattened on the way.

    >>> import torch
    >>> top = reduce(lambda rows, cohort: rows.amax(0))
    >>> one = Cohort(torch.tensor([0, 1]), torch.tensor([0.5, 0.5]), clients=2, round=0, seed=0)
    >>> top.update({}, {"w": torch.tensor([[1.0, 2.0], [3.0, 0.0]])}, one)[1]
    {'w': tensor([[3., 2.]])}
    """

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        return state, {name: rule(x.flatten(1), cohort).view(1, *x.shape[1:]) for name, x in rows.items()}

    return Server(no_state, update)


def chain(*stages: Server) -> Server:
    """Stages one after another: the rows one gives are the rows the next one takes.

    The state of stage i goes under the names "i.name", so that a chain's state is plain data as well.
    """

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        state: Named = {}
        for i, stage in enumerate(stages):
            own, message = stage.init(message, hello, clients)
            state |= _put(str(i), own)
        return state, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        after: Named = {}
        for i, stage in enumerate(stages):
            own, rows = stage.update(_take(str(i), state), rows, cohort)
            after |= _put(str(i), own)
        return after, rows

    return Server(init, update)


def per_name(**stages: Server) -> Server:
    """A stage for each named entry, as in `per_name(w=confree(), control=mean())`.

    Each stage sees its own entry only. Entries of the first message without a stage pass through; replies without one
    are an error.
    """

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        state: Named = {}
        message = dict(message)
        for name, stage in stages.items():
            entry = {name: message.pop(name)} if name in message else {}
            own, entry = stage.init(entry, hello, clients)
            state |= _put(name, own)
            message |= entry
        return state, message

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        without = sorted(rows.keys() - stages.keys())
        require(
            not without,
            f"per_name: no stage for {', '.join(without)}, only for {', '.join(stages)}; name one for every reply",
        )
        after: Named = {}
        out: Named = {}
        for name, stage in stages.items():
            own = _take(name, state)
            if name in rows:
                own, entry = stage.update(own, {name: rows[name]}, cohort)
                out |= entry
            after |= _put(name, own)
        return after, out

    return Server(init, update)


def _put(prefix: str, state: Named) -> Named:
    return {f"{prefix}.{name}": x for name, x in state.items()}


def _take(prefix: str, state: Named) -> Named:
    return {name[len(prefix) + 1 :]: x for name, x in state.items() if name.startswith(f"{prefix}.")}
