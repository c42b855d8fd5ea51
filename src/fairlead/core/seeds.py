"""Randomness as an argument: every draw derives from (run seed, purpose, round, client id).

So every engine, in any order of clients, draws the same numbers, and a resumed run draws what the first would have.
"""

import zlib

import numpy as np


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """An independent generator for one purpose, e.g. `stream(seed, "batches", round, client)`.

    >>> a, b = stream(0, "batches", 1, 7), stream(0, "batches", 1, 7)
    >>> bool((a.permutation(5) == b.permutation(5)).all())
    True
    """
    # crc32 rather than hash(): Python's own string hash differs from process to process.
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(purpose.encode()), *keys]))


def draw_key(seed: int, purpose: str, *keys: int) -> int:
    """One 62-bit number from the stream, for code that wants a seed rather than a generator."""
    return int(stream(seed, purpose, *keys).integers(2**62))
