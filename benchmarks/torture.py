"""`python -m benchmarks.torture`: kills, broken input, company and long runs; prints what was survived.

kills   a process is killed at a random moment, again and again; the run must end with the bits of one never killed
pairs   two processes on one folder at once: each ends well or says in a sentence that the other is there
fuzz    damaged files, odd tables, settings and messages: a sentence each, no traceback, no hang, bounded memory
rounds  many rounds in one run: memory stays where it is

Processes are forked from one that has imported everything and computed nothing, so that a start takes milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fairlead
import fairlead.cli
from benchmarks import fuzz as cases
from fairlead.core import FairleadError
from fairlead.runs import run as runs
from fairlead.runs.files import read_parts

KILLED: list[tuple[str, dict[str, Any]]] = [
    ("fedora", {"participation": 0.5, "unseen": 0.25, "engine": "threads+vectorised"}),
    ("fedamp", {"unseen": 0.25, "newcomer_epochs": 1, "engine": "threads+vectorised"}),
    ("scaffold", {"participation": 0.5, "engine": "loop"}),
    ("fedrep+confree", {"faults": "dropout=0.2", "engine": "vectorised"}),
    ("ditto", {"attack": "sign-flip:0.25", "engine": "threads"}),
]
# Few steps a round: of a process's time, much goes into what a kill can harm.
SETTINGS: dict[str, Any] = {
    "clients": 6,
    "rounds": 18,
    "evaluate_every": 3,
    "model": "mlp",
    "momentum": 0.5,
    "steps": 2,
}
SECONDS = 30.0  # of computing that one broken input may take
MEMORY = 2**30  # bytes that a process may grow by


def fork(work: Callable[[], None]) -> int:
    """Start the work in a process of its own; its exit code is 0, 2 for a sentence and 1 for a traceback."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except FairleadError as error:
        print(f"sentence: {error}", file=sys.stderr, flush=True)
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a process; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def bits(folder: Path) -> str:
    """A hash of every checkpoint's tensors and every run's scores."""
    from safetensors.torch import load_file

    whole = hashlib.sha256()
    for run in sorted(path.parent for path in folder.glob("runs/*/checkpoint.safetensors")):
        for name, x in sorted(load_file(run / "checkpoint.safetensors").items()):
            whole.update(name.encode())
            whole.update(x.contiguous().numpy().tobytes())
        scores = read_parts(run / "records.parquet").drop_columns([]).to_pydict()
        whole.update(json.dumps(scores, sort_keys=True).encode())
    return whole.hexdigest()


def trained(method: str, settings: dict[str, Any], folder: Path) -> Callable[[], None]:
    """The work of one process: a comparison with a checkpoint after every round."""

    def work() -> None:
        runs.CHECKPOINT_SECONDS = 0.0
        fairlead.compare([method], out=folder, **SETTINGS | settings)

    return work


def kills(count: int, draw: random.Random, scratch: Path) -> str:
    """Kill until as many processes were killed as asked."""
    killed = lost = finished = 0
    while killed < count:
        method, settings = KILLED[finished % len(KILLED)]
        settings = settings | {"seeds": [finished]}
        whole, broken = scratch / "whole", scratch / "broken"
        began = time.monotonic()
        assert ended(fork(trained(method, settings, whole))) == 0
        usual = time.monotonic() - began
        while True:
            child = fork(trained(method, settings, broken))
            time.sleep(draw.uniform(0.02, usual / 3))
            os.kill(child, signal.SIGKILL)
            code = ended(child)
            if code == -signal.SIGKILL:
                killed += 1
            if code == 0:
                break
            if code not in (0, -signal.SIGKILL) or killed % 25 == 0:
                code = ended(fork(trained(method, settings, broken)))
                break
        same = code == 0 and bits(whole) == bits(broken)
        lost += not same
        finished += 1
        if not same:
            print(f"kills: {method} with seed {finished - 1} ended otherwise (exit code {code})", flush=True)
        left = [path.name for path in broken.rglob(".*") if path.name.endswith(".partial")]
        assert not left, left
        shutil.rmtree(whole)
        shutil.rmtree(broken)
    return f"{killed} kills in {finished} runs: {lost} lost or with other bits"


def pairs(count: int, draw: random.Random, scratch: Path) -> str:
    """Two processes at a time on one folder."""
    codes: dict[tuple[int, int], int] = {}
    wrong = 0
    for i in range(count):
        method, settings = KILLED[i % len(KILLED)]
        alone, shared = scratch / "alone", scratch / "shared"
        if not i // len(KILLED):
            shutil.rmtree(alone / method, ignore_errors=True)
            assert ended(fork(trained(method, settings, alone / method))) == 0
        first = fork(trained(method, settings, shared))
        time.sleep(draw.uniform(0, 0.5))
        second = fork(trained(method, settings, shared))
        a, b = ended(first), ended(second)
        both = (min(a, b), max(a, b))
        codes[both] = codes.get(both, 0) + 1
        if 0 not in both or both[1] not in (0, 2) or bits(shared) != bits(alone / method):
            wrong += 1
        shutil.rmtree(shared)
    told = ", ".join(f"{n} times exit codes {a} and {b}" for (a, b), n in sorted(codes.items()))
    return f"{count} pairs: {told}; {wrong} with a traceback, a loss or other bits"


class Hang(Exception):
    """One input took too long."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End what computes for longer than SECONDS, or takes twenty times as long: others may use the machine too."""

    def ring(*_: object) -> None:
        raise Hang

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, SECONDS), (signal.ITIMER_REAL, signal.SIGALRM, 20 * SECONDS))
    for timer, sign, seconds in timers:
        signal.signal(sign, ring)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _, _ in timers:
            signal.setitimer(timer, 0)


def try_one(case: Callable[[random.Random, Path], None], seed: str, scratch: Path) -> str:
    """What became of one broken input: "fine", "sentence", or what went wrong."""
    folder = scratch / "one"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with limited(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            case(random.Random(seed), folder)
    except FairleadError:
        return "sentence"
    except Hang:
        return f"hang: {case.__name__} {seed}"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return f"traceback: {case.__name__} {seed}: {type(error).__name__}: {str(error)[:100]} ({where})"
    return "fine"


def fuzz(count: int, scratch: Path, first: int = 0) -> str:
    """Broken inputs of all kinds, fifty to a process."""
    found: dict[str, int] = {}
    peak, cases.TEMPLATE = 0, scratch / "template"
    assert ended(fork(cases.make_template)) == 0
    for start in range(first, first + count, 50):
        told = scratch / "told.json"

        def work(start: int = start, told: Path = told) -> None:
            logging.disable(logging.CRITICAL)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            seen = []
            for i in range(start, min(start + 50, first + count)):
                case = cases.CASES[i % len(cases.CASES)]
                seen.append(try_one(case, f"{case.__name__}-{i}", scratch))
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            told.write_text(json.dumps([seen, grown]))

        code = ended(fork(work))
        if code != 0:
            print(f"fuzz: inputs {start} to {start + 49} ended their process with {code}", flush=True)
            found["process ended"] = found.get("process ended", 0) + 1
            continue
        seen, grown = json.loads(told.read_text())
        peak = max(peak, grown)
        for one in seen:
            kind = one.partition(":")[0]
            if kind not in ("fine", "sentence"):
                print(f"fuzz: {one}", flush=True)
            found[kind] = found.get(kind, 0) + 1
    told_all = ", ".join(f"{n} {kind}" for kind, n in sorted(found.items()))
    over = "" if peak <= MEMORY else f" PAST THE BOUND of {MEMORY >> 20} MB"
    return f"{count} broken inputs: {told_all}; a process of 50 grew by {peak >> 20} MB at most{over}"


def rounds(count: int, scratch: Path) -> str:
    """One long run, its memory looked at on the way."""
    told = scratch / "memory.json"

    def work() -> None:
        runs.CHECKPOINT_SECONDS = 0.5
        seen: dict[int, int] = {}

        def look(method: str, seed: int, done: int, of: int) -> None:
            if method == "fedavg" and done % (of // 10) == 0:
                seen[done] = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        settings = SETTINGS | {
            "rounds": count,
            "evaluate_every": 5,
            "engine": "threads+vectorised",
            "model": "logistic",
        }
        fairlead.compare(["fedavg"], out=scratch / "long", progress=look, **settings)
        told.write_text(json.dumps(seen))

    code = ended(fork(work))
    assert code == 0, f"the long run ended with {code}"
    seen = {int(n): size for n, size in json.loads(told.read_text()).items()}
    shown = ", ".join(f"{n}: {size >> 20}" for n, size in seen.items())
    early, late = seen[min(seen)], seen[max(seen)]
    return (
        f"{count} rounds: {(late - early) / 2**20:+.1f} MB from round {min(seen)} to {max(seen)} (MB by round {shown})"
    )


def main() -> int:
    """Print what was survived."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--fuzz", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    draw = random.Random(asked.seed)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        scratch = Path(folder)
        sections: dict[str, Callable[[], str]] = {
            "kills": lambda: kills(asked.kills, draw, scratch),
            "pairs": lambda: pairs(asked.pairs, draw, scratch),
            "fuzz": lambda: fuzz(asked.fuzz, scratch),
            "rounds": lambda: rounds(asked.rounds, scratch),
        }
        for name, work in sections.items():
            if getattr(asked, name):
                began = time.perf_counter()
                print(f"{work()}; {time.perf_counter() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
