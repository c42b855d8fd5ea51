"""The client's half of each exchange: the same functions in this process and on a machine of the client's own.

Each takes rows of state, rows of message and the clients' data, and returns what stays with the clients and what
travels back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fairlead.core.device import on_host
from fairlead.core.fast.machine import by_columns
from fairlead.core.layout import Layout
from fairlead.core.plan import Plan
from fairlead.core.task import SplitName, Task
from fairlead.core.training import Training
from fairlead.core.types import Method, Named
from fairlead.functional.robust import FAR_TIMES, FEWEST, far_out

NOT_FINITE = "update is NaN or infinite; try a smaller lr"


@dataclass(frozen=True)
class Exchange:
    """What clients do when they are asked."""

    method: Method
    plan: Plan
    splits: tuple[SplitName, ...]  # on which models are scored
    keeps: bool = True  # whether models that were scored stay, in case they are the ones to deploy

    def greet(self, state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        """What the method wants to know before the first round."""
        return {}, {} if self.method.hello is None else self.method.hello(task)

    def train(self, state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        """A round of the method."""
        return self.method.client(state, message, task)

    def join(self, state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        """A newcomer's part in a round of the method's `join`."""
        return {}, self.method.client(state, message, task)[1]

    def score(self, state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        """How well the models do that clients would deploy now."""
        return self._scores(self.method.personal(state, message, task), message, task)

    def newcomers(self, state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        """How well the models do that newcomers would deploy now."""
        given = (self.method.newcomer or self.method.personal)(state, message, task)
        if self.method.join is None:
            given = task.descend(given, how=task.sgd.but(epochs=self.plan.newcomer_epochs))
        return self._scores(given, message, task)

    def _scores(self, personal: Tensor, message: Named, task: Task) -> tuple[Named, Named]:
        personal = personal.expand(len(task), -1)
        models = {"personal": personal, "global": message.get("w", personal)}
        pairs = scored(self.plan, task.layout.size, message, self.splits)
        found = [task.evaluate(models[model], split) for model, split in pairs]
        metrics = {metric: torch.cat([values[metric] for values in found], 1) for metric in found[0]}
        return {"models": personal} if self.keeps else {}, metrics


def outputs(split: SplitName, state: Named, message: Named, task: Task) -> tuple[Named, Named]:
    """What the models in `state` make of a split, (C, n, ...)."""
    return {}, {"outputs": task.outputs(state["models"], split)}


def scored(plan: Plan, size: int, message: Named, splits: tuple[SplitName, ...]) -> list[tuple[str, SplitName]]:
    """Which model is scored on which split, in the order of the columns; the server's, if there is a whole one."""
    whole = plan.evaluate_global and "w" in message and message["w"].shape[1] == size
    return [(model, split) for model in (("personal", "global") if whole else ("personal",)) for split in splits]


def scored_splits(plan: Plan, validated: bool) -> tuple[SplitName, ...]:
    """The splits on which models are scored; `validated` says whether there are validation samples."""
    if not validated:
        return ("test",)
    return ("validation", "test") if plan.tested else ("validation",)


def wrapped(method: Method, module: nn.Module, seed: int) -> nn.Module:
    """The module the method trains; what it adds is initialised from the seed."""
    if method.wrap is None:
        return module
    device = Layout(module).device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return method.wrap(module).to(device)  # drawn on the host: the same numbers on every device


def first_state(method: Method, module: nn.Module) -> Named:
    """What a client holds that has not taken part yet, one row."""
    layout = Layout(module)
    return method.init(layout.read(module), layout)[0]


def gradient_samples(training: Training, sizes: Tensor) -> int:
    """The samples over which gradients are taken by clients of these sizes in a round, as the local epochs count."""
    if training.steps:
        return len(sizes) * training.steps * training.batch_size
    return int(sizes.sum()) * training.epochs


def lengths(rows: Tensor) -> Tensor:
    """The Euclidean length of each client's row, (C,); not finite where the row is not, or its square overflows."""
    flat = rows.flatten(1)
    each = by_columns(partial(_lengths, flat), flat)
    length: Tensor = torch.linalg.vector_norm(torch.stack(each), dim=0)
    return on_host(length)


def _lengths(flat: Tensor, some: slice) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(flat[:, some], dim=1)
    return length


MODELS = ("w", "theta")  # what methods call a reply that is a model or its change, whatever the message calls it


MOST_BATCHES = 1000.0  # times as many as is usual, for which a client may go further


def batches(training: Training, sizes: Tensor) -> Tensor:
    """How many batches clients of these sizes go over in a round, as the local epochs count; (C,)."""
    if training.steps:
        return torch.full_like(sizes, training.steps)
    return training.epochs * -(-sizes // training.batch_size)


FEW_TIMES = 1e4  # times the usual length, which one of three or four replies must have to be set aside


def far_of_few(length: Tensor, sound: Tensor, message: Named, name: str) -> Tensor:
    """Which of three or four replies no training makes: far beyond the others, and beyond what the server sent."""
    counts = sound & (length > 0)
    if not 3 <= int(counts.sum()) < FEWEST:
        return torch.zeros_like(counts)
    sent = [float(lengths(x).max()) for n, x in message.items() if n in (name, *MODELS) and x.is_floating_point()]
    usual = float(length[counts].median())
    return counts & (length > FEW_TIMES * usual) & (length > FAR_TIMES * max(sent, default=0.0))


def unsound(
    ids: Tensor, states: Named, replies: Named, message: Named, batches: Tensor | None = None
) -> dict[int, str]:
    """Whose rows the server must not use, and why: numbers that are not finite, or far outside what the others send.

    Finite must be states and replies. Lengths are compared of replies that are models, parts of them or their changes:
    those that the message has too, and `MODELS`. Counts and other measures of a client's data may differ by any factor.
    Of three or four replies little can be said: one is set aside that no training makes, see `far_of_few`.
    A client that goes over k times as many `batches`, (C,), as is usual goes k times as far, and may; up to a limit,
    since clients on other machines say themselves how many samples they have.
    """
    more = torch.ones(len(ids))
    if batches is not None:
        more = (batches / batches.median().clamp(min=1)).clamp(1.0, MOST_BATCHES)
    found = {id(x): lengths(x) for x in (*states.values(), *replies.values()) if x.is_floating_point()}
    sound = torch.ones(len(ids), dtype=torch.bool)
    for length in found.values():  # what is both kept and sent is looked at once
        sound &= length.isfinite()
    absent = dict.fromkeys(ids[~sound].tolist(), NOT_FINITE)
    for name, x in replies.items():
        if x.is_floating_point() and (name in message or name in MODELS):
            length = found[id(x)].where(sound, 0.0) / more
            far = far_out(length, sound) | far_of_few(length, sound, message, name)
            for i in far.nonzero()[:, 0].tolist():
                times = float(length[i] / length[length > 0].median())
                why = f"reply is far outside what the others send ('{name}' is {times:.0e} times as long as usual)"
                absent.setdefault(int(ids[i]), why)
    return absent
