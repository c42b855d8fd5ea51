"""A made-up comparison folder: answers are drawn and judged as in a real one, costs are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.comparison.findings import Answers, Finding, Findings, Kind, Way, find
from fairlead.metrics import METRICS
from fairlead.runs.files import append_part

METHODS = ("local", "fedavg", "fedrep", "fedrep+confree", "ditto", "fedora")
ROWS = 200


def draw_answers(
    owners: int, right: float | np.ndarray[Any, Any], repeats: int = 1, folds: int = 1, seed: int = 0, few: int = 0
) -> list[Answers]:
    """Two balanced classes, each row answered rightly with the chance `right`; the first `few` owners have 6 rows."""
    chances = np.broadcast_to(right, owners)
    found = []
    for repeat in range(repeats):
        for fold in range(folds):
            draw = np.random.default_rng((seed, repeat, fold))
            sizes = [6 if k < few else ROWS for k in range(owners)]
            y = [np.arange(n) % 2 for n in sizes]
            hit = [draw.random(n) < chance for n, chance in zip(sizes, chances, strict=True)]
            outputs = [np.eye(2)[np.where(h, t, 1 - t)] for h, t in zip(hit, y, strict=True)]
            rows = [np.arange(n) + fold * n for n in sizes]
            found.append(Answers(rows, y, outputs, fold, repeat, np.concatenate(hit).astype(float)))
    return found


def make_findings(methods: tuple[str, ...], clients: int, seeds: int, own: bool) -> Findings:
    """Later methods gain more; the second of three and more harms the last owner; the first owner has few rows."""
    repeats, folds = (1, seeds) if own else (seeds, 1)
    names = [f"owner {k}" for k in range(clients)]

    def drawn(right: float | np.ndarray[Any, Any], seed: int) -> list[Answers]:
        return draw_answers(clients, right, repeats, folds, seed, few=1)

    ways = [Way(methods[0], "the network alone" if own else methods[0], "alone", drawn(0.7, 0), [])]
    if own:
        ways.append(Way("majority", "most common class", "alone", drawn(0.5, 1), []))
    for m, name in enumerate(methods[1:], 1):
        right = np.full(clients, 0.7 + 0.25 * m / len(methods))
        if m == 1 and len(methods) > 2:
            right[-1] = 0.3
        ways.append(Way(name, name, "method", drawn(right, 1 + m), []))
    kind: Kind = "pooled"
    if own:
        ways.append(Way("pooled", "all rows in one place, boosted trees", kind, drawn(0.9, 99), []))
    return find(ways, names, METRICS["accuracy"], "accuracy, because the target is a class and no class is rare")


def make_summary(methods: tuple[str, ...] = METHODS, clients: int = 12, seeds: int = 3, own: bool = False) -> Any:
    """Of a published protocol with `seeds` seeds, or of `own` data with as many folds."""
    found = make_findings(methods, clients, seeds, own)
    settings: dict[str, Any] = {"rounds": 50, "seeds": list(range(seeds)), "model": "mlp", "engine": "vectorised"}
    settings |= {"participation": 1.0, "level": 0.95} | ({"folds": seeds} if own else {"lr": 0.005})
    return {
        "scenario": {"name": "rotated-mnist", "data": "mnist", "split": "rotation", "clients": clients},
        "settings": settings,
        "versions": {"fairlead": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "control": methods[0],
        "methods": {name: _entry(m, found[name], found, seeds, own) for m, name in enumerate(methods)},
        "findings": found.to_json(),
        "data": {"notes": []},
    }


def _entry(m: int, way: Finding, found: Findings, seeds: int, own: bool) -> dict[str, Any]:
    scores, alone = (np.array(f.scores, dtype=float) for f in (way, found[found.bar]))
    verdicts = {v.owner: v for v in way.verdicts}
    clients = []
    for k, owner in enumerate(found.owners):
        v = verdicts.get(owner)
        told = {"difference": v.gain, "interval": [v.lower, v.upper], "verdict": v.verdict} if v else {}
        client = {"id": k, "name": owner, "n_train": 80 + k, "n_test": 6 if k == 0 else ROWS}
        client |= {"accuracy": scores[k], "local_accuracy": alone[k], "difference": None, "interval": None}
        clients.append(client | {"verdict": ""} | told)
    numbers: dict[str, float | None] = {
        "accuracy": way.score,
        "accuracy_samples": way.score,
        "r_accuracy": float(((scores - alone) / alone).mean()),
        "ptr": way.ptr.share if way.ptr else None,
        "low5": float(scores.min()),
        "top5": float(scores.max()),
        "std": float(scores.std()),
    }
    one = {
        "lr": 0.1,
        "round": 30,
        "loss": 0.25,
        "tried": {"0.03": 0.31, "0.1": 0.25},
        "trained": 60,
        "followed": 60,
        "improving": False,
    }
    return numbers | {
        "spread": {} if own else dict.fromkeys(numbers, 0.004 if seeds > 1 else None),
        "bytes_up": 0 if m == 0 else 118_282_000 * m,
        "bytes_down": 0 if m == 0 else 118_282_000,
        "passes": 40.0 if m == 0 else 80.0,
        "train_seconds": 41.3 + 10 * m,
        "samples_per_second": 123_456.0 / (m + 1),
        "model": "personal",
        "round": {"rule": "loss" if own else "validation", "rounds": [30 + 5 * seed for seed in range(seeds)]},
        "average": "clients",
        "worse": [c["id"] for c in clients if c["verdict"] == "worse"],
        "clients": clients,
        "runs": [f"runs/{way.name}-seed{seed}" for seed in range(seeds)],
        "notes": way.notes,
        **({"search": [one] * seeds} if own else {}),
    }


def make_folder(folder: Path, summary: Any) -> Path:
    """Write the summary, and for each run records that rise towards its accuracies, every fifth round."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    draw = np.random.default_rng(1)
    rounds = np.arange(0, summary["settings"]["rounds"] + 1, 5)
    for name, entry in summary["methods"].items():
        final = np.array([client["accuracy"] for client in entry["clients"]], dtype=float)
        for seed in summary["settings"]["seeds"]:
            rising = 0.1 + (final - 0.1) * (1 - np.exp(-rounds / 9))[:, None] + draw.normal(0, 0.01, (len(rounds), 1))
            clients = len(final)
            columns: dict[str, Any] = {
                "round": np.tile(np.repeat(rounds, clients), 2),
                "client": np.tile(np.arange(clients), 2 * len(rounds)),
                "split": ["validation"] * rising.size + ["test"] * rising.size,
                "model": ["personal"] * 2 * rising.size,
                "accuracy": np.tile(rising.ravel(), 2),
                "loss": 1 - np.tile(rising.ravel(), 2),
                "n": np.full(2 * rising.size, 50),
            }
            run = folder / "runs" / f"{name}-seed{seed}"
            append_part(run / "records.parquet", int(rounds[-1]), columns)
    return folder


def repeated(summary: Any, times: int) -> Any:
    """The same with so many times the owners: judging a thousand anew would take longer than all tests of the page."""
    found, size = summary["findings"], len(summary["findings"]["owners"])
    owners = [f"owner {k}" for k in range(size * times)]

    def named(group: list[Any], key: str) -> list[Any]:
        copies = [one for _ in range(times) for one in group]
        return [one | {key: name} for one, name in zip(copies, owners, strict=True)]

    found["owners"] = owners
    found["recommendation"]["owners"] = named(found["recommendation"]["owners"], "owner")
    for way in found["ways"]:
        way["scores"] = way["scores"] * times
        way["verdicts"] = named(way["verdicts"], "owner") if way["verdicts"] else []
    for entry in summary["methods"].values():
        entry["clients"] = [one | {"id": k} for k, one in enumerate(named(entry["clients"], "name"))]
        entry["worse"] = [one["id"] for one in entry["clients"] if one["verdict"] == "worse"]
    return summary
