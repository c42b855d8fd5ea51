"""One owner's share of a comparison: its own advice, scores and rows, and nothing of the others.

Every field that is shown is copied here by name, so that what a summary may hold one day stays out until somebody has
looked at it. Means over owners are replaced by the owner's own number: of two owners, a mean would tell the other's.
"""

from __future__ import annotations

import hashlib
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from fairlead.core.errors import InputError, nearest
from fairlead.metrics import METRICS
from fairlead.report.tables import improving
from fairlead.runs.summary import Client, Entry, Found, Summary, Way

if TYPE_CHECKING:
    import pyarrow as pa

SETTINGS = (
    *("seeds", "folds", "level", "rounds", "model", "parameters", "engine", "participation", "effort", "lr", "epochs"),
    *("steps", "batch_size", "momentum", "weight_decay", "schedule", "select", "evaluate_every"),
)
SCENARIO = ("name", "data", "split", "label", "column", "task", "positive", "scaling", "shift")
ABOUT = ("rows", "classes", "mean", "sd", "events", "median_time", "missing")  # of an owner's data


def file_name(owner: str) -> str:
    """A file's name for an owner, whatever characters the owner's has.

    >>> file_name("va"), file_name("St. Mary/../x")
    ('report-va.html', 'report-St-Mary-x-5ed117.html')
    """
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", owner).strip("-")[:60]
    if plain != owner:
        plain += f"{'-' if plain else ''}{hashlib.sha256(owner.encode()).hexdigest()[:6]}"
    return f"report-{plain}.html"


def records_of(records: pa.Table, summary: Summary, owner: str) -> pa.Table:
    """The owner's own records, as those of the only client."""
    import pyarrow as pa
    import pyarrow.compute as pc

    own = records.filter(pc.equal(records["client"], summary["findings"]["owners"].index(owner)))
    return own.set_column(own.column_names.index("client"), "client", pa.array([0] * len(own), pa.int64()))


def share_of(summary: Summary, owner: str) -> Summary:
    """The comparison as far as it concerns one owner."""
    owners = summary["findings"]["owners"]
    if owner not in owners:
        close = owners if len(owners) <= 20 else get_close_matches(owner, owners, 5, 0.3) or owners[:5]
        raise InputError(f"owner '{owner}' is unknown; {nearest(owner, close)}")
    k = owners.index(owner)
    found = _found(summary, k)
    methods = {name: _entry(summary["methods"][name], found, name, k) for name in summary["methods"]}
    return Summary(
        scenario={key: summary["scenario"][key] for key in SCENARIO if key in summary["scenario"]},
        settings={key: summary["settings"][key] for key in SETTINGS if key in summary["settings"]},
        versions=summary["versions"],
        control=summary["control"],
        methods=methods,
        findings=found,
        data=cast(Any, {"notes": []} | _about(cast(dict[str, Any], summary["data"]), owner)),
    )


def _about(data: dict[str, Any], owner: str) -> dict[str, Any]:
    """The owner's own data, where something is known of them."""
    about: dict[str, Any] = next((one for one in data.get("owners", []) if one["name"] == owner), {})
    own = {"name": owner} | {key: about[key] for key in ABOUT if key in about}
    return {"rows": about["rows"], "target": data["target"], "owners": [own]} if about else {}


def _found(summary: Summary, k: int) -> Found:
    found = summary["findings"]
    owner, known = found["owners"][k], METRICS.get(found["metric"])
    plain: dict[str, Any] = {
        "metric": found["metric"],
        "why_metric": known.title if known else found["metric"],  # the reason may name another owner
        "owners": [owner],
        "bar": found["bar"],
        "why_bar": found["why_bar"],
        "training": found["training"],
        "ways": [_way(way, owner, k) for way in found["ways"]],
        "recommendation": _advice(found, owner),
        "by_run": {},
    }
    if "higher" in found:
        plain["higher"] = cast(Any, found)["higher"]
    return cast(Found, plain)


def _advice(found: Found, owner: str) -> dict[str, Any] | None:
    """The owner's own advice, which is also the page's headline."""
    advice = found["recommendation"]
    if advice is None:
        return None
    none = {"owner": owner, "action": "cannot tell", "method": None, "p": None, "why": "Cannot tell: no test rows."}
    one = next((one for one in advice["owners"] if one["owner"] == owner), none)
    return {"owners": [one], "federation": {"method": one["method"], "why": one["why"]}, "level": advice["level"]}


def _way(way: Way, owner: str, k: int) -> Way:
    own = [v for v in way["verdicts"] if v["owner"] == owner]
    score = way["scores"][k]
    return Way(
        name=way["name"],
        title=way["title"],
        kind=way["kind"],
        score=score,
        lowest=score,
        scores=[score],
        others={},
        gain=own[0]["gain"] if own else None,
        ptr=None,
        verdicts=own,
        notes=improving(way),
    )


def _entry(entry: Entry, found: Found, name: str, k: int) -> Entry:
    """A method's figures for the owner alone; what the whole federation cost is left out."""
    own = next(way for way in found["ways"] if way["name"] == name)
    client: Client = entry["clients"][k] | {"id": 0}
    plain: dict[str, Any] = dict.fromkeys(("r_accuracy", "ptr", "low5", "top5", "std"))
    plain |= dict.fromkeys(("bytes_up", "bytes_down", "passes", "train_seconds", "samples_per_second"))
    plain |= {"accuracy": own["score"], "accuracy_samples": own["score"], "spread": {}, "clients": [client]}
    plain |= {key: cast(Any, entry)[key] for key in ("model", "round", "average", "runs")}
    return cast(Entry, plain | {"worse": [0] * (client["verdict"] == "worse"), "notes": own["notes"]})
