"""What a client deploys, decided after training from several models of its own: its voices.

LOCAL is the first voice. What the voices say of rows that none of them learned from are the samples here; they come
from cross-fitting (`comparison.decisions`). A client's are (2n, M, K): its n rows in the order of its parts,
answered by models that learned from the other parts, then in the order of two halves, by models that learned from
the other half, or from half of that where the parts are halves themselves.
The decision is a federated method like any other: `decide` runs through the round loop, in one process or between
machines, with messages of a few numbers.

box     here              meaning
z_m     samples           what voice m says of a row: log-probabilities of classes, else its outputs
s       message["s"]      weights with the lowest loss on everybody's rows, by Newton's method over the rounds
s_k     `own_weights`     argmin loss_k(s) + strength · |s - s_k|², s >= 0: client k's weights
d_k     reply["gain"]     how much better than LOCAL a candidate is on client k's rows, by the metric of the verdict
v_k     `noise`           the variance of d_k: of its rows (reply["variance"], reply["rows"]) and of training luck
λ       `training_luck`   training luck as a share of a row's variance: by how much parts differ (reply["ratio"])
f       message["fall"]   by how much gains fall until all rows train: from fewer of them to parts (reply["fall"])
τ, μ    message["tau"]..  how d_k scatter over the clients and about which mean: `functional.common_gain`

A client sends the derivatives of its loss by the weights (M + M² numbers a round), then what it measured of every
candidate (`Measured`).
It decides by itself; whoever has d_k, v_k and the message can follow the decision, and the server has all three.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fairlead.core import Cohort, InputError, Layout, Method, Named, Server, Task, require
from fairlead.core.device import on_host
from fairlead.functional.gains import FAR, GRID, CommonGain, chance_positive, common_gain
from fairlead.functional.stacking import Terms, newton_step, stack_terms, stack_weights, voice_outputs, weighed
from fairlead.methods.local import local
from fairlead.metrics import Metric
from fairlead.metrics.evidence import Ratio, by_group, training_shares

logger = logging.getLogger(__name__)

HALVES = 2
ROUNDS = 9  # the weights settle in all but the last; in that one gains are compared
LIKE_OTHERS = 10.0  # rows' worth of what all clients' rows say of how much differences vary
SCATTER = 0.15  # of the clients' gains, before anything is measured, in standard deviations of a row's difference
MOST = 1e6  # that a weight can be
WIDEST = 1e30  # that any number in the message can be, which others may square
QUANTILES = 16  # of what training luck may be
# Of the message: numbers for each candidate.
SHARED = ("luck", "luck_variance", "spread_of_all", "fall", "fall_variance")
COMMON = ("tau", "mean", "spread", "share")


class LeftOut(NamedTuple):
    """Which of how many parts of every client's rows a training leaves out and answers for."""

    which: int
    of: int
    halved: bool = False  # half of the other rows are left out, too

    @property
    def name(self) -> str:
        """What folders of such a training are called."""
        return f"part{self.which}of{self.of}" + ("-half" if self.halved else "")


class Decision(NamedTuple):
    """Between which voices, and how."""

    voices: tuple[str, ...]  # names of methods, LOCAL first
    sure: float | None = 0.9  # the chance of being better than alone that a client asks for; None: no guard, the stack
    strength: float = 15.0  # with which a client's weights are drawn to the federation's
    parts: int = 5  # of the cross-fitting: every row is left out of the training once
    distil: bool = False  # the weighed voices into one network

    @property
    def further(self) -> float:
        """How far it is from all rows but a part to all, as a share of the way from `fewer`; in logarithms.

        An error a + b n^-c, c > 0, falls by less on the way to all rows than this says.
        """
        without_a_part, fewer = 1 - 1 / self.parts, 0.25 if self.parts == HALVES else 0.5
        return math.log(1 / without_a_part) / math.log(without_a_part / fewer)

    @property
    def crossed(self) -> list[LeftOut]:
        """The trainings that each leave a part of the rows out."""
        return [LeftOut(j, self.parts) for j in range(self.parts)]

    @property
    def fewer(self) -> list[LeftOut]:
        """Those on fewer rows, which tell how a gain changes with the number of rows."""
        return [LeftOut(j, HALVES, self.parts == HALVES) for j in range(HALVES)]

    @property
    def candidates(self) -> tuple[str, ...]:
        """What may be deployed in LOCAL's place: the stack, and the other voice where there is one."""
        return ("stack",) if self.sure is None or len(self.voices) != 2 else (self.voices[1], "stack")


def check_decision(name: str, decision: Decision) -> Decision:
    """Refuse options that make no sense."""
    sure, strength, parts = decision.sure, decision.strength, decision.parts
    require(sure is None or 0.5 <= sure < 1, f"{name}: sure must lie in [0.5, 1), got {sure}; 0.9 is the default")
    require(strength > 0, f"{name}: strength must be above 0, got {strength}; 15 is the default")
    require(parts >= 2, f"{name}: parts must be at least 2, got {parts}; 5 is the default")
    return decision


class Weigh(nn.Module):
    """The voices' outputs in one, and what its owner knows of it."""

    worse: Tensor
    gain: Tensor
    of_classes: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((count,), 1 / count))
        # The chance of being worse than alone and the gain over LOCAL to expect, by the verdict's metric; of what was
        # declined, where LOCAL is deployed.
        self.register_buffer("worse", torch.zeros(1))
        self.register_buffer("gain", torch.zeros(1))
        self.register_buffer("of_classes", torch.ones(1))  # whether outputs are scores of classes

    def forward(self, z: Tensor) -> Tensor:
        """(n, M, K) -> (n, K)."""
        return weighed(z, self.weight)


class Voices(nn.Module):
    """Several networks that answer as one: what a client deploys."""

    def __init__(self, voices: Sequence[nn.Module]) -> None:
        super().__init__()
        self.voices, self.weigh = nn.ModuleList(voices), Weigh(len(voices))

    def forward(self, x: Tensor) -> Tensor:
        """Samples to outputs, as each of the networks."""
        said = [voice(x) for voice in self.voices]
        z = [torch.where(self.weigh.of_classes > 0.5, voice_outputs(out, "class"), out) for out in said]
        answered: Tensor = self.weigh(torch.stack(z, -2))
        return answered


def voices_together(voices: Sequence[Method], *, distilled: bool = False) -> Method:
    """The method of the deployed module. It trains nothing: its models come from the voices' own runs."""

    def wrap(module: nn.Module) -> nn.Module:
        copies = [copy.deepcopy(module) for _ in voices]
        return Voices([m if v.wrap is None else v.wrap(m) for v, m in zip(voices, copies, strict=True)])

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        return {}, {}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        raise InputError("what is decided after training has no rounds of its own; use fairlead.compare")

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        raise InputError("what is decided after training has no rounds of its own; use fairlead.compare")

    def server(average: Server) -> Server:
        return average

    classes = any(v.needs_classes for v in voices)
    module = None if distilled else wrap
    return Method(init, client, personal, server, average=None, wrap=module, needs_classes=classes)


def student(first: Tensor) -> Method:
    """One network for each client, trained on its own rows from the client's row of `first`, (N, D)."""

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        begin = first[torch.tensor(task.ids)].to(state["v"]) if task.round == 1 else state["v"]
        return {"v": task.descend(begin)}, {}

    return local()._replace(client=client)


def soft_targets(said: Tensor, y: Tensor, kind: str) -> Tensor:
    """What a student learns: halfway between the targets and what the weighed voices say of the rows, (n, K).

    >>> soft_targets(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), "class").tolist()
    [[0.25, 0.75]]
    """
    if kind == "class":
        return (said.softmax(-1) + one_hot(y, said.shape[-1])) / 2
    return ((said.sigmoid() if kind == "labels" else said) + y.reshape(said.shape)) / 2


def rows_together(voices: Sequence[tuple[Layout, Tensor]], weigh: Tensor, layout: Layout) -> Tensor:
    """Rows of `Voices`, from the rows of its voices and of its `Weigh`, (C, D) each."""
    out = weigh.new_zeros(len(weigh), layout.size)
    own = Layout(Weigh(len(voices)))
    pieces = {f"voices.{m}.": piece for m, piece in enumerate(voices)} | {"weigh.": (own, weigh)}
    for prefix, (inner, rows) in pieces.items():
        for name, slot in inner.slots.items():
            to = layout.slots[prefix + name]
            out[:, to.start : to.stop] = rows[:, slot.start : slot.stop]
    return out


class Said(NamedTuple):
    """What the voices say of a client's rows, in the order of its parts."""

    z: Tensor  # (n, M, K)
    y: Tensor
    part: Tensor  # (n,) that each row belongs to
    group: Tensor  # (n,) whom it is about; the rows of one are in one part. Empty: each is about somebody else


def apart(task: Task) -> Iterator[tuple[Said, Said]]:
    """What was said of each client's rows by parts, and by halves."""
    for (z, y), (part, group) in zip(task.data(), task.marks(), strict=True):
        n, part = len(z) // 2, part.to(z.device)
        yield Said(z[:n], y[:n], part[:n], group[:n]), Said(z[n:], y[n:], part[n:], group[n:])


class Measured(NamedTuple):
    """How much better than LOCAL a candidate is on one client's rows."""

    gain: float
    rows: float  # that decide, or groups of them; 0 where nothing is known
    variance: float  # of a row's difference
    ratio: float  # how much parts differ, as a multiple of what rows explain: training luck
    size: float  # rows in a part, 0 where parts say nothing
    fall: float = 0.0  # by how much the gain was higher when models learned from fewer rows
    halved: float = 0.0  # rows that say so, 0 where nothing is known


NOTHING = Measured(0.0, 0.0, 0.0, 1.0, 0.0)
POSITIVE = ("rows", "halved", "size", "ratio", "variance")  # never negative


class Chosen(NamedTuple):
    """What a client made of a candidate, by its number: it leaves LOCAL for it, or declined it."""

    candidate: int
    leaves: bool
    worse: float  # the chance of being worse than alone with the candidate
    gain: float  # over LOCAL, to be expected of the candidate


STAY = Chosen(0, False, 1.0, 0.0)


def measured(said: Said, outputs: Tensor, metric: Metric) -> Measured:
    """Paired differences to LOCAL on the same rows; nothing where the metric has no value on them.

    Where rows are about the same, a patient say, it is these groups that are counted and vary.
    """
    truth, a, b, part = (on_host(x).numpy() for x in (said.y, outputs, said.z[:, 0], said.part))
    if metric.target == "quantity":
        truth, a, b = truth.reshape(len(truth)), a.reshape(len(a)), b.reshape(len(b))
    if len(truth) < 2 or metric.check(truth, a.astype(np.float64), part):
        return NOTHING
    ours, theirs = (metric.over_folds(truth, x.astype(np.float64), part) for x in (a, b))
    difference = (ours.rows - theirs.rows) * (1 if metric.higher else -1)
    if len(said.group):
        difference, first = by_group(difference, said.group.numpy())
        part = part[first]
    n, d = len(difference), float(difference.mean())
    spread = float(difference.var())
    means = np.array([difference[part == j].mean() if (part == j).any() else d for j in range(int(part.max()) + 1)])
    counts = np.bincount(part)
    used = int((counts > 0).sum())
    left = float(((difference - means[part]) ** 2).sum())
    if used < 2 or n <= used or left <= 1e-12:
        return Measured(d, n, spread, 1.0, 0.0)
    within, between = left / (n - used), float((counts * (means - d) ** 2).sum()) / (used - 1)
    return Measured(d, n, spread, between / within, n / used)


def decide(decision: Decision, metric: Metric, kind: str) -> Method:
    """The decision as a federated method; run it for `ROUNDS` rounds with a `Weigh` as its module."""
    one = Deciding(decision, metric, kind)
    return Method(one.init, one.client, one.personal, one.server, average=None)


@dataclass(frozen=True)
class Deciding:
    """The parts of the method `decide`."""

    decision: Decision
    metric: Metric
    kind: str  # of the targets

    @property
    def count(self) -> int:
        return len(self.decision.voices)

    def init(self, params: Tensor, layout: Layout) -> tuple[Named, Named]:
        candidates = len(self.decision.candidates)
        first = {"s": params[:, : self.count].clone()}
        first |= {name: params.new_zeros(1, candidates) for name in SHARED}
        return {}, first | {name: params.new_zeros(1, candidates, GRID) for name in COMMON}

    def client(self, state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        replies: list[Named] = []
        for i, (said, fewer) in enumerate(apart(task)):
            s, z = row(message["s"], i), said.z
            terms = stack_terms(z[None], said.y[None], z.new_ones(1, len(z)), s[None], self.kind)
            told = [NOTHING] * len(self.decision.candidates)
            if task.round >= ROUNDS and sound(z):
                told = self.gains(said, *self.weights(said, s), fewer)
            replies.append(
                {"loss": terms.loss[:, None], "slope": terms.slope, "curve": terms.curve.flatten(1)}
                | {f: z.new_tensor([[getattr(m, f) for m in told]]) for f in Measured._fields}
            )
        return {}, {name: torch.cat([reply[name] for reply in replies]) for name in replies[0]}

    def weights(self, said: Said, s: Tensor) -> tuple[Tensor, Tensor]:
        """A client's own weights (M,), and for every part those found without it, (J, M)."""
        others = said.part != torch.arange(self.decision.parts, device=said.part.device)[:, None]
        rows = torch.cat([torch.ones_like(others[:1]), others]).to(said.z)
        z, y = (x.expand(len(rows), *x.shape) for x in (said.z, said.y))
        found = stack_weights(z, y, rows, self.kind, s[None], self.decision.strength)
        return found[0], found[1:]

    def gains(self, said: Said, s_k: Tensor, crossed: Tensor, fewer: Said) -> list[Measured]:
        """How much better than LOCAL each candidate is; the stack of a row by weights found without the row's part."""
        told = self._measured(said, crossed[said.part])
        if not sound(fewer.z):
            return told
        before = self._measured(fewer, s_k.expand(len(fewer.z), -1))
        known = [m.rows > 0 and b.rows > 0 for m, b in zip(told, before, strict=True)]
        halved = [m._replace(fall=b.gain - m.gain, halved=b.rows) for m, b in zip(told, before, strict=True)]
        return [h if yes else m for m, h, yes in zip(told, halved, known, strict=True)]

    def _measured(self, said: Said, weights: Tensor) -> list[Measured]:
        outputs = {name: said.z[:, m] for m, name in enumerate(self.decision.voices)}
        # A candidate of the very name of a voice is that voice; "stack" is no method's name.
        outputs["stack"] = (said.z * weights[..., None]).sum(1)
        return [measured(said, outputs[name], self.metric) for name in self.decision.candidates]

    def personal(self, state: Named, message: Named, task: Task) -> Tensor:
        rows = []
        for i, (said, fewer) in enumerate(apart(task)):
            s_k, crossed = self.weights(said, row(message["s"], i))
            told = [NOTHING] * len(self.decision.candidates)
            if sound(said.z):
                told = self.gains(said, s_k, crossed, fewer)
            # Who has no rows follows the others; who has a voice that says no numbers stays alone.
            usable = bool(said.z.isfinite().all())
            shared = {n: row(message[n], i) for n in (*SHARED, *COMMON)}
            chosen = self.choose(told, shared) if usable else STAY
            known = said.z.new_tensor([chosen.worse, chosen.gain, 1.0 if self.kind == "class" else 0.0])
            rows.append(torch.cat([self.deployed(chosen, s_k), known]))
        return torch.stack(rows)

    def choose(self, told: list[Measured], message: Named) -> Chosen:
        """Of the candidates that are sure to be better the one with the highest gain, else the surest is declined."""
        known = [self.chance(m, {n: x[a] for n, x in message.items()}) for a, m in enumerate(told)]
        sure = [a for a, (better, _) in enumerate(known) if better >= (self.decision.sure or 0.0)]
        best = max(sure or range(len(known)), key=lambda a: known[a][1 if sure else 0])
        return Chosen(best, bool(sure), 1 - known[best][0], known[best][1])

    def deployed(self, chosen: Chosen, s_k: Tensor) -> Tensor:
        """The weights that a client deploys, (M,)."""
        name = self.decision.candidates[chosen.candidate]
        if not chosen.leaves or name != "stack":
            return _only(self.decision.voices.index(name) if chosen.leaves else 0, s_k)
        return s_k

    def chance(self, m: Measured, message: Named, tested: float = math.inf) -> tuple[float, float]:
        """The chance of being better than alone on so many new rows, and the gain to expect.

        The luck of the parts' trainings may be the same for all clients, who share models: then it is in the common
        mean as it is in a client's own gain, and is added to the luck of the final training.
        """
        rows, spread, gain = (torch.tensor([x], dtype=torch.float64) for x in (m.rows, m.variance, m.gain))
        share, variance, others, fall, unknown = (on_host(message[name]).double().reshape(1) for name in SHARED)
        v, row = self.noise(rows, spread, others, share)
        luck = row[:, None] * lognormal(share, variance) * (1 + 1 / (self.decision.parts - 1)) + unknown
        common = CommonGain(*(on_host(message[name]).double() for name in COMMON))
        common = common._replace(mean=common.mean - fall)
        chance, expected = (float(x) for x in chance_positive(gain - fall, v, common, luck + row / tested))
        return chance, expected

    def noise(self, rows: Tensor, spread: Tensor, of_all: Tensor, luck: Tensor) -> tuple[Tensor, Tensor]:
        """The variance of a measured gain, and of a row's difference.

        A row's variance is drawn to everybody's: few rows without a difference do not show that there is none. Parts
        have most train rows in common, so that their mean has the luck of one part less.
        """
        row = (rows * spread + LIKE_OTHERS * of_all) / (rows + LIKE_OTHERS)
        measured = row * (1 / rows.clamp(min=1e-9) + luck / (self.decision.parts - 1))
        return torch.where(rows > 0, measured.clamp(min=1e-12), FAR), row

    def server(self, average: Server) -> Server:
        def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
            s = message["s"]
            return {"best": s, "lowest": s.new_full((1, 1), torch.inf)} | message, message

        return Server(init, self.update)

    def update(self, state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        message = {name: state[name] for name in ("s", *SHARED, *COMMON)}
        known = {name: state[name] for name in ("best", "lowest")}
        if cohort.round < ROUNDS:
            terms = Terms(*(rows[n].sum(0, keepdim=True) for n in ("loss", "slope", "curve")))
            known, message["s"] = self.next_weights(state, terms)
        else:
            told = {n: on_host(rows[n]).double() for n in Measured._fields}
            message |= self.in_common(credible(told, cohort.ids.tolist()))
        message = {name: x.clamp(-WIDEST, WIDEST).to(state["s"]) for name, x in message.items()}
        return known | message, message

    def next_weights(self, state: Named, terms: Terms) -> tuple[Named, Tensor]:
        """Newton's step from the present weights, or back towards the best so far where they are worse."""
        s, best, lowest = state["s"], state["best"], state["lowest"]
        loss = terms.loss
        if not bool(on_host(loss < lowest).all()):
            return {"best": best, "lowest": lowest}, (s + best) / 2
        curve = terms.curve.view(1, self.count, self.count)
        curve = curve + 1e-6 * (1 + curve.diagonal(dim1=-2, dim2=-1).mean()) * torch.eye(self.count).to(s)
        # One client's terms must not carry the weights where nobody's loss is finite.
        further = newton_step(s, Terms(loss, terms.slope, curve)).nan_to_num(0.0).clamp(max=MOST)
        return {"best": s, "lowest": loss}, further

    def in_common(self, told: Named) -> Named:
        """Row variance, training luck and the scatter of the gains, from all clients that answered; (C, A) each."""
        rows, candidates = told["rows"], range(len(self.decision.candidates))
        of_all = (told["variance"] * rows).sum(0) / rows.sum(0).clamp(min=1e-9)
        each = [training_luck(*(told[n][:, a] for n in ("ratio", "rows", "size"))) for a in candidates]
        luck, variance = torch.tensor(each, dtype=torch.float64).T
        noise, _ = self.noise(rows, told["variance"], of_all, luck)
        scale = SCATTER * of_all.clamp(min=1e-12).sqrt()
        found = [common_gain(told["gain"][:, a], noise[:, a], float(scale[a])) for a in candidates]
        fall, unknown = self.falls(told, of_all)
        each_one = (luck, variance, of_all, fall, unknown)
        shared = {name: x[None] for name, x in zip(SHARED, each_one, strict=True)}
        return shared | {n: torch.stack([getattr(f, n) for f in found])[None] for n in COMMON}

    def falls(self, told: Named, of_all: Tensor) -> tuple[Tensor, Tensor]:
        """By how much gains fall until all rows train, and the variance of that; (A,) each.

        LOCAL profits more from further rows than models that learn from everybody's. A rise is not counted on.
        """
        rows = told["halved"].sum(0)
        share = told["halved"] / rows.clamp(min=1.0)
        mean = (share * told["fall"]).sum(0)
        by_clients = (share * (told["fall"] - mean)).square().sum(0) / (1 - share.square().sum(0)).clamp(min=1e-9)
        # A few clients may agree by chance; then it is no surer than the rows make it.
        variance = torch.maximum(by_clients, of_all / rows.clamp(min=1.0))
        return self.decision.further * mean.clamp(min=0.0), self.decision.further**2 * variance


def credible(told: Named, ids: list[int]) -> Named:
    """What clients measured, (C, A) each, with nothing in place of what no measurement can give.

    Parts that say something have more than one row each, and there are two of them at least. Without this a client
    that claims -10¹⁸ rows makes every other one sure of its gain.
    """
    wrong = torch.stack([told[name] < 0 for name in POSITIVE]).any(0)
    wrong |= (told["size"] > 0) & ((told["size"] <= 1) | (told["rows"] < 1.99 * told["size"]))
    for i in wrong.any(1).nonzero()[:, 0].tolist():
        logger.warning("client %d tells rows, variances or parts that cannot be, which count for nothing", ids[i])
    return {name: x.where(~wrong, getattr(NOTHING, name)) for name, x in told.items()}


def training_luck(ratio: Tensor, rows: Tensor, size: Tensor) -> tuple[float, float]:
    """What training luck may be as a share of a row's variance, mean and variance: by how all clients' parts differ.

    Few rows say little of it; then it is what it usually is: see `metrics.evidence`.
    """
    known = zip(ratio.tolist(), rows.tolist(), size.tolist(), strict=True)
    found = [[Ratio(f, n / each - 1, n - n / each, each)] for f, n, each in known if each > 0]
    mean, variance = training_shares(found or [[]])
    return float(mean.mean()), float(variance.mean())


def lognormal(mean: Tensor, variance: Tensor) -> Tensor:
    """Equally likely values, (C, Q), of something positive with this mean and variance, (C,)."""
    width = torch.log1p(variance / mean.clamp(min=1e-12) ** 2)[:, None]
    at = torch.special.ndtri((torch.arange(QUANTILES, dtype=mean.dtype) + 0.5) / QUANTILES)
    values = torch.exp(width.sqrt() * at)
    return mean[:, None] * values / values.mean(1, keepdim=True)


def _only(voice: int, like: Tensor) -> Tensor:
    """The weights of one voice alone."""
    weights = torch.zeros_like(like)
    weights[voice] = 1.0
    return weights


def row(x: Tensor, i: int) -> Tensor:
    """Client i's row of a message, which may be one row for everybody."""
    return x[i if len(x) > 1 else 0]


def sound(z: Tensor) -> bool:
    """Whether a client has rows and all voices say numbers of them."""
    return len(z) > 0 and bool(z.isfinite().all())
