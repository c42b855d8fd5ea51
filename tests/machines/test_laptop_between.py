"""The page from the laptop to the hospitals: the study between machines."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; `make test-machines` installs and tests it")

from page import BETWEEN, TRY_OUT, blocks, run
from test_study import in_one_place

from fairlead.machines.flower.write import read_config
from fairlead.machines.study import Study
from fairlead.runs.files import read_json


def test_every_command_between_machines_works(tmp_path: Path) -> None:
    prepared = [
        re.sub(r"(?m)^fairlead flower run .*$", "", command) for section, command in blocks() if section == TRY_OUT
    ]
    between = [command for section, command in blocks() if section == BETWEEN]
    assert between
    text = run(prepared + between, tmp_path)
    study, results = Study.from_config(read_config(tmp_path / "study")), read_json(tmp_path / "runs/study/results.json")
    for method in ("local", "fedrep+confree"):
        scores = results["runs"][f"{method}-seed0"]["scores"]["accuracy"]
        wanted = in_one_place(study, tmp_path / "sites", method)
        assert [scores[site] for site in study.sites] == pytest.approx(wanted, abs=1e-4)
    verdict = next(tmp_path.glob("state/cleveland/study-*/verdict.txt")).read_text()
    assert "cleveland" in verdict
    assert verdict in text
    assert len(pd.read_csv(tmp_path / "predictions.csv")) == len(pd.read_csv(tmp_path / "sites" / "cleveland.csv"))
