"""Sites with real rows, each in a file or folder of its own: heart disease by hospital, and digits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from fairlead.data import load
from fairlead.data.sources import files_of
from fairlead.machines import Study
from fairlead.runs.files import last_round

MOST_SECONDS = 1800.0  # that a study with Flower may take on a busy machine
SETTINGS = {"label": "disease", "rounds": 4, "evaluate_every": 2, "lr": 0.05, "model": "mlp"}


def write_sites(folder: Path, most: int = 150) -> list[str]:
    """FOLDER/HOSPITAL.csv for each hospital, with some of its rows; their names."""
    (file,) = files_of("heart-disease")
    table = pd.read_csv(file)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name, rows in table.groupby("hospital"):
        some = rows.sample(min(most, len(rows)), random_state=0)
        some.drop(columns="hospital").to_csv(folder / f"{name}.csv", index=False)
        names.append(str(name))
    return sorted(names)


def three_sites(folder: Path) -> Path:
    """The folder, with the files of three hospitals."""
    (folder / f"{write_sites(folder)[-1]}.csv").unlink()
    return folder


def write_images(folder: Path, **classes: str) -> list[str]:
    """FOLDER/SITE/CLASS/ with images of digits for each site, which has these digits; the sites' names."""
    digits = load("digits")
    for site, own in classes.items():
        for i in range(120):
            if (name := str(int(digits.y[i]))) in own:
                path = folder / site / name / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray((digits.raw[i, 0] * 255).byte().numpy()).save(path)
    return sorted(classes)


def until(what: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.3)


def rounds_done(out: Path, run: str) -> int:
    return last_round(out / "runs" / run / "rounds.parquet")


def started(tried: Any, study: Study, data: Path) -> None:
    for site in study.sites:
        tried.add(site, data / f"{site}.csv")


def without_ray() -> dict[str, str]:
    """The environment without what `tests/conftest.py` tells Ray: as a user has it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
