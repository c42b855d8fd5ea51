"""`python -m benchmarks.verdict`: how often verdicts of `fairlead.metrics` are wrong, and how often they find a gain.

Four tables in Markdown:

simulation   made-up owners, with the truth known: false verdicts, coverage, and the power to find a gain of 5 points
together     the same, where owners share the luck of training, wholly or in part
twins        LOCAL, or --method, against itself with another seed, on real data: every verdict is false; and with a gain
             planted in one
folds        the variance of a cross-validated difference, estimated from one data set and seen over many
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta, binomtest, norm, ttest_1samp

from benchmarks.twins import Twins, cross_validated_losses, kinds, planted
from fairlead.comparison.findings import Answers, paired
from fairlead.metrics import Metric, OwnerPairs, OwnerVerdict, PairedRun, judge, metric
from fairlead.metrics.advice import mean_gains
from fairlead.settings import check, resolve

Floats = NDArray[np.float64]
ERROR, GAIN = 0.05, 0.05
FOLDS = 5
# Design: seeds, folds, twins of the control.
DESIGNS = {
    "1 seed": (1, 1, 0),
    "1 seed, 1 twin": (1, 1, 1),
    "1 seed, 4 twins": (1, 1, 4),
    "3 seeds": (3, 1, 0),
    "5 seeds": (5, 1, 0),
    "5 folds": (1, 5, 0),
}


def holm(p: Floats) -> NDArray[np.bool_]:
    """Which hypotheses Holm's procedure rejects."""
    order = np.argsort(p)
    passed = p[order] <= ERROR / np.arange(len(p), 0, -1)
    rejected = np.zeros(len(p), dtype=bool)
    rejected[order[: len(p) if passed.all() else int(np.argmin(passed))]] = True
    return rejected


def share(wrong: int, of: int) -> str:
    """A percentage with its exact 95% interval."""
    low = 0.0 if wrong == 0 else float(beta.ppf(0.025, wrong, of - wrong + 1))
    high = 1.0 if wrong == of else float(beta.ppf(0.975, wrong + 1, of - wrong))
    return f"{100 * wrong / of:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def is_sure(verdicts: Sequence[OwnerVerdict]) -> bool:
    return any(v.verdict in ("better", "worse") for v in verdicts)


def rows_only(differences: Floats) -> float:
    """The usual paired p-value, which takes every run as the only one possible: rows (repeats, n)."""
    d = differences.mean(0)
    if len(differences) == 1 and set(np.unique(d)) <= {-1.0, 0.0, 1.0}:
        up, down = int((d > 0).sum()), int((d < 0).sum())
        return float(binomtest(up, up + down).pvalue) if up + down else 1.0
    return float(ttest_1samp(d, 0).pvalue) if len(d) > 1 and d.std() > 0 else 1.0


# Simulation ------------------------------------------------------------------------------------------------------


def made_up(rng: np.random.Generator, n: int, moves: Floats) -> tuple[Floats, ...]:
    """Hits of method and control (seeds, n) and the folds: 75% of rows are easy, 5% hopeless, 20% a toss-up.

    `moves` (seeds, folds) is how far a run moves the method's accuracy.
    """
    seeds, folds = moves.shape
    kind = rng.random(n)
    ease = np.where(kind < 0.75, 1.0, np.where(kind < 0.8, 0.0, rng.random(n)))
    fold = np.stack([rng.permutation(n) % folds for _ in range(seeds)])
    moved = np.take_along_axis(moves, fold, 1)
    method, control = rng.random((2, seeds, n)) < ease
    flip = rng.random((seeds, n))
    method = np.where(moved > 0, method | (flip < moved / 0.15), method & ~(flip < -moved / 0.85))
    return method.astype(np.float64), control.astype(np.float64), fold.astype(np.float64)


def as_pairs(name: str, method: Floats, control: Floats, fold: Floats) -> OwnerPairs:
    runs = []
    for s in range(len(method)):
        for f in np.unique(fold[s]):
            i = np.flatnonzero(fold[s] == f)
            ours, theirs = (np.stack([h[s, i], 1 - h[s, i]], 1) for h in (method, control))
            runs.append(PairedRun(i, np.zeros(len(i), dtype=int), ours, theirs, repeat=s, fold=int(f)))
    return OwnerPairs(name, runs)


def simulate(
    owners: int, n: int, design: str, luck: float, gain: float, times: int, shared: float = 0.0
) -> dict[str, float]:
    """Rates over `times` comparisons; `shared` is the part of training luck's variance that owners have in common."""
    seeds, folds, count = DESIGNS[design]
    rng = np.random.default_rng([owners, n, seeds, folds, count, *(int(1000 * x) for x in (luck, gain, shared))])
    wrong = covered = 0
    found, gains, plain = np.zeros((times, owners), bool), np.zeros((times, owners)), np.ones((times, owners))
    for t in range(times):
        own, common = rng.normal(size=(owners, seeds, folds)), rng.normal(size=(seeds, folds))
        moves = gain + luck * (math.sqrt(1 - shared) * own + math.sqrt(shared) * common)
        made = [made_up(rng, n, moved) for moved in moves]
        pairs = [as_pairs(str(k), *m) for k, m in enumerate(made)]
        others = luck * rng.normal(size=(owners, count, 1))
        twins = [as_pairs(str(k), *made_up(rng, n, moved)) for k, moved in enumerate(others)] if count else None
        verdicts = judge(pairs, metric("accuracy"), twins=twins)
        wrong += is_sure(verdicts) if gain == 0 else any(v.verdict == "worse" for v in verdicts)
        covered += all((v.lower or 0) <= gain <= (v.upper or 0) for v in verdicts)
        found[t] = [v.verdict == "better" for v in verdicts]
        gains[t] = [v.gain or 0.0 for v in verdicts]
        plain[t] = [rows_only(m[0] - m[1]) for m in made]
    known = 2 * norm.sf(np.abs(gains) / math.sqrt(float(((gains - gains.mean()) ** 2).mean())))
    return {
        "wrong": wrong,
        "covered": covered,
        "found": float(found.mean()),
        "known": float(np.mean([holm(p) & (g > 0) for p, g in zip(known, gains, strict=True)])),
        "plain": float(np.mean([holm(p) & (g > 0) for p, g in zip(plain, gains, strict=True)])),
        "plain_wrong": sum(bool(holm(p).any()) for p in plain),
    }


def simulation(asked: argparse.Namespace) -> Iterator[list[str]]:
    yield [
        *("owners", "test rows", "run-to-run sd, points", "design", "false verdict for any owner, %", "rows only, %"),
        *("all intervals hold, %", "gain of 5 points found, %", "with known variance, %", "rows only, %"),
    ]
    sizes = [(5, 200)] if asked.quick else [(5, 50), (5, 200), (5, 1000), (20, 200)]
    for owners, n in sizes:
        for luck in (0.0, 0.03) if asked.quick else (0.0, 0.01, 0.03):
            for design in DESIGNS:
                null = simulate(owners, n, design, luck, 0, asked.comparisons)
                gain = simulate(owners, n, design, luck, GAIN, max(asked.comparisons // 4, 20))
                yield [
                    *(f"{owners}", f"{n}", f"{100 * luck:.0f}", design),
                    share(int(null["wrong"]), asked.comparisons),
                    f"{100 * null['plain_wrong'] / asked.comparisons:.1f}",
                    f"{100 * null['covered'] / asked.comparisons:.1f}",
                    *(f"{100 * gain[key]:.0f}" for key in ("found", "known", "plain")),
                ]


def together(asked: argparse.Namespace) -> Iterator[list[str]]:
    yield [
        *("owners", "test rows", "run-to-run sd, points", "of it shared, %", "design"),
        *("false verdict for any owner, %", "gain of 5 points found, %", "with known variance, %"),
    ]
    for luck in (0.01, 0.03):
        for shared in (0.0, 0.5, 1.0):
            for design in ("3 seeds", "5 seeds", "5 folds"):
                null = simulate(20, 200, design, luck, 0, asked.comparisons, shared)
                gain = simulate(20, 200, design, luck, GAIN, max(asked.comparisons // 4, 20), shared)
                yield [
                    *("20", "200", f"{100 * luck:.0f}", f"{100 * shared:.0f}", design),
                    share(int(null["wrong"]), asked.comparisons),
                    *(f"{100 * gain[key]:.0f}" for key in ("found", "known")),
                ]


# Twins -----------------------------------------------------------------------------------------------------------

Runs = list[Answers]  # of one twin: one, or one for every fold


def against(owners: Sequence[str], ours: Sequence[Runs], theirs: Sequence[Runs]) -> list[OwnerPairs]:
    """Twins `ours` against twins `theirs`, one repeat each."""
    return paired(owners, _repeats(ours), _repeats(theirs))


def _repeats(twins: Sequence[Runs]) -> Runs:
    return [replace(run, repeat=i) for i, runs in enumerate(twins) for run in runs]


def answered(twins: Sequence[Runs]) -> Iterator[tuple[Floats, Floats]]:
    """Targets and outputs of every owner that has test rows, in every run."""
    for run in (run for runs in twins for run in runs):
        yield from ((y, out) for y, out in zip(run.y, run.outputs, strict=True) if len(y))


def p_rows_only(owner: OwnerPairs, m: Metric) -> float:
    """The usual paired test's p-value for one owner."""
    rows = []
    for repeat in sorted({r.repeat for r in owner.runs}):
        runs = [r for r in owner.runs if r.repeat == repeat]
        y, a, b = (np.concatenate([np.asarray(getattr(r, k)) for r in runs]) for k in ("y", "method", "control"))
        if m.check(y, a) or m.check(y, b):
            return 1.0
        rows.append(m.row_scores(y, a).rows - m.row_scores(y, b).rows)
    return rows_only(np.array(rows))


def comparisons(twins: Twins, asked: argparse.Namespace) -> Iterator[tuple[str, Sequence[str], list[Runs], list[Runs]]]:
    """Design, owners, the twins that are compared (half against half), and twins of the control where it has any.

    The twins of one comparison are all different ones; every twin serves in several comparisons, but for one
    comparison a division: these are independent.
    """
    rng = np.random.default_rng(0)
    each = -(-asked.comparisons // asked.divisions)
    for division in range(asked.divisions):
        if not asked.only_folds:
            owners, found = twins.single(division, asked.models)
            for _ in range(each):
                mixed = [found[i] for i in rng.permutation(len(found))]
                yield "1 seed", owners, mixed[:2], []
                yield "1 seed, 1 twin", owners, mixed[:2], mixed[2:4]
                yield "2 seeds", owners, mixed[:4], []
                yield "3 seeds", owners, mixed[:6], []
        owners, found = twins.folded(division, 2 if each == 1 else max(asked.models // 2, 3), FOLDS)
        for _ in range(each):
            yield "5 folds", owners, [found[i] for i in rng.permutation(len(found))[:2]], []


class Tally:
    """One data set, metric and design."""

    def __init__(self) -> None:
        self.wrong = self.plain_wrong = self.of = self.mean_wrong = 0
        self.rows: list[int] = []
        self.scores: list[float] = []
        self.found: list[list[bool]] = []  # planted gains, by comparison and owner
        self.plain: list[Floats] = []
        self.gains: list[Floats] = []

    def add(self, pairs: list[OwnerPairs], luck: list[OwnerPairs] | None, m: Metric) -> None:
        """A comparison of twins."""
        verdicts = judge(pairs, m, twins=luck)
        self.of += 1
        self.wrong += is_sure(verdicts)
        self.mean_wrong += mean_gains({"twin": verdicts})["twin"].sure
        self.plain_wrong += bool(holm(np.array([p_rows_only(o, m) for o in pairs])).any())
        self.rows += [v.rows for v in verdicts]
        self.scores += [v.control_score for v in verdicts if v.control_score is not None]

    def plant(self, pairs: list[OwnerPairs], luck: list[OwnerPairs] | None, m: Metric) -> None:
        """The same twins with a gain of 5 points in one of each pair."""
        verdicts = judge(pairs, m, twins=luck)
        self.found.append([v.verdict == "better" for v in verdicts])
        self.gains.append(np.array([v.gain or 0.0 for v in verdicts]))
        self.plain.append(np.array([p_rows_only(o, m) for o in pairs]))

    def row(self) -> list[str]:
        """The cells of the table."""
        told = ["", ""]
        if self.found:
            plain = np.mean([holm(p) & (g > 0) for p, g in zip(self.plain, self.gains, strict=True)])
            told = [f"{100 * x:.0f}" for x in (np.mean(self.found), plain)]
        return [
            *(f"{min(self.rows)} to {max(self.rows)}", f"{np.mean(self.scores):.3f}"),
            *(f"{self.of}", share(self.wrong, self.of), f"{100 * self.plain_wrong / self.of:.1f}"),
            *(share(self.mean_wrong, self.of), *told),
        ]


def twins(asked: argparse.Namespace) -> Iterator[list[str]]:
    yield [
        *("data", "metric", "owners", "design", "test rows", asked.method, "comparisons"),
        *("any false verdict, %", "rows only, %", "false for the mean, %"),
        *("gain of 5 points found, %", "rows only, %"),
    ]
    for name in asked.scenarios:
        kind = kinds(asked.data_dir)[name]
        tallies: dict[tuple[str, str], Tally] = {}
        rng, count = np.random.default_rng(1), 0
        for design, owners, compared, others in comparisons(Twins.of(asked.method, kind), asked):
            count, half, rest = len(owners), len(compared) // 2, len(others) // 2
            luck = against(owners, others[:rest], others[rest:]) if others else None
            ours, theirs = compared[:half], compared[half:]
            for m in kind.metrics:
                tally = tallies.setdefault((m, design), Tally())
                tally.add(against(owners, ours, theirs), luck, metric(m))
                room = np.mean([(out.argmax(1) != y).mean() for y, out in answered(ours)]) if m == "accuracy" else 0.0
                if room > 2 * GAIN and tally.of % 2 == 0:
                    better = [[planted(run, GAIN, rng) for run in runs] for runs in ours]
                    tally.plant(against(owners, better, theirs), luck, metric(m))
        for (m, design), tally in sorted(tallies.items()):
            yield [name, m, f"{count}", design, *tally.row()]


# Folds -----------------------------------------------------------------------------------------------------------


def folds(asked: argparse.Namespace) -> Iterator[list[str]]:
    """Two networks of different size, cross-validated on many small data sets drawn from a large one."""
    yield [
        *("data", "rows", "score", "seen variance", "estimated", "seen / estimated"),
        "Nadeau and Bengio's, seen / estimated",
    ]
    many = 40 if asked.quick else 200
    for name, n in (("mnist", 200), ("beijing", 200), ("har", 150)):
        experiment = resolve(check(kinds(asked.data_dir)[name].settings))
        source = experiment.scenario.load(experiment.data_dir)
        whole = experiment.scenario.build(0, source=source, refit=True).train
        x, y = whole.x.flatten(1).numpy()[:, :200], whole.y.numpy()
        rng = np.random.default_rng(0)
        sets = np.stack([rng.choice(len(y), n, replace=False) for _ in range(many)])
        d = np.subtract(*(cross_validated_losses(x, y, sets, hidden, FOLDS) for hidden in (16, 6)))
        yield [name, f"{n}", "log loss" if source.classes else "squared error", *_variances(d)]


def _variances(d: Floats) -> list[str]:
    """The variance of the mean difference over data sets, and what each of them would have estimated."""
    many, each, folds = d.shape
    means, rows = d.mean(1), d.reshape(many, -1)
    within = ((d - means[:, None]) ** 2).sum((1, 2)) / (each * folds - folds)
    between = means.var(1, ddof=1)
    extra = max(float((between - within / each).mean()), 0.0)
    ours = float((rows.var(1) / rows.shape[1]).mean()) + extra / (folds - 1)
    theirs = float(between.mean()) * (1 / folds + 1 / (folds - 1))
    seen = float(rows.mean(1).var(ddof=1))
    return [f"{seen:.2e}", f"{ours:.2e}", f"{seen / ours:.2f}", f"{seen / theirs:.2f}"]


SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[list[str]]]] = {
    "simulation": simulation,
    "together": together,
    "twins": twins,
    "folds": folds,
}


def main() -> int:
    """Print the tables; rows appear as they are measured."""
    known = list(kinds(Path()))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdict", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cells and comparisons, about two minutes")
    parser.add_argument("--only", metavar="A,B", help=f"of {','.join(SECTIONS)}")
    parser.add_argument("--comparisons", type=int, help="per cell and per scenario (200, or 20 with --quick)")
    parser.add_argument("--divisions", type=int, default=8, help="of the rows into train and test, per scenario (8)")
    parser.add_argument("--models", type=int, default=12, help="twins on each division (12), half as many in folds")
    parser.add_argument("--scenarios", default=",".join(known), help=f"of {','.join(known)}")
    parser.add_argument("--only-folds", action="store_true", help="of the twins' designs the folds alone")
    parser.add_argument("--method", default="local", help="whose twins are compared (local)")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder with tables/ and mnist/")
    asked = parser.parse_args()
    if asked.models < 6:
        parser.error(f"--models {asked.models}: three seeds against three need 6 twins")
    asked.comparisons = asked.comparisons or (20 if asked.quick else 200)
    asked.scenarios = asked.scenarios.split(",")
    chosen = asked.only.split(",") if asked.only else list(SECTIONS)
    unknown = [x for x in chosen if x not in SECTIONS] + [x for x in asked.scenarios if x not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; sections {', '.join(SECTIONS)}; scenarios {', '.join(known)}")
    torch.set_num_threads(1)  # the matrices are small
    began = time.perf_counter()
    for name in chosen:
        print(f"\n### {name}\n")
        for i, row in enumerate(SECTIONS[name](asked)):
            print(f"| {' | '.join(row)} |" + ("" if i else f"\n|{' --- |' * len(row)}"), flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
