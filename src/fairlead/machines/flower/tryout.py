"""A whole federation on this machine: a SuperLink and a SuperNode for each site, on loopback, then the app's study."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from ssl import create_default_context
from tempfile import mkdtemp
from types import TracebackType

from fairlead.core import EngineError, require
from fairlead.core.files import private_folder
from fairlead.machines.flower import warm
from fairlead.machines.flower.keys import write_certificates, write_key
from fairlead.machines.flower.write import read_config
from fairlead.machines.places import HOST, data_of, free_port
from fairlead.machines.site import VERDICT
from fairlead.machines.study import Study
from fairlead.runs.files import last_round, read_json

START_SECONDS = 300.0  # a SuperLink on a busy machine; one that has ended is not waited for
FLWR_SECONDS = 300.0
SAY_SECONDS = 10.0
ASK_SECONDS = 10.0


def try_out(app: Path, data: Path, out: Path, *, insecure: bool, say: Callable[[str], None]) -> dict[str, str]:
    """Run an app's study with every site on this machine; what each site is told, by its name."""
    study = Study.from_config(read_config(app))
    where = {site: data_of(data, site) for site in study.sites}
    with Tryout(out, insecure=insecure) as tried:
        say(f"SuperLink at {HOST}:{tried.port}, {'without TLS' if insecure else 'TLS and node authentication'}")
        for site in study.sites:
            tried.add(site, where[site])
        say(f"{len(study.sites)} SuperNodes: {', '.join(study.sites)}")
        tried.run(app)
        tried.wait(study, say)
        return {site: tried.verdict(site, study) for site in study.sites}


class Tryout:
    """The processes of a federation on this machine; they end with the `with` block."""

    def __init__(self, out: Path, *, insecure: bool) -> None:
        self.out, self.insecure = out.resolve(), insecure
        self.home = self.out / "flower"
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ran, self._before = "", 0  # Flower's number of the run, and when results were written before it

    def __enter__(self) -> Tryout:
        require((_bin() / "flower-superlink").exists(), "Flower is not installed here; pip install 'fairlead[flower]'")
        private_folder(self.out)
        self.home.mkdir(exist_ok=True, mode=0o700)
        trust = "insecure = true"
        if not self.insecure:
            write_certificates(self.home, [HOST, "localhost"])
            trust = f"root-certificates = {json.dumps(str(self.home / 'ca.pem'))}"
        address = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{HOST}:{self.port}"\n'
        (self.home / "config.toml").write_text(f"{address}{trust}\n")
        self._short = Path(mkdtemp(prefix="fairlead-"))  # the path of a socket has 100 characters at most
        try:
            self.warm()
            self.link()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def warm(self) -> None:
        """Start the process that answers messages in place of one that is started for each, with all its imports."""
        if sys.platform != "linux":
            return  # elsewhere a forked process may not ask the system for its proxies, as Flower's does
        address = self._short / "messages"
        warm.write_command(self.home / "bin", address)
        self.start("messages", [sys.executable, warm.__file__, str(address)])

    def link(self) -> None:
        """Start the SuperLink."""
        tls = ["--insecure"]
        if not self.insecure:
            tls = ["--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
            tls = [str(self.home / part) if part.endswith((".pem", ".key")) else part for part in tls]
            tls.append("--enable-supernode-auth")
        own = ["--host", HOST, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        self.start("superlink", ["flower-superlink", *tls, *own, "--database", str(self.home / "superlink.db")])
        self._until_healthy()

    def add(self, site: str, data: Path, *, key: bool = True) -> None:
        """Start a site's SuperNode; with a key, register it first."""
        state = self.home / "sites" / site
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        tls = ["--insecure"] if self.insecure else ["--root-certificates", str(self.home / "ca.pem")]
        if key and not self.insecure:
            path = self.home / "keys" / site
            if not path.exists():
                write_key(path)
                self.flwr("supernode", "register", f"{path}.pub", "here")
            tls += ["--auth-supernode-private-key", str(path)]
        config = " ".join(
            f"{k}={json.dumps(str(v))}" for k, v in (("client", site), ("data", data), ("state-dir", state))
        )
        own = ["--superlink", f"{HOST}:{self.port}", "--host", HOST, "--port", str(free_port())]
        self.start(site, ["flower-supernode", *tls, *own, "--node-config", config])

    def run(self, app: Path) -> None:
        """Send the app to the SuperLink, with the study's folder here."""
        changed = [f"out={json.dumps(str(self.out))}", f"insecure={json.dumps(self.insecure)}"]
        self._before = self._written()
        said = self.flwr("run", str(app), "here", "-c", " ".join(changed), "--format", "json")
        self._ran = str(json.loads(said[said.index("{") :])["run-id"])

    def wait(self, study: Study, say: Callable[[str], None], seconds: float = float("inf")) -> None:
        """Until the study has ended, saying now and then how far it is."""
        began = said = asked = time.monotonic()
        while True:
            now = time.monotonic()
            # Each question to Flower is a process of two seconds, so it is asked seldom unless there are results.
            if now - asked > ASK_SECONDS or self._written() != self._before:
                asked, status = now, self.status()
                if status.startswith("finished"):
                    break
            if now - began > seconds:
                raise EngineError(f"the study took more than {seconds:g} seconds; see {self.home}")
            time.sleep(0.5)
            if now - said > SAY_SECONDS:
                said = now
                say(progress_of(self.out, study))
        if status != "finished:completed":
            raise EngineError(f"the study ended with an error: {self._reason()}")

    def _written(self) -> int:
        """When the results were written, 0 where there are none."""
        path = self.out / "results.json"
        return path.stat().st_mtime_ns if path.exists() else 0

    def status(self) -> str:
        """Of the run, in Flower's words; each question takes a second or two."""
        if (self.out / "results.json").exists() and not self._ran:
            return "finished:completed"
        listed = self.flwr("ls", "here", "--run-id", self._ran, "--format", "json")
        return str(json.loads(listed[listed.index("{") :])["runs"][0]["status"])

    def verdict(self, site: str, study: Study) -> str:
        """What a site is told, from its own folder."""
        path = self.home / "sites" / site / study.name / VERDICT
        return path.read_text(encoding="utf-8") if path.exists() else f"{site} has no verdict; see results.json\n"

    def flwr(self, *words: str) -> str:
        """A `flwr` command; its output."""
        command = [str(_bin() / "flwr"), *words]
        try:
            done = subprocess.run(command, env=self._env(), capture_output=True, text=True, timeout=FLWR_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"flwr {words[0]} took more than {FLWR_SECONDS:g} seconds; see {self.home}") from error
        if done.returncode != 0:
            raise EngineError(f"flwr {words[0]} failed: {(done.stderr + done.stdout).strip()}")
        return done.stdout

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process, its output in a file."""
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [_bin() / command[0], *command[1:]],
                env=self._env(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a process and what it started; with SIGKILL at once."""
        process = self.processes.pop(name)
        if how is not signal.SIGKILL:
            process.send_signal(how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End everything, the sites' workers too."""
        for name in list(self.processes)[::-1]:
            self.end(name)
        for told in self.home.glob("sites/*/worker.json"):
            with suppress(ProcessLookupError):
                os.kill(int(read_json(told)["pid"]), signal.SIGTERM)
            told.unlink(missing_ok=True)
        shutil.rmtree(self._short, ignore_errors=True)

    def _reason(self) -> str:
        said = self.flwr("log", self._ran, "here", "--show").strip().splitlines()
        errors = [line for line in said if "Error" in line]
        return (errors or said or ["nothing was logged"])[-1].strip()

    def _env(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.home / "bin"), str(_bin()), os.environ.get("PATH", "")])
        own = {"FLWR_HOME": str(self.home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        return {**os.environ, **own, "PATH": path}

    def _until_healthy(self) -> None:
        url = f"http{'' if self.insecure else 's'}://{HOST}:{self.port}/health"
        context = None if self.insecure else create_default_context(cafile=str(self.home / "ca.pem"))
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.processes["superlink"].poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=2, context=context):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise EngineError(f"the SuperLink did not start; see {self.home / 'superlink.log'}")


def progress_of(out: Path, study: Study) -> str:
    """How far a study is, in words."""
    rounds = {run.name: study.rounds(run) for run in study.runs} if study.effort is None else {}
    tables = sorted((out / "runs").glob("*/rounds.parquet"), key=lambda p: p.stat().st_mtime)
    done = [(path.parent.name, last_round(path)) for path in tables]
    if not done:
        return "the sites agree on columns and classes"
    name, round = done[-1]
    if not rounds:  # they are searched for
        return f"{name}: round {round}"
    finished = sum(round >= rounds[name] for name, round in done)
    return f"{name}: round {round} of {rounds[name]}; {finished} of {len(rounds)} trainings done"


def _bin() -> Path:
    return Path(sys.executable).parent
