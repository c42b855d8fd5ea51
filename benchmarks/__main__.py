"""`python -m benchmarks`: measure, print the table of ratios, compare with the record."""

from __future__ import annotations

import argparse
import os
import sys
import time

from benchmarks import figure, report
from benchmarks.sections import SECTIONS
from benchmarks.sections.rows import Options, Row


def main() -> int:
    """Returns 0; a slower ratio is shown, not an error, because machines are noisy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small workloads, under a minute; its record is its own")
    parser.add_argument("--only", metavar="A,B", help=f"of {','.join(SECTIONS)}")
    parser.add_argument("--repeats", type=int, help="turns of everything that is compared (5, or 2 with --quick)")
    parser.add_argument("--large", action="store_true", help="ConFREE with 1,000 clients too: needs 5 GB of memory")
    parser.add_argument("--record", action="store_true", help="make this the record that later runs are compared with")
    parser.add_argument("--name", default="latest", help="results go to benchmarks/results/NAME.json")
    asked = parser.parse_args()
    chosen = asked.only.split(",") if asked.only else list(SECTIONS)
    unknown = [s for s in chosen if s not in SECTIONS]
    if unknown or (asked.repeats is not None and asked.repeats < 1):
        parser.error(f"unknown section {', '.join(unknown)}; there are {', '.join(SECTIONS)}" if unknown else "repeats")
    options = Options(asked.repeats or (2 if asked.quick else 5), asked.quick, asked.large)
    baseline = report.RESULTS / "recorded-quick.json" if asked.quick else report.RECORD
    record = report.recorded(baseline)
    facts = report.machine()
    print(
        f"{facts['processor']}, {facts['cores']} cores, GEMM {facts['gemm_gflops_one_core']} GFLOP/s on one and "
        f"{facts['gemm_gflops_all_cores']} on all; torch {facts['versions']['torch']}; load {facts['load']}"
    )
    print("ratio: times as fast as what the section names, medians of runs in turn; cores: those it really got")
    rows: list[Row] = []
    began = time.perf_counter()
    for name in chosen:
        section = ""
        for row in SECTIONS[name](options):
            if row.section != section:
                section = row.section
                print(f"\n{section}   (ratio to {row.of}; load {os.getloadavg()[0]:.2f})")
            print(report.line(row, record), flush=True)
            rows.append(row)
    facts["load_after"] = [round(x, 2) for x in os.getloadavg()]
    fresh = report.document(rows, facts, options, " ".join(["python -m benchmarks", *sys.argv[1:]]))
    report.write(report.RESULTS / f"{asked.name}.json", fresh)
    if asked.record:
        fresh = report.merged(baseline, fresh)
        report.write(baseline, fresh)
    if any(r.section == "growth" for r in rows) and not asked.quick:
        figure.draw(fresh["rows"], report.RESULTS)
    worse = [r for r in rows if report.slower(r, record)]
    print(f"\n{len(rows)} lines in {time.perf_counter() - began:.0f} s; load {facts['load_after']}")
    if worse:
        print("slower than recorded by more than 20%: " + ", ".join(f"{r.section}/{r.name}" for r in worse))
    return 0


if __name__ == "__main__":
    sys.exit(main())
