"""`python -m benchmarks.convoy`: Convoy beside its tracks, and what each of its pieces is worth.

It trains nothing: it weighs the answers that `python -m benchmarks.guard` keeps, of LOCAL and of every track, for rows
that they did not learn from. All are compared with LOCAL on all its rows, on test rows that no rule saw.

With --cost it trains: Convoy on the four hospitals as `fairlead compare convoy` does, and prints its gradients and
seconds as multiples of what its tracks take by themselves.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.guard import (
    DEFAULT,
    ERROR,
    NEXT_TO_NONE,
    QUANTITIES,
    RESULTS,
    decided,
    p_worse,
    samples_of,
    scored,
    weights,
)
from fairlead.comparison.compare import compare
from fairlead.core import Split
from fairlead.methods.convoy import TRACKS
from fairlead.metrics import METRICS
from fairlead.runs.records import rows_of

STRENGTH, ENDLESS = 15.0, 1e4
MORE = ("ditto", "fedora")  # what Convoy might listen to besides


def ways(found: dict[str, Any], quantity: bool) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Scores of every way to answer, by client and test row."""
    tracks = [name for name in TRACKS if found["test"][name] is not None]
    samples, test = samples_of(found, tracks, quantity)

    def score(rows: Split, k: int, weight: Tensor) -> np.ndarray[Any, Any]:
        z, y = rows.client(k)
        return scored(z, weight, y.numpy(), metric)

    metric, one = METRICS["rmse" if quantity else "accuracy"], torch.eye(len(tracks))
    each = {name: one[m].expand(samples.clients, -1) for m, name in enumerate(tracks)}
    each["mean of the tracks"] = torch.full((samples.clients, len(tracks)), 1 / len(tracks))
    each["weighed"] = weights(samples, STRENGTH)[:, 0]
    each["one weight for everybody"] = weights(samples, ENDLESS)[:, 0]
    each["each client on its own rows"] = weights(samples, NEXT_TO_NONE)[:, 0]
    for m, name in enumerate(tracks):
        others = [i for i in range(len(tracks)) if i != m]
        less = torch.zeros(samples.clients, len(tracks))
        less[:, others] = weights(samples_of(found, [tracks[i] for i in others], quantity)[0], STRENGTH)[:, 0]
        each[f"without {name}"] = less
    each["convoy"] = decided(samples, tuple(tracks), metric, test.sizes.tolist())[f"guard {DEFAULT:g}"][
        :, : len(tracks)
    ]
    scores = {name: [score(test, k, w[k]) for k in range(len(w))] for name, w in each.items()}
    for name in (name for name in MORE if found["test"][name] is not None):
        joined, said = samples_of(found, [*tracks, name], quantity)
        seven = weights(joined, STRENGTH)[:, 0]
        scores[f"with {name}"] = [score(said, k, seven[k]) for k in range(joined.clients)]
    alike = torch.stack([found["test"]["local"], *found["twins"]], 1)
    like = torch.full((alike.shape[1],), 1 / alike.shape[1])
    whole = Split(alike, test.y, test.starts)
    scores["three of LOCAL"] = [score(whole, k, like) for k in range(samples.clients)]
    return scores


def table(cases: Sequence[dict[str, Any]]) -> list[str]:
    """For each way to answer, over all federations: gain over LOCAL, the lowest 5% of clients, who is worse."""
    columns = ["", "mean gain, points", "worst federation", "lowest 5% of clients, gain", "significantly worse, %"]
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    classes = [one["ways"] for one in cases if not one["quantity"]]
    for name in dict.fromkeys(name for one in cases for name in one["ways"]):
        known = [ways_ for ways_ in classes if name in ways_]  # all but those where it diverged
        gains = [100 * float(np.mean(gained(ways_, name))) for ways_ in known]
        low = [100 * (lowest(ways_[name]) - lowest(ways_["local"])) for ways_ in known]
        every = [one["ways"] for one in cases if name in one["ways"]]
        worse = [p_worse(a - b) < ERROR for ways_ in every for a, b in _pairs(ways_, name)]
        cells = f"{np.mean(gains):+.2f} | {min(gains):+.1f} | {np.mean(low):+.2f} | {100 * np.mean(worse):.1f}"
        lines.append(f"| {name} | {cells} |")
    return lines


def by_scenario(cases: Sequence[dict[str, Any]]) -> list[str]:
    """LOCAL, the track that is best in hindsight, and Convoy; quantities by their root mean squared error."""
    columns = [
        "scenario",
        "seeds",
        "LOCAL",
        "best track",
        "",
        "weighed",
        "Convoy",
        "LOCAL, lowest 5%",
        "Convoy, lowest 5%",
    ]
    columns += ["Convoy: significantly worse"]
    lines = [f"| {' | '.join(columns)} |", "| --- | ---: | ---: | --- |" + " ---: |" * (len(columns) - 4)]
    for name in dict.fromkeys(one["scenario"] for one in cases):
        own = [one for one in cases if one["scenario"] == name]
        quantity = own[0]["quantity"]

        def shown(way: str, low: bool = False, own: list[dict[str, Any]] = own, quantity: bool = quantity) -> float:
            each = [lowest(o["ways"][way]) if low else float(np.mean([x.mean() for x in o["ways"][way]])) for o in own]
            return float(np.mean([-x if quantity else 100 * x for x in each]))

        best = (min if quantity else max)((t for t in TRACKS if all(t in o["ways"] for o in own)), key=shown)
        digits = 3 if quantity else 1
        worse = sum(p_worse(a - b) < ERROR for o in own for a, b in _pairs(o["ways"], "convoy"))
        values = [shown("local"), best, shown(best), shown("weighed"), shown("convoy")]
        values += [shown("local", True), shown("convoy", True)]
        cells = [v if isinstance(v, str) else f"{v:.{digits}f}" for v in values]
        clients = sum(len(o["ways"]["local"]) for o in own)
        lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} | {worse} of {clients} |")
    return lines


def gained(scores: dict[str, list[np.ndarray[Any, Any]]], name: str) -> list[float]:
    """Each client's gain over LOCAL."""
    return [float((a - b).mean()) for a, b in _pairs(scores, name)]


def _pairs(scores: dict[str, list[np.ndarray[Any, Any]]], name: str) -> list[tuple[Any, Any]]:
    return list(zip(scores[name], scores["local"], strict=True))


def lowest(scores: list[np.ndarray[Any, Any]]) -> float:
    """The mean of the lowest 5% of clients, one at least."""
    ordered = np.sort([own.mean() for own in scores])
    return float(ordered[: -(-len(ordered) // 20)].mean())


def cost(folder: Path) -> list[str]:
    """Gradients of single samples and seconds of Convoy in a comparison's folder, beside those of its tracks."""
    spent = {stage: np.zeros(2) for stage in ("choose", "final", "part")}
    for track in TRACKS:
        for path in folder.glob(f"runs/fold*/*/{track}/*/rounds.parquet"):
            place = path.parents[2].name
            if stage := next((s for s in spent if place.startswith(s)), None):
                spent[stage] += [sum(row[n] for row in rows_of(path)) for n in ("passes", "seconds")]
    alone = spent["choose"] + spent["final"]
    told = {"search for step size and rounds": spent["choose"], "final trainings": spent["final"]}
    told |= {"the tracks by themselves": alone, "cross-fitting": spent["part"], "Convoy": alone + spent["part"]}
    lines = ["| | gradients | seconds | gradients, tracks = 1 | seconds, tracks = 1 |", "| --- |" + " ---: |" * 4]
    for name, (passes, seconds) in told.items():
        shares = " | ".join(f"{x:.2f}" for x in (passes, seconds) / alone)
        lines.append(f"| {name} | {passes:,.0f} | {seconds:.1f} | {shares} |")
    return lines


def main() -> int:
    """Print the tables of the federations that are there, or what Convoy costs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convoy", description=__doc__)
    parser.add_argument("--cache", type=Path, default=RESULTS / "guard", help="where `benchmarks.guard` keeps answers")
    parser.add_argument("--seeds", default="20,21,22", help="seeds up to 10 were for development")
    parser.add_argument("--cost", action="store_true", help="train Convoy on the four hospitals and print its cost")
    parser.add_argument("--parts", type=int, default=5, help="with --cost: of the cross-fitting")
    parser.add_argument("--of", type=Path, help="with --cost: a comparison with Convoy that is there already")
    asked = parser.parse_args()
    if asked.cost:
        with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
            if asked.of is None:
                compare(["convoy"], data="heart-disease", out=folder, set={"convoy": {"parts": asked.parts}})
            print("\n".join(cost(asked.of or Path(folder))))
        return 0
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    cases = []
    for path in sorted(asked.cache.glob("*.pt")):
        file = torch.load(path)
        if file["seed"] in seeds:
            quantity = file["scenario"].startswith(QUANTITIES)
            cases.append({"scenario": file["scenario"], "quantity": quantity, "ways": ways(file["answers"], quantity)})
    print("\n".join([*by_scenario(cases), "", *table(cases)]) if cases else "no answers; run benchmarks.guard first")
    return 0


if __name__ == "__main__":
    sys.exit(main())
