"""The page from the laptop to the hospitals: all commands but those of the study between machines, which
`test_laptop_between.py` runs beside this.
"""

from __future__ import annotations

from pathlib import Path

import pytest

for package in ("flwr", "nvflare", "ray"):
    pytest.importorskip(package, reason=f"{package} is not installed; `make test-machines` installs and tests it")

from page import BETWEEN, blocks, run

from fairlead.runs.files import read_json


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    run([command for section, command in blocks() if section != BETWEEN], tmp_path)
    tried, other = (read_json(tmp_path / "runs" / x / "results.json") for x in ("tryout", "nvflare"))
    for name in ("local-seed0", "fedrep+confree-seed0"):
        assert tried["runs"][name]["scores"] == other["runs"][name]["scores"]
    assert (tmp_path / "job").is_dir()
    assert (tmp_path / "runs" / "ray" / "summary.json").exists()
