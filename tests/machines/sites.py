"""Sites with real rows, each in a file of its own: the heart disease data by hospital."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fairlead.data.sources import files_of

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
