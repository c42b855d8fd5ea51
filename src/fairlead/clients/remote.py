"""Clients on other machines, as the server sees them: bytes out, bytes back, and nothing that came is trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairlead.clients.door import Answer, Greeting, Saved
from fairlead.clients.exchange import Exchange, batches, first_state, gradient_samples, outputs, scored_splits, unsound
from fairlead.clients.node import SPLITS
from fairlead.clients.pool import Pool, Work, engine
from fairlead.clients.wire import AHEAD, Ask, Reply, pack_ask, row_for, unpack_reply
from fairlead.core.errors import EngineError, FairleadError, quoted
from fairlead.core.layout import Layout
from fairlead.core.plan import Plan
from fairlead.core.task import SplitName
from fairlead.core.training import Training
from fairlead.core.types import Federation, Method, Named

# A question for each client -> the answers that came; a text says why one did not, as the end of a sentence about it.
Send = Callable[[dict[int, bytes]], Mapping[int, bytes | str]]
Notice = Callable[[int, Ask, str], None]  # called with a client that gave no sound answer, the question, and why
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]  # of one client's row, by name
HEADER_BYTES = 2**16  # that an answer may have beside its tensors
MOST_SAMPLES = 10**12  # that a client may say it has; sums of such numbers stay exact
RANGES = {"accuracy": (0.0, 1.0), "c-index": (0.0, 1.0), "loss": (0.0, math.inf), "rmse": (0.0, math.inf)}
ROUNDING = 1e-3  # by which a score may lie outside


class Came(NamedTuple):
    """What came of a question: sound answers, and why others are missing, by client."""

    sound: dict[int, Named]
    absent: dict[int, str]

    def answer(self, wanted: Shapes) -> Answer:
        """The same as the round loop takes it."""
        ids = sorted(self.sound)
        rows = {n: torch.cat([self.sound[k][n] for k in ids]) for n in wanted if ids}
        return Answer(torch.tensor(ids, dtype=torch.int64), rows, self.absent)


class Remote:
    """The implementation of `Clients` for nodes: each has a `Node`, and `send` carries questions and answers.

    `made_up` has a few samples of client 0, invented, of the shapes that all clients' have: the server rehearses every
    question with them and refuses answers of other names, shapes or types. `run` names this run at the nodes. Where a
    method neither sends nor wants anything (LOCAL), rounds of training wait for the next scores and are then asked for
    together: a client trains them alone. Where everybody takes part in every round, a client that is asked for its
    scores trains the next round at once, so that a round is one exchange.
    """

    def __init__(
        self, send: Send, made_up: Federation, training: Training, run: str, notice: Notice | None = None
    ) -> None:
        self.count = made_up.clients
        self._send, self._made_up, self._training, self._run = send, made_up, training, run
        self._notice = notice or (lambda client, ask, why: None)

    def start(self, method: Method, module: nn.Module, plan: Plan) -> None:
        """Get ready for a run; nothing is sent yet."""
        self._method, self._plan = method, plan
        self._first, self._params = first_state(method, module), Layout(module).read(module)
        self._known: dict[tuple[object, ...], Shapes] = {}  # what was rehearsed
        self._exchange = Exchange(method, plan, ("validation", "test"))
        self._pool: Pool = engine("loop").start(module, Layout(module), self._made_up, self._training, plan.seed)
        self._base = torch.zeros(self.count, dtype=torch.int64)  # after which round each client's state counts
        self._pending = torch.zeros(0, 2, dtype=torch.int64)  # clients and rounds that wait
        self._kept = 0  # the round whose models are to be deployed
        self._saved: list[tuple[Tensor, int]] = []  # base and kept round of the last checkpoints
        self.samples: dict[SplitName, Tensor] = {}  # (N,) each, once the clients have greeted
        self._ahead: tuple[int, Named, Came] = 0, {}, Came({}, {})  # round, message and answers that came ahead

    def greet(self, hello: bool) -> Greeting:
        """Everybody's number of samples, and what the method's `hello` makes; all must answer."""
        wanted: Shapes = {f"samples.{split}": ((1,), torch.int64) for split in SPLITS}
        if hello:
            wanted |= {f"hello.{n}": shape for n, shape in self._rehearsed(self._exchange.greet, {}).items()}
        answer = self._ask(Ask(self._run, "greet", hello=hello), torch.arange(self.count), {}, wanted).answer(wanted)
        _all_of(answer)
        samples = {split: answer.rows[f"samples.{split}"][:, 0] for split in SPLITS}
        for split, counts in samples.items():
            check_counts(split, counts)
        self.samples = samples
        splits = scored_splits(self._plan, bool(samples["validation"].any()))
        self._exchange = replace(self._exchange, splits=splits)
        rows = {n.removeprefix("hello."): x for n, x in answer.rows.items() if n.startswith("hello.")}
        return Greeting(samples, rows)

    def train(self, ids: Tensor, round: int, message: Named) -> Answer:
        """A round of these clients; who does not answer soundly goes on from the state it had before."""
        wanted = self._rehearsed(self._exchange.train, message)
        samples = partial(gradient_samples, self._training)
        if not message and not wanted:
            self._pending = torch.cat([self._pending, torch.stack([ids, torch.full_like(ids, round)], 1)])
            return Answer(ids, {}, {}, samples(self.samples["train"][ids]))
        ahead, said, came = self._ahead
        if ahead != round or said is not message:
            came = Came({}, {})
        others = torch.tensor([k for k in ids.tolist() if k not in came.sound and k not in came.absent])
        if len(others):
            more = self._ask(Ask(self._run, "train", round), others, message, wanted)
            came = Came(came.sound | more.sound, came.absent | more.absent)
        answer = came.answer(wanted)
        work = batches(self._training, self.samples["train"][answer.ids])
        bad = unsound(answer.ids, {}, answer.rows, message, work)
        absent = dict(answer.absent) | bad
        for k, why in bad.items():
            self._notice(k, Ask(self._run, "train", round), why)
        sound = torch.tensor([k not in bad for k in answer.ids.tolist()], dtype=torch.bool)
        ids, rows = answer.ids[sound], {n: x[sound] for n, x in answer.rows.items()}
        self._base = self._base.index_fill(0, ids, round)
        return Answer(ids, rows, absent, samples(self.samples["train"][ids]))

    def score(self, ids: Tensor, round: int, message: Named) -> Answer:
        """Metrics of the models these clients would deploy now."""
        wanted = self._rehearsed(self._exchange.score, message)
        next_one = self._next(round, message)
        came = self._ask(Ask(self._run, "score", round, ahead=bool(next_one)), ids, message, wanted, next_one)
        sound = {k: _without(AHEAD, rows) for k, rows in came.sound.items() if set(next_one) <= set(rows)}
        self._ahead = (round + 1, message, Came(sound, came.absent)) if next_one else (0, {}, Came({}, {}))
        answer = came.answer(wanted)
        for k in answer.ids.tolist():
            alone = self._alone(k)
            if alone:
                self._base = self._base.index_fill(0, torch.tensor([k]), alone[-1])
        self._pending = self._pending[~torch.isin(self._pending[:, 0], answer.ids)]
        return answer

    def join(self, ids: Tensor, round: int, message: Named) -> Answer:
        """Replies of clients that never took part."""
        wanted = self._rehearsed(self._exchange.join, message)
        return self._ask(Ask(self._run, "join", round), ids, message, wanted).answer(wanted)

    def newcomers(self, ids: Tensor, round: int, message: Named) -> Answer:
        """Metrics of what clients that never took part would deploy."""
        wanted = self._rehearsed(self._exchange.newcomers, message)
        return self._ask(Ask(self._run, "newcomers", round), ids, message, wanted).answer(wanted)

    def keep(self, round: int) -> None:
        """The models scored in this round are to be deployed; nodes learn of it with the next question."""
        self._kept = round

    def outputs(self, split: SplitName) -> list[Tensor]:
        """What each client's model to deploy makes of its own samples; all must answer."""
        made = self._pool.map(partial(outputs, split), torch.tensor([0]), 0, {"models": self._params}, {})[1]["outputs"]
        found: list[Tensor] = []
        for k, size in enumerate(self.samples[split].tolist()):
            wanted: Shapes = {"outputs": ((size, *made.shape[2:]), made.dtype)}
            ask = Ask(self._run, "outputs", self._kept, split=split)
            answer = self._ask(ask, torch.tensor([k]), {}, wanted).answer(wanted)
            _all_of(answer)
            found.append(answer.rows["outputs"][0])
        return found

    def save(self) -> Saved:
        """Which of their states and models count; these stay with the clients."""
        base, pending, kept = self._base, self._pending, self._kept

        def named() -> Named:
            # The last checkpoint counts until this one is on the disk; one may be made of two snapshots.
            self._saved = [*self._saved[-2:], (base, kept)]
            return {"base": base, "pending": pending, "kept": torch.tensor([kept])}

        return named

    def load(self, saved: Named, round: int, message: Named) -> None:
        """Take back what `save` gave."""
        self._base, self._pending, self._kept = saved["base"], saved["pending"], int(saved["kept"][0])
        self._saved = [(self._base, self._kept)]

    def close(self) -> None:
        """End the thread that rehearses."""
        self._pool.close()

    def _alone(self, k: int) -> tuple[int, ...]:
        return tuple(self._pending[self._pending[:, 0] == k, 1].tolist())

    def _next(self, round: int, message: Named) -> Shapes:
        """What the next round's replies are, where it may be trained ahead; else nothing."""
        plan = self._plan
        everybody = plan.participation == 1 or plan.participation >= self.count
        if not everybody or round >= plan.rounds or not message:
            return {}
        return {f"{AHEAD}{n}": shape for n, shape in self._rehearsed(self._exchange.train, message).items()}

    def _ask(self, ask: Ask, ids: Tensor, message: Named, wanted: Shapes, more: Shapes | None = None) -> Came:
        """Ask these clients, and take what is as it was rehearsed; all of `more` may come with it, or nothing."""
        asked = {k: self._for_client(k, ask) for k in ids.tolist()}
        questions = {k: pack_ask(mine, row_for(k, message, self._method.picks)) for k, mine in asked.items()}
        answers = self._send(questions)
        came = Came({}, {})
        for k, mine in asked.items():
            try:
                rows = checked(answers.get(k), mine, wanted, more or {})
                if ask.what in ("score", "newcomers"):
                    check_scores(rows, self._training)
                came.sound[k] = rows
            except FairleadError as error:
                came.absent[k] = str(error)
                self._notice(k, mine, str(error))
        return came

    def _for_client(self, k: int, ask: Ask) -> Ask:
        """The question with what this client needs to know beside it."""
        return replace(
            ask,
            client=k,
            splits=self._exchange.splits,
            base=int(self._base[k]),
            alone=self._alone(k) if ask.what == "score" else (),
            states=tuple(int(base[k]) for base, _ in self._saved),
            models=(self._kept, *(kept for _, kept in self._saved)),
        )

    def _rehearsed(self, work: Work, message: Named) -> Shapes:
        """The shapes and types of one client's answer."""
        row = row_for(0, message, self._method.picks)
        key = (work.__name__, *((n, x.shape) for n, x in row.items()))
        if key not in self._known:
            _, made = self._pool.map(work, torch.tensor([0]), 1, self._first, row)
            self._known[key] = {n: (tuple(x.shape[1:]), x.dtype) for n, x in made.items()}
        return self._known[key]


def _all_of(answer: Answer) -> None:
    if answer.absent:
        k, reason = next(iter(answer.absent.items()))
        raise EngineError(f"client {k} must answer before the run can go on, but its {reason}")


def check_counts(split: str, counts: Tensor) -> None:
    """Refuse numbers of samples that cannot be: a negative one would turn others' weights around."""
    for k, count in enumerate(counts.tolist()):
        if not 0 <= count <= MOST_SAMPLES:
            raise EngineError(f"client {k} says it has {count} {split} samples, expected 0 to {MOST_SAMPLES:,}")


def check_scores(rows: Named, training: Training) -> None:
    """Refuse scores that cannot be; those of no samples, and of models that diverged, are NaN or infinite."""
    for name, (low, high) in RANGES.items():
        if name not in rows or (name == "loss" and training.criterion is not None):
            continue  # a loss of one's own may be anything
        values = rows[name]
        wrong = values[(values < low - ROUNDING) | (values > high + ROUNDING)]
        if len(wrong):
            expected = f"{low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"
            raise EngineError(f"answer has a score that cannot be ({name} {float(wrong[0]):g}, expected {expected})")


def _without(prefix: str, rows: Named) -> Named:
    return {n.removeprefix(prefix): x for n, x in rows.items() if n.startswith(prefix)}


def checked(came: bytes | str | None, ask: Ask, wanted: Shapes, more: Shapes) -> Named:
    """One client's row, if it is what was asked for; what is wrong ends a sentence about the client."""
    if came is None or isinstance(came, str):
        raise EngineError(came or "answer did not come")
    most = HEADER_BYTES + sum(math.prod(shape) * kind.itemsize for shape, kind in (wanted | more).values())
    if len(came) > most:  # before anything in it is looked at
        raise EngineError(f"answer has {len(came):,} bytes, expected {most:,} at most")
    reply: Reply = unpack_reply(came)
    if reply.refused:
        raise EngineError(quoted(reply.refused))
    if reply.ask != ask:
        raise EngineError(f"answer is to another question ({reply.ask.what}, round {reply.ask.round})")
    found = {n: (tuple(x.shape), x.dtype) for n, x in reply.rows.items()}
    expected, whole = ({n: ((1, *shape), kind) for n, (shape, kind) in s.items()} for s in (wanted, wanted | more))
    if found not in (expected, whole):
        raise EngineError(f"answer has other tensors than rehearsed: {quoted(found)}, expected {quoted(expected)}")
    return reply.rows
