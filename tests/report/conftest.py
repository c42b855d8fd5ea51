"""A comparison of six methods over twelve clients and three seeds, drawn once."""

from pathlib import Path
from typing import Any

import pytest
from report_folders import make_folder, make_summary


@pytest.fixture
def summary() -> dict[str, Any]:
    return make_summary()


@pytest.fixture
def folder(tmp_path: Path, summary: Any) -> Path:
    return make_folder(tmp_path / "comparison", summary)
