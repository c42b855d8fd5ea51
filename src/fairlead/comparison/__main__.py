"""A process that trains for a comparison that another process has begun; see `beside`.

python -m fairlead.comparison FOLDER
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import torch

from fairlead.clients import engine
from fairlead.comparison.asked import Asked, seeds_of
from fairlead.comparison.assess import crossings, pieces
from fairlead.comparison.beside import from_the_other_end, on_one_core, take
from fairlead.comparison.compare import bench_of, folds_of, metric_of
from fairlead.core import FairleadError
from fairlead.runs.files import read_object
from fairlead.settings import Experiment


def leave_with_parent() -> None:
    """End when the other process does: its end of the pipe closes then, however it ended."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(0)


def main(folder: Path) -> None:
    """Make the pieces of the comparison, the last one first."""
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    plan = read_object(folder / "settings.json")
    experiment = Experiment.from_json(plan["experiment"], folder / "settings.json")
    asked = Asked(plan["methods"], experiment, seeds_of(plan["seeds"]), None, None)
    source = experiment.scenario.load(experiment.data_dir)
    folds = folds_of(experiment, source, asked.seeds[0])
    bench = on_one_core(bench_of(asked, folds, folder, engine(experiment.engine), lambda name, rounds: None))
    metric = metric_of(asked, folds[0].chooses)[0]
    with suppress(FairleadError):  # the other process comes to the same place and says what is wrong
        for todo in (pieces(bench, folds, metric), crossings(bench, folds, metric)):
            take(from_the_other_end(todo), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
