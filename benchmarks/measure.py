"""Times and memory. Shared machines are noisy, so what is compared runs in turn and ratios are taken turn by turn."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from fairlead.core.fast.machine import threads

SHORT = 0.5  # seconds
SIDE = 2048  # of the matrices whose product gives the machine's rate


@dataclass
class Timing:
    """One entry per repeat: seconds on the clock, and processor seconds of all threads."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(self.wall)

    @property
    def busy(self) -> float:
        """How many cores it got, on average: below its number of workers, others were using them."""
        return median(c / w for c, w in zip(self.cpu, self.wall, strict=True))

    def times_as_fast_as(self, reference: Timing) -> float:
        """The median, over repeats, of the reference's seconds over these in the same turn."""
        return median(r / w for r, w in zip(reference.wall, self.wall, strict=True))

    def best_against(self, reference: Timing) -> float:
        """The reference's best turn over the best here: what remains when others disturb the rest."""
        return min(reference.wall) / min(self.wall)

    def per_core(self, reference: Timing) -> float:
        """As `times_as_fast_as`, by processor seconds: what one core does, whoever else is on the machine."""
        return median(r / c for r, c in zip(reference.cpu, self.cpu, strict=True))


def interleaved(cases: Mapping[str, Callable[[], object]], repeats: int, warm: int = 1) -> dict[str, Timing]:
    """Run every case in turn, so many times over, each time in another order.

    A short case runs twice and counts the second time: alone, it would follow a run of its own, and not find the cache
    full of another's rows or the second core asleep.
    """
    timings = {name: Timing() for name in cases}
    rng = random.Random(0)
    short = dict.fromkeys(cases, False)
    for turn in range(warm + repeats):
        for name, case in rng.sample(list(cases.items()), len(cases)):
            if short[name]:
                case()
            wall, cpu = time.perf_counter(), time.process_time()
            case()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            short[name] = wall < SHORT
            if turn >= warm:
                timings[name].wall.append(wall)
                timings[name].cpu.append(cpu)
    return timings


def gemm_rate(workers: int, dtype: torch.dtype = torch.float32) -> float:
    """Floating-point operations a second in large matrix products, one thread in each of so many workers; the best."""
    a = torch.randn(SIDE, SIDE, dtype=dtype)

    def work() -> None:
        with threads(1):
            a @ a

    best = float("inf")
    for _ in range(4):
        crew = [threading.Thread(target=work) for _ in range(workers)]
        began = time.perf_counter()
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        best = min(best, time.perf_counter() - began)
    return workers * 2 * SIDE**3 / best


def peak_bytes(case: Callable[[], object]) -> int | None:
    """By how much resident memory rises above its level before, at the worst; None where the system cannot tell."""
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not os.access(clear, os.W_OK):
        return None
    gc.collect()
    before = _resident(status, "VmRSS")
    clear.write_text("5")  # forget the peak so far
    case()
    return max(0, _resident(status, "VmHWM") - before)


def _resident(status: Path, name: str) -> int:
    (line,) = (line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
