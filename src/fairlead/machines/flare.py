"""Studies on NVFlare, through its Collab API: the coordinator calls a function of each site.

A site says in `local/fairlead.json` of its own kit where its rows lie and where it keeps what is its own:
{"data": "PATH", "folder": "PATH"}. Needs the extra `fairlead[nvflare]`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import SimEnv

from fairlead.core import InputError, require
from fairlead.core.errors import quoted
from fairlead.core.files import private_folder
from fairlead.machines.conduct import Question, conduct
from fairlead.machines.site import VERDICT, Site
from fairlead.machines.study import Study
from fairlead.machines.waits import Patience, Waits

logger = logging.getLogger(__name__)

LOCAL = "fairlead.json"
POLL_SECONDS = 0.02


class Coordinator:
    """The server's object: conducts the study."""

    def __init__(self, study: dict[str, Any], out: str, most: float = 600.0, grace: float = 20.0) -> None:
        self.study, self.out, self.most, self.grace = study, out, most, grace

    @collab.main
    def run(self) -> None:
        """Conduct the study; the results are in its folder."""
        study, out = Study.from_json(self.study), Path(self.out)
        require(out.is_absolute(), f"out must be the full path of a folder on the server's machine, got '{out}'")
        private_folder(out)
        there = {proxy.name: proxy for proxy in collab.clients}
        missing = [site for site in study.sites if site not in there]
        require(not missing, f"the study's sites {', '.join(missing)} are not connected; there are: {', '.join(there)}")
        conduct(study, Calls([there[site] for site in study.sites], Waits(self.most, self.grace)), out)


class Calls:
    """Carries questions by calls, one for each site at a time."""

    def __init__(self, sites: list[Any], waits: Waits) -> None:
        self._sites, self._patience = sites, Patience(waits)
        self._threads = ThreadPoolExecutor(4 * len(sites))  # a call that hangs until its timeout keeps one

    def __call__(self, questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
        """Ask these sites; `patient` waits for all of them as long as may be."""
        began = time.monotonic()
        calls = {k: self._threads.submit(self._call, k, question) for k, question in questions.items()}
        took: dict[int, float] = {}
        answers: dict[int, bytes | str] = {}
        waiting = dict(calls)
        while waiting:
            wait(waiting.values(), timeout=POLL_SECONDS)
            now = time.monotonic() - began
            for k in [k for k, call in waiting.items() if call.done()]:
                answers[k], took[k] = _result(waiting.pop(k)), now
            most = self._patience.waits.most
            if all(now > (most if patient else self._patience.deadline(k, questions, took)) for k in waiting):
                break
        self._patience.learn(questions, {k: took[k] for k, answer in answers.items() if isinstance(answer, bytes)})
        return answers

    def _call(self, site: int, question: Question) -> bytes:
        return bytes(self._sites[site](timeout=self._patience.waits.most).ask(*question))


def _result(call: Future[bytes]) -> bytes | str:
    error = call.exception()
    if error is None:
        return call.result()
    return f"answer is an error: {type(error).__name__}: {quoted((str(error).splitlines() or [''])[0])}"


class SiteCalls:
    """A client's object: answers for the site whose kit it runs in."""

    def __init__(self, sites: dict[str, dict[str, str]] | None = None) -> None:
        self.sites = sites or {}  # for a simulation alone: where each site's rows and its folder are
        self._site: Site | None = None

    @collab.publish
    def ask(self, question: str, data: bytes) -> bytes:
        """This site's answer to a question of the coordinator."""
        if self._site is None:
            name = str(collab.site_name)
            where = self.sites.get(name) or local_file()
            self._site = Site(name, where["data"], Path(where["folder"]))
        return self._site.answer(question, bytes(data))


def local_file() -> dict[str, str]:
    """What the site itself says, in its own kit."""
    path = Path(collab.workspace.get_site_config_dir()) / LOCAL
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {key: str(found[key]) for key in ("data", "folder")}
    except (OSError, ValueError, KeyError) as error:
        expected = '{"data": "PATH", "folder": "PATH"}'
        raise InputError(f"{path} must say where the rows of this site are: {expected} ({error})") from error


def recipe(study: Study, out: Path, sites: dict[str, dict[str, str]] | None = None) -> CollabRecipe:
    """A study as a job of NVFlare; `sites` is for a simulation, elsewhere each site says where its rows are."""
    plain = json.loads(json.dumps(study.to_json()))
    return CollabRecipe(
        job_name=study.name,
        server=Coordinator(plain, str(out)),
        client=SiteCalls(sites),
        min_clients=len(study.sites),
    )


def simulate(study: Study, data: dict[str, Path], out: Path) -> dict[str, str]:
    """Run a study in NVFlare's simulator, on this machine; what each site is told, by its name."""
    out = private_folder(out.resolve())
    where = {site: {"data": str(data[site]), "folder": str(out / "sites" / site)} for site in study.sites}
    env = SimEnv(clients=list(study.sites), workspace_root=str(out / "nvflare"))
    recipe(study, out, where).execute(env)
    if not (out / "results.json").exists():
        raise InputError(f"the study ended without results; see the logs in {out / 'nvflare'}")
    told = {site: out / "sites" / site / study.name / VERDICT for site in study.sites}
    return {site: path.read_text(encoding="utf-8") if path.exists() else "" for site, path in told.items()}


def export(study: Study, folder: Path, out: Path) -> None:
    """Write a study as a job folder, to be submitted to a provisioned federation."""
    recipe(study, out).export(str(folder))
