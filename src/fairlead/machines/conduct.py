"""The coordinator's side of a study: what sites agree on, the trainings, and the records of both.

The folder of a study holds `agreed.json` (columns, classes and the preparation), `counts.json` (how many rows each site
says it has), `chosen.json` (step size and rounds of
each method, where they are searched for), for each training a folder `runs/NAME` with its records, its checkpoint and
`events.json` (who did not answer soundly, when and why), and `results.json`. A coordinator that was killed goes on from
there when it is started again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from fairlead.clients import Remote, placed
from fairlead.clients.node import SPLITS
from fairlead.clients.remote import MOST_SAMPLES
from fairlead.clients.wire import Ask
from fairlead.comparison.assess import quiet
from fairlead.comparison.decisions import Answers, in_order
from fairlead.core import DivergedError, EngineError, Federation, Split, check_targets
from fairlead.core.errors import quoted
from fairlead.core.files import alone_in
from fairlead.core.task import SplitName
from fairlead.data.agreement import Agreed, Look, agree, lacking
from fairlead.data.preparation import Preparation, Told
from fairlead.data.preparation import agreed as prepared
from fairlead.effort import Curve, Effort, search
from fairlead.machines.site import AGREED, VERSION, Short
from fairlead.machines.study import CONTROL, Chosen, Run, Study
from fairlead.rounds import federate, ran_out
from fairlead.runs.checkpoint import kept_round, load_snapshot, save_snapshot
from fairlead.runs.files import read_json, read_table, write_json
from fairlead.runs.records import Records, Rounds, finite_clients, go_back, rows_of, validation_losses

logger = logging.getLogger(__name__)

Question = tuple[str, bytes]  # a text, and the bytes of a message

Progress = Callable[[str, int, int], None]  # called with the run, the round just done and all rounds
FEWEST = 5  # evaluations that show whether a loss is still falling
MOST_OF_ALL = 0.9  # of all train rows, above which a site's weight is worth a word
FEWEST_SITES = 3  # among which a column's size can be called unusual
OTHER_WORLD = 1e6  # times the usual size, which no unit of one and the same measure explains
WIDEST = 1e100  # that a mean or a sum of squares can be
MOST_BYTES = 2**22  # of an answer before the first round: names of columns, categories and classes, and counts
CHOSEN = TypeAdapter(dict[str, Chosen])
T = TypeVar("T")


class Post(Protocol):
    """Whatever carries questions to the sites and brings the answers."""

    def __call__(self, questions: dict[int, Question], patient: bool = False) -> Mapping[int, bytes | str]:
        """A question for each site's number -> the answers that came; a text says why one did not.

        `patient` waits for a site that is not there, since nothing goes on without it.
        """


def conduct(study: Study, post: Post, out: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Agree, train every method and the control, and let each site judge for itself; the results, as written."""
    with alone_in(out):
        return _conduct(study, post, out, progress)


def _conduct(study: Study, post: Post, out: Path, progress: Progress | None) -> dict[str, Any]:
    settings = out / "settings.json"
    if settings.exists() and read_json(settings) != json.loads(json.dumps(study.to_json())):
        raise EngineError(f"{out} holds another study; choose another folder, or remove it to begin anew")
    write_json(settings, study.to_json())
    asker = Asker(study, post)
    agreed, preparation = agreement(asker, out / "agreed.json")
    study.metric(made_up(study, agreed, preparation, study.runs[0]).target_kind)  # says so where it does not fit
    common = {"agreed": asdict(agreed), "preparation": preparation and preparation.to_json()}
    begin(asker, common)

    def trained(run: Run, kept: Mapping[str, int], rounds: int | None = None) -> Path:
        folder = out / "runs" / run.name
        train(asker, run, made_up(study, agreed, preparation, run), kept, folder, progress, rounds)
        return folder

    if study.effort is not None:
        chosen = searched(study, study.effort, lambda run, rounds: trained(run, {}, rounds), out / "chosen.json")
        study = asker.study = replace(study, chosen=chosen)
        begin(asker, common)
    kept: dict[str, int] = {}
    for run in study.runs:
        kept[run.name] = kept_round(trained(run, kept) / "checkpoint.safetensors")
    short = {name: why for name in (CONTROL, *study.judged) if (why := too_short(study, name, out))}
    unjudged = asker.some("verdict", lambda k: {"study": study.name, "kept": kept, "short": short})
    results = summary(study, out, kept) | {"short": short, "unjudged": unjudged, "exchange_seconds": asker.seconds}
    write_json(out / "results.json", results)
    return results


def begin(asker: Asker, common: dict[str, Any]) -> None:
    """Tell every site what the study is; after the search, with what was chosen."""
    asker.all("begin", lambda k: {"study": asker.study.to_json(), **common}, TypeAdapter(dict[str, Any]))


def searched(study: Study, effort: Effort, trained: Callable[[Run, int], Path], path: Path) -> dict[str, Chosen]:
    """The step size and rounds of every method, the control among them, that are best on all sites' validation rows."""
    found = dict(CHOSEN.validate_python(read_json(path))) if path.exists() else {}
    for method in (CONTROL, *study.judged):
        if method in found or study.decision(method):
            continue  # a decision has neither a step size nor rounds of its own
        away: set[str] = set()
        scored: set[str] = set()
        while True:
            before = len(away)
            try:
                best = search(partial(tried, study, method, trained, away, scored), effort)
            except DivergedError:
                # A site whose scores are finite at no step size says nothing of step sizes; else nobody could go on.
                without = set(study.sites) - scored - away
                if not scored or not without:
                    raise
                logger.warning(
                    "%s: no finite score of %s at any step size; not heard", method, ", ".join(sorted(without))
                )
                away |= without
                continue
            if len(away) == before:
                break  # else once more: trials are compared by the rows of the same sites, and are not trained again
        found[method] = Chosen(best.lr, best.round, best.improving)
        write_json(path, found)
    return found


def tried(
    study: Study,
    method: str,
    trained: Callable[[Run, int], Path],
    away: set[str],
    scored: set[str],
    lr: float,
    rounds: int,
) -> Curve:
    """A trial with a step size; who misses a score joins `away`, and has no say in what is chosen.

    Whose scores are finite joins `scored`.
    """
    run = Run(method, 0, lr=lr)
    with quiet():
        folder = trained(run, rounds)
    away |= {event["who"] for event in read_json(folder / "events.json") if event["question"] == "score"}
    scored |= {study.sites[k] for k in finite_clients(folder / "records.parquet")}
    others = [k for k, site in enumerate(study.sites) if site not in away]
    found = validation_losses(folder / "records.parquet", others)
    if not found:
        raise EngineError(f"no site scored its validation rows in all trials of {method}; see {folder / 'events.json'}")
    losses = {round: loss for round, loss in found.items() if round <= rounds}
    return Curve(list(losses), list(losses.values()), stopped=max(losses) < rounds)


class Asker:
    """Questions to the sites of a study, and checked answers."""

    def __init__(self, study: Study, post: Post) -> None:
        self.study, self._post = study, post
        self.seconds: list[float] = []  # that each exchange took

    def all(self, what: str, about: Callable[[int], dict[str, Any]], kind: TypeAdapter[T]) -> list[T]:
        """What every site answers to a question that all must answer."""
        came = self._ask(what, about, patient=True)
        found: list[T] = []
        for k, name in enumerate(self.study.sites):
            try:
                found.append(kind.validate_python(_answered(came.get(k))))
            except ValidationError as error:
                first = error.errors()[0]
                raise EngineError(f"{name}: answer is not as expected ({first['loc']}: {first['msg']})") from error
            except EngineError as error:
                raise EngineError(f"{name} must answer before the study can begin, but its {error}") from error
        return found

    def some(self, what: str, about: Callable[[int], dict[str, Any]]) -> dict[str, str]:
        """Ask every site; those that did not answer soundly, and why."""
        came, lost = self._ask(what, about, patient=False), {}
        for k, name in enumerate(self.study.sites):
            try:
                _answered(came.get(k))
            except EngineError as error:
                lost[name] = str(error)
                logger.warning("%s: its %s", name, error)
        return lost

    def messages(self, run: Run, kept: Mapping[str, int]) -> Callable[[dict[int, bytes]], Mapping[int, bytes | str]]:
        """How a training's messages reach the sites; the first, a greeting, must be answered by all.

        Before a decision sites must know which rounds' models are deployed, since these answer for the rows.
        """
        known = kept if self.study.decision(run.method) else {}
        text = json.dumps({"what": "ask", "study": self.study.name, "run": run, "kept": known})
        asked = 0

        def send(questions: dict[int, bytes]) -> dict[int, bytes | str]:
            nonlocal asked
            asked += 1
            came = self.post({k: (text, data) for k, data in questions.items()}, patient=asked == 1)
            return {k: refused(answer) or answer for k, answer in came.items()}

        return send

    def post(self, questions: dict[int, Question], patient: bool) -> Mapping[int, bytes | str]:
        """One exchange."""
        began = time.monotonic()
        try:
            return self._post(questions, patient)
        finally:
            self.seconds.append(round(time.monotonic() - began, 3))

    def _ask(self, what: str, about: Callable[[int], dict[str, Any]], patient: bool) -> Mapping[int, bytes | str]:
        texts = {k: json.dumps({"what": what, **about(k)}) for k in range(len(self.study.sites))}
        return self.post({k: (text, b"") for k, text in texts.items()}, patient=patient)


def refused(answer: bytes | str) -> str:
    """Why a site refused to hand a message on; "" if it did not."""
    if isinstance(answer, str) or not answer.startswith(b'{"refused"') or len(answer) > MOST_BYTES:
        return ""
    try:
        _answered(answer)
    except EngineError as error:
        return str(error)
    return ""


def _answered(came: bytes | str | None) -> dict[str, Any]:
    if came is None or isinstance(came, str):
        raise EngineError(came or "answer did not come")
    if len(came) > MOST_BYTES:
        raise EngineError(f"answer has {len(came):,} bytes, expected {MOST_BYTES:,} at most")
    try:
        found = json.loads(came)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"answer is none of fairlead's ({error})") from error
    if not isinstance(found, dict):
        raise EngineError("answer is none of fairlead's")
    if "refused" in found:
        raise EngineError(f"answer is an error: {quoted(found['refused'])}")
    return found


def agreement(asker: Asker, path: Path) -> tuple[Agreed, Preparation | None]:
    """What all sites' columns and classes are, and how their rows become samples; asked for once in a study."""
    study = asker.study
    if path.exists():
        kept = read_json(path)
        made = kept["preparation"]
        return AGREED.validate_python(kept["agreed"]), Preparation.from_json(made) if made else None
    plain = study.to_json()
    looks = asker.all("look", lambda k: {"study": plain, "version": VERSION}, TypeAdapter(Look))
    own = dict(zip(study.sites, looks, strict=True))
    agreed = agree(own, study.checked.positive)
    for site, names in lacking(own, agreed).items():
        logger.warning("%s has no column %s, which others have; it counts as missing there", site, ", ".join(names))
    preparation = None
    if agreed.columns:
        answers = asker.all("tell", lambda k: {"study": plain, "agreed": asdict(agreed)}, TypeAdapter(Told))
        told = dict(zip(study.sites, answers, strict=True))
        for name, one in told.items():
            check_told(name, one, agreed)
        check_units(told, agreed)
        scaling = study.scenario().scaling
        preparation = prepared(agreed.columns, told, scaling)
        if scaling == "own":  # each site has its own means and deviations, and told them to nobody
            preparation = replace(preparation, scales={})
        ignored = tuple(c.name for c in agreed.columns if not c.kept)
        preparation = replace(preparation, labels=agreed.labels, classes=agreed.classes, ignored=ignored)
    write_json(path, {"agreed": asdict(agreed), "preparation": preparation and preparation.to_json()})
    return agreed, preparation


def check_told(site: str, told: Told, agreed: Agreed) -> None:
    """Refuse counts and means that do not fit the agreed columns."""
    kept = [column for column in agreed.columns if column.kept]
    sizes = {len(told.known), len(told.mean), len(told.squares), len(told.words)}
    fits = sizes == {len(kept)} and all(
        len(counts) == len(column.values) and all(0 <= count <= told.rows for count in counts)
        for column, counts in zip(kept, told.words, strict=True)
    )
    numbers = np.array([told.rows, *told.known, *told.mean, *told.squares, *(told.target or ())])
    sound = bool((np.abs(numbers) <= WIDEST).all()) and min(told.rows, *told.known, *told.squares) >= 0
    sound = sound and max(told.known, default=0) <= told.rows <= MOST_SAMPLES
    if not fits or not sound:
        raise EngineError(f"{site}: what it told of its rows does not fit the {len(kept)} agreed columns")


def check_units(told: Mapping[str, Told], agreed: Agreed) -> None:
    """Refuse a site whose numbers in a column are of another world: shared means would leave nothing of the others'."""
    columns = [column.name for column in agreed.columns if column.kept]
    known, mean, squares = (
        np.array([getattr(one, field) for one in told.values()]) for field in ("known", "mean", "squares")
    )
    sizes = np.abs(mean) + np.sqrt(squares / np.maximum(known, 1))
    for name, column in zip(columns, sizes.T, strict=True):
        if np.count_nonzero(column) < FEWEST_SITES:
            continue
        usual = np.median(column[column > 0])
        for site, size in zip(told, column, strict=True):
            if size > OTHER_WORLD * usual:
                raise EngineError(
                    f"{site} says its '{quoted(name, 64)}' is about {size:.0e}, {size / usual:.0e} times what is usual "
                    "at the sites; mend its unit there, or take scaling 'own' or drop the column"
                )


def made_up(study: Study, agreed: Agreed, preparation: Preparation | None, run: Run) -> Federation:
    """A few samples that nobody has, of the shapes that all sites' samples have in this training."""
    shape, image_size = agreed.shape, study.checked.image_size
    if preparation is not None:
        shape = (len(preparation.outputs),)
    elif image_size is not None:
        shape = (shape[0], image_size, image_size)
    if agreed.task == "quantity":
        y = torch.linspace(-1, 1, 4)
    elif len(agreed.labels) > 1:
        y = (torch.arange(4)[:, None] % 2).expand(4, len(agreed.labels)).float()
    else:
        y = torch.arange(4) % len(agreed.classes)
    split = Split(torch.zeros(4, *shape), y, torch.tensor([0, 4]))
    one, how = Federation(split, split, split, agreed.classes), study.decision(run.method)
    if how is not None:
        outputs = torch.zeros(4, one.outputs)
        said = Answers([[[outputs]]] * len(how.voices), [one])
        one = in_order(said, said)
    return placed(one, 0, len(study.sites))


def train(
    asker: Asker,
    run: Run,
    invented: Federation,
    kept: Mapping[str, int],
    folder: Path,
    progress: Progress | None,
    until: int | None = None,
) -> None:
    """One training to its end, from its last checkpoint if it has one; `kept` has the rounds of those before it.

    A trial may end for now after the round `until`, and go on later.
    """
    study = asker.study
    (method, average, module, plan), checkpoint = study.ready(run, invented), folder / "checkpoint.safetensors"
    plan = replace(plan, rounds=until or plan.rounds)
    check_targets(run.method, method, invented)
    snapshot, records, rounds = None, Records(), Rounds()
    events: list[dict[str, Any]] = read_json(folder / "events.json") if (folder / "events.json").exists() else []
    if checkpoint.exists():
        snapshot = load_snapshot(checkpoint)
        if snapshot.round >= plan.rounds or ran_out(plan, snapshot.best):
            return
        events.append(_event(None, "coordinator", snapshot.round, "went on from its checkpoint"))

    done = 0 if snapshot is None else snapshot.round
    go_back(folder / "records.parquet", done, plan)
    go_back(folder / "rounds.parquet", done)

    def notice(client: int, ask: Ask, why: str) -> None:
        events.append(_event(ask.what, study.sites[client], ask.round, why))
        write_json(folder / "events.json", events)

    write_json(folder / "events.json", events)
    remote = Remote(asker.messages(run, kept), invented, study.training(run), run.name, notice)
    counts = folder.parent.parent / "counts.json"
    for round, now in federate(method, remote, module, plan, average=average, snapshot=snapshot):
        check_counts(study, run, remote.samples, counts)
        records.add(round, counted(remote.samples))
        rounds.add(round)
        records.save(folder / "records.parquet", round.round)
        rounds.save(folder / "rounds.parquet", round.round)
        save_snapshot(checkpoint, now)
        if progress:
            progress(run.name, round.round, plan.rounds)
    remote.close()


def check_counts(study: Study, run: Run, samples: Mapping[SplitName, torch.Tensor], path: Path) -> None:
    """Refuse a site that says another number of rows than before: it weighs in averages by what it says.

    What sites said first is kept in the file; where one says that it has nearly all rows, the log says so.
    """
    if study.decision(run.method):
        return  # its samples are what models say, and nothing is weighted by their number
    if run.part and not path.exists():
        return  # a study that an earlier version began
    said = {site: [int(samples[split][k]) for split in SPLITS] for k, site in enumerate(study.sites)}
    if not path.exists():
        rows = sum(counts[0] for counts in said.values())
        for site, (own, *_) in said.items():
            if own > MOST_OF_ALL * rows:
                logger.warning(
                    "%s says it has %s of all %s train rows, and weighs as much in averages; ask whether that is so, "
                    "or take a stage that does not go by rows, such as +uniform or +median",
                    site,
                    f"{own:,}",
                    f"{rows:,}",
                )
        write_json(path, said)
        return
    before = read_json(path)
    for site, counts in said.items():
        same = counts[0] <= before[site][0] if run.part else counts == before[site]
        if not same:
            raise EngineError(
                f"{site} says in {run.name} that it has {counts} rows to train, to validate and to test with, and said "
                f"{before[site]} before; put its rows back, or begin the study anew in another folder"
            )


def too_short(study: Study, method: str, out: Path) -> Short | None:
    """Whether more rounds might have made a method better, by all sites' validation rows; None: they would not.

    A verdict between two trainings of which one was not done may be the wrong way round.
    """
    if study.decision(method):
        return None  # it has no rounds of its own, and its voices are judged by themselves
    if method in study.chosen:
        return "improving" if study.chosen[method].improving else None
    found = []
    for seed in range(study.seeds):
        records = out / "runs" / Run(method, seed).name / "records.parquet"
        losses = validation_losses(records, finite_clients(records))
        sound = {round: loss for round, loss in losses.items() if np.isfinite(loss)}
        found.append(Curve(list(sound), list(sound.values()), stopped=False))
    if min(len(curve.losses) for curve in found) < FEWEST:
        return "not known"
    return "improving" if any(curve.improving() for curve in found) else None


def _event(what: str | None, who: str, round: int, why: str) -> dict[str, Any]:
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "who": who, "round": round, "question": what, "what": why}


def counted(samples: Mapping[Any, torch.Tensor]) -> Federation:
    """A federation of which only the numbers of samples are known."""
    zero = torch.zeros(1, dtype=torch.int64)
    nothing = torch.empty(0)
    train, validation, test = (Split(nothing, nothing, torch.cat([zero, samples[split].cumsum(0)])) for split in SPLITS)
    return Federation(train, validation, test, ())


def summary(study: Study, out: Path, kept: Mapping[str, int]) -> dict[str, Any]:
    """Each method's scores at the round whose models are deployed, by site and seed, and what went wrong."""
    found: dict[str, Any] = {}
    for run in study.runs:
        folder, round = out / "runs" / run.name, kept[run.name]
        chosen = list(rows_of(folder / "records.parquet", round=round, split="test", model="personal"))
        chosen.sort(key=lambda r: r["client"])
        scores = {
            name: {study.sites[r["client"]]: r[name] if np.isfinite(r[name]) else None for r in chosen}
            for name in ("accuracy", "loss")
            if any(r["n"] and r[name] is not None for r in chosen)  # a decision is scored by nobody but its site
        }
        table = read_table(folder / "rounds.parquet")
        one = {"round": round, "scores": scores, "seconds": table["seconds"]}
        one |= {"bytes_up": sum(table["bytes_up"]), "bytes_down": sum(table["bytes_down"])}
        found[run.name] = one | {"events": read_json(folder / "events.json")}
    by_method = {name: one._asdict() for name, one in study.chosen.items()}
    return {"study": study.name, "chosen": by_method, "runs": found}
