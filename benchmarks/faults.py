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
from typing import Any, NamedTuple

import torch

from fairlead.attacks import ATTACKS, Attack, attacked, marked, poisoned
from fairlead.catalogue import parse
from fairlead.clients import Answer, InProcess, engine
from fairlead.clients.exchange import MODELS, lengths
from fairlead.core import FairleadError, Federation, Named, Plan
from fairlead.core.faults import Faults
from fairlead.data import PRESETS
from fairlead.methods import METHODS
from fairlead.rounds import federate
from fairlead.runs.material import Material
from fairlead.settings import Experiment, check, resolve

SCENARIOS: dict[str, dict[str, Any]] = {
    "rotated-digits": {"scenario": "rotated-digits", "clients": 12},
    "skewed-digits": {"data": "digits", "split": "dirichlet", "beta": 0.5, "clients": 12, "effort": None},
}
TRAINING: dict[str, Any] = {"rounds": 20, "lr": 0.05, "epochs": 2, "batch_size": 16, "momentum": 0.5, "model": "mlp"}
SHARE = 1 / 6
STAGES = ("", "+uniform", "+clip", "+median", "+trimmed", "+krum", "+confree", "+pcgrad", "+cagrad", "+clip+median")
OPTIONS: dict[str, dict[str, Any]] = {
    "trimmed": {"share": 0.2},
    "krum": {"byzantine": 2, "keep": 6},
    "clip": {"bound": 1.0},
}
FAULTS = ("dropout=0.3", "stragglers=0.3", "late=0.3@10", "crash=0.3@10", "dropout=0.3,stragglers=0.3,crash=0.2@10")
LIMIT = 2.0  # points that count as survived


class Found(NamedTuple):
    """One training: the honest clients' mean accuracy, and how often a mark on their samples makes class 0 of them."""

    accuracy: float
    backdoor: float
    left_out: int


def setting(name: str, seed: int) -> tuple[Experiment, Federation]:
    """A scenario's settings and clients."""
    asked = {**TRAINING, **{k: v for k, v in SCENARIOS[name].items() if v is not None}}
    if "scenario" not in asked:
        asked["fractions"] = (0.5, 0.2, 0.3)
    experiment = resolve(check({**asked, "select": "last"} if "scenario" in asked else asked))
    return experiment, experiment.scenario.build(seed)


def run(scenario: str, name: str, seed: int, attack: Attack | None = None, faults: str = "") -> Found:
    """Train one method under an attack or faults."""
    experiment, federation = setting(scenario, seed)
    module = Material(experiment, federation).module(seed)
    options = {n: values for n, values in OPTIONS.items() if n in name.split("+")}
    entry = parse(name, options)
    method, given, hostile = entry.method, federation, []
    if attack is not None:
        method = attacked(method, attack, federation.clients, seed)
        given, hostile = poisoned(federation, attack, seed), attack.hostile(federation.clients, seed)
    rounds = int(TRAINING["rounds"])
    plan = Plan(rounds=rounds, evaluate_every=rounds, seed=seed, faults=Faults.of(faults))
    honest = torch.tensor([k for k in range(federation.clients) if k not in hostile])
    with InProcess(given, experiment.training, engine("threads+vectorised")) as clients:
        left_out, happened = 0, None
        for happened, _ in federate(method, clients, module, plan, average=entry.average):
            left_out += len(happened.absent)
        assert happened is not None
        score = next(s for s in happened.scores if (s.model, s.split) == ("personal", "test"))
        return Found(float(score.values["accuracy"][honest].mean()), _fooled(clients, federation, honest), left_out)


def _fooled(clients: InProcess, federation: Federation, honest: torch.Tensor) -> float:
    """The share of marked test samples of other classes that honest clients take for class 0."""
    test = federation.test
    clients._pool._federation = replace(federation, test=replace(test, x=marked(test.x)))  # type: ignore[union-attr]
    outputs = clients.outputs("test")
    hits = [(outputs[k].argmax(1) == 0)[test.client(k)[1] != 0].double() for k in honest.tolist()]
    return float(torch.cat(hits).mean())


def cell(
    scenario: str, name: str, seeds: Sequence[int], attack: str | None = None, faults: str = ""
) -> list[Found] | str:
    """A method under an attack with every seed, or the error that ended it."""
    try:
        spec = None if attack is None else Attack(attack, SHARE, ATTACKS[attack])
        return [run(scenario, name, seed, spec, faults) for seed in seeds]
    except FairleadError as error:
        return str(error)


def mean(found: list[Found]) -> float:
    """In percent."""
    return 100 * sum(f.accuracy for f in found) / len(found)


def table(scenario: str, names: Sequence[str], attacks: Sequence[str], seeds: Sequence[int]) -> None:
    """Names by attacks."""
    print(f"\n### {scenario}: a sixth of the clients hostile\n")
    print(f"| method | no attack | {' | '.join(attacks)} | survives |")
    print("| --- |" + " ---: |" * (len(attacks) + 2))
    for name in names:
        usual = cell(scenario, name, seeds)
        if isinstance(usual, str):
            print(f"| {name} | {usual[:60]} |")
            continue
        cells, survived = [], 0
        for attack in attacks:
            found = cell(scenario, name, seeds, attack)
            if isinstance(found, str):
                cells.append("stops")
                continue
            # The honest clients of the attacked run, in the run without attack, are the ones to compare with.
            change = mean(found) - mean([_of_honest(scenario, name, seed, attack) for seed in seeds])
            survived += change >= -LIMIT
            fooled = 100 * sum(f.backdoor for f in found) / len(found)
            cells.append(f"{change:+.1f}" + (f" ({fooled:.0f}% fooled)" if attack == "backdoor" else ""))
        print(f"| {name} | {mean(usual):.1f} | {' | '.join(cells)} | {survived} of {len(attacks)} |", flush=True)


_KNOWN: dict[tuple[str, str, int, tuple[int, ...]], Found] = {}


def _of_honest(scenario: str, name: str, seed: int, attack: str) -> Found:
    """The run without attack, of the clients that are honest in the attacked one."""
    experiment, federation = setting(scenario, seed)
    del experiment
    hostile = tuple(Attack(attack, SHARE, 1.0).hostile(federation.clients, seed))
    key = (scenario, name, seed, hostile)
    if key not in _KNOWN:
        # An attack of strength that changes nothing: the same clients are left out of the mean.
        _KNOWN[key] = run(scenario, name, seed, Attack("scale", SHARE, 1.0))
    return _KNOWN[key]


def fault_table(scenario: str, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Names by faults."""
    print(f"\n### {scenario}: clients that fail\n")
    print(f"| method | no faults | {' | '.join(FAULTS)} |")
    print("| --- |" + " ---: |" * (len(FAULTS) + 1))
    for name in names:
        usual = cell(scenario, name, seeds)
        if isinstance(usual, str):
            continue
        found = [cell(scenario, name, seeds, faults=faults) for faults in FAULTS]
        cells = ["stops" if isinstance(f, str) else f"{mean(f) - mean(usual):+.1f}" for f in found]
        print(f"| {name} | {mean(usual):.1f} | {' | '.join(cells)} |", flush=True)


class Measured(InProcess):
    """Clients whose replies' lengths are kept: by entry, the longest as a multiple of the usual."""

    longest: dict[str, float]

    def train(self, ids: torch.Tensor, round: int, message: Named) -> Answer:
        """As `InProcess`."""
        answer = super().train(ids, round, message)
        for name, x in answer.rows.items():
            if x.is_floating_point() and (name in message or name in MODELS):
                length = lengths(x)
                some = length[length > 0]
                if len(some):
                    self.longest[name] = max(self.longest.get(name, 0.0), float(some.max() / some.median()))
        return answer


def honest_table(data_dir: str | None) -> None:
    """How long honest clients' replies are at most, in every scenario there is, and whether any was set aside."""
    print("\n### Honest clients: the longest reply, in times of the usual one; 100 is where it may be set aside\n")
    print("| scenario | clients | longest reply | set aside |\n| --- | ---: | ---: | ---: |")
    for preset in PRESETS:
        worst, left, clients = 1.0, 0, 0
        try:
            asked = {"scenario": preset, "rounds": 3} | ({} if preset == "rotated-digits" else {"data_dir": data_dir})
            experiment = resolve(check(asked))
            federation = experiment.scenario.build(0, experiment.data_dir)
            clients = federation.clients
            module = Material(experiment, federation).module(0)
            training = replace(experiment.training, epochs=1)
            for name in ("fedavg", "scaffold", "fedrep", "fedamp"):
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
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", help="scenarios, with commas between them", default=",".join(SCENARIOS))
    parser.add_argument("--attacks", help="with commas between them", default=",".join(ATTACKS))
    parser.add_argument("--methods", help="with commas between them; stages too", default=None)
    parser.add_argument("--honest", metavar="DIR", help="instead: lengths of honest replies, data sets in DIR")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    began, seeds, attacks = time.perf_counter(), range(asked.seeds), asked.attacks.split(",")
    if asked.honest:
        honest_table(asked.honest)
        return 0
    methods = [name for name in METHODS if name != "local"]
    names = asked.methods.split(",") if asked.methods else [*(f"fedavg{stage}" for stage in STAGES), *methods[1:]]
    for scenario in asked.only.split(","):
        table(scenario, names, attacks, seeds)
        fault_table(scenario, [n for n in names if "+" not in n], seeds)
    print(f"\n{time.perf_counter() - began:.0f} s; {asked.seeds} seeds, {TRAINING['rounds']} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
