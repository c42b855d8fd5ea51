"""The torture of `python -m benchmarks.torture`, in short: broken inputs of every kind end well or in a sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import fuzz
from benchmarks.torture import try_one


@pytest.fixture(scope="module", autouse=True)
def template(tmp_path_factory: pytest.TempPathFactory) -> None:
    fuzz.TEMPLATE = tmp_path_factory.mktemp("template")
    fuzz.make_template()


@pytest.mark.parametrize("case", fuzz.CASES, ids=lambda case: case.__name__)
def test_broken_input_is_one_sentence(case: Callable[..., None], tmp_path: Path) -> None:
    found = {try_one(case, f"{case.__name__}-{i}", tmp_path) for i in range(5)}
    assert found <= {"fine", "sentence"}, found
