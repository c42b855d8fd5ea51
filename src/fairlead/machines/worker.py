"""A process that stays at a site and answers questions, so that nothing is imported and read anew for each of them.

`python -m fairlead.machines.worker FOLDER` writes where it listens to FOLDER/worker.json and ends when nothing was
asked for `IDLE` seconds. It keeps nothing that is not in the folder as well: to end it at any time harms nothing.
Whoever can read the folder (its owner alone, mode 0700) can ask; nothing that comes is unpickled.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from filelock import FileLock, Timeout

from fairlead.machines.site import Site

logger = logging.getLogger(__name__)

IDLE = 900.0  # seconds without a question, after which the worker ends
LISTENS = "worker.json"


def serve(folder: Path, idle: float = IDLE) -> None:
    """Answer questions until none has come for a while; nothing is done where another worker is at it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)
    os.umask(0o077)
    try:
        key = secrets.token_bytes(32)
        with FileLock(folder / "worker.lock", timeout=0), Listener(authkey=key) as listener:
            told = {"address": listener.address, "key": key.hex(), "pid": os.getpid()}
            written = folder / f".{LISTENS}.partial"
            written.write_text(json.dumps(told))
            os.replace(written, folder / LISTENS)
            try:
                _answer(listener, folder, idle)
            finally:
                (folder / LISTENS).unlink(missing_ok=True)  # its number may soon be another process's
    except Timeout:
        logger.info("another worker is at %s", folder)


def _answer(listener: Listener, folder: Path, idle: float) -> None:
    sites: dict[tuple[str, str], Site] = {}
    last = [time.monotonic()]
    threading.Thread(target=_end_when_idle, args=(last, idle, folder), daemon=True).start()
    while True:
        try:
            with listener.accept() as asking:
                last[0] = float("inf")  # at work
                _answer_one(asking, sites, folder)
        except (OSError, EOFError, ValueError, AuthenticationError) as error:  # the asker is gone, or has not the key
            logger.warning("a question was not answered: %s", error)
        finally:
            last[0] = time.monotonic()


def _answer_one(asking: Connection, sites: dict[tuple[str, str], Site], folder: Path) -> None:
    site, data, question = json.loads(asking.recv_bytes())
    message = asking.recv_bytes()
    if (site, data) not in sites:
        sites[site, data] = Site(site, data, folder)
    asking.send_bytes(sites[site, data].answer(question, message))


def _end_when_idle(last: list[float], idle: float, folder: Path) -> None:
    while time.monotonic() - last[0] < idle and folder.is_dir():
        time.sleep(min(1.0, idle / 10))
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # leaves no socket behind
    serve(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else IDLE)
