"""`python -m benchmarks.faults`: what every method and every stage survives, as tables in Markdown.

On two scenarios, a sixth of the clients is hostile (`fairlead.attacks`), or clients fail (`fairlead.core.faults`).
Numbers are test accuracies of the honest clients' deployed models after the last round, in percent, means over seeds:
without attack, then by how many points an attack changes them.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from fairlead.attacks import ATTACKS, Attack, attacked, marked, poisoned
from fairlead.catalogue import parse
from fairlead.clients import Answer, InProcess, engine
from fairlead.clients.exchange import MODELS, batches, lengths
from fairlead.core import FairleadError, Federation, Named, Plan, Split
from fairlead.core.faults import Faults
from fairlead.data import PRESETS
from fairlead.functional.robust import FAR_TIMES
from fairlead.methods import METHODS
from fairlead.rounds import federate
from fairlead.runs.material import Material
from fairlead.settings import Experiment, check, resolve

SCENARIOS: dict[str, dict[str, Any]] = {
    "rotated-digits": {"scenario": "rotated-digits", "clients": 12},
    "skewed-digits": {"scenario": "rotated-digits", "shift": "none", "split": "dirichlet", "beta": 0.5, "clients": 12},
}
TRAINING: dict[str, Any] = {"rounds": 15, "lr": 0.3, "steps": 6, "batch_size": 16, "momentum": 0.5, "model": "mlp"}
SHARE = 1 / 6
STAGES = ("", "+uniform", "+clip", "+median", "+trimmed", "+krum", "+confree", "+pcgrad", "+cagrad", "+clip+median")
NEAREST = "lg-fedavg+krum"  # of all pairs tried, the one that loses least to the worst attack
# Options of a method stand behind its name, as after --set.
ROBUST = (NEAREST, "fedproto fedproto.pool=median", "fedpac+median fedpac.pool=median")
OPTIONS: dict[str, dict[str, Any]] = {
    "trimmed": {"share": 0.2},
    "krum": {"byzantine": 2, "keep": 6},
    "clip": {"bound": 1.0},
}
FAULTS = ("dropout=0.3", "stragglers=0.3", "late=0.3@8", "crash=0.3@8", "dropout=0.3,stragglers=0.3,crash=0.2@8")
LIMIT = 2.0  # points that count as survived


class Found(NamedTuple):
    """One training: each client's accuracy, and how often a mark on its test samples makes class 0 of others."""

    accuracy: torch.Tensor  # (N,)
    fooled: torch.Tensor  # (N,) shares


@cache
def setting(name: str, seed: int) -> tuple[Experiment, Federation]:
    """A scenario's settings and clients."""
    asked = {**TRAINING, **SCENARIOS[name], "select": "last"}
    experiment = resolve(check(asked))
    return experiment, experiment.scenario.build(seed)


@cache
def run(scenario: str, name: str, seed: int, attack: Attack | None = None, faults: str = "") -> Found | str:
    """Train one method under an attack or faults, or say what ended it."""
    experiment, federation = setting(scenario, seed)
    module = Material(experiment, federation).module(seed)
    name, *chosen = name.split(" ")
    options = {n: values for n, values in OPTIONS.items() if n in name.split("+")}
    for option in chosen:
        (whose, key), value = option.partition("=")[0].split("."), option.partition("=")[2]
        options[whose] = {**options.get(whose, {}), key: value}
    rounds = int(TRAINING["rounds"])
    plan = Plan(rounds=rounds, evaluate_every=rounds, seed=seed, faults=Faults.of(faults), select="last")
    try:
        entry = parse(name, options)
        method, given = entry.method, federation
        if attack is not None:
            method = attacked(method, attack, federation.clients, seed)
            given = poisoned(federation, attack, seed)
        with InProcess(given, experiment.training, engine("vectorised")) as clients:
            *_, (happened, _) = federate(method, clients, module, plan, average=entry.average)
            score = next(s for s in happened.scores if (s.model, s.split) == ("personal", "test"))
            backdoor = attack is not None and attack.kind == "backdoor"
            return Found(
                score.values["accuracy"].flatten(), _fooled(clients, federation) if backdoor else torch.empty(0)
            )
    except FairleadError as error:
        return str(error)


def _fooled(clients: InProcess, federation: Federation) -> torch.Tensor:
    """The share of each client's marked test samples of other classes that its model takes for class 0."""
    test = federation.test
    clients._pool._federation = replace(federation, test=replace(test, x=marked(test.x)))  # type: ignore[union-attr]
    outputs = clients.outputs("test")
    each = [(outputs[k].argmax(1) == 0)[test.client(k)[1] != 0] for k in range(federation.clients)]
    return torch.stack([hits.double().mean() for hits in each])


def change(scenario: str, name: str, seeds: Sequence[int], attack: str) -> tuple[float, float] | str:
    """By how many points an attack changes the honest clients' mean accuracy, and how many percent a mark fools."""
    spec, points, fooled = Attack(attack, SHARE, ATTACKS[attack]), [], []
    for seed in seeds:
        usual, found = run(scenario, name, seed), run(scenario, name, seed, spec)
        if isinstance(usual, str) or isinstance(found, str):
            return "stops"
        clients = len(usual.accuracy)
        honest = sorted(set(range(clients)) - set(spec.hostile(clients, seed)))
        points.append(100 * float((found.accuracy - usual.accuracy)[honest].mean()))
        fooled.append(100 * float(found.fooled[honest].mean()) if len(found.fooled) else 0.0)
    return sum(points) / len(points), sum(fooled) / len(fooled)


def mean(scenario: str, name: str, seeds: Sequence[int], faults: str = "") -> float | None:
    """The mean accuracy over clients and seeds in percent; None where a training ended in an error."""
    found = [run(scenario, name, seed, None, faults) for seed in seeds]
    known = [100 * float(f.accuracy.mean()) for f in found if isinstance(f, Found)]
    return sum(known) / len(known) if len(known) == len(found) else None


def table(scenario: str, names: Sequence[str], attacks: Sequence[str], seeds: Sequence[int]) -> None:
    """Names by attacks."""
    print(f"\n### {scenario}: a sixth of the clients hostile\n")
    print(f"| method | no attack | {' | '.join(attacks)} | survives |")
    print("| --- |" + " ---: |" * (len(attacks) + 2))
    for name in names:
        usual = mean(scenario, name, seeds)
        if usual is None:
            print(f"| {name} | stops |")
            continue
        found = {attack: change(scenario, name, seeds, attack) for attack in attacks}
        survived = sum(not isinstance(f, str) and f[0] >= -LIMIT for f in found.values())
        cells = [
            f if isinstance(f, str) else f"{f[0]:+.1f}" + (f" ({f[1]:.0f}% fooled)" if attack == "backdoor" else "")
            for attack, f in found.items()
        ]
        print(f"| {name} | {usual:.1f} | {' | '.join(cells)} | {survived} of {len(attacks)} |", flush=True)


def fault_table(scenario: str, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Names by faults."""
    print(f"\n### {scenario}: clients that fail\n")
    print(f"| method | no faults | {' | '.join(FAULTS)} |")
    print("| --- |" + " ---: |" * (len(FAULTS) + 1))
    for name in names:
        usual = mean(scenario, name, seeds)
        if usual is None:
            continue
        found = [mean(scenario, name, seeds, faults) for faults in FAULTS]
        cells = ["stops" if f is None else f"{f - usual:+.1f}" for f in found]
        print(f"| {name} | {usual:.1f} | {' | '.join(cells)} |", flush=True)


class Measured(InProcess):
    """Clients whose replies' lengths are kept: by entry, the longest as a multiple of the usual."""

    longest: dict[str, float]

    def train(self, ids: torch.Tensor, round: int, message: Named) -> Answer:
        """As `InProcess`."""
        answer = super().train(ids, round, message)
        work = batches(self._training, self._federation.train.sizes[answer.ids])
        more = (work / work.median()).clamp(min=1.0)
        for name, x in answer.rows.items():
            if x.is_floating_point() and (name in message or name in MODELS):
                length = lengths(x) / more
                some = length[length > 0]
                if len(some):
                    self.longest[name] = max(self.longest.get(name, 0.0), float(some.max() / some.median()))
        return answer


def thinned(split: Split, most: int) -> Split:
    """Every k-th sample of each client, at most so many in all and at least one each: sizes keep their proportions."""
    k = max(1, -(-len(split.y) // most))
    rows = [torch.arange(int(a), int(b), k) for a, b in pairwise(split.starts)]
    each = torch.tensor([0, *(len(r) for r in rows)])
    return Split(split.x[torch.cat(rows)], split.y[torch.cat(rows)], each.cumsum(0))


def honest_table(data_dir: str | None, presets: Sequence[str], most: int) -> None:
    """How long honest clients' replies are at most, in these scenarios, and whether any was set aside."""
    where = f"{FAR_TIMES:g} is where it may be set aside"
    print(f"\n### Honest clients: the longest reply, in times of the usual one; {where}\n")
    print("| scenario | clients | longest reply | set aside |\n| --- | ---: | ---: | ---: |")
    for preset in presets:
        worst, left, clients = 1.0, 0, 0
        try:
            asked = {"scenario": preset, "rounds": 3} | ({} if preset == "rotated-digits" else {"data_dir": data_dir})
            experiment = resolve(check(asked))
            federation = experiment.scenario.build(0, experiment.data_dir)
            splits = (federation.train, federation.validation, federation.test)
            train, validation, test = (thinned(split, most) for split in splits)
            federation = replace(federation, train=train, validation=validation, test=test)
            clients = federation.clients
            module = Material(experiment, federation).module(0)
            training = replace(experiment.training, epochs=1)
            for name in ("fedavg", "scaffold", "fedrep", "fedamp", "pfedhn", "fedproto"):
                entry = parse(name)
                those = Measured(federation, training, engine("threads+vectorised"))
                those.longest = {}
                with those:
                    plan = Plan(rounds=3, evaluate_every=100, select="last")
                    for happened, _ in federate(entry.method, those, module, plan):
                        left += len(happened.absent)
                    worst = max(worst, *those.longest.values())
        except FairleadError as error:
            print(f"| {preset} | {clients} | {str(error)[:70]} | |", flush=True)
            continue
        print(f"| {preset} | {clients} | {worst:.1f} | {left} |", flush=True)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--seeds", help="how many, or FIRST:END as in Python", default="1")
    parser.add_argument("--only", help="scenarios, with commas between them", default=None)
    parser.add_argument("--attacks", help="with commas between them", default=",".join(ATTACKS))
    parser.add_argument("--methods", help="with commas between them; stages too", default=None)
    parser.add_argument("--honest", metavar="DIR", help="instead: lengths of honest replies, data sets in DIR")
    parser.add_argument("--samples", type=int, default=10**9, help="with --honest: at most so many in a scenario")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    began, seeds, attacks = time.perf_counter(), range(*map(int, asked.seeds.split(":"))), asked.attacks.split(",")
    if asked.honest:
        honest_table(asked.honest, asked.only.split(",") if asked.only else list(PRESETS), asked.samples)
        return 0
    methods = [name for name in METHODS if name != "local"]
    names = (
        asked.methods.split(",") if asked.methods else [*(f"fedavg{stage}" for stage in STAGES), *ROBUST, *methods[1:]]
    )
    for scenario in asked.only.split(",") if asked.only else SCENARIOS:
        table(scenario, names, attacks, seeds)
        fault_table(scenario, [n for n in names if n in METHODS], seeds)
    print(f"\n{time.perf_counter() - began:.0f} s; seeds: {asked.seeds}, rounds: {TRAINING['rounds']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
