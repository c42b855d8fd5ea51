"""A site of the study, on the SuperNode's side: hands each message to the worker that stays at the site.

Flower starts a process for every message. It imports nothing large, since the worker has it all: the library, the
site's rows and its models. Node config: `client` (the site's name), `data` (its table or folder) and `state-dir` (a
folder of its own, which holds its states, models and verdict).
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
START_SECONDS = 300.0  # on a busy machine a worker may need a minute or two for its imports


@app.train()
def answer(message: Message, context: Context) -> Message:
    """The worker's answer to a question of the coordinator."""
    question = str(message.content["question"]["text"])
    data = message.content["data"].to_numpy_ndarrays()[0].tobytes() if "data" in message.content else b""
    found = ask(context.node_config, question, data)
    return Message(RecordDict({"answer": ArrayRecord([np.frombuffer(found, np.uint8)])}), reply_to=message)


def ask(node: Mapping[str, Any], question: str, data: bytes) -> bytes:
    """Ask this site's worker; start one where there is none."""
    for key in ("client", "data", "state-dir"):
        if key not in node:
            raise ValueError(f'--node-config has no {key}; expected client="NAME" data="PATH" state-dir="FOLDER"')
    folder = Path(str(node["state-dir"])).resolve()
    about = json.dumps([str(node["client"]), str(node["data"]), question]).encode()
    end, started = time.monotonic() + START_SECONDS, None
    while True:
        try:
            told = json.loads((folder / "worker.json").read_text())
            with Client(told["address"], authkey=bytes.fromhex(told["key"])) as worker:
                worker.send_bytes(about)
                worker.send_bytes(data)
                return worker.recv_bytes()
        except (OSError, EOFError, ValueError, AuthenticationError):  # none there, or it has just ended
            if time.monotonic() > end:
                raise
        started = started or start(folder)
        if started.poll():
            said = (folder / "worker.log").read_text(errors="replace").strip().splitlines()
            raise RuntimeError(f"the worker of this site does not start: {said[-1] if said else started.returncode}")
        if started.poll() == 0:  # another worker is at it, or was: it may have ended just now
            started = None
        time.sleep(0.1)


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """Start the worker, which outlives this process."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "worker.log").open("ab") as log:
        command = [sys.executable, "-m", "fairlead.machines.worker", str(folder)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
