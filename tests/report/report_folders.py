"""A made-up comparison folder: the numbers are drawn, the shape is the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

METHODS = ("local", "fedavg", "fedrep", "fedrep+confree", "ditto", "fedora")


def make_summary(methods: tuple[str, ...] = METHODS, clients: int = 12, seeds: int = 3) -> dict[str, Any]:
    """Later methods gain more; the first is the control, the last lifts everybody."""
    draw = np.random.default_rng(0)
    alone = draw.uniform(0.6, 0.85, clients)
    sizes = draw.integers(80, 400, clients)
    entries = {}
    for m, name in enumerate(methods):
        gain = np.zeros(clients) if m == 0 else draw.normal(0.08 * m / len(methods) - 0.015, 0.03, clients)
        gain = np.abs(gain) + 0.001 if m and m == len(methods) - 1 else gain
        accuracy = np.clip(alone + gain, 0, 1)
        half = draw.uniform(0.01, 0.03, clients) * (m > 0)
        rows: list[dict[str, Any]] = [
            {
                "id": k,
                "n_train": int(sizes[k]),
                "n_test": int(sizes[k] // 3),
                "accuracy": float(accuracy[k]),
                "local_accuracy": float(alone[k]),
                "difference": float(accuracy[k] - alone[k]),
                "interval": [float(accuracy[k] - alone[k] - half[k]), float(accuracy[k] - alone[k] + half[k])],
                "verdict": "unclear",
            }
            for k in range(clients)
        ]
        for row in rows:
            low, high = row["interval"]
            row["verdict"] = "helped" if low > 0 else "hurt" if high < 0 else "unclear"
        numbers = {
            "accuracy": float(accuracy.mean()),
            "accuracy_samples": float(np.average(accuracy, weights=sizes)),
            "r_accuracy": float(((accuracy - alone) / alone).mean()),
            "ptr": float((accuracy > alone).mean()),
            "low5": float(accuracy.min()),
            "top5": float(accuracy.max()),
            "std": float(accuracy.std()),
        }
        entries[name] = numbers | {
            "spread": dict.fromkeys(numbers, 0.004 if seeds > 1 else None),
            "bytes_up": 0 if m == 0 else 118_282_000 * m,
            "bytes_down": 0 if m == 0 else 118_282_000,
            "train_seconds": 41.3 + 10 * m,
            "samples_per_second": 123_456.0 / (m + 1),
            "model": "personal",
            "round": {"rule": "validation", "rounds": [30 + 5 * seed for seed in range(seeds)]},
            "average": "clients",
            "worse": [row["id"] for row in rows if row["difference"] < 0],
            "clients": rows,
            "runs": [f"runs/{name}-seed{seed}" for seed in range(seeds)],
        }
    return {
        "scenario": {"name": "rotated-mnist", "data": "mnist", "split": "rotation", "clients": clients},
        "settings": {
            "rounds": 50, "seeds": list(range(seeds)), "model": "mlp", "engine": "vectorised", "lr": 0.005,
            "epochs": 5, "batch": 64, "participation": 1.0, "select": "validation",
        },
        "versions": {"fairlead": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "control": methods[0],
        "methods": entries,
    }  # fmt: skip


def make_folder(folder: Path, summary: dict[str, Any]) -> Path:
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
            run.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), run / "records.parquet")
    return folder
