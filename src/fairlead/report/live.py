"""The page while a run is going: how far each training is, and the validation loss so far; no verdict before the end.

It is made anew from the run folders whenever it is asked for. They are written every 20 seconds and at the end of each
training. Test scores are left out: whoever stops or goes on because of them would choose on test rows.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.core.errors import InputError, RunError
from fairlead.report import parts
from fairlead.report.charts import MOST, Curves, Line, line_of
from fairlead.report.page import NOSCRIPT, page_of_folder, pairs, scenario_name, used
from fairlead.report.read import RECORDS, read_columns
from fairlead.report.tables import NONE, VERDICTS, quantity
from fairlead.runs.files import read_json

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"  # nobody but this machine
SLOW = 10.0  # seconds without a byte, after which a browser is not waited for
HEADERS = {  # of every answer; the page's own policy cannot say who may show it in a frame
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the key is in the address
    "X-Content-Type-Options": "nosniff",
}


class Training(NamedTuple):
    """One training's folder, as far as it has come."""

    place: str  # inside the comparison
    method: str
    rounds: int  # at most
    done: int
    finished: bool
    written: float  # when its records were written last; 0 before
    names: list[str]  # of the owners, once known
    seconds: float
    path: Path

    @property
    def decided(self) -> bool:
        """Whether nothing was trained here: it was decided between models of other trainings."""
        return self.finished and self.done == 0

    @property
    def how_far(self) -> str:
        """The round it has come to."""
        return "decided" if self.decided else f"{self.done} of {self.rounds}"


def live_page(folder: Path, state: str) -> str:
    """The page of a comparison that is not finished."""
    plan = read_plan(folder)
    every = [_training(folder, path) for path in sorted((folder / "runs").rglob("settings.json"))]
    found = [training for training in every if training.method in plan["methods"]]  # standard tools have no rounds
    of = {name: [t for t in found if t.method == name] for name in plan["methods"]}
    latest = {name: sorted((t for t in some if t.written), key=lambda t: -t.written) for name, some in of.items()}
    shown = {name: _drawn(some) for name, some in latest.items()}
    trained = [t for t in found if not t.decided]
    done = sum(t.finished for t in trained)
    said = f"Training goes on: {done} of the {len(trained)} trainings begun so far {'is' if done == 1 else 'are'} done."
    body = [_line(name, of[name], latest[name], shown[name]) for name in of]
    head = ("Method", "Trainings done", "Newest training", "Its round", "Newest validation loss")
    sections = [
        f"<p class='soft'>{escape(scenario_name(_scenario(plan)))}, {time.strftime('%H:%M:%S')}</p>",
        f"<h1>{said} There is no verdict yet.</h1>",
        "<p>This page shows the verdict when all methods are trained, and no test scores before.</p>",
        NOSCRIPT,
        f"{parts.heading('How far')}{parts.table(head, body, 'words')}",
        _every_training(found),
        f"{parts.heading('Validation loss so far')}<p class='soft'>The newest training of each method that keeps "
        "validation rows back; the last ones learn from all rows.</p>",
        "<div data-controls></div><div class='panels' data-chart='curves'></div>",
        f"{parts.heading('What is run')}<div class='side'>{pairs('Scenario', used(_scenario(plan)))}</div>",
    ]
    return parts.page(f"Training: {scenario_name(_scenario(plan))}", sections, _data(plan["methods"], shown, state))


def _every_training(found: list[Training]) -> str:
    """A folded table, the newest first."""
    lines = [
        parts.line([t.place, t.how_far, f"{t.seconds:.1f}", "yes" if t.finished else "no"])
        for t in sorted(found, key=lambda t: -t.written)
    ]
    table = parts.table(("Training", "Round", "Seconds", "Done"), lines, "words")
    return f"<details><summary>Every training</summary>{table}</details>"


def read_plan(folder: Path) -> dict[str, Any]:
    """What a comparison was asked for; `RunError` where the folder holds none."""
    plan: Any = read_json(Path(folder) / "settings.json")
    if not isinstance(plan, dict) or not {"methods", "experiment"} <= plan.keys():
        raise RunError(f"{folder} holds no comparison; expected the folder that `fairlead compare --out` names")
    found: dict[str, Any] = plan
    return found


def _scenario(plan: dict[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = plan["experiment"]
    return {"name": asked.get("name", "custom"), **asked.get("scenario", {})}


def _training(folder: Path, path: Path) -> Training:
    settings, run = read_json(path), path.parent
    records, finished = run / "records.parquet", run / "summary.json"
    parts_written = [part.stat().st_mtime for part in records.glob("*.parquet")]
    rounds = run / "rounds.parquet"  # not there where a guard or a convoy decided between trainings of others
    costs = read_columns(rounds, ("round", "seconds")).to_pydict() if parts_written and rounds.is_dir() else {}
    return Training(
        place=run.relative_to(folder / "runs").as_posix(),
        method=settings["method"],
        rounds=settings["experiment"]["rounds"],
        done=max(costs.get("round", [0]), default=0),
        finished=finished.exists(),
        written=max(parts_written, default=0.0),
        names=read_json(finished).get("names", []) if finished.exists() else [],
        seconds=sum(costs.get("seconds", [])),
        path=records,
    )


def _line(method: str, found: list[Training], latest: list[Training], shown: tuple[Training, Line] | None) -> str:
    done = f"{sum(t.finished for t in found)} of {len(found)}"
    if not latest:
        return parts.line([method, done, NONE, NONE, NONE])
    loss = quantity(shown[1].mean[-1]) if shown else NONE
    return parts.line([method, done, latest[0].place, latest[0].how_far, loss])


def _drawn(latest: list[Training]) -> tuple[Training, Line] | None:
    """The newest of these trainings with its validation loss; one that learned from all rows has none."""
    for training in latest:
        line = line_of(_records(training), training.method, ("validation", "loss"), _size(training), 1)
        if line.rounds:
            return training, line
    return None


def _records(training: Training) -> Any:
    import pyarrow as pa

    table = read_columns(training.path, RECORDS)
    table = table.append_column("method", pa.array([training.method] * len(table), pa.string()))
    return table.append_column("seed", pa.array([0] * len(table), pa.int64()))


def _size(training: Training) -> int:
    """The number of owners."""
    clients = read_columns(training.path, ("client",))["client"].to_numpy()
    return int(clients.max()) + 1 if len(clients) else 0


def _data(methods: list[str], shown: dict[str, tuple[Training, Line] | None], state: str) -> dict[str, Any]:
    """What `page.js` draws: a line for every method."""
    drawn = {name: found for name, found in shown.items() if found}
    owners = max((len(line.owners) for _, line in drawn.values()), default=0)
    known = (training.names for training, _ in drawn.values() if len(training.names) == owners)
    names = next(known, None) or [str(k) for k in range(owners)]
    lines = {name: line.drawn(MOST // len(methods)) | {"chosen": []} for name, (_, line) in drawn.items()}
    hues = [name for name in methods if name != "local"]
    way: dict[str, Any] = {"score": None, "on": True, "bar": False}
    return {
        "live": state,
        "measure": {"heading": "", "unit": "", "percent": False},
        "level": "",
        "axis": [-1, 1],
        "words": list(VERDICTS),
        "owners": names,
        "rows": ["", ""],
        "train": [],
        "test": [],
        "ways": [
            way | {"name": name, "kind": "method", "hue": hues.index(name) if name in hues else None}
            for name in methods
        ],
        "curves": Curves("validation loss", lines)._asdict(),
    }


def state_of(folder: Path) -> str:
    """A short text that changes whenever a file of the comparison was written."""
    names = ("settings.json", "summary.json", "*.parquet")
    found = sorted(str((p, p.stat().st_mtime_ns)) for name in names for p in Path(folder).rglob(name) if p.is_file())
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def is_finished(folder: Path) -> bool:
    """Whether the summary is there, and no training has written anything after it."""
    summary = Path(folder) / "summary.json"
    if not summary.is_file():
        return False
    written = [p.stat().st_mtime for p in (Path(folder) / "runs").rglob("records.parquet/*.parquet")]
    return summary.stat().st_mtime >= max(written, default=0.0)


def watching_page(folder: Path) -> str:
    """The verdict's page, or that of the training that goes on."""
    return page_of_folder(folder) if is_finished(folder) else live_page(folder, state_of(folder))


class Watching(ThreadingHTTPServer):
    """Answers on this machine whoever has the key in the address: others may have accounts on it, too."""

    key: str

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_port}/{self.key}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away before it has its answer is nothing to tell."""
        logger.debug("a request was not answered", exc_info=True)


def watching_server(folder: Path, port: int = 0) -> Watching:
    """A server of the folder's page for this machine alone; `port` 0 takes one that is free."""
    read_plan(folder)
    answers: dict[str, tuple[str, Callable[[], str]]] = {
        "": ("text/html", lambda: watching_page(folder)),
        "state": ("text/plain", lambda: state_of(folder)),
    }

    class Handler(BaseHTTPRequestHandler):
        timeout = SLOW

        def do_GET(self) -> None:
            # A page of another site must not read this one by giving its own name to this address.
            here = {f"{name}:{server.server_port}" for name in (HOST, "localhost")}
            key, _, name = self.path.removeprefix("/").partition("/")
            known = hmac.compare_digest(key.encode(), server.key.encode())
            if self.headers.get("Host") not in here or not known or name not in answers:
                self.send_error(404, explain="Open the whole address that fairlead watch printed.")
                return
            kind, answer = answers[name]
            try:
                body = answer().encode()
                code = 200
            except Exception as error:  # a file that is just being replaced, or of another kind: the next look finds it
                logger.debug("%s cannot be shown", folder, exc_info=True)
                told = str(error) if isinstance(error, (RunError, OSError)) else f"{type(error).__name__}: {error}"
                kind, code = "text/html", 503
                again = "<meta charset='utf-8'><meta http-equiv='refresh' content='3'>"
                body = f"{again}<p>Not readable now; this page tries again. {escape(told)}</p>".encode()
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def end_headers(self) -> None:
            for name, value in HEADERS.items():
                self.send_header(name, value)
            super().end_headers()

        def version_string(self) -> str:
            """Without the versions of Python and its server."""
            return "fairlead"

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not logged."""

    try:
        server = Watching((HOST, port), Handler)
    except OSError as error:
        raise InputError(f"--port {port}: {error.strerror or error}; leave it out to take one that is free") from error
    server.key = secrets.token_urlsafe(16)
    return server
