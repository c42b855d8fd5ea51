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
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest, ttest_1samp

from fairlead.catalogue import parse
from fairlead.clients import engine
from fairlead.comparison.decisions import Protocol, Voice, said, weights_of
from fairlead.core import DivergedError
from fairlead.functional import voice_outputs
from fairlead.methods import guard, stack
from fairlead.metrics import METRICS, Metric
from fairlead.runs.material import Material
from fairlead.runs.run import Run, kept_outputs, result
from fairlead.settings import Experiment, check, resolve

RESULTS = Path(__file__).parent / "results"
METHODS = ("fedavg", "fedavg+ft", "fedrep", "ditto", "lg-fedavg", "apfl", "fedora")
SURE = (0.5, 0.8, 0.9, 0.95)
PARTS, ERROR = 5, 0.05
DIGITS: dict[str, Any] = {"scenario": "rotated-digits", "fractions": (0.3, 0.1, 0.6), "rounds": 25}
SAME: dict[str, Any] = DIGITS | {"shift": "none"}
TABLE: dict[str, Any] = {"fractions": (0.35, 0.1, 0.55), "rounds": 25, "lr": 0.03, "model": "mlp"}


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
        "activity, 30 people": ("har_smartphones/har_features.csv", "activity", "subject", {"model": "logistic"}),
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


def voices(settings: dict[str, Any], seed: int, folder: Path) -> Iterator[tuple[str, list[Voice] | None]]:
    """Each method beside LOCAL, all runs trained; None where it diverged."""
    e = experiment_of(settings)
    source = e.scenario.load(e.data_dir)
    chooses, whole = (e.scenario.build(seed, source=source, refit=refit) for refit in (False, True))
    held = int(chooses.validation.sizes.sum())
    share, fast = held / (held + int(chooses.train.sizes.sum())), engine("threads+vectorised")
    first = Material(e, chooses)

    def run(name: str, called: str, seed: int) -> Run:
        return Run(folder / "runs" / f"{called}-seed{seed}", name, parse(name), e, seed)

    jobs = {(name, seed): first.job(run(name, name, seed), fast) for name in ("local", *METHODS)}
    protocol = Protocol(Material(e, whole), share, jobs, run, lambda name, seed: None, False)
    alone = protocol.voice("local", seed, PARTS)
    for name in METHODS:
        try:
            other = protocol.voice(name, seed, PARTS)
            result(other.final)  # one that needs validation rows is not trained yet
        except DivergedError:
            yield name, None
            continue
        yield name, [alone, other]


def case(pair: list[Voice], metric: Metric) -> dict[str, Any]:
    """What every rule gives each client on the test rows: differences from LOCAL, row by row, and chances told."""
    job, samples = pair[0].final, said(pair)
    kind, names = samples.target_kind, tuple(voice.name for voice in pair)
    rules = {f"guard {sure:g}": guard(names, sure=sure) for sure in SURE} | {"stack": stack(names)}
    rows = {rule: weights_of(job, samples, how, metric)[0] for rule, how in rules.items()}
    fixed = torch.eye(2)
    outputs = [[voice_outputs(x, kind) for x in kept_outputs(voice.final, "test")] for voice in pair]
    test, clients = job.federation.test, []
    for k in range(job.federation.clients):
        y = test.client(k)[1].numpy()
        z = torch.stack([outputs[0][k], outputs[1][k]], 1)
        given = {"none": fixed[1], "mean": fixed.mean(0)} | {rule: w[k, :2].cpu() for rule, w in rows.items()}
        alone = scored(z, fixed[0], y, metric)
        found: dict[str, Any] = {"rows": len(y), "alone": float(alone.mean())}
        for rule, weights in given.items():
            difference = scored(z, weights, y, metric) - alone
            home = bool(weights[0] == 1 and weights[1] == 0)
            told = float(rows[rule][k, 2]) if rule in rows else None
            found[rule] = {"gain": float(difference.mean()), "p": p_worse(difference), "home": home, "told": told}
        clients.append(found)
    return {"clients": clients}


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


def run_cases(cache: Path, data: Path | None, seeds: int, only: str, most: int) -> None:
    """All cases that are not in the cache yet, at most those of so many federations."""
    for seed in range(seeds):
        for name, settings in scenarios(data).items():
            if only and only not in name:
                continue
            file = cache / f"{name.replace(' ', '-').replace(',', '')}-seed{seed}.json"
            if file.exists() or most <= 0:
                continue
            most -= 1
            began, folder, found = time.perf_counter(), cache / "now" / file.stem, {}
            metric = METRICS["rmse" if name.startswith(("exam", "air")) else "accuracy"]
            for method, pair in voices(settings, seed, folder):
                found[method] = None if pair is None else case(pair, metric)
            seconds = time.perf_counter() - began
            cache.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"scenario": name, "seed": seed, "methods": found, "seconds": seconds}))
            shutil.rmtree(folder, ignore_errors=True)
            print(f"{name}, seed {seed}: {seconds:.0f} s", file=sys.stderr, flush=True)


RULES = {
    "none": "the method, unguarded",
    "mean": "mean of both models' log-probabilities",
    "stack": "`+stack`",
    **{f"guard {sure:g}": f"`+guard`, sure = {sure:g}" for sure in SURE},
}


def tables(cache: Path) -> str:
    """The two tables in Markdown, from all cases in the cache."""
    files = [json.loads(path.read_text()) for path in sorted(cache.glob("*.json"))]
    cases = [one for file in files for one in file["methods"].values() if one is not None]
    lost = sum(one is None for file in files for one in file["methods"].values())
    clients = [client for one in cases for client in one["clients"]]
    if not cases:
        return "no cases yet"
    head = f"{len(cases)} cases ({len({f['scenario'] for f in files})} scenarios, {len(METHODS)} methods, up to "
    head += f"{max(f['seed'] for f in files) + 1} seeds), {len(clients):,} clients; {lost} diverged."
    lines = [head, ""]
    classes = [one for one in cases if all(0 <= c["alone"] <= 1 for c in one["clients"])]
    columns = ["rule", "mean gain, points", "worst case", "significantly worse, % of clients", "stay alone, %"]
    lines += [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    for rule, title in RULES.items():
        gains = [100 * float(np.mean([c[rule]["gain"] for c in one["clients"]])) for one in classes]
        worse = float(np.mean([c[rule]["p"] < ERROR for c in clients]))
        home = float(np.mean([c[rule]["home"] for c in clients]))
        lines.append(f"| {title} | {np.mean(gains):+.1f} | {min(gains):+.1f} | {100 * worse:.1f} | {100 * home:.0f} |")
    lines += [
        "",
        "| rule | deploy something else | told: worse, % | below LOCAL on test rows, % | the same, equal = half |",
    ]
    lines += ["| --- |" + " ---: |" * 4]
    for rule in (r for r in RULES if r.startswith("guard")):
        there = [c[rule] for c in clients if not c[rule]["home"]]
        below = np.mean([c["gain"] < 0 for c in there]) if there else 0.0
        tied = np.mean([c["gain"] == 0 for c in there]) / 2 if there else 0.0
        told = np.mean([c["told"] for c in there]) if there else 0.0
        lines.append(
            f"| {RULES[rule]} | {len(there):,} | {100 * told:.1f} | {100 * below:.1f} | {100 * (below + tied):.1f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run what is missing, print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--cache", type=Path, default=RESULTS / "guard", help="where cases are kept")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--most", type=int, default=10**9, help="federations in this call")
    parser.add_argument("--show", action="store_true", help="print the tables of the cases that are there")
    asked = parser.parse_args()
    data = os.environ.get("FAIRLEAD_DATA")
    if not asked.show:
        run_cases(asked.cache, Path(data) if data else None, asked.seeds, asked.only, asked.most)
    print(tables(asked.cache))
    return 0


if __name__ == "__main__":
    sys.exit(main())
