"""The rest of the process, which is the caller's."""

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unchanged() -> Iterator[None]:
    """Put back what imports within this block change: Python's random numbers, warning filters and the environment.

    Other packages draw names for styles, silence warnings and set variables for OpenMP when they are first imported.
    """
    drawn, surroundings = random.getstate(), dict(os.environ)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        random.setstate(drawn)
        for name in os.environ.keys() - surroundings.keys():
            del os.environ[name]
