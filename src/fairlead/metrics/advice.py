"""What to do: for each owner and for the federation, from the verdicts on all methods.

    advice = recommend({"fedavg": judge(...), "fedora": judge(...)})
    advice.owners[0].why     # "Join with fedora: 3.1 points better than alone (1.2 to 5.0), sure at 95% after ..."

The best of several methods, chosen on the rows that it is tested on, looks better than it is. So everything here is
judged anew, corrected over owners and methods together, and may be less sure than a method's own verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import ndtr

from fairlead.core.errors import require
from fairlead.metrics.evidence import Corrected, correct, mean_of
from fairlead.metrics.verdict import (
    BETTER,
    NO_DIFFERENCE,
    NOT_JUDGED,
    TOO_FEW,
    WORSE,
    OwnerVerdict,
    amount,
    if_finite,
    number,
    told_gain,
)

MOST_NAMED = 5  # owners in a sentence
Action = Literal["join", "stay alone", "makes no difference", "cannot tell"]


@dataclass(frozen=True)
class OwnerAdvice:
    """What one owner should do."""

    owner: str
    action: Action
    method: str | None  # the method to join with
    p: float | None  # of the claim, corrected over owners and methods; None where nothing is claimed
    why: str  # a sentence


@dataclass(frozen=True)
class FederationAdvice:
    """The method for everybody, if there is one."""

    method: str | None
    better: int  # owners that are surely better off with it
    worse: int
    why: str


@dataclass(frozen=True)
class MeanGain:
    """A method's gain over the bar, mean over the owners that could be judged; every owner counts alike."""

    gain: float
    lower: float  # the intervals of all methods hold together
    upper: float
    p: float
    owners: int

    @property
    def sure(self) -> bool:
        """Whether its sign is."""
        return self.lower > 0 or self.upper < 0


@dataclass(frozen=True)
class Recommendation:
    """Advice to each owner and to the federation."""

    owners: tuple[OwnerAdvice, ...]
    federation: FederationAdvice
    level: float
    means: dict[str, MeanGain]  # by method; those that could judge two owners at least

    def to_json(self) -> dict[str, Any]:
        """Plain data; numbers without a bound are None."""
        means = {method: {k: if_finite(v) for k, v in asdict(mean).items()} for method, mean in self.means.items()}
        owners = [asdict(o) for o in self.owners]
        return {"owners": owners, "federation": asdict(self.federation), "level": self.level, "means": means}


@dataclass(frozen=True)
class _Judged:
    """A verdict on one method, with the correction over all methods."""

    verdict: OwnerVerdict
    corrected: Corrected | None  # None where the verdict had nothing to judge

    @property
    def better(self) -> bool:
        return self.corrected is not None and self.corrected.lower > 0

    @property
    def worse(self) -> bool:
        return self.corrected is not None and self.corrected.upper < 0

    @property
    def harmed(self) -> bool:
        """Worse off, be it by the verdict on this method alone."""
        return self.worse or self.verdict.verdict == WORSE

    @property
    def useful(self) -> bool:
        """Whether the method does better than the same answer for every row."""
        return _above_constant(self.verdict, self.verdict.method_score) > 0

    def told(self) -> str:
        v, c = self.verdict, self.corrected
        return told_gain(v.unit, v.gain or 0.0, c.lower, c.upper) if c else v.why


def recommend(
    verdicts: dict[str, list[OwnerVerdict]],
    level: float = 0.95,
    improving: Collection[str] = (),
    alone_improving: bool = False,
) -> Recommendation:
    """Advice from the verdicts of every method, the control left out; the same owners in the same order.

    `improving` names the methods whose training ended while they were still getting better, and `alone_improving` says
    that training alone did: what is said against them may not last, and says so.
    """
    require(len(verdicts) > 0, "recommend: got no method; give the verdicts of at least one")
    owners = [v.owner for v in next(iter(verdicts.values()))]
    for method, own in verdicts.items():
        require(
            [v.owner for v in own] == owners,
            f"recommend: {method} has other owners than the first method; judge all methods on the same owners",
        )
    table = _corrected(verdicts, level)
    claim = f"sure at {100 * level:.3g}%"
    if len(owners) > 1 or len(table) > 1:
        claim += f" after correction for {_count(len(owners), 'owner')}"
        claim += f" and {len(table)} methods" if len(table) > 1 else ""
    assumed = any(v.training == "assumed" for own in verdicts.values() for v in own)
    claim += ", if training luck is what it usually is" if assumed else ""
    advice = tuple(_advise(o, {m: own[k] for m, own in table.items()}, claim) for k, o in enumerate(owners))
    means = mean_gains(verdicts, level)
    effects = [_Effects(m, own, means.get(m)) for m, own in table.items()]
    lost = {o: [m for m, own in table.items() if own[k].harmed and m in improving] for k, o in enumerate(owners)}
    advice = tuple(
        replace(one, why=one.why + _early(one.action == "join" and alone_improving, lost[one.owner])) for one in advice
    )
    all_of_them = _federation(effects, advice)
    against = [one.method for one in effects if one.method in improving and one.loses]
    all_of_them = replace(
        all_of_them, why=all_of_them.why + _early(all_of_them.better > 0 and alone_improving, against)
    )
    return Recommendation(advice, all_of_them, level, means)


def _early(alone: bool, methods: Sequence[str]) -> str:
    """What may not last: a gain over training alone, or the harm of methods, that were still getting better."""
    said = " Training alone was still improving at its last round, so that more of it may change this." if alone else ""
    if methods:
        were = f"{', '.join(methods)} {'was' if len(methods) == 1 else 'were'}"
        said += f" {were} still improving at the last round, so that more training may change this."
    return said


def mean_gains(verdicts: dict[str, list[OwnerVerdict]], level: float = 0.95) -> dict[str, MeanGain]:
    """Every method's mean gain over the owners, corrected over the methods.

    Owners with too few rows to tell may tell together. It is about these owners: who gains and who loses, it does not
    say.
    """
    found = {m: [v.evidence for v in own if v.evidence] for m, own in verdicts.items()}
    told = {m: (mean_of(own), len(own)) for m, own in found.items() if len(own) > 1}
    judged = correct([e for e, _ in told.values()], level)
    return {
        m: MeanGain(e.gain, c.lower, c.upper, c.p, count)
        for (m, (e, count)), c in zip(told.items(), judged, strict=True)
    }


def _corrected(verdicts: dict[str, list[OwnerVerdict]], level: float) -> dict[str, list[_Judged]]:
    """All verdicts, corrected over owners and methods together."""
    everything = [v.evidence for own in verdicts.values() for v in own if v.evidence]
    judged = iter(correct(everything, level))
    return {m: [_Judged(v, next(judged) if v.evidence else None) for v in own] for m, own in verdicts.items()}


def _advise(owner: str, found: dict[str, _Judged], claim: str) -> OwnerAdvice:
    helped = [m for m, j in found.items() if j.better]
    useful = [m for m in helped if found[m].useful]
    if useful:
        best = max(useful, key=lambda m: _lower(found[m]))
        return OwnerAdvice(owner, "join", best, _p(found[best]), f"Join with {best}: {found[best].told()}, {claim}.")
    if helped:
        best = max(helped, key=lambda m: _lower(found[m]))
        why = f"{best} is {found[best].told()}, but no better than the same answer for every row"
        return OwnerAdvice(owner, "cannot tell", None, None, f"Cannot tell: {why}.")
    if all(j.worse for j in found.values()):
        least = max(found, key=lambda m: found[m].verdict.gain or 0.0)
        every = "every method is worse; " if len(found) > 1 else ""
        why = f"Stay alone: {every}{least} is {found[least].told()}, {claim}."
        return OwnerAdvice(owner, "stay alone", None, max(_p(j) for j in found.values()), why)
    return _undecided(owner, found)


def _undecided(owner: str, found: dict[str, _Judged]) -> OwnerAdvice:
    """Nothing was found to help. Is that because nothing differs, or because the rows cannot tell?"""
    worse = [m for m, j in found.items() if j.harmed]
    avoid = f" Worse than alone: {', '.join(worse)}." if worse else ""
    rest = {m: j for m, j in found.items() if m not in worse}
    if not rest:
        return OwnerAdvice(owner, "stay alone", None, None, f"Stay alone: no method was found to help.{avoid}")
    said = {v: [m for m, j in rest.items() if j.verdict.verdict == v] for v in (BETTER, NO_DIFFERENCE, TOO_FEW)}
    looks, alike, few = said.values()
    if looks:
        look = "by itself looks" if len(looks) == 1 else "each by itself look"
        told = f"Cannot tell: {', '.join(looks)} {look} better, but not once all methods count."
        return OwnerAdvice(owner, "cannot tell", None, None, told + avoid)
    if len(alike) > len(few):
        told = _no_difference({m: rest[m] for m in alike})
        told += f" Too few rows or runs to tell: {', '.join(few)}." if few else ""
        return OwnerAdvice(owner, "makes no difference", None, None, told + avoid)
    nearest = min(few, key=lambda m: rest[m].verdict.more_rows or math.inf)
    verdict = rest[nearest].verdict
    which = f"with {nearest} " if len(found) > 1 and verdict.evidence is not None else ""
    told = f"Cannot tell: {which}{verdict.why.removeprefix(NOT_JUDGED)}"
    told += f" No difference found: {', '.join(alike)}." if alike else ""
    return OwnerAdvice(owner, "cannot tell", None, None, told + avoid)


def _no_difference(alike: dict[str, _Judged]) -> str:
    closest, judged = max(alike.items(), key=lambda one: one[1].verdict.gain or 0.0)
    unit = judged.verdict.unit
    ends = f"loses at most {amount(unit, -_lower(judged))} and gains at most {amount(unit, _upper(judged))}"
    return f"Makes no difference that could be found: {closest} {ends}."


@dataclass(frozen=True)
class _Effects:
    """What a method did to all owners."""

    method: str
    judged: list[_Judged]  # by owner
    mean: MeanGain | None

    @property
    def better(self) -> int:
        return sum(j.better and j.useful for j in self.judged)

    @property
    def worse(self) -> list[str]:
        return [j.verdict.owner for j in self.judged if j.harmed]

    @property
    def gain(self) -> float:
        return float(np.mean([j.verdict.gain for j in self.judged if j.verdict.gain is not None]))

    @property
    def loses(self) -> bool:
        """Whether it is said to harm: an owner, or all of them on average."""
        return bool(self.worse) or (self.mean is not None and self.mean.sure and self.gain < 0)

    @property
    def learned(self) -> bool:
        """Whether the owners do better on average than with the same answer for every row."""
        known = [j.verdict for j in self.judged if j.verdict.method_score is not None]
        return len(known) > 0 and float(np.mean([_above_constant(v, v.method_score) for v in known])) > 0


def _federation(found: list[_Effects], owners: tuple[OwnerAdvice, ...]) -> FederationAdvice:
    helpful = [one for one in found if one.better]
    safe = [one for one in helpful if not one.worse]
    if safe:
        best = max(safe, key=lambda one: one.gain)
        return FederationAdvice(best.method, best.better, 0, _safe_sentence(best))
    if helpful:
        best = max(helpful, key=lambda one: (one.better - len(one.worse), one.gain))
        why = f"No method helps somebody and harms nobody. With {best.method} {_are(best.better)} better off than alone"
        why += f", but worse off: {_named(best.worse)}."
        return FederationAdvice(None, best.better, len(best.worse), why)
    if any(one.learned for one in found):
        return FederationAdvice(None, 0, 0, _no_help(found, owners) + _on_average(found))
    return FederationAdvice(
        None, 0, 0, "Nothing was learned: no method does better than the same answer for every row."
    )


def _no_help(found: list[_Effects], owners: tuple[OwnerAdvice, ...]) -> str:
    """Nobody should join: who loses, and what holds for the most owners, then for the others."""
    groups: dict[str, list[str]] = {what: [] for what in (TOO_FEW, "stay alone", "makes no difference", "cannot tell")}
    for k, one in enumerate(owners):
        few = one.action == "cannot tell" and any(own.judged[k].verdict.verdict == TOO_FEW for own in found)
        groups[TOO_FEW if few else one.action].append(one.owner)
    harm = [f"{one.method} ({len(one.worse):,})" for one in found if one.worse]
    if harm:
        methods = ", ".join(harm) if len(harm) <= MOST_NAMED else f"with {len(harm)} of {len(found)} methods"
        text = f"No method was found to help anybody; owners worse off: {methods}."
    else:
        most = max(groups, key=lambda what: len(groups[what]))  # of as many, the first
        runs = any(j.verdict.verdict == TOO_FEW and j.verdict.more_rows is None for one in found for j in one.judged)
        text = _of_most(most, len(groups.pop(most)), len(owners), "rows or runs" if runs else "rows")
    return text + "".join(f" {what.capitalize()}: {_named(who)}." for what, who in groups.items() if who)


def _on_average(found: list[_Effects]) -> str:
    """What holds for the mean over the owners, where no owner's rows tell by themselves."""
    sure = [one for one in found if one.mean and one.mean.sure and one.learned]
    helpful = [one for one in sure if one.gain > 0]
    text = ""
    if helpful:
        best = max(helpful, key=lambda one: one.mean.lower if one.mean else 0.0)
        assert best.mean is not None
        told = told_gain(best.judged[0].verdict.unit, best.gain, best.mean.lower, best.mean.upper)
        text += f" On average over the owners {best.method} is {told}; for whom cannot be told."
    worse = [one.method for one in sure if one.gain < 0]
    if worse:
        named = ", ".join(worse) if len(worse) <= MOST_NAMED else f"{len(worse)} of {len(found)} methods"
        text += f" Worse than alone on average over the owners: {named}."
    return text


def _of_most(what: str, many: int, owners: int, few: str) -> str:
    """What holds for so many owners; `few` is what they have too few of to tell."""
    if what == "makes no difference":
        return "No difference from training alone was found, with any method."
    if what == TOO_FEW:
        every = "The owner has" if owners == 1 else "The owners have"
        who = f"{many:,} of {owners:,} owners {'has' if many == 1 else 'have'}" if many < owners else every
        return f"{who} too few {few} to tell whether any method helps."
    return "It cannot be told whether any method helps."


def told_owner(name: str) -> str:
    """An owner in a sentence, where a name that is a number would be taken for one.

    >>> told_owner("va"), told_owner("5")
    ('va', 'owner 5')
    """
    return f"owner {name}" if name.isdigit() else name


def _named(owners: list[str]) -> str:
    return ", ".join(map(told_owner, owners)) if len(owners) <= MOST_NAMED else _count(len(owners), "owner")


def _safe_sentence(one: _Effects) -> str:
    own, unit = one.judged, one.judged[0].verdict.unit
    mean = f"the mean gain is {amount(unit, one.gain)}"
    if one.mean and math.isfinite(one.mean.lower) and math.isfinite(one.mean.upper):
        mean += f" ({number(unit, one.mean.lower)} to {number(unit, one.mean.upper)})"
    if len(own) == 1:
        return f"With {one.method} the owner is {own[0].told()}."
    if one.better == len(own):
        return f"With {one.method} all {len(own):,} owners are better off than alone; {mean}."
    text = f"With {one.method} {one.better:,} of {len(own):,} owners {'is' if one.better == 1 else 'are'} better"
    text += f" off than alone and none was found worse off; {mean}."
    unsure = [j.verdict.owner for j in own if not j.better and j.verdict.verdict == TOO_FEW]
    told = [j for j in own if not j.better and j.verdict.verdict != TOO_FEW]
    if told:
        riskiest = min(told, key=_lower)
        loss, who = amount(unit, -_lower(riskiest)), told_owner(riskiest.verdict.owner)
        text += f" A loss of up to {loss} is not ruled out ({who})."
    if unsure:
        text += f" Too few rows or runs to tell: {_named(unsure)}."
    return text


def _above_constant(v: OwnerVerdict, score: float | None) -> float:
    if score is None or v.constant_score is None:
        return 0.0
    return (score - v.constant_score) * (1 if v.higher else -1)


def _lower(j: _Judged) -> float:
    return j.corrected.lower if j.corrected else -math.inf


def _upper(j: _Judged) -> float:
    return j.corrected.upper if j.corrected else math.inf


def _p(j: _Judged) -> float:
    return j.corrected.p if j.corrected else 1.0


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _are(n: int) -> str:
    return f"{_count(n, 'owner')} {'is' if n == 1 else 'are'}"


@dataclass(frozen=True)
class PositiveTransfer:
    """The share of owners above the control, beside what chance alone would give if nothing differed."""

    share: float
    expected: float
    low: float  # 95% of the time chance gives a share between low and high
    high: float


def positive_transfer(verdicts: list[OwnerVerdict]) -> PositiveTransfer | None:
    """PTR with its noise, over the owners that could be judged; None where there are none.

    Chances of owners are taken as independent. An owner without a difference is not above the control.
    """
    found = [v.evidence for v in verdicts if v.evidence]
    if not found:
        return None
    counts = np.ones(1)  # the distribution of the number of owners above
    for e in found:
        spread = math.sqrt(e.variance(0.0))
        tie = 2 * float(ndtr(e.jump / e.rows / 2 / spread)) - 1 if e.spread + e.gain**2 > 0 else 1.0
        counts = np.convolve(counts, [(1 + tie) / 2, (1 - tie) / 2])
    shares, total = np.arange(len(counts)) / len(found), np.cumsum(counts)
    low, high = (min(int((total < tail).sum()), len(found)) for tail in (0.025, 0.975))
    return PositiveTransfer(
        share=sum(e.gain > 0 for e in found) / len(found),
        expected=float(shares @ counts),
        low=float(shares[low]),
        high=float(shares[high]),
    )
