"""All that the rest of a run depends on, in one file."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter

from fairlead.clients import KEPT
from fairlead.core import Named, Plan, RunError
from fairlead.rounds import Best, Snapshot
from fairlead.runs.files import ANEW, read_facts, read_tensors, write_tensors

_BEST: TypeAdapter[Best | None] = TypeAdapter(Best | None)  # what a file says is checked


def save_snapshot(path: Path, snapshot: Snapshot, before: Snapshot | None = None) -> None:
    """Everything the rest of the run depends on, in one file.

    `before` is the snapshot of the round before: what a longer run, which does not score this round, goes on with.
    """
    facts = {"round": str(snapshot.round), "best": json.dumps(snapshot.best)}
    rooms = {"server": snapshot.server, "message": snapshot.message}
    if before is not None:  # first: states in files are cleared when the newest are saved
        facts["earlier"] = json.dumps(before.best)
        rooms["earlier"] = {n: x for n, x in before.clients().items() if n == KEPT}
    rooms["clients"] = snapshot.clients()
    tensors = {f"{room}/{n}": x for room, rows in rooms.items() for n, x in rows.items()}
    write_tensors(path, tensors, **facts)


def load_snapshot(path: Path, plan: Plan | None = None) -> Snapshot:
    """Take back what `save_snapshot` wrote; where the `plan` does not score the saved round, as if it had not been."""
    tensors, facts = read_tensors(path)
    rooms: dict[str, Named] = {"clients": {}, "server": {}, "message": {}, "earlier": {}}
    for name, x in tensors.items():
        room, _, n = name.partition("/")
        if room not in rooms:
            raise RunError(f"{path} holds a tensor '{name}', which this version does not know; {ANEW}")
        rooms[room][n] = x
    round, held, best = _round(path, facts), rooms["clients"], _best(path, facts)
    if plan is not None and round > plan.rounds:
        raise RunError(f"{path} was written after round {round}, and this run has {plan.rounds}; {ANEW}")
    if plan is not None and "earlier" in facts and not plan.evaluated(round):
        best = _best(path, facts, "earlier")
        held = {n: x for n, x in held.items() if n != KEPT} | rooms["earlier"]
    return Snapshot(round, rooms["server"], rooms["message"], lambda: held, best)


def kept_round(path: Path) -> int:
    """The round whose models a run deploys, from its checkpoint's header."""
    best = _best(path, read_facts(path))
    if best is None:
        raise RunError(f"{path} was written before any models were scored; let the run go on")
    return best.round


def _round(path: Path, facts: dict[str, str]) -> int:
    text = facts.get("round", "")
    if not (text.isdecimal() and text.isascii() and len(text) < 10):
        raise RunError(f"{path} says round '{text[:20]}', expected a whole number; {ANEW}")
    return int(text)


def _best(path: Path, facts: dict[str, str], which: str = "best") -> Best | None:
    try:
        return _BEST.validate_python(json.loads(facts.get(which, "null")))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} does not say which models are kept ({which}: {facts[which][:60]}); {ANEW}") from error
