"""A comparison folder, read and checked once; the rest of the room trusts what comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.core.errors import RunError

if TYPE_CHECKING:
    import pyarrow as pa

Summary = dict[str, Any]

AGAIN = "run the comparison again to rewrite it"
TOP = {"scenario": dict, "settings": dict, "versions": dict, "control": str, "methods": dict, "findings": dict}
NUMBERS = "accuracy accuracy_samples r_accuracy ptr low5 top5 std bytes_up bytes_down train_seconds samples_per_second"
METHOD = {"spread": dict, "model": str, "round": dict, "average": str, "worse": list, "clients": list, "runs": list}
CLIENT = ("n_train", "n_test", "accuracy", "local_accuracy", "difference")
FINDINGS = {"metric": str, "why_metric": str, "owners": list, "bar": str, "why_bar": str, "ways": list}
WAY = ("name", "title", "kind", "score", "lowest", "scores", "gain", "ptr", "verdicts", "notes")
RECORDS = ("round", "client", "split", "model", "accuracy", "loss", "n")


def _check(condition: bool, path: Path, came: str, expected: str) -> None:
    if not condition:
        raise RunError(f"{path}: {came}, expected {expected}; {AGAIN}")


def _number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def read_summary(folder: Path) -> Summary:
    """The folder's `summary.json`; `RunError` when it is missing, is not JSON, or lacks something the report shows."""
    path = Path(folder) / "summary.json"
    if not path.is_file():
        raise RunError(f"{path}: no such file, expected a finished comparison; run `fairlead compare` into {folder}")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path}: not readable as JSON ({error}), expected a summary; {AGAIN}") from error
    _check(isinstance(summary, dict), path, f"a {type(summary).__name__}", "a JSON object")
    for key, kind in TOP.items():
        _check(isinstance(summary.get(key), kind), path, f"{key!r} is missing or misshapen", f"a {kind.__name__}")
    seeds = summary["settings"].get("seeds")
    _check(isinstance(seeds, list) and bool(seeds), path, f"settings.seeds is {seeds!r}", "a list of seeds")
    methods, control = summary["methods"], summary["control"]
    _check(control in methods, path, f"the control {control!r} is not among the methods", "one of them")
    for name, entry in methods.items():
        _check(isinstance(entry, dict), path, f"{name!r} is a {type(entry).__name__}", "a JSON object")
        for key in NUMBERS.split():
            _check(key in entry and _number(entry[key]), path, f"{name!r} lacks a usable {key!r}", "a number or null")
        for key, kind in METHOD.items():
            _check(isinstance(entry.get(key), kind), path, f"{name!r} lacks a usable {key!r}", f"a {kind.__name__}")
        chosen = entry["round"]
        fits = isinstance(chosen.get("rule"), str) and isinstance(chosen.get("rounds"), list)
        _check(fits, path, f"{name!r} has round {chosen!r}", "a rule and a list of rounds")
        for client in entry["clients"]:
            fits = isinstance(client, dict) and "id" in client and all(_number(client.get(key)) for key in CLIENT)
            span = client.get("interval") if fits else None
            fits = fits and (span is None or (isinstance(span, list) and len(span) == 2 and all(map(_number, span))))
            _check(fits, path, f"{name!r} has the client {client!r}", f"id, interval and {', '.join(CLIENT)}")
        strangers = set(map(str, entry["worse"])) - {str(client["id"]) for client in entry["clients"]}
        _check(not strangers, path, f"{name!r} calls {sorted(strangers)} worse off", "clients it lists")
    _check_findings(summary["findings"], path)
    return dict(summary)


def _check_findings(found: dict[str, Any], path: Path) -> None:
    for key, kind in FINDINGS.items():
        _check(isinstance(found.get(key), kind), path, f"findings.{key} is missing or misshapen", f"a {kind.__name__}")
    _check("recommendation" in found, path, "findings.recommendation is missing", "a recommendation or null")
    for way in found["ways"]:
        fits = isinstance(way, dict) and all(key in way for key in WAY) and len(way["scores"]) == len(found["owners"])
        _check(fits, path, "findings.ways has a misshapen entry", f"{', '.join(WAY)}, a score for every owner")
    names = [way["name"] for way in found["ways"]]
    _check(found["bar"] in names, path, f"the bar {found['bar']!r} is not among the ways to train", "one of them")


def read_records(folder: Path, summary: Summary) -> pa.Table:
    """Every run's `records.parquet`, one after another, with the columns `method` and `seed` added."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for method in summary["methods"]:
        for seed, run in zip(summary["settings"]["seeds"], summary["methods"][method]["runs"], strict=True):
            path = Path(folder) / run / "records.parquet"
            if not path.is_file():
                raise RunError(f"{path}: no such file, expected the records of {method} with seed {seed}; {AGAIN}")
            try:
                table = pq.read_table(path)
            except (pa.ArrowException, OSError) as error:
                raise RunError(f"{path}: not readable as parquet, expected the records of a run; {AGAIN}") from error
            lacking = [name for name in RECORDS if name not in table.column_names]
            _check(not lacking, path, f"the columns {', '.join(lacking)} are missing", f"{', '.join(RECORDS)}")
            table = table.select(RECORDS).append_column("method", pa.array([method] * len(table), pa.string()))
            tables.append(table.append_column("seed", pa.array([seed] * len(table), pa.int64())))
    return pa.concat_tables(tables, promote_options="permissive")
