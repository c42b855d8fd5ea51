"""The same study on NVFlare: in its simulator, and between provisioned kits on loopback, whose traffic is looked at."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sites import SETTINGS, write_sites
from test_study import in_one_place

pytest.importorskip("nvflare", reason="NVFlare is not installed; `make test-machines` installs and tests it")

from fairlead.machines.places import free_port
from fairlead.machines.study import Study
from fairlead.runs.files import read_json

METHODS = ("fedrep+confree", "fedora")
SECONDS = 1800.0  # that anything here may take on a busy machine
PROJECT = """\
api_version: 3
name: study
participants:
  - {{name: localhost, type: server, org: study, fed_learn_port: {port}}}
{sites}
  - {{name: lead@study.org, type: admin, org: study, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_sites(tmp_path / "data")
    (tmp_path / "data" / "va.csv").unlink()
    return tmp_path / "data"


def env() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def python(*words: str, cwd: Path, seconds: float = SECONDS) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=env(), capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def words_of(study: Study) -> list[str]:
    chosen = [word for key, value in SETTINGS.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return [*study.methods, "--sites", ",".join(study.sites), *chosen]


def check(study: Study, data: Path, out: Path, sites: Path) -> None:
    results = read_json(out / "results.json")
    for method in ("local", *study.methods):
        there = results["runs"][f"{method}-seed0"]["scores"]["accuracy"]
        assert [there[site] for site in study.sites] == pytest.approx(in_one_place(study, data, method), abs=1e-4)
        assert results["runs"][f"{method}-seed0"]["events"] == []
    assert results["unjudged"] == {}
    for site in study.sites:
        text = (sites / site / study.name / "verdict.txt").read_text()
        assert not any(other in text for other in study.sites if other != site)


def a_study(data: Path) -> Study:
    settings = {key: str(value) for key, value in SETTINGS.items()}
    return Study(tuple(p.stem for p in data.glob("*.csv")), METHODS, settings)


def test_the_simulator_gives_the_numbers_of_one_process(data: Path, tmp_path: Path) -> None:
    study = a_study(data)
    out = tmp_path / "out"
    said = python(
        "-m", "fairlead", "nvflare", "run", *words_of(study), "--data", str(data), "--out", str(out), cwd=tmp_path
    )
    check(study, data, out, out / "sites")
    assert all(f"[{site}]" in said for site in study.sites)


class Listener(threading.Thread):
    """Reads what goes over loopback to and from a port."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
        self.packets.bind(("lo", 0))
        self.port, self.seen = port.to_bytes(2, "big"), bytearray()

    def run(self) -> None:
        while True:
            packet = self.packets.recv(70_000)
            tcp = 14 + 4 * (packet[14] & 15)
            if (
                packet[12:14] == b"\x08\x00"
                and packet[23] == 6
                and self.port in (packet[tcp : tcp + 2], packet[tcp + 2 : tcp + 4])
            ):
                self.seen += packet[tcp + 4 * (packet[tcp + 12] >> 4) :]


@contextmanager
def running(kits: list[Path]) -> Iterator[None]:
    """Each kit's processes, started as a site would."""
    started = []
    try:
        for kit in kits:
            with (kit / "said.txt").open("wb") as said:
                started.append(
                    subprocess.Popen(
                        ["bash", "startup/sub_start.sh"],
                        cwd=kit,
                        env=env(),
                        stdout=said,
                        stderr=said,
                        start_new_session=True,
                    )
                )
        yield
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


SUBMIT = """\
import json, sys, time
from nvflare.fuel.flare_api.flare_api import new_secure_session

kit, job = sys.argv[1:]
end = time.monotonic() + 600
while True:
    try:
        session = new_secure_session("lead@study.org", kit, timeout=10)
        if len(session.get_system_info().client_info) == 3:
            break
        session.close()
    except Exception as error:
        print("not yet:", error)
    assert time.monotonic() < end, "the sites did not come"
    time.sleep(2)
number = session.submit_job(job)
session.monitor_job(number, timeout=900)
print(session.get_job_status(number))
session.close()
"""


def test_provisioned_kits_give_the_numbers_of_one_process_and_encrypt_them(data: Path, tmp_path: Path) -> None:
    study, port = a_study(data), free_port()
    sites = "\n".join(f"  - {{name: {site}, type: client, org: study}}" for site in study.sites)
    (tmp_path / "project.yml").write_text(PROJECT.format(port=port, sites=sites))
    python("-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "kits", cwd=tmp_path)
    made = tmp_path / "kits" / "study" / "prod_00"
    for site in study.sites:
        where = {"data": str(data / f"{site}.csv"), "folder": str(tmp_path / "sites" / site)}
        (made / site / "local" / "fairlead.json").write_text(json.dumps(where))
    out = tmp_path / "out"
    python("-m", "fairlead", "nvflare", "job", "job", *words_of(study), "--out", str(out), cwd=tmp_path)
    listener = Listener(port)
    listener.start()
    (tmp_path / "submit.py").write_text(SUBMIT)
    with running([made / "localhost", *(made / site for site in study.sites)]):
        job = next(p.parent for p in (tmp_path / "job").rglob("meta.json"))
        said = python("submit.py", str(made / "lead@study.org"), str(job), cwd=tmp_path)
        end = time.monotonic() + 300
        while not (out / "results.json").exists() and time.monotonic() < end:
            time.sleep(0.5)
        listening = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=False).stdout
    assert (out / "results.json").exists(), said
    check(study, data, out, tmp_path / "sites")
    assert len(listener.seen) > 100_000
    assert b"\x16\x03" in listener.seen[:2000]  # a TLS handshake
    assert b"thalach" not in listener.seen  # a column, which sites tell the coordinator
    assert b"cleveland" not in listener.seen
    assert f"0.0.0.0:{port}" not in listening
