"""What happens before the first round: start-up and partitioning."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.measure import interleaved
from benchmarks.sections.rows import Options, Row
from benchmarks.workloads import CLASSES
from fairlead.data import partition


def startup(options: Options) -> Iterator[Row]:
    """From the shell's point of view: the library's import and the first screen of help, against importing torch."""
    commands = {
        "import torch": ["-c", "import torch"],
        "import fairlead": ["-c", "import fairlead"],
        "fairlead --help": ["-m", "fairlead", "--help"],
    }
    cases = {
        name: (
            lambda arguments=arguments: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        )
        for name, arguments in commands.items()
    }
    timings = interleaved(cases, options.repeats)
    for name in list(commands)[1:]:
        t = timings[name]
        yield Row("start-up", name, t.seconds, t.times_as_fast_as(timings["import torch"]), "import torch")


def partitioning(options: Options) -> Iterator[Row]:
    """60,000 samples of ten classes to 1,000 clients, against a plain shuffle cut into as many sorted pieces."""
    n, clients = 60_000, 1_000
    labels = np.random.default_rng(0).integers(CLASSES, size=n)
    cases: dict[str, Callable[[], object]] = {
        "shuffle": lambda: [np.sort(p) for p in np.array_split(np.random.default_rng(0).permutation(n), clients)],
        "iid": lambda: partition.iid(n, clients, np.random.default_rng(0)),
        "dirichlet 0.1": lambda: partition.dirichlet(labels, clients, np.random.default_rng(0), beta=0.1),
        "pathological 2": lambda: partition.pathological(labels, clients, np.random.default_rng(0), k=2),
    }
    timings = interleaved(cases, options.repeats)
    for name in list(cases)[1:]:
        t = timings[name]
        yield Row("partition", name, t.seconds, t.times_as_fast_as(timings["shuffle"]), "plain shuffle")
