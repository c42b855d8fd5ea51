"""Tiny problems, for which a second thread is only in the way."""

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """One thread for the servers' products, as the engines' workers have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
