"""Every command of docs/from-laptop-to-hospitals.md, as it stands there but for the ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

for package in ("flwr", "nvflare", "ray"):
    pytest.importorskip(package, reason=f"{package} is not installed; `make test-machines` installs and tests it")

from fairlead.machines.flower.tryout import free_port
from fairlead.runs.files import read_json

PAGE = Path(__file__).parents[2] / "docs" / "from-laptop-to-hospitals.md"
READY = """
python - <<'PY'
import ssl, time, urllib.request
trusted = ssl.create_default_context(cafile="keys/ca.pem")
for _ in range(300):
    try:
        urllib.request.urlopen("https://127.0.0.1:8443/health", context=trusted)
        break
    except OSError:
        time.sleep(0.3)
PY
"""


def script() -> str:
    """The page's blocks one after another; whoever types them waits until the SuperLink is there."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null' EXIT"]
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        lines.append(block if language == "sh" else f"python - <<'PY'\n{block}PY\n")
        if "flower-superlink" in block:
            lines.append(READY)
    text = "\n".join(lines)
    for port in ("8443", "9101", "9102", "9103", "9104"):
        text = text.replace(port, str(free_port()))
    return text


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {"FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    (tmp_path / "page.sh").write_text(script())
    with (tmp_path / "said.txt").open("wb") as said:
        done = subprocess.run(
            ["bash", "page.sh"],
            cwd=tmp_path,
            env={**os.environ, **quiet, "PATH": path},
            stdout=said,
            stderr=said,
            timeout=1800,
            check=False,
        )
    text = (tmp_path / "said.txt").read_text(errors="replace")
    assert done.returncode == 0, text[-3000:]
    for worker in tmp_path.glob("state/*/worker.json"):
        os.kill(read_json(worker)["pid"], 9)
    tried, between, other = (read_json(tmp_path / "runs" / x / "results.json") for x in ("tryout", "study", "nvflare"))
    for run in ("local-seed0", "fedrep+confree-seed0"):
        assert tried["runs"][run]["scores"] == between["runs"][run]["scores"] == other["runs"][run]["scores"]
    verdict = next(tmp_path.glob("state/cleveland/study-*/verdict.txt")).read_text()
    assert "cleveland" in verdict
    assert verdict in text
    assert len(pd.read_csv(tmp_path / "predictions.csv")) == len(pd.read_csv(tmp_path / "sites" / "cleveland.csv"))
    assert (tmp_path / "job").is_dir()
    assert (tmp_path / "runs" / "ray" / "summary.json").exists()
