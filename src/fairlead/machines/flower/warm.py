"""Flower's command `flwr-clientapp` without its imports: a process that has made them forks for each message.

A SuperNode starts that command, found by PATH, for every message, and the imports take more than a second of a core.
`write_command` makes a folder to stand before PATH, whose command hands its words to the process that `serve` is. Where
that cannot be reached, Flower's own command runs.

The file is run by its path, since Fairlead's other imports take longer than Flower's.
"""

import gc
import os
import shlex
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

COMMAND = "flwr-clientapp"


def write_command(folder: Path, address: Path) -> None:
    """FOLDER/flwr-clientapp, for the process that serves at this address, a file."""
    own = Path(sys.executable).parent / COMMAND
    words = [sys.executable, "-IS", __file__, str(address), str(own)]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = folder / COMMAND
    command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    command.chmod(0o700)


def serve(address: str) -> None:
    """Run the command that Flower's package names, in a process of its own for each that asks."""
    (found,) = entry_points(group="console_scripts", name=COMMAND)
    command = found.load()
    with suppress(ImportError):
        import_module("httpcore")  # what Flower sends with, which is imported when it is first used
    gc.freeze()  # so that looking for garbage does not copy what the processes share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for these processes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        while True:
            asking, _ = listener.accept()
            with asking:
                words, outputs, *_ = socket.recv_fds(asking, 65_536, 2)
                if not outputs:
                    continue  # it asked nothing
                if os.fork() == 0:
                    break
                for one in outputs:
                    os.close(one)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for own, one in enumerate(outputs, 1):
        os.dup2(one, own)
        os.close(one)
    sys.argv = [COMMAND, *words.decode().split("\0")]
    with suppress(SystemExit):  # nobody asks for its code
        command()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # to tidy up modules would copy what the processes share


def ask(address: str, own: str, words: list[str]) -> None:
    """Hand words and outputs to the process that serves; else run Flower's own command."""
    try:
        with socket.socket(socket.AF_UNIX) as serving:
            serving.connect(address)
            socket.send_fds(serving, ["\0".join(words).encode()], [1, 2])
    except OSError:
        os.execv(own, [own, *words])


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        ask(sys.argv[1], sys.argv[2], sys.argv[3:])
