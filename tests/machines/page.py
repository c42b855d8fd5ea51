"""The commands of docs/from-laptop-to-hospitals.md, as they stand there but for the ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from sites import without_ray

from fairlead.machines.places import free_port
from fairlead.runs.files import read_json

PAGE = Path(__file__).parents[2] / "docs" / "from-laptop-to-hospitals.md"
TRY_OUT, BETWEEN = "2. A try-out with a process for each hospital", "3. Between machines"
READY = """
python - <<'PY'
import ssl, time, urllib.request
trusted = ssl.create_default_context(cafile="keys/ca.pem")
end = time.monotonic() + 300
while True:
    try:
        urllib.request.urlopen("https://127.0.0.1:8443/health", context=trusted, timeout=30)
        break
    except OSError:
        assert time.monotonic() < end, "the SuperLink did not start"
        time.sleep(0.3)
PY
"""


def blocks() -> list[tuple[str, str]]:
    """The page's sections and their commands, in order."""
    found = []
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        for language, block in re.findall(r"^```(sh|python)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
            text = block if language == "sh" else f"python - <<'PY'\n{block}PY\n"
            found.append((section.splitlines()[0], text))
    return found


def run(commands: list[str], folder: Path) -> str:
    """Run them one after another in a folder; whoever types them waits until the SuperLink is there."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for command in commands:
        lines += [command, READY] if "flower-superlink" in command else [command]
    text = "\n".join(lines)
    ports = {port: str(free_port()) for port in ("8443", "9101", "9102", "9103", "9104")}
    text = re.sub(rf"\b({'|'.join(ports)})\b", lambda found: ports[found[0]], text)
    (folder / "page.sh").write_text(text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {"FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    with (folder / "said.txt").open("wb") as said:
        running = subprocess.Popen(
            ["bash", "page.sh"],
            cwd=folder,
            env={**without_ray(), **quiet, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            code = running.wait(1800)
        finally:  # whatever is left of them
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            for worker in folder.glob("state/*/worker.json"):
                with suppress(ProcessLookupError):
                    os.kill(read_json(worker)["pid"], signal.SIGTERM)
    found = (folder / "said.txt").read_text(errors="replace")
    assert code == 0, found[-3000:]
    return found
