"""`python -m benchmarks.guard`: how often the guard lets a client end worse than alone, on many small federations.

A case is a (scenario, seed, method). In each, the method and LOCAL learn from all rows but the test rows, and once
without each part of them; the guard decides from these; then all rules are scored on the test rows, which no rule saw.
Every rule is compared with LOCAL on all its rows. Cases are kept in --cache as they are done; a second call goes on.

table of rules   mean gain over LOCAL, the worst case's, the lowest 5% of clients, clients significantly worse
table of chances how often clients that deployed something else were worse on test rows, beside what they were told
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest, ttest_1samp

from fairlead.catalogue import parse
from fairlead.clients import InProcess, engine
from fairlead.comparison.decisions import in_order, in_parts
from fairlead.core import DivergedError, Federation, NeedsValidationError, Plan, Split, Training
from fairlead.functional import voice_outputs
from fairlead.methods import Decision, guard, stack
from fairlead.methods.voices import ROUNDS, Weigh, decide
from fairlead.metrics import METRICS, Metric
from fairlead.models import build
from fairlead.rounds import federate
from fairlead.settings import Experiment, check, resolve

RESULTS = Path(__file__).parent / "results"
METHODS = ("fedavg", "fedavg+ft", "fedrep", "ditto", "lg-fedavg", "apfl", "fedora")
SURE = (0.5, 0.8, 0.9, 0.95)
PARTS, ERROR = 5, 0.05
QUANTITIES = ("exam", "air")
DIGITS: dict[str, Any] = {"scenario": "rotated-digits", "fractions": (0.3, 0.1, 0.6), "rounds": 15}
SAME: dict[str, Any] = DIGITS | {"shift": "none"}
TABLE: dict[str, Any] = {"fractions": (0.35, 0.1, 0.55), "rounds": 15, "lr": 0.03, "model": "mlp"}


def scenarios(data: Path | None) -> dict[str, dict[str, Any]]:
    """Settings by name; tables where they are at hand."""
    found: dict[str, dict[str, Any]] = {
        "digits, 12 rotations": DIGITS,
        "digits, 5 rotations of 60 degrees": DIGITS | {"clients": 5, "angle": 60.0},
        "digits, Dirichlet 0.3": SAME | {"split": "dirichlet", "beta": 0.3, "clients": 8},
        "digits, two classes each": SAME | {"split": "pathological", "classes_per_client": 2, "clients": 10},
        "digits, alike, 24 rows each": SAME | {"split": "iid", "clients": 12, "samples": (18, 6, 120)},
        "heart disease": TABLE | {"data": "heart-disease"},
    }
    tables: dict[str, tuple[str, str, str, dict[str, Any]]] = {
        "activity, 30 people": ("har_smartphones/har_features.csv", "activity", "subject", {"epochs": 1}),
        "exam results, 65 schools": ("schools/Exam.csv", "normexam", "school", {"drop": "student", "lr": 0.01}),
        "air, 12 stations": ("beijing_air/beijing_air_daily.csv", "PM2.5", "station", {"drop": "PM10", "lr": 0.01}),
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


def answers(settings: dict[str, Any], seed: int) -> dict[str, dict[str, torch.Tensor] | None]:
    """What LOCAL and each method say of rows that they did not learn from; None for a method that diverged.

    Of all rows but the test rows, by models that lacked the part they answer for; of the test rows, by the final ones.
    """
    e = experiment_of(settings)
    source = e.scenario.load(e.data_dir)
    chooses, whole = (e.scenario.build(seed, source=source, refit=refit) for refit in (False, True))
    held = int(chooses.validation.sizes.sum())
    share = held / (held + int(chooses.train.sizes.sum()))
    plain, validated = in_parts(whole, PARTS, seed), in_parts(whole, PARTS, seed, share)

    def said(name: str) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]] | None:
        try:
            return [trained(name, part, e, seed) for part in plain], trained(name, whole, e, seed)
        except NeedsValidationError:
            return [trained(name, part, e, seed) for part in validated], trained(name, chooses, e, seed)
        except DivergedError:
            return None

    alone, kind = said("local"), whole.target_kind
    assert alone is not None, "LOCAL diverged; choose a smaller step size"
    found: dict[str, dict[str, torch.Tensor] | None] = {}
    for name in METHODS:
        other = said(name)
        if other is None:
            found[name] = None
            continue
        samples = in_order([alone[0], other[0]], plain)
        z = torch.stack([voice_outputs(torch.cat(one), kind) for one in (alone[1], other[1])], 1)
        crossed = {"x": samples.train.x, "y": samples.train.y, "starts": samples.train.starts}
        found[name] = crossed | {"test_x": z, "test_y": whole.test.y, "test_starts": whole.test.starts}
    return found


def trained(name: str, federation: Federation, e: Experiment, seed: int) -> list[torch.Tensor]:
    """What each client's model says of its test rows."""
    model = "mlp" if e.model == "auto" else e.model
    module = build(model, tuple(federation.train.x.shape[1:]), federation.outputs, seed)
    plan, entry = Plan(rounds=e.rounds, evaluate_every=e.rounds, seed=seed), parse(name)
    with InProcess(federation, e.training, engine("vectorised")) as clients:
        for _ in federate(entry.method, clients, module, plan, average=entry.average):
            pass
        return clients.outputs("test")


def case(found: dict[str, torch.Tensor], name: str, quantity: bool) -> dict[str, Any]:
    """What every rule gives each client on the test rows: differences from LOCAL, row by row, and chances told."""
    metric = METRICS["rmse" if quantity else "accuracy"]
    train = Split(found["x"], found["y"], found["starts"])
    none = Split(train.x[:0], train.y[:0], torch.zeros_like(train.starts))
    classes = () if quantity else tuple(map(str, range(train.x.shape[-1])))
    samples, names = Federation(train, none, none, classes), ("local", name)
    rules = {f"guard {sure:g}": guard(names, sure=sure) for sure in SURE} | {"stack": stack(names)}
    rows = {rule: decided(samples, how, metric) for rule, how in rules.items()}
    fixed = torch.eye(2)
    test, clients = Split(found["test_x"], found["test_y"], found["test_starts"]), []
    for k in range(samples.clients):
        z, y = test.client(k)[0], test.client(k)[1].numpy()
        given = {"none": fixed[1], "mean": fixed.mean(0)} | {rule: w[k, :2] for rule, w in rows.items()}
        alone = scored(z, fixed[0], y, metric)
        told: dict[str, Any] = {"rows": len(y), "alone": float(alone.mean())}
        for rule, weights in given.items():
            difference = scored(z, weights, y, metric) - alone
            home = bool(weights[0] == 1 and weights[1] == 0)
            chance = float(rows[rule][k, 2]) if rule in rows else None
            told[rule] = {"gain": float(difference.mean()), "p": p_worse(difference), "home": home, "told": chance}
        clients.append(told)
    return {"clients": clients, "quantity": quantity}


def decided(samples: Federation, how: Decision, metric: Metric) -> torch.Tensor:
    """What each client decides, a row of `Weigh` each."""
    plan = Plan(rounds=ROUNDS, evaluate_every=ROUNDS)
    with InProcess(samples, Training(), engine("loop")) as clients:
        for _ in federate(decide(how, metric, samples.target_kind), clients, Weigh(2), plan):
            pass
        return clients.models(torch.arange(samples.clients))


def scored(z: torch.Tensor, weights: torch.Tensor, y: np.ndarray[Any, Any], metric: Metric) -> np.ndarray[Any, Any]:
    """A score for each row, higher is better: right or wrong, or minus the squared error."""
    out = (z * weights[None, :, None]).sum(1).double().numpy()
    if metric.target == "quantity":
        return np.asarray(-((out[:, 0] - y.reshape(len(y))) ** 2))
    return metric.row_scores(y, out).rows


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
            torch.save({"scenario": name, "seed": seed, "methods": answers(settings, seed)}, file)
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
        case(one, name, file["scenario"].startswith(QUANTITIES))
        for file in files
        for name, one in file["methods"].items()
        if one is not None
    ]
    if not found:
        return "no cases yet"
    return "\n".join([heading(files, found), "", *rule_table(found), "", *chance_table(found)])


def heading(files: list[dict[str, Any]], cases: list[dict[str, Any]]) -> str:
    """What the tables are made of."""
    lost = sum(one is None for file in files for one in file["methods"].values())
    seeds = sorted({file["seed"] for file in files})
    clients = sum(len(one["clients"]) for one in cases)
    named = Counter(file["scenario"] for file in files)
    told = "; ".join(f"{name} ({n})" for name, n in named.items())
    return (
        f"{len(cases)} cases, {clients:,} clients, {len(METHODS)} methods, seeds {seeds[0]} to {seeds[-1]}, {lost} "
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
    clients = [client for one in cases for client in one["clients"]]
    columns = ["rule", "leave their own model", "told: worse, %", "below LOCAL on test rows, %", "equal, %"]
    columns.append("all clients below LOCAL, %")
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    for rule in (r for r in RULES if r.startswith("guard")):
        there = [c[rule] for c in clients if not c[rule]["home"]]
        if there:
            told, below, equal = (
                100 * float(np.mean(x))
                for x in ([c["told"] for c in there], [c["gain"] < 0 for c in there], [c["gain"] == 0 for c in there])
            )
            of_all = below * len(there) / len(clients)
            cells = f"{len(there):,} | {told:.1f} | {below:.1f} | {equal:.1f} | {of_all:.1f}"
            lines.append(f"| {RULES[rule]} | {cells} |")
    return lines


def main() -> int:
    """Run what is missing, print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--cache", type=Path, default=RESULTS / "guard", help="where cases are kept")
    parser.add_argument("--seeds", default="1,2,3,4", help="seed 0 was for development")
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
