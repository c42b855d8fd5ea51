"""One site of a study: its rows, states and models stay in its own folder, and it answers questions of bytes.

A question is a text (JSON) and, where there is one, the bytes of the method's message. What each question asks for, and
all that the answer holds, is the table in docs/from-laptop-to-hospitals.md.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from fairlead.clients import Node, placed, wrapped
from fairlead.clients.node import model_of
from fairlead.clients.wire import Ask, pack_ask, unpack_ask, unpack_reply
from fairlead.comparison.decisions import Answers, chosen, cut, in_order
from fairlead.core import FairleadError, Federation, InputError, Layout, RunError, Split, require
from fairlead.core.files import write_text
from fairlead.data.agreement import Agreed, look, read_own, tell_own
from fairlead.data.preparation import EVERYBODY, Preparation, scale_of, tell
from fairlead.data.source import Source
from fairlead.machines.study import CONTROL, SITE, Run, Study
from fairlead.methods.voices import Weigh, rows_together
from fairlead.metrics import TRAINING, OwnerPairs, OwnerVerdict, PairedRun, judge
from fairlead.metrics.verdict import NO_DIFFERENCE
from fairlead.prediction.export import write_model
from fairlead.prediction.predict import Predictor
from fairlead.runs.deployment import describe
from fairlead.runs.files import read_json, write_json
from fairlead.runs.identity import fingerprint, versions

logger = logging.getLogger(__name__)

T = TypeVar("T")
Kept = dict[str, int]  # the round whose models are to be deployed, by the name of a training
AGREED = TypeAdapter(Agreed)
RUN = TypeAdapter(Run)
KEPT = TypeAdapter(Kept)
Short = Literal["improving", "not known"]  # whether a training would have gone on improving
SHORT = TypeAdapter(dict[str, Short])
VERSION = versions()["fairlead"]
ANSWERED = ("greet", "train", "score")  # what a node does for a coordinator; outputs for single rows stay at the site
FILE = "study.json"
VERDICT = "verdict.txt"


class Site:
    """A site: its name, where its rows lie, and the folder of its own where all it keeps goes."""

    def __init__(self, name: str, data: str | Path, folder: Path) -> None:
        self.name, self.data, self.folder = name, data, folder
        self._members: dict[str, Member] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(folder, 0o700)

    def answer(self, question: str, data: bytes = b"") -> bytes:
        """The answer to a question of the coordinator; what cannot be answered is told in a sentence."""
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "who": lambda asked: {"site": self.name, "version": VERSION},
            "look": self._look,
            "tell": self._tell,
            "begin": self._begin,
            "verdict": lambda asked: self._member(asked).verdict(
                _checked(KEPT, asked.get("kept")), _checked(SHORT, asked.get("short"))
            ),
        }
        try:
            asked = _question(question)
            if asked["what"] == "ask":
                run, kept = _checked(RUN, asked.get("run")), _checked(KEPT, asked.get("kept"))
                what = unpack_ask(data)[0].what
                require(what in ANSWERED, f"a coordinator may not ask for {what}; sites answer {', '.join(ANSWERED)}")
                return self._member(asked).node(run, kept).answer(data)
            require(asked["what"] in answers, f"question '{asked['what']}' is unknown to fairlead {VERSION}")
            return _json(answers[asked["what"]](asked))
        except FairleadError as error:
            logger.warning("%s: %s", self.name, error)
            # Where a site keeps its files is not told to others.
            said = str(error)
            for place in (Path(self.data), self.folder):
                for path in (place.resolve(), place):
                    said = said.replace(str(path), path.name)
            return _json({"refused": said})
        except Exception as error:  # whatever was asked, the site goes on; what it says may name files of this machine
            logger.exception("%s: a question failed", self.name)
            return _json({"refused": f"{type(error).__name__} at the site, whose log explains it"})

    def _look(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What this site's columns and classes are."""
        theirs = asked["version"]
        require(theirs == VERSION, f"{self.name} has fairlead {VERSION}, the coordinator {theirs}; install the same")
        return asdict(look(self.data, Study.from_json(asked["study"]).reading()))

    def _tell(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Counts, means and squared deviations of this site's train rows."""
        study, agreed = Study.from_json(asked["study"]), AGREED.validate_python(asked["agreed"])
        scenario = study.scenario()
        source = self.source(study, agreed)
        if source.table is None:
            return {}
        return asdict(tell_own(source, scenario.cut_own(source, 0)[0], scenario.scaling))

    def _begin(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Keep what was agreed on, so that the study goes on whenever this site starts again."""
        study = Study.from_json(asked["study"])
        require(self.name in study.sites, f"{self.name} is none of the study's sites ({', '.join(study.sites)})")
        member = Member(self, asked | {"data": ""})
        path = self.folder / study.name / FILE
        now = asked | {"data": fingerprint(member.federation)}
        if path.exists() and read_json(path)["data"] != now["data"]:
            raise RunError(
                f"the rows of {self.name}, or their preparation, changed since this study began; put them back, or "
                f"remove {study.name} from the site's folder to begin it anew"
            )
        write_json(path, now)
        self._members[study.name] = member
        return {}

    def _member(self, asked: dict[str, Any]) -> Member:
        name = str(asked["study"])
        plain = Path(name).name == name and name not in ("", "..")
        require(plain, f"study '{name}' is no name for a folder")
        if name not in self._members:
            path = self.folder / name / FILE
            require(path.exists(), f"{self.name} has not begun {name}; start the study again")
            self._members = {name: Member(self, read_json(path))}
        return self._members[name]

    def source(self, study: Study, agreed: Agreed) -> Source:
        """This site's rows, coded as all sites code theirs."""
        return read_own(self.data, study.reading(), agreed, self.name, SITE)


class Member:
    """A site in a study that has begun."""

    def __init__(self, site: Site, kept: dict[str, Any]) -> None:
        self.site, self.study = site, Study.from_json(kept["study"])
        self.client = self.study.sites.index(site.name)
        self.folder = site.folder / self.study.name
        self._agreed: Agreed = AGREED.validate_python(kept["agreed"])
        self._preparation = kept["preparation"]
        self._nodes: dict[Run, Node] = {}

    @cached_property
    def federation(self) -> Federation:
        """This site's samples, as a federation of one."""
        scenario, source = self.study.scenario(), self.site.source(self.study, self._agreed)
        made: Preparation | None = None
        if self._preparation is not None:
            made = Preparation.from_json(self._preparation)
            if EVERYBODY not in made.scales:
                train, aim = scenario.cut_own(source, 0)[0], None if source.classes else source.y.numpy()
                told = tell(self._agreed.columns, source.raw.numpy()[train], None if aim is None else aim[train])
                made = replace(made, scales={self.site.name: scale_of(made.features, told.moments, told.aim)})
        return scenario.build_own(source, 0, made)

    def node(self, run: Run, kept: Kept) -> Node:
        """The one that answers in a training; kept, as its threads and samples are ready then."""
        if run not in self._nodes:
            planned = run._replace(lr=None) in self.study.runs
            require(planned, f"{run.name} is no training of {self.study.name}")
            own = self._samples(run, kept)
            for old in self._nodes.values():
                old.close()
            method, _, module, plan = self.study.ready(run, own)
            here, training = placed(own, self.client, len(self.study.sites)), self.study.training(run)
            self._nodes = {run: Node(self.client, here, training, method, module, plan, self.folder)}
        return self._nodes[run]

    def _samples(self, run: Run, kept: Kept) -> Federation:
        """What this site has in a training: its rows, all but a part of them, or what models say of such parts."""
        how = self.study.decision(run.method)
        if how is not None:
            crossed = [self.study.parts(how, run.seed, each) for each in (how.crossed, how.fewer)]
            missing = [one.name for parts in chain(*crossed) for one in parts if not self._rounds(one.name)]
            if missing:
                logger.warning("%s was away for %s, and decides by what others say", self.site.name, ", ".join(missing))
                return self._no_answers(len(how.voices))
            return in_order(*(self._answers(parts, kept) for parts in crossed))
        if run.part is not None:
            left = cut(self.federation, run.part, 0)[run.part.which]
            return replace(left, validation=self.federation.validation)
        return self.federation

    def _answers(self, voices: list[list[Run]], kept: Kept) -> Answers:
        """What models say of the parts of this site's rows that they left out."""
        said = [[[self._outputs(part, kept)] for part in parts] for parts in voices]
        return Answers(said, [self._samples(part, kept) for part in voices[0]])

    def _no_answers(self, voices: int) -> Federation:
        """What a site has to decide by that was away when a part was trained: nothing."""
        own = self.federation
        none = Split(own.test.x[:0], own.test.y[:0], torch.zeros_like(own.test.starts))
        nothing = Answers([[[torch.zeros(0, own.outputs)]]] * voices, [replace(own, test=none)])
        return in_order(nothing, nothing)

    def verdict(self, kept: Kept, short: dict[str, Short]) -> dict[str, Any]:
        """Write for this site alone whether it is better or worse off than alone, and its models; nothing travels.

        `kept` says for each run the round whose models are to be deployed, `short` which trainings may have been too
        short.
        """
        lines: list[str] = []
        found: dict[str, Any] = {}
        for method in self.study.judged:
            one, why = self._judged(method, kept)
            how = self.study.decision(method)
            each = [self._decided(Run(method, seed), kept) for seed in range(self.study.seeds)] if how else []
            if each and all(decision["deploys"] == CONTROL for decision in each):
                same = "It deploys the very model that was trained alone: nothing is gained and nothing is lost."
                one = replace(one, verdict=NO_DIFFERENCE, gain=0.0, lower=0.0, upper=0.0, more_rows=None, why=same)
            found[method] = one.to_json() | {"why_metric": why}
            lines += told(one, method, why)
            if how:
                found[method]["decision"] = own = each[0]
                lines.append(f"  {decided(own, method, self.study.metric(self.federation.target_kind).metric.title)}")
                same = sum(other["deploys"] == own["deploys"] for other in each)
                if len(each) > 1:
                    lines.append(f"  So in {same} of {len(each)} trainings; the model that is kept is the first one's.")
            between = how.voices if how else (CONTROL, method)
            found[method]["short"] = by = {name: short[name] for name in between if name in short}
            lines.append(f"  {trained_with(self.study, between)}")
            lines += [f"  {cut_short(name, why, self.study.plan(Run(name, 0)).rounds)}" for name, why in by.items()]
        for method in (CONTROL, *self.study.judged):
            self._write_model(method, kept)
        write_json(self.folder / "verdict.json", found)
        write_text(self.folder / VERDICT, "\n".join(lines) + "\n")
        return {}

    def _write_model(self, method: str, kept: Kept) -> None:
        """The site's own model of the first training, for `fairlead.load_model`."""
        own = self.federation
        used = describe(own, self._bare(0), method, self.study.entry(method).method, self.study.options)
        write_model(self.folder / "models" / method, Predictor(used, 0, self._model(Run(method, 0), kept)))

    def _bare(self, seed: int) -> nn.Module:
        return self.study.module(tuple(self.federation.train.x.shape[1:]), self.federation.outputs, seed)

    def _model(self, run: Run, kept: Kept) -> nn.Module:
        """What this site deploys after a training."""
        how, method = self.study.decision(run.method), self.study.entry(run.method).method
        module = wrapped(method, self._bare(run.seed), run.seed)
        layout = Layout(module)
        if how is None:
            return layout.write(self._vector(run, kept), module).eval()
        pieces = []
        for voice in (Run(name, run.seed) for name in how.voices):
            own = wrapped(self.study.entry(voice.method).method, self._bare(run.seed), run.seed)
            pieces.append((Layout(own), self._vector(voice, kept)[None]))
        return layout.write(rows_together(pieces, self._vector(run, kept)[None], layout)[0], module).eval()

    def _vector(self, run: Run, kept: Kept) -> torch.Tensor:
        return model_of(self.folder, run.name, self._nearest(run.name, kept[run.name]))

    def _decided(self, run: Run, kept: Kept) -> dict[str, Any]:
        """What this site decided to deploy, and how sure it was, in plain values."""
        how, own = self.study.decision(run.method), self.federation
        assert how is not None
        of = Layout(Weigh(len(how.voices))).stacked(self._vector(run, kept)[None].double())
        weights = dict(zip(how.voices, of["weight"][0].tolist(), strict=True))
        metric = self.study.metric(own.target_kind).metric
        # Models learn quantities in standard deviations; errors are told in the unit of the rows.
        unit = own.target.sd[0] if own.target.sd and metric.name in ("rmse", "mae") else 1.0
        gain = unit * float(of["gain"][0])
        return chosen(weights, float(of["worse"][0]), gain)

    def _judged(self, method: str, kept: Kept) -> tuple[OwnerVerdict, str]:
        """The verdict on a method, and why it is about this metric."""
        own = self.federation
        chosen, why = self.study.metric(own.target_kind, {self.site.name: own.train.y.numpy()})
        rows = (own.test.rows if len(own.test.rows) else torch.arange(len(own.test.y))).numpy()
        y = self._in_units(own.test.y)
        runs = []
        for seed in range(self.study.seeds):
            ours, theirs = (self._in_units(self._outputs(Run(name, seed), kept)) for name in (method, CONTROL))
            runs.append(PairedRun(rows, y, ours, theirs, repeat=seed, groups=own.test.groups.numpy()))
        return judge([OwnerPairs(self.site.name, runs)], chosen)[0], why

    def _outputs(self, run: Run, kept: Kept) -> torch.Tensor:
        """What this site's model to deploy makes of the test rows of a training."""
        require(run.name in kept, f"the coordinator does not say which round of {run.name} to deploy")
        if self.study.decision(run.method):
            with torch.no_grad():
                made: torch.Tensor = self._model(run, kept)(self.federation.test.x)
                return made
        ask = Ask(run.name, "outputs", self._nearest(run.name, int(kept[run.name])), client=self.client, split="test")
        reply = unpack_reply(self.node(run, kept).answer(pack_ask(ask, {})))
        if reply.refused:
            raise RunError(reply.refused)
        return reply.rows["outputs"][0]

    def _nearest(self, run: str, round: int) -> int:
        """The round of this site's models that comes nearest; it may have been away when that one was scored."""
        return min(self._rounds(run), key=lambda t: (abs(t - round), t), default=round)

    def _rounds(self, run: str) -> list[int]:
        """The rounds of a training of which this site has models."""
        return [int(path.stem.removeprefix("model-")) for path in (self.folder / run).glob("model-*.safetensors")]

    def _in_units(self, values: torch.Tensor) -> Any:
        own = self.federation
        if own.classes:
            return values.detach().numpy()
        flat = values.detach().double().reshape(len(values)).numpy()
        return flat * own.target.sd[0] + own.target.mean[0] if own.target.sd else flat


WORDS = {
    "better": "{site} is better off with {method} than alone.",
    "worse": "{site} is worse off with {method} than alone. Use the model that was trained alone.",
    "no difference found": "For {site}, {method} makes no difference that was found.",
    "too few rows to tell": "The test rows of {site} are too few to tell whether {method} is better than alone.",
}


def told(found: OwnerVerdict, method: str, why: str) -> list[str]:
    """A site's verdict on a method in sentences; `why` says why it is about this metric."""
    lines = [WORDS[found.verdict].format(site=found.owner, method=method), f"  {found.why}"]
    if found.method_score is not None and found.control_score is not None:
        same = "" if found.constant_score is None else f"; the same answer for every row has {found.constant_score:.4g}"
        lines.append(
            f"  {found.metric}: {found.method_score:.4g} with {method}, {found.control_score:.4g} alone, on "
            f"{found.rows} test rows that no training has seen{same}."
        )
    lines.append(f"  The measure is {why}.")
    if found.training:
        lines.append(f"  Considered: the luck of the test rows, and {TRAINING[found.training]}.")
    return lines


def trained_with(study: Study, methods: Sequence[str]) -> str:
    """A sentence on how step size and rounds were come by."""
    own = {name: (study.training(Run(name, 0)).lr, study.plan(Run(name, 0)).rounds) for name in methods}
    if not study.chosen:
        lr, rounds = own[CONTROL]
        return f"Step size {lr:g} and {_rounds(rounds)} were not searched for: others may change the verdict."
    each = (
        f"{lr:g} and {_rounds(n)} for {'training alone' if name == CONTROL else name}" for name, (lr, n) in own.items()
    )
    return f"Step size and rounds were chosen on the validation rows of all sites: {', '.join(each)}."


def cut_short(method: str, why: Short, rounds: int) -> str:
    """A sentence on a training that may have been too short."""
    many = _rounds(rounds)
    if why == "improving":
        what = "Training alone" if method == CONTROL else method
        return f"{what} was still improving after {many}: a longer training may change the verdict."
    what = "training alone" if method == CONTROL else method
    return f"Whether {many} were enough for {what} is not known: it was scored too few times to see."


def _rounds(n: int) -> str:
    return f"{n} {'round' if n == 1 else 'rounds'}"


def decided(own: dict[str, Any], method: str, title: str) -> str:
    """A site's decision in a sentence; `title` is that of the metric it was decided by."""
    if own["deploys"] == CONTROL:
        worse = f"the chance of being worse off with another was {own['declined']['worse']:.0%}"
        return f"{method} decided, by {title}: keep the model that was trained alone; {worse}."
    what = "the models together" if own["deploys"] == "stack" else f"the model of {own['deploys']}"
    worse = f"the chance of being worse off than alone was {own['worse']:.0%}"
    return f"{method} decided, by {title}: deploy {what}; {worse}."


def _checked(kind: TypeAdapter[T], given: object) -> T:
    try:
        return kind.validate_python(given)
    except ValidationError as error:
        raise InputError(f"question is not as expected ({error.errors()[0]['msg']})") from error


def _question(text: str) -> dict[str, Any]:
    try:
        asked = json.loads(text)
        return {"what": str(asked["what"]), **asked}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"question of {len(text)} characters is none of fairlead's ({error})") from error


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
