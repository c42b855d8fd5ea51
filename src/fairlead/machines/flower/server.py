"""The coordinator as a Flower ServerApp, and the mail between it and the sites' SuperNodes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fairlead.core import require
from fairlead.core.errors import quoted
from fairlead.core.files import private_folder
from fairlead.machines.conduct import Question, conduct
from fairlead.machines.flower.privacy import refuse_secure_aggregation
from fairlead.machines.study import Study
from fairlead.machines.waits import Patience, Waits
from fairlead.runs.files import read_json, write_json

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
WATCH_SECONDS = 1.0  # between looks at who is connected
GONE = 5  # Flower's error code of a node that is not reachable
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Conduct the study of the app's config."""
    logging.basicConfig(level=logging.WARNING, format="fairlead: %(message)s")
    logging.getLogger("fairlead").setLevel(logging.INFO)
    config = context.run_config
    study = Study.from_config(config)
    if config.get("secure-aggregation"):
        refuse_secure_aggregation(study)
    out = Path(str(config.get("out", "")))
    require(out.is_absolute(), f"out must be the full path of a folder on the SuperLink's machine, got '{out}'")
    private_folder(out)
    waits = Waits(float(config.get("wait-seconds", 600)), float(config.get("grace-seconds", 20)))
    mail = Mail(grid, study, waits, None if config.get("insecure") else out / "nodes.json")
    conduct(study, mail, out, lambda run, round, of: logger.info("%s: round %d of %d", run, round, of))
    logger.info("the study is done: %s", out / "results.json")


class Mail:
    """Carries questions to the sites' nodes and brings the answers; a site is found by the name its node gives.

    How long a site may take is `Patience`. A node that comes back is sent the question again; one that is still at an
    earlier question is sent none until it has answered that, so that questions do not pile up. With `pinned`, a file, a
    site stays with the node that first gave its name: SuperNode authentication makes a node's id that of its key.
    """

    def __init__(self, grid: Grid, study: Study, waits: Waits, pinned: Path | None) -> None:
        self.grid, self._study, self._patience, self._pinned = grid, study, Patience(waits), pinned
        self._nodes: dict[int, int] = {}  # by site
        self._pins: dict[str, int] = read_json(pinned) if pinned is not None and pinned.exists() else {}
        self.asked: set[int] = set()  # nodes that were asked who they are
        self.who: dict[str, int] = {}  # message that asked -> node
        self.busy: dict[str, int] = {}  # question of an earlier exchange that is not answered -> site
        self._strange: dict[int, str] = {}  # nodes that are no site of the study, and why
        self._watched = 0.0

    def __call__(self, questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
        """Ask these sites; `patient` waits for all of them as long as may be."""
        exchange = _Exchange(self, questions, patient)
        answers = exchange.run()
        self.busy |= exchange.sent
        self._patience.learn(questions, exchange.took)
        return answers

    def push(self, node: int, question: Question) -> str:
        """Send a question; the message's id, or "" if it could not be sent."""
        content = RecordDict({"question": ConfigRecord({"text": question[0]})})
        if question[1]:
            content["data"] = ArrayRecord([np.frombuffer(question[1], np.uint8)])
        message = Message(content, dst_node_id=node, message_type="train", ttl=self._patience.waits.most + 60)
        (sent,) = self.grid.push_messages([message]) or [None]
        return sent or ""

    def watch(self) -> None:
        """Ask nodes that are newly connected who they are."""
        now = time.monotonic()
        if now - self._watched < WATCH_SECONDS:
            return
        self._watched = now
        there = set(self.grid.get_node_ids())
        for node in sorted(there - self.asked - set(self.who.values())):
            message = self.push(node, (json.dumps({"what": "who"}), b""))
            self.who |= {message: node} if message else {}
        self.asked = there  # one that goes and comes again is asked again

    def introduce(self, node: int, answer: bytes) -> int | None:
        """Which site a node is, by its answer to "who"; None where it is none of the study's."""
        try:
            name = str(json.loads(answer)["site"])
        except (ValueError, KeyError, TypeError, RecursionError):
            self.leave(node, "does not say who it is")
            return None
        if name not in self._study.sites:
            self.leave(node, f"says that it is {quoted(name, 64)}, which is none of the study's sites")
            return None
        if self._pins.setdefault(name, node) != node and self._pinned is not None:
            self.leave(node, f"says that it is {name}, which is node {self._pins[name]}")
            return None
        site = self._study.sites.index(name)
        if self._pinned is not None:
            write_json(self._pinned, self._pins)
        self._nodes[site] = node
        self._strange.pop(node, None)
        self.busy = {message: k for message, k in self.busy.items() if k != site}
        self._patience.silent.discard(site)
        return site

    def leave(self, node: int, why: str) -> None:
        """Leave a node alone that is no site of the study."""
        self._strange[node] = f"node {node} {why}"
        logger.warning("%s; it is left alone", self._strange[node])

    def missing(self, site: int) -> str:
        """Why there is no answer of this site, as the end of a sentence about it."""
        if site in self._nodes:
            return "answer did not come"
        return "; ".join(["node is not connected", *self._strange.values()])

    def node(self, site: int) -> int | None:
        """The node of a site."""
        return self._nodes.get(site)

    def deadline(self, exchange: _Exchange, site: int) -> float:
        """When an answer of this site has taken too long, in seconds since the exchange began."""
        if exchange.patient:
            return self._patience.waits.most
        since = exchange.resent.get(site, 0.0)
        return self._patience.deadline(site, exchange.questions, exchange.took, exchange.gone, since)


class _Exchange:
    """One question for each site, until all have answered or taken too long."""

    def __init__(self, mail: Mail, questions: dict[int, Question], patient: bool) -> None:
        self.mail, self.questions, self.patient = mail, questions, patient
        self.began = time.monotonic()
        self.took: dict[int, float] = {}  # seconds, by site that answered
        self.resent: dict[int, float] = {}  # when a site that came back was asked again
        self.answers: dict[int, bytes | str] = {}
        self.gone: dict[int, str] = {}  # sites whose node is gone, and why
        self.sent: dict[str, int] = {}  # message -> site

    def run(self) -> dict[int, bytes | str]:
        """The answers that came."""
        for site in set(self.questions) - set(self.mail.busy.values()):
            self._send(site)
        while True:
            self.mail.watch()
            self._collect()
            now = time.monotonic() - self.began
            waiting = [k for k in self.questions if k not in self.answers]
            if all(self._given_up(k, now) for k in waiting):
                return self.answers | {k: self.gone.get(k) or self.mail.missing(k) for k in waiting}
            time.sleep(POLL_SECONDS)

    def _given_up(self, site: int, now: float) -> bool:
        """Whether an answer is not waited for any more.

        Neither is that of a node that is gone, while nobody new says who it is, nor of one at an earlier question.
        """
        away = site in self.mail.busy.values() or (site in self.gone and not self.mail.who)
        if away and not self.patient:
            return True
        return now > self.mail.deadline(self, site)

    def _send(self, site: int) -> None:
        node = self.mail.node(site)
        if node is not None:
            message = self.mail.push(node, self.questions[site])
            self.sent |= {message: site} if message else {}

    def _collect(self) -> None:
        for reply in self.mail.grid.pull_messages([*self.sent, *self.mail.who, *self.mail.busy]):
            asked = reply.metadata.reply_to_message_id
            if asked in self.mail.busy:
                self._free_again(self.mail.busy.pop(asked))
            elif asked in self.mail.who:
                self._introduced(self.mail.who.pop(asked), reply)
            elif asked in self.sent:
                self._answered(self.sent.pop(asked), reply)

    def _introduced(self, node: int, reply: Message) -> None:
        if reply.has_error():
            self.mail.leave(node, f"does not say who it is ({reply.error.reason or reply.error.code})")
            if reply.error.code == GONE:
                self.mail.asked.discard(node)  # it is asked again if it is there
            return
        site = self.mail.introduce(node, _bytes(reply))
        if site is not None and site in self.questions and site not in self.answers:
            self.resent[site] = time.monotonic() - self.began
            self.gone.pop(site, None)
            self._send(site)

    def _free_again(self, site: int) -> None:
        """A site has answered an earlier question, too late for it, and can take this one."""
        if site in self.questions and site not in self.mail.busy.values():
            self.resent[site] = time.monotonic() - self.began
            self._send(site)

    def _answered(self, site: int, reply: Message) -> None:
        if site in self.answers:
            return
        if reply.has_error():
            reason = f"answer is an error: {quoted(reply.error.reason or reply.error.code)}"
            if reply.error.code == GONE:
                self.gone[site] = reason  # it may come back
                return
            self.answers[site] = reason
        else:
            self.answers[site] = _bytes(reply)
        self.took[site] = time.monotonic() - self.began


def _bytes(reply: Message) -> bytes:
    """What the app's client half answered; anything else is as good as nothing."""
    try:
        (found,) = reply.content["answer"].to_numpy_ndarrays()
        return bytes(found.tobytes()) if found.dtype == np.uint8 else b""
    except (KeyError, ValueError, AttributeError, TypeError):
        return b""
