"""The table on the terminal, the results as JSON, and the comparison with the record."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import gemm_rate
from benchmarks.sections.rows import Options, Row
from fairlead.core.fast.machine import cores
from fairlead.runs.identity import versions

RESULTS = Path(__file__).parent / "results"
RECORD = RESULTS / "recorded.json"
SLOWER = 0.8  # of the recorded ratio; below, the line is marked
SHARES = (  # printed as percentages
    "of GEMM",
    "over plain SGD",
    "over own gradients",
    "over own passes",
    "looks at GEMM rate",
    "of torch.mm",
    "of a copy",
)
COLUMNS = (
    "best turn",
    "per core",
    "cores",
    "samples/s",
    *SHARES,
    "memory/updates",
    "memory/models",
    "megabytes",
    "before, ms",
    "after, ms",
)


def machine() -> dict[str, Any]:
    """What the figures depend on, besides the code."""
    return {
        "versions": versions() | {"numpy": np.__version__},
        "cores": cores(),
        "processor": _processor(),
        "gemm_gflops_one_core": round(gemm_rate(1) / 1e9, 1),
        "gemm_gflops_all_cores": round(gemm_rate(cores()) / 1e9, 1),
        "load": [round(x, 2) for x in os.getloadavg()],
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    names = path.read_text().splitlines() if path.exists() else []
    return next((n.partition(":")[2].strip() for n in names if n.startswith("model name")), platform.processor())


def document(rows: list[Row], facts: dict[str, Any], options: Options, command: str) -> dict[str, Any]:
    """Everything, as plain data."""
    # Rows carry their own circumstances: a record may hold sections of several runs.
    when = {"command": command, "load": facts["load"], "load_after": facts["load_after"]}
    return facts | {"command": command, "options": asdict(options), "rows": [asdict(r) | when for r in rows]}


def write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


Record = dict[tuple[str, str], dict[str, Any]]


def recorded(path: Path = RECORD) -> Record:
    """The recorded rows, by section and name."""
    if not path.exists():
        return {}
    return {(r["section"], r["name"]): r for r in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def slower(row: Row, record: Record) -> bool:
    """Whether the ratio has fallen by more than a fifth, and not because others were using the cores.

    What one core does is compared wherever it was measured; the clock's ratio counts too, if the case got as many cores
    as when it was recorded.
    """
    before = record.get((row.section, row.name))
    if before is None:
        return False
    core, cores_then = before["more"].get("per core"), before["more"].get("cores")
    if core is not None and float(row.more["per core"] or 0) < SLOWER * core:
        return True
    undisturbed = cores_then is None or float(row.more["cores"] or 0) >= 0.95 * cores_then
    return bool(undisturbed and row.ratio < SLOWER * before["ratio"])


def line(row: Row, record: Record) -> str:
    """One line of the table."""
    before = record.get((row.section, row.name))
    against = "" if before is None else f"{row.ratio / before['ratio']:5.2f} of record"
    more = "  ".join(f"{name} {number(row.more[name], name)}" for name in COLUMNS if row.more.get(name) is not None)
    mark = "  <<< SLOWER" if slower(row, record) else ""
    return f"  {row.name:<34} {seconds(row.seconds):>9}  ratio {row.ratio:6.2f}  {against:<16}  {more}{mark}"


def seconds(value: float) -> str:
    """In the unit that fits."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


def number(value: float | str | None, name: str) -> str:
    """A share as per cent, a rate as a whole number."""
    if not isinstance(value, float | int):
        return str(value)
    if name in SHARES:
        return f"{value:.0%}"
    return f"{value:,.0f}" if name in ("samples/s", "megabytes") else f"{value:.2f}"


def merged(path: Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """A record in which the rows just measured replace their predecessors, and other sections stay."""
    if not path.exists():
        return fresh
    old = json.loads(path.read_text(encoding="utf-8"))["rows"]
    sections = {r["section"] for r in fresh["rows"]}
    return fresh | {"rows": [r for r in old if r["section"] not in sections] + fresh["rows"]}
