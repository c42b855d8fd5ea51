"""Where the data of sites lie and where they listen, when all of them are tried on one machine."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir

from filelock import FileLock

from fairlead.core import DataError
from fairlead.data.files import is_table

HOST = "127.0.0.1"
KEPT_PORTS: list[FileLock] = []  # of this process, while it lives


def data_of(folder: Path, site: str) -> Path:
    """A site's data in a folder of all sites': FOLDER/SITE.csv or another table, or FOLDER/SITE/."""
    found = [p for p in sorted(folder.glob(f"{site}.*")) if is_table(p)] + [p for p in [folder / site] if p.is_dir()]
    if len(found) != 1:
        what = " and ".join(p.name for p in found) or "nothing"
        raise DataError(f"{folder} has {what} for the site '{site}'; expected one table {site}.csv, or a folder {site}")
    return found[0].resolve()


def free_port() -> int:
    """A port of loopback at which nobody listens, and which no other process of Fairlead is given.

    It is taken a while later, so it is none of those that systems give to connections (32768 and above), and this
    process keeps a lock on it.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        lock = FileLock(Path(gettempdir()) / f"fairlead-port-{port}.lock", timeout=0)
        with socket.socket() as tried, suppress(OSError):  # a lock that somebody holds is one, too: Timeout
            lock.acquire()
            KEPT_PORTS.append(lock)
            tried.bind((HOST, port))
            return port
