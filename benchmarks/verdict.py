"""`python -m benchmarks.verdict`: how often verdicts of `fairlead.metrics` are wrong, and how often they find a gain.

Three tables in Markdown:

simulation   made-up owners, with the truth known: false verdicts, coverage, and the power to find a gain of 5 points
twins        LOCAL against LOCAL with another seed, on real data: every verdict is false
folds        the variance of a cross-validated difference, estimated from one data set and seen over many
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta, binomtest, norm, ttest_1samp

from benchmarks.twins import SCENARIOS, Outputs, Scenario, folded, halves, train
from fairlead.metrics import OwnerPairs, OwnerVerdict, PairedRun, judge, metric

Floats = NDArray[np.float64]
RESULTS = Path(__file__).parent / "results"
ERROR, GAIN = 0.05, 0.05
FOLDS = 5
METRICS = {"heart": ("accuracy", "auroc"), "har": ("accuracy", "log-loss")} | dict.fromkeys(
    ("exam", "nlschools", "beijing"), ("rmse",)
)
# Design: seeds, folds, twins of the control.
DESIGNS = {
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


def made_up(rng: np.random.Generator, n: int, seeds: int, folds: int, luck: float, gain: float) -> tuple[Floats, ...]:
    """Hits of method and control (seeds, n) and the folds: 75% of rows are easy, 5% hopeless, 20% a toss-up.

    Every run moves the method's accuracy by a normal draw with standard deviation `luck`.
    """
    kind = rng.random(n)
    ease = np.where(kind < 0.75, 1.0, np.where(kind < 0.8, 0.0, rng.random(n)))
    fold = np.stack([rng.permutation(n) % folds for _ in range(seeds)])
    moved = gain + np.take_along_axis(luck * rng.normal(size=(seeds, folds)), fold, 1)
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


def simulate(owners: int, n: int, design: str, luck: float, gain: float, times: int) -> dict[str, float]:
    """Rates over `times` comparisons."""
    seeds, folds, count = DESIGNS[design]
    rng = np.random.default_rng([owners, n, seeds, folds, count, int(1000 * luck), int(1000 * gain)])
    wrong = covered = 0
    found, gains, plain = np.zeros((times, owners), bool), np.zeros((times, owners)), np.ones((times, owners))
    for t in range(times):
        made = [made_up(rng, n, seeds, folds, luck, gain) for _ in range(owners)]
        pairs = [as_pairs(str(k), *m) for k, m in enumerate(made)]
        twins = [as_pairs(str(k), *made_up(rng, n, count, 1, luck, 0)) for k in range(owners)] if count else None
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


# Twins -----------------------------------------------------------------------------------------------------------


def twin_pairs(s: Scenario, found: Outputs, ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> list[OwnerPairs]:
    """Models `ours` against models `theirs`, one repeat each."""
    return [
        OwnerPairs(
            o,
            [PairedRun(i, s.y[i], out[a], out[b], repeat=r) for r, (a, b) in enumerate(zip(ours, theirs, strict=True))],
        )
        for o, (i, out) in found.items()
    ]


def fold_pairs(s: Scenario, found: Outputs, which: dict[str, Any], a: int, b: int) -> list[OwnerPairs]:
    return [
        OwnerPairs(
            o,
            [
                PairedRun(i[which[o] == f], s.y[i[which[o] == f]], out[a][which[o] == f], out[b][which[o] == f], fold=f)
                for f in range(FOLDS)
                if (which[o] == f).any()
            ],
        )
        for o, (i, out) in found.items()
    ]


def plain_wrong(pairs: list[OwnerPairs], name: str) -> bool:
    """Whether the usual paired test calls any twin different."""
    m, p = metric(name), []
    for owner in pairs:
        repeats = sorted({r.repeat for r in owner.runs})
        rows = []
        for repeat in repeats:
            runs = [r for r in owner.runs if r.repeat == repeat]
            y, a, b = (np.concatenate([np.asarray(getattr(r, k)) for r in runs]) for k in ("y", "method", "control"))
            if m.check(y, a) or m.check(y, b):
                break
            rows.append(m.row_scores(y, a).rows - m.row_scores(y, b).rows)
        else:
            p.append(rows_only(np.array(rows)))
    return bool(holm(np.array(p)).any()) if p else False


def twin_comparisons(s: Scenario, asked: argparse.Namespace) -> Iterator[tuple[str, list[OwnerPairs], Any]]:
    """The design, the pairs, and twins of the control where it has any.

    The models of one comparison are all different ones; every model serves in about three comparisons of a design.
    """
    rng, splits = np.random.default_rng(0), 10
    each = -(-asked.comparisons // splits)
    for found in halves(s, max(2 * each, 10), splits):
        for _ in range(each):
            m = rng.permutation(max(2 * each, 10))
            yield "3 seeds", twin_pairs(s, found, m[:3], m[3:6]), None
            yield "1 seed, 1 twin", twin_pairs(s, found, m[:1], m[1:2]), twin_pairs(s, found, m[2:3], m[3:4])
            yield "1 seed, 4 twins", twin_pairs(s, found, m[:1], m[1:2]), twin_pairs(s, found, m[2:6], m[6:10])
    for found, which in folded(s, max(each, 2), splits, FOLDS):
        for _ in range(each):
            a, b = rng.permutation(max(each, 2))[:2]
            yield "5 folds", fold_pairs(s, found, which, a, b), None


def twins(asked: argparse.Namespace) -> Iterator[list[str]]:
    yield [
        "data",
        "metric",
        "owners",
        "test rows",
        "LOCAL",
        "design",
        "comparisons",
        "any false verdict, %",
        "rows only, %",
    ]
    for name in asked.scenarios:
        s = SCENARIOS[name](asked.data_dir)
        counts: dict[tuple[str, str], list[int]] = {}
        facts: dict[tuple[str, str], tuple[str, str]] = {}
        for design, pairs, of_control in twin_comparisons(s, asked):
            for m in METRICS.get(name, ("accuracy",)):
                verdicts = judge(pairs, metric(m), twins=of_control)
                n = [v.rows for v in verdicts]
                scores = [v.control_score for v in verdicts if v.control_score is not None]
                facts.setdefault((m, design), (f"{min(n)} to {max(n)}", f"{np.mean(scores):.3f}"))
                tally = counts.setdefault((m, design), [0, 0, 0])
                tally[0] += 1
                tally[1] += is_sure(verdicts)
                tally[2] += plain_wrong(pairs, m)
        for (m, design), (of, wrong, plain) in sorted(counts.items()):
            rows, score = facts[m, design]
            yield [
                name,
                m,
                f"{len(s.owners)}",
                rows,
                score,
                design,
                f"{of}",
                share(wrong, of),
                f"{100 * plain / of:.1f}",
            ]


# Folds -----------------------------------------------------------------------------------------------------------


def folds(asked: argparse.Namespace) -> Iterator[list[str]]:
    """Two networks of different size, cross-validated on many small data sets drawn from a large one."""
    yield [
        "data",
        "rows",
        "score",
        "seen variance",
        "estimated",
        "seen / estimated",
        "Nadeau and Bengio's, seen / estimated",
    ]
    many = 40 if asked.quick else 200
    for name, n in (("mnist", 200), ("beijing", 200), ("har", 150)):
        s = SCENARIOS[name](asked.data_dir)
        rng = np.random.default_rng(0)
        every = np.concatenate(list(s.owners.values()))
        sets = np.stack([rng.choice(every, n, replace=False) for _ in range(many)])
        scores = [_cross_validated(s, sets, hidden, seed) for seed, hidden in enumerate((16, 6))]
        d = scores[0] - scores[1]  # (data sets, rows)
        parts = d.reshape(many, n // FOLDS, FOLDS)
        means = parts.mean(1)
        within = ((parts - means[:, None]) ** 2).sum((1, 2)) / (n - FOLDS)
        between = means.var(1, ddof=1)
        extra = max(float((between - within / (n / FOLDS)).mean()), 0.0)
        ours = float((d.var(1) / n).mean()) + extra / (FOLDS - 1)
        theirs = float(between.mean()) * (1 / FOLDS + 1 / (FOLDS - 1))
        seen = float(d.mean(1).var(ddof=1))
        kind = "log loss" if s.classes else "squared error"
        yield [name, f"{n}", kind, f"{seen:.2e}", f"{ours:.2e}", f"{seen / ours:.2f}", f"{seen / theirs:.2f}"]


def _cross_validated(s: Scenario, sets: NDArray[np.int64], hidden: int, seed: int) -> Floats:
    """Losses (data sets, rows), every row by a network that did not see it."""
    x, y = torch.tensor(s.x, dtype=torch.float32), torch.tensor(s.y, dtype=torch.long if s.classes else torch.float32)
    losses = torch.zeros(sets.shape)
    for f in range(FOLDS):
        test = np.arange(sets.shape[1]) % FOLDS == f
        inside, outside = torch.tensor(sets[:, ~test]), torch.tensor(sets[:, test])
        outputs = train(x[inside], y[inside], x[outside], s.classes, len(sets), 1000 * seed + f, hidden)
        if s.classes:
            right = outputs.log_softmax(-1).gather(2, y[outside][..., None])[..., 0]
            losses[:, test] = -right.clamp(min=-16)
        else:
            losses[:, test] = (outputs - y[outside]) ** 2
    return losses.double().numpy()


SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[list[str]]]] = {
    "simulation": simulation,
    "twins": twins,
    "folds": folds,
}


def main() -> int:
    """Print the tables; rows appear as they are measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdict", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cells and comparisons, about two minutes")
    parser.add_argument("--only", metavar="A,B", help=f"of {','.join(SECTIONS)}")
    parser.add_argument("--comparisons", type=int, help="per cell and per scenario (200, or 20 with --quick)")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help=f"of {','.join(SCENARIOS)}")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder with tables/ and mnist/")
    asked = parser.parse_args()
    asked.comparisons = asked.comparisons or (20 if asked.quick else 200)
    asked.scenarios = asked.scenarios.split(",")
    chosen = asked.only.split(",") if asked.only else list(SECTIONS)
    unknown = [x for x in chosen if x not in SECTIONS] + [x for x in asked.scenarios if x not in SCENARIOS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; sections {', '.join(SECTIONS)}; scenarios {', '.join(SCENARIOS)}")
    torch.set_num_threads(1)  # the matrices are small
    began = time.perf_counter()
    for name in chosen:
        print(f"\n### {name}\n")
        rows: list[list[str]] = []
        for row in SECTIONS[name](asked):
            print(f"| {' | '.join(row)} |" + ("" if rows else f"\n|{' --- |' * len(row)}"), flush=True)
            rows.append(row)
        if not asked.quick:
            said = {"command": " ".join(["python -m benchmarks.verdict", *sys.argv[1:]]), "rows": rows}
            (RESULTS / f"verdict-{name}.json").write_text(json.dumps(said, indent=1) + "\n")
    print(f"\n{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
