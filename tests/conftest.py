"""The real data where it is at hand; and one thread and process, since two test workers share the cores."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fairlead.comparison import beside

# Ray reads it when it is imported, by whichever file is first: the cluster of two nodes in `machines/test_ray.py`
# listens on all interfaces, and asks everybody for the token.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """One thread for the servers' products, as the engines' workers have: on tiny problems a second is in the way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further processes on a slow machine, where little work takes long."""
    monkeypatch.setattr(beside, "WORTH", float("inf"))


@pytest.fixture
def real_data() -> Path:
    """The folder of real data sets: FAIRLEAD_DATA, or shared/data beside the repository."""
    folder = Path(os.environ.get("FAIRLEAD_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / "mnist").is_dir():
        pytest.skip("no real data: set FAIRLEAD_DATA to a folder that holds mnist/train-*.parquet")
    return folder
