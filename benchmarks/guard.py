"""`python -m benchmarks.guard`: how often the guard lets a client end worse than alone, on many small federations.

A case is a (scenario, seed, method). In each, the method and LOCAL learn from all rows but the test rows, and once
without each part and each half of them; the guard decides from these; then all rules are scored on the test rows, which
no rule saw.
Every rule is compared with LOCAL on all its rows. Cases are kept in --cache as they are done; a second call goes on.

table of rules   mean gain over LOCAL, the worst case's, the lowest 5% of clients, clients significantly worse
table of chances how often clients that deployed something else were worse on test rows, beside what they were told
by scenario      the same gains where joining helps and where it hurts
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest, ttest_1samp

from fairlead.catalogue import parse
from fairlead.clients import InProcess, engine
from fairlead.comparison.bench import TWIN
from fairlead.comparison.decisions import Answers, in_parts, one_after_another
from fairlead.core import DivergedError, Federation, NeedsValidationError, Plan, Split
from fairlead.functional import stack_weights, voice_outputs
from fairlead.methods import guard
from fairlead.methods.voices import HALVES, Deciding, Measured, Said
from fairlead.metrics import METRICS, Metric
from fairlead.models import build
from fairlead.rounds import federate
from fairlead.settings import Experiment, check, resolve

RESULTS = Path(__file__).parent / "results"
METHODS = ("fedavg", "fedavg+ft", "fedrep", "lg-fedavg", "neighbours", "ditto", "fedora")
TWINS = 2  # more trainings of LOCAL, from other first weights: ensembles of like networks
SURE, DEFAULT = (0.5, 0.8, 0.9, 0.95), 0.9
PARTS, ERROR, NEXT_TO_NONE = 5, 0.05, 1e-3
QUANTITIES = ("exam", "air")
# Trained until the network alone is about as good as it gets; step sizes by LOCAL's and FedAvg's scores with seed 0.
DIGITS: dict[str, Any] = {"scenario": "rotated-digits", "fractions": (0.15, 0.05, 0.8), "rounds": 10}
DIGITS |= {"model": "wide", "epochs": 5, "lr": 0.5, "momentum": 0.0, "batch_size": 64}
SAME: dict[str, Any] = DIGITS | {"shift": "none"}
TABLE: dict[str, Any] = {"fractions": (0.3, 0.1, 0.6), "rounds": 10, "epochs": 3, "model": "wide"}
TABLE |= {"lr": 0.1, "momentum": 0.0, "batch_size": 64}
FEW: dict[str, Any] = {"fractions": (0.15, 0.05, 0.8)}
MORE: dict[str, Any] = {"epochs": 6, "lr": 0.3}


def scenarios(data: Path | None) -> dict[str, dict[str, Any]]:
    """Settings by name; tables where they are at hand."""
    found: dict[str, dict[str, Any]] = {
        "digits, 12 rotations": DIGITS,
        "digits, 3 rotations, 4 clients each": DIGITS
        | {"split": "iid", "clients": 12, "angle": 120.0, "samples": (24, 8, 110)},
        "digits, 5 rotations of 60 degrees": DIGITS | {"clients": 5, "angle": 60.0},
        "digits, Dirichlet 0.3": SAME | {"split": "dirichlet", "beta": 0.3, "clients": 8},
        "digits, two classes each": SAME | {"split": "pathological", "classes_per_client": 2, "clients": 10},
        "digits, alike, 24 rows each": SAME | {"split": "iid", "clients": 12, "samples": (18, 6, 120)},
        "heart disease": TABLE | {"data": "heart-disease"},
    }
    tables: dict[str, tuple[str, str, str, dict[str, Any]]] = {
        "activity, 30 people": ("har_smartphones/har_features.csv", "activity", "subject", FEW | MORE),
        "exam results, 65 schools": ("schools/Exam.csv", "normexam", "school", {"drop": "student", "rounds": 6}),
        "air, 12 stations": ("beijing_air/beijing_air_daily.csv", "PM2.5", "station", FEW | {"drop": "PM10"}),
    }
    for name, (file, label, column, more) in tables.items():
        path = data / "tables" / file if data else None
        if path and path.is_file():
            found[name] = TABLE | {"data": str(path), "label": label, "column": column} | more
    return found


def experiment_of(settings: dict[str, Any]) -> Experiment:
    """The settings with rounds and step size as given; nothing is searched for."""
    given = dict(settings)
    if "samples" in given:
        given.pop("fractions")
    if given.get("shift") == "none":
        given.pop("angle", None)
    found = resolve(check(given))
    training = dataclasses.replace(found.training, rounds=int(settings["rounds"]))
    return dataclasses.replace(
        found, effort=None, select="last", rounds=int(settings["rounds"]), training=training, patience=None
    )


def answers(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """What LOCAL and each method say of rows that they did not learn from.

    None for a method that diverged, or that needs validation rows where a client has none.

    Of all rows but the test rows, by models that lacked the part they answer for; of the test rows, by the final ones.
    """
    e = experiment_of(settings)
    source = e.scenario.load(e.data_dir)
    chooses, whole = (e.scenario.build(seed, source=source, refit=refit) for refit in (False, True))
    held = int(chooses.validation.sizes.sum())
    share = held / (held + int(chooses.train.sizes.sum()))
    plain, validated = ([in_parts(whole, n, seed, held) for n in (PARTS, 2)] for held in (0.0, share))

    def said(name: str) -> tuple[list[Split], torch.Tensor] | None:
        def of(cuts: list[list[Federation]], final: Federation) -> tuple[list[Split], torch.Tensor]:
            crossed = [Answers([[trained(name, part, e, seed) for part in cut]], cut) for cut in cuts]
            return [one_after_another(one) for one in crossed], voice_outputs(
                torch.cat(trained(name, final, e, seed)), whole.target_kind
            )

        for cuts, final in ((plain, whole), (validated, chooses)):
            try:
                return of(cuts, final)
            except NeedsValidationError:
                continue
            except DivergedError:
                break
        return None

    found = {name: said(name) for name in ("local", *METHODS)}
    assert found["local"] is not None, "LOCAL diverged; choose a smaller step size"
    twins = [trained("local", whole, e, seed + TWIN * (i + 1)) for i in range(TWINS)]
    by_parts, by_halves = found["local"][0]
    return {
        "y": by_parts.y,
        "starts": by_parts.starts,
        "half_y": by_halves.y,
        "test_y": whole.test.y,
        "test_starts": whole.test.starts,
        "crossed": {name: one[0][0].x[:, 0] if one else None for name, one in found.items()},
        "halves": {name: one[0][1].x[:, 0] if one else None for name, one in found.items()},
        "test": {name: one[1] if one else None for name, one in found.items()},
        "twins": [voice_outputs(torch.cat(one), whole.target_kind) for one in twins],
    }


def trained(name: str, federation: Federation, e: Experiment, seed: int) -> list[torch.Tensor]:
    """What each client's model says of its test rows."""
    model = "wide" if e.model == "auto" else e.model
    module = build(model, tuple(federation.train.x.shape[1:]), federation.outputs, seed)
    plan, entry = Plan(rounds=e.rounds, evaluate_every=e.rounds, seed=seed), parse(name)
    with InProcess(federation, e.training, engine("vectorised")) as clients:
        for _ in federate(entry.method, clients, module, plan, average=entry.average):
            pass
        return clients.outputs("test")


def samples_of(found: dict[str, Any], voices: Sequence[str], quantity: bool) -> tuple[Federation, Split]:
    """What the voices say of the rows to decide on, and of the test rows; (n, M, K). Validation: by halves."""
    x, halves, test_x = (
        torch.stack([found[part][name] for name in voices], 1) for part in ("crossed", "halves", "test")
    )
    starts = found["starts"]
    train = Split(x, found["y"], starts, parts_of(starts, PARTS))
    half = Split(halves, found["half_y"], starts, parts_of(starts, HALVES))
    none = Split(train.x[:0], train.y[:0], torch.zeros_like(train.starts))
    classes = () if quantity else tuple(map(str, range(x.shape[-1])))
    return Federation(train, half, none, classes), Split(test_x, found["test_y"], found["test_starts"])


def parts_of(starts: torch.Tensor, parts: int) -> torch.Tensor:
    """The part of each client's rows: parts one after another, as equal as they can be, larger ones first."""
    sizes = [[n // parts + (j < n % parts) for j in range(parts)] for n in starts.diff().tolist()]
    return torch.arange(parts).repeat(len(sizes)).repeat_interleave(torch.tensor(sizes).flatten())


def case(found: dict[str, Any], name: str, quantity: bool) -> dict[str, Any]:
    """What every rule gives each client on the test rows: differences from LOCAL, row by row, and chances told."""
    metric, names = METRICS["rmse" if quantity else "accuracy"], ("local", name)
    samples, test = samples_of(found, names, quantity)
    rows = decided(samples, names, metric, test.sizes.tolist())
    fixed, clients = torch.eye(2), []
    for k in range(samples.clients):
        z, y = test.client(k)[0], test.client(k)[1].numpy()
        given = {"none": fixed[1], "mean": fixed.mean(0)} | {rule: w[k, :2] for rule, w in rows.items()}
        alone = scored(z, fixed[0], y, metric)
        told: dict[str, Any] = {"rows": len(y), "alone": float(alone.mean())}
        for rule, weights in given.items():
            difference = scored(z, weights, y, metric) - alone
            told[rule] = {"gain": float(difference.mean()), "p": p_worse(difference), "home": False}
            if rule in rows:
                worse, gain, below = rows[rule][k, 2:].tolist()
                home = bool(weights[0] == 1 and weights[1] == 0)
                told[rule] |= {"home": home, "told": worse, "expected": gain, "below": below}
        clients.append(told)
    return {"clients": clients, "quantity": quantity, "method": name}


def weights(samples: Federation, strength: float, parts: int = 0) -> torch.Tensor:
    """Every client's weights, (N, 1 + parts, M): by all its rows, and without each part.

    What `methods.voices` finds through rounds, in one go.
    """
    kind, train, sizes = samples.target_kind, samples.train, samples.train.sizes.tolist()
    count, most = train.x.shape[1], max(sizes)
    first, every = torch.full((1, count), 1 / count), torch.ones(1, len(train.y))
    s = stack_weights(train.x[None], train.y[None], every, kind, first, NEXT_TO_NONE)
    x, y = train.x.new_zeros(len(sizes), most, *train.x.shape[1:]), train.y.new_zeros(len(sizes), most)
    rows = torch.zeros(len(sizes), 1 + parts, most)
    for k, n in enumerate(sizes):
        x[k, :n], y[k, :n], rows[k, 0, :n] = train.client(k)[0], train.client(k)[1].reshape(n), 1.0
        if parts:
            rows[k, 1:, :n] = (train.marks(k)[0] != torch.arange(parts)[:, None]).float()
    x, y = (one.repeat_interleave(1 + parts, 0) for one in (x, y))
    found = stack_weights(x, y, rows.flatten(0, 1), kind, s, strength)
    return found.view(len(sizes), 1 + parts, count)


def decided(
    samples: Federation, voices: tuple[str, ...], metric: Metric, tested: Sequence[float]
) -> dict[str, torch.Tensor]:
    """What each client decides by the rules: weights, the chance of being worse, the gain to expect.

    The last column is the chance of a lower score on as many new rows as it has test rows.
    """
    how, train, halves = guard(voices, parts=PARTS), samples.train, samples.validation
    by = {f"guard {sure:g}": Deciding(how._replace(sure=sure), metric, samples.target_kind) for sure in SURE}
    one = by[f"guard {DEFAULT:g}"]
    own = weights(samples, how.strength, PARTS)
    said = [[Said(*split.client(k), *split.marks(k)) for split in (train, halves)] for k in range(len(own))]
    told = [one.gains(mine, w[0], w[1:], fewer) for (mine, fewer), w in zip(said, own, strict=True)]
    names = Measured._fields
    measured = {n: torch.tensor([[getattr(m, n) for m in mine] for mine in told], dtype=torch.float64) for n in names}
    shared = {name: x[0] for name, x in one.in_common(measured).items()}
    rows: dict[str, list[torch.Tensor]] = {"stack": [torch.cat([w[0], torch.zeros(3)]) for w in own]}
    for rule, deciding in by.items():
        rows[rule] = []
        for m, w, n in zip(told, own, tested, strict=True):
            chosen = deciding.choose(m, shared)
            a = chosen.candidate
            better, _ = deciding.chance(m[a], {name: x[a] for name, x in shared.items()}, n)
            known = torch.tensor([chosen.worse, chosen.gain, 1 - better])
            rows[rule].append(torch.cat([deciding.deployed(chosen, w[0]), known]))
    return {rule: torch.stack(mine) for rule, mine in rows.items()}


def scored(z: torch.Tensor, weights: torch.Tensor, y: np.ndarray[Any, Any], metric: Metric) -> np.ndarray[Any, Any]:
    """A score for each row, higher is better, whose mean is that of the metric: accuracy, or minus the RMSE."""
    out = (z * weights[None, :, None]).sum(1).double().numpy()
    if metric.target == "quantity":
        y, out = y.reshape(len(y)), out[:, 0]
    return metric.row_scores(y, out).rows * (1 if metric.higher else -1)


def p_worse(difference: np.ndarray[Any, Any]) -> float:
    """One-sided and paired: the exact test of McNemar for right and wrong, else Student's."""
    if not difference.any() or len(difference) < 2:
        return 1.0
    if set(np.unique(difference)) <= {-1.0, 0.0, 1.0}:
        lost, won = int((difference < 0).sum()), int((difference > 0).sum())
        return float(binomtest(lost, lost + won, alternative="greater").pvalue)
    p = float(ttest_1samp(difference, 0.0, alternative="less").pvalue)
    return p if math.isfinite(p) else 1.0


def run_cases(cache: Path, data: Path | None, seeds: list[int], only: str, most: int | None) -> None:
    """The answers of all cases that are not in the cache yet, at most of so many federations."""
    left = math.inf if most is None else most
    for seed in seeds:
        for name, settings in scenarios(data).items():
            file = cache / f"{name.replace(' ', '-').replace(',', '')}-seed{seed}.pt"
            if file.exists() or left <= 0 or only not in name:
                continue
            left -= 1
            began = time.perf_counter()
            torch.save({"scenario": name, "seed": seed, "answers": answers(settings, seed)}, file)
            print(f"{name}, seed {seed}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


RULES = {
    "none": "the method, unguarded",
    "mean": "mean of both models' log-probabilities",
    "stack": "`+stack`",
    **{f"guard {sure:g}": f"`+guard`, sure = {sure:g}" for sure in SURE},
}


def tables(cache: Path, seeds: list[int]) -> str:
    """The two tables in Markdown, from all cases of these seeds in the cache."""
    files = [torch.load(path) for path in sorted(cache.glob("*.pt"))]
    files = [file for file in files if file["seed"] in seeds]
    found = [
        case(file["answers"], name, file["scenario"].startswith(QUANTITIES))
        | {"scenario": file["scenario"], "seed": file["seed"]}
        for file in files
        for name in METHODS
        if file["answers"]["test"][name] is not None
    ]
    if not found:
        return "no cases yet"
    return "\n".join(
        [heading(files, found), "", *rule_table(found), "", *chance_table(found), "", *scenario_table(found)]
    )


def heading(files: list[dict[str, Any]], cases: list[dict[str, Any]]) -> str:
    """What the tables are made of."""
    lost = sum(one is None for file in files for one in file["answers"]["test"].values())
    seeds = sorted({file["seed"] for file in files})
    clients = sum(len(one["clients"]) for one in cases)
    named = Counter(file["scenario"] for file in files)
    told = "; ".join(f"{name} ({n})" for name, n in named.items())
    return (
        f"{len(cases)} cases, {clients:,} clients, {len(METHODS)} methods, seeds {', '.join(map(str, seeds))}, {lost} "
        f"cases diverged. Scenarios and how many seeds of them: {told}."
    )


def rule_table(cases: list[dict[str, Any]]) -> list[str]:
    """What each rule gains and whom it harms."""
    clients = [client for one in cases for client in one["clients"]]
    classes = [one["clients"] for one in cases if not one["quantity"]]
    columns = ["rule", "mean gain, points", "worst case", "significantly worse, % of clients", "stay alone, %"]
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    for rule, title in RULES.items():
        gains = [100 * float(np.mean([c[rule]["gain"] for c in own])) for own in classes]
        worse = float(np.mean([c[rule]["p"] < ERROR for c in clients]))
        home = float(np.mean([c[rule]["home"] for c in clients]))
        lines.append(f"| {title} | {np.mean(gains):+.2f} | {min(gains):+.1f} | {100 * worse:.1f} | {100 * home:.0f} |")
    return lines


def chance_table(cases: list[dict[str, Any]]) -> list[str]:
    """How often those that left their own model were worse on test rows, beside what they were told."""
    columns = ["rule", "leave their own model", "told: worse, %", "so on test rows below LOCAL, %", "were below, %"]
    columns += ["give or take", "significantly worse, %", "gain told", "gain on test rows"]
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    for quantity in (False, True):
        kind = [one for one in cases if one["quantity"] == quantity]
        for rule in (r for r in RULES if r.startswith("guard")):
            left = [[c[rule] for c in one["clients"] if not c[rule]["home"]] for one in kind]
            there = [client for own in left for client in own]
            if there:
                told, expected = (100 * mean(there, key) for key in ("told", "below"))
                worse = 100 * float(np.mean([c["p"] < ERROR for c in there]))
                cells = [
                    f"{told:.1f}",
                    f"{expected:.1f}",
                    f"{100 * was_below(there):.1f}",
                    f"{100 * give(kind, rule):.1f}",
                ]
                cells += [f"{worse:.1f}", *(f"{100 * in_units(kind, rule, key):+.1f}" for key in ("expected", "gain"))]
                what = "quantities" if quantity else "classes"
                lines.append(f"| {RULES[rule]}, {what} | {len(there):,} | {' | '.join(cells)} |")
    return lines


def in_units(cases: list[dict[str, Any]], rule: str, key: str) -> float:
    """The mean over those that left: accuracy, or as a share of LOCAL's error over the clients of the case."""
    gains = []
    for one in cases:
        unit = -mean(one["clients"], "alone") if one["quantity"] else 1.0
        gains += [c[rule][key] / unit for c in one["clients"] if not c[rule]["home"]]
    return float(np.mean(gains))


def give(cases: list[dict[str, Any]], rule: str) -> float:
    """The standard error of the share that was below: as if all that left were independent, or as if those of one
    federation, whatever the method, went together; the larger of both."""
    left: dict[Any, list[dict[str, Any]]] = {}
    for one in cases:
        there = [c[rule] for c in one["clients"] if not c[rule]["home"]]
        left.setdefault((one["scenario"], one["seed"]), []).extend(there)
    together = [own for own in left.values() if own]
    count = sum(map(len, together))
    share = was_below([client for own in together for client in own])
    off = np.array([len(own) * (was_below(own) - share) for own in together])
    usual = (share * count + 1) / (count + 2)  # a share of 0 is not known without error
    clustered = math.sqrt(float(np.square(off).sum()) * len(off) / max(len(off) - 1, 1)) / count
    return max(clustered, math.sqrt(usual * (1 - usual) / count))


def scenario_table(cases: list[dict[str, Any]]) -> list[str]:
    """By scenario: what the methods gain unguarded, what the stack and the guard make of it, and who leaves."""
    rules = ("none", "stack", f"guard {DEFAULT:g}")
    columns = ["scenario", "clients", *(f"{RULES[rule]}: gain" for rule in rules), "leave, %"]
    columns += ["told: below LOCAL on test rows, %", "were below, %", "give or take"]
    columns += [f"{RULES[rule]}: significantly worse, %" for rule in rules]
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    for name in dict.fromkeys(one["scenario"] for one in cases):
        own = [one for one in cases if one["scenario"] == name]
        clients = [client for one in own for client in one["clients"]]
        # Errors of quantities as a share of LOCAL's.
        unit = -mean(clients, "alone") if own[0]["quantity"] else 1.0
        gains = [100 * mean([c[rule] for c in clients], "gain") / unit for rule in rules]
        worse = [100 * float(np.mean([c[rule]["p"] < ERROR for c in clients])) for rule in rules]
        there = [c[rules[-1]] for c in clients if not c[rules[-1]]["home"]]
        below = ["", "", ""]
        if there:
            shares = mean(there, "below"), was_below(there), give(own, rules[-1])
            below = [f"{100 * share:.1f}" for share in shares]
        cells = [
            f"{len(clients)}",
            *(f"{gain:+.2f}" for gain in gains),
            f"{100 * len(there) / len(clients):.0f}",
            *below,
        ]
        cells += [f"{w:.1f}" for w in worse]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def was_below(there: Sequence[dict[str, Any]]) -> float:
    """The share below LOCAL; a tie is half a loss, as the chance that is told is one of a continuous difference."""
    return float(np.mean([(c["gain"] < 0) + (c["gain"] == 0) / 2 for c in there]))


def mean(entries: Sequence[dict[str, Any]], key: str) -> float:
    """Of one value of each."""
    return float(np.mean([entry[key] for entry in entries]))


def main() -> int:
    """Run what is missing, print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--cache", type=Path, default=RESULTS / "guard", help="where cases are kept")
    parser.add_argument("--seeds", default="20,21,22", help="seeds up to 10 were for development")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--most", type=int, help="train so many federations, and print nothing")
    parser.add_argument("--show", action="store_true", help="print the tables of the cases that are there")
    asked = parser.parse_args()
    data, seeds = os.environ.get("FAIRLEAD_DATA"), [int(seed) for seed in asked.seeds.split(",")]
    asked.cache.mkdir(parents=True, exist_ok=True)
    if not asked.show:
        run_cases(asked.cache, Path(data) if data else None, seeds, asked.only, asked.most)
    if asked.most is None:
        print(tables(asked.cache, seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
