"""A comparison as data frames: its curves round by round, and its owners."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fairlead.runs.files import read_table
from fairlead.runs.summary import Summary


def curves(folder: Path, summary: Summary) -> pd.DataFrame:
    """Every score of every evaluated round: a line for each run, round, client and split.

    method   which method
    seed     on own data `fold`: which repeat of the method it is; there the run is the one in which its step size and
             its rounds were chosen
    owner    the client's name
    and the columns of `records.parquet`: round, client, split, model, accuracy, loss, n, and further scores
    """
    repeat = "fold" if "folds" in summary["settings"] else "seed"
    tables = []
    for method, entry in summary["methods"].items():
        for number, run in zip(summary["settings"]["seeds"], entry["runs"], strict=True):
            found = pd.DataFrame(read_table(folder / run / "records.parquet"))
            found.insert(0, "method", method)
            found.insert(1, repeat, number)
            found.insert(4, "owner", found["client"].map(dict(enumerate(summary["findings"]["owners"]))))
            tables.append(found)
    numbers = dict.fromkeys(("accuracy", "loss"), "float64")  # a column without any value has no type of its own
    return pd.concat([table.astype(numbers) for table in tables], ignore_index=True)


def clients(summary: Summary) -> pd.DataFrame:
    """Every owner with every way to train: a line for each.

    way, kind        the way to train; alone, method or pooled
    owner            the owner's name
    n_train, n_test  its rows: to train with on average, and to be tested on in all
    score, bar       of this way, and of the best alone, by the metric that verdicts are about
    gain             positive where this way is better, with the interval `lower` to `upper` and Holm's `p`
    verdict, why     in words; empty for the best alone itself
    """
    found = summary["findings"]
    sizes = {one["name"]: one for one in summary["methods"][summary["control"]]["clients"]}
    bar = next(way for way in found["ways"] if way["name"] == found["bar"])["scores"]
    lines = []
    for way in found["ways"]:
        verdicts = {one["owner"]: one for one in way["verdicts"]}
        for owner, score, alone in zip(found["owners"], way["scores"], bar, strict=True):
            judged = verdicts.get(owner, {})
            lines.append(
                {"way": way["name"], "kind": way["kind"], "owner": owner}
                | {name: sizes[owner][name] for name in ("n_train", "n_test")}
                | {"score": score, "bar": alone}
                | {name: judged.get(name) for name in ("gain", "lower", "upper", "p")}
                | {name: judged.get(name, "") for name in ("verdict", "why")}
            )
    numbers = dict.fromkeys(("score", "bar", "gain", "lower", "upper", "p"), "float64")
    return pd.DataFrame(lines).astype(numbers)
