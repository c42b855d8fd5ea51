"""The numbers that the page's JavaScript draws, sorts, filters and saves, in the units that are shown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.report.interval import axis_of
from fairlead.report.tables import VERDICTS, measure, published, row_titles, ways
from fairlead.runs.summary import Entry, Summary, Way

if TYPE_CHECKING:
    import pyarrow as pa

MOST = 200_000  # numbers in all owners' curves; of more rounds every second, third ... is drawn
Array = NDArray[np.float64]


class Curves(NamedTuple):
    """What is drawn by round: its name, and each method's line."""

    what: str
    lines: dict[str, dict[str, Any]]  # rounds, mean, low, high, owners (a list each), chosen


def chart_data(summary: Summary, curves: Curves) -> dict[str, Any]:
    """All that `page.js` needs."""
    m, found = measure(summary), summary["findings"]
    scale = 100 if m.points else 1
    control = summary["methods"][summary["control"]]
    axis = axis_of(summary)
    methods = [name for name in summary["methods"] if name != summary["control"]]
    return {
        "live": None,
        "measure": {"heading": m.heading, "unit": m.unit, "percent": m.points},
        "level": f"{100 * summary['settings'].get('level', 0.95):g}%",
        "axis": [scale * axis.low, scale * axis.high],
        "words": list(VERDICTS),
        "owners": found["owners"],
        "rows": row_titles(summary),
        "train": [client["n_train"] for client in control["clients"]],
        "test": [client["n_test"] for client in control["clients"]],
        "ways": [
            _way(way, summary["methods"].get(way["name"]), found["owners"], scale)
            | {
                "bar": way["name"] == found["bar"],
                "on": way["kind"] == "method" or way["name"] == summary["control"],
                "hue": methods.index(way["name"]) if way["name"] in methods else None,
            }
            for way in ways(summary)
        ],
        "curves": curves._asdict(),
    }


def _way(way: Way, entry: Entry | None, owners: list[str], scale: float) -> dict[str, Any]:
    score = entry["accuracy"] if entry is not None else way["score"]
    known: dict[str, Any] = {"name": way["name"], "kind": way["kind"], "score": plain(score, scale)}
    known |= _costs(entry) | {"scores": [plain(s, scale) for s in way["scores"]]}
    judged = {v["owner"]: v for v in way["verdicts"]}
    if not judged:
        return known
    each = [_owner(judged.get(owner), scale) for owner in owners]
    return known | {key: [one[key] for one in each] for key in ("verdicts", "gains", "low", "high", "why")}


def _costs(entry: Entry | None) -> dict[str, float | None]:
    if entry is None:
        return {"megabytes": None, "seconds": None}
    sent = [entry[key] for key in ("bytes_up", "bytes_down")]
    megabytes = None if None in sent else plain(sum(x or 0.0 for x in sent), 1e-6)
    return {"megabytes": megabytes, "seconds": plain(entry["train_seconds"])}


def _owner(verdict: dict[str, Any] | None, scale: float) -> dict[str, Any]:
    """What is drawn of one owner."""
    if verdict is None:
        return dict.fromkeys(("verdicts", "gains", "low", "high")) | {"why": "No test rows."}
    numbers = {"gains": verdict["gain"], "low": verdict["lower"], "high": verdict["upper"]}
    told = {"verdicts": VERDICTS.index(verdict["verdict"]), "why": verdict["why"]}
    return {key: plain(value, scale) for key, value in numbers.items()} | told


def plain(value: float | None, scale: float = 1, digits: int = 6) -> float | None:
    """A number for JSON with so many digits; None where it is not known.

    >>> plain(0.81234567, 100), plain(None), plain(float("nan"))
    (81.2346, None, None)
    """
    return None if value is None or not math.isfinite(value) else float(f"{scale * value:.{digits}g}")


def curves_of(records: pa.Table, summary: Summary) -> Curves:
    """How training went, with the rounds that were chosen.

    For a published protocol the test accuracy, which is drawn and never used to choose; on own data the validation
    loss, by which the rounds were chosen.
    """
    what = ("test", "accuracy") if published(summary) else ("validation", "loss")
    title = "test accuracy, %" if published(summary) else "validation loss"
    lines = {}
    for name, entry in summary["methods"].items():
        found = line_of(records, name, what, len(summary["findings"]["owners"]), len(entry["runs"]))
        rounds = dict(zip(summary["settings"]["seeds"], entry["round"]["rounds"], strict=False))
        chosen = [[r, found.by_seed[seed][r]] for seed, r in rounds.items() if r in found.by_seed.get(seed, {})]
        lines[name] = found.drawn(MOST // len(summary["methods"])) | {"chosen": chosen}
    return Curves(title, lines)


class Line(NamedTuple):
    """One method's curve: by round the mean over owners with the lowest and the highest seed, and each owner's own."""

    rounds: list[int]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]
    owners: list[list[float | None]]  # by owner and round, mean over seeds
    by_seed: dict[int, dict[int, float | None]]  # the mean over owners, by seed and round

    def drawn(self, most: int) -> dict[str, Any]:
        """The lists that are drawn, thinned out to so many numbers; the last round stays."""
        every = max(1, -(-len(self.rounds) * max(len(self.owners), 1) // most))
        keep = [i for i in range(len(self.rounds)) if (len(self.rounds) - 1 - i) % every == 0]
        lists = {name: [getattr(self, name)[i] for i in keep] for name in ("rounds", "mean", "low", "high")}
        return lists | {"owners": [[own[i] for i in keep] for own in self.owners]}


def line_of(records: pa.Table, method: str, what: tuple[str, str], owners: int, runs: int) -> Line:
    """A method's curve of one split and metric, as far as all its runs went; accuracies in percent."""
    import pyarrow.compute as pc

    split, column = what
    of = records.filter(pc.and_(pc.equal(records["method"], method), pc.equal(records["split"], split)))
    personal = of.filter(pc.equal(of["model"], "personal"))
    of = personal if len(personal) else of
    number, client, seed = (of[name].to_numpy() for name in ("round", "client", "seed"))
    value = of[column].to_numpy(zero_copy_only=False).astype(np.float64) * (100 if column == "accuracy" else 1)
    if not len(of):  # a training that learned from all rows has no validation rows
        return Line([], [], [], [], [[] for _ in range(owners)], {})
    rounds, at = np.unique(number, return_inverse=True)
    seeds, who = np.unique(seed, return_inverse=True)
    cube = np.full((len(seeds), len(rounds), owners), np.nan)
    cube[who, at, client] = np.where(np.isfinite(value), value, np.nan)
    there = np.zeros((len(seeds), len(rounds)), bool)
    there[who, at] = True
    means = _mean(cube, 2)  # (seeds, rounds)
    by_seed = {
        int(s): {int(r): plain(means[i, j], digits=4) for j, r in enumerate(rounds) if there[i, j]}
        for i, s in enumerate(seeds)
    }
    # A mean is drawn as far as all runs went: where one has stopped, it would jump.
    complete = there.sum(0) == runs
    known = means[:, complete]
    low, high = np.fmin.reduce(known, 0), np.fmax.reduce(known, 0)
    return Line(
        rounds=rounds[complete].tolist(),
        mean=_list(_mean(known, 0)),
        low=_list(low),
        high=_list(high),
        owners=[_list(own) for own in _mean(cube[:, complete], 0).T],
        by_seed=by_seed,
    )


def _mean(values: Array, axis: int) -> Array:
    """The mean of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    count = known.sum(axis)
    total = np.where(known, values, 0.0).sum(axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _list(values: Array) -> list[float | None]:
    return [plain(float(v), digits=4) for v in values]
