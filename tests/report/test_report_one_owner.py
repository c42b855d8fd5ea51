"""The page for one owner holds nothing of the others."""

import json
from pathlib import Path
from typing import Any

import pytest
from report_folders import make_folder, make_summary

from fairlead.core.errors import InputError
from fairlead.report import read_records, write_page
from fairlead.report.one_owner import file_name, records_of, share_of
from fairlead.runs.summary import read_summary, write_summary

NAMES = ["harbour", "mountain", "island", "valley"]


def with_secrets() -> Any:
    """Four owners whose names and numbers would be recognised wherever they stand."""
    text = json.dumps(make_summary(("local", "fedavg", "ditto"), clients=4, own=True))
    for k, name in enumerate(NAMES):
        text = text.replace(f'"owner {k}"', f'"{name}"').replace(f"owner {k}", name)
    summary = json.loads(text)
    found, data = summary["findings"], summary["data"]
    found["why_metric"] = "accuracy, because 90% of the rows of island are of one class"
    data["notes"] = ["'age' is empty in all rows of valley"]
    data |= {"name": "x", "rows": 440, "target": "'y', one of 2 classes", "columns": []}
    data["owners"] = [{"name": n, "rows": 101 + k, "classes": {"no": 60 + k, "yes": 41}} for k, n in enumerate(NAMES)]
    for way in found["ways"]:
        way["notes"] = ["step size 0.1, 30 rounds", "sent home: valley"]
    for entry in summary["methods"].values():
        entry["notes"] = ["sent home: valley"]
        for k, client in enumerate(entry["clients"]):
            client["n_train"], client["n_test"] = 71_001 + k, 72_001 + k
    for k in range(4):
        for w, way in enumerate(found["ways"]):
            way["scores"][k] = 0.61234 + k / 100 + w / 10_000
            for v in way["verdicts"]:
                v["method_score"] = way["scores"][k] if v["owner"] == NAMES[k] else v["method_score"]
        for entry in summary["methods"].values():
            entry["clients"][k]["accuracy"] = 0.61234 + k / 100
    summary["settings"]["left_out"] = {"valley": 3}
    summary["scenario"]["big"] = {"valley": 3}
    return summary


def strings(value: Any) -> str:
    return json.dumps(value)


def test_a_share_holds_nobody_elses_name_or_number(tmp_path: Path) -> None:
    summary = with_secrets()
    share = share_of(summary, "mountain")
    said = strings(share)
    assert not [name for name in NAMES if name != "mountain" and name in said]
    for k in (0, 2, 3):
        for secret in (71_001 + k, 72_001 + k, 101 + k, 60 + k):
            assert f" {secret}," not in said
            assert f" {secret}}}" not in said
        for w in range(len(summary["findings"]["ways"])):
            assert f"{0.61234 + k / 100 + w / 10_000:.5f}" not in said
    assert f"{0.61234 + 1 / 100:.5f}"[:7] in said
    write_summary(tmp_path, share)  # it has the shape of a summary
    assert read_summary(tmp_path)["findings"]["owners"] == ["mountain"]


def test_no_mean_over_owners_is_left(tmp_path: Path) -> None:
    """Changing another owner's results changes nothing in the share, but for the verdict words that hold for all."""
    one, other = with_secrets(), with_secrets()
    k = NAMES.index("valley")
    for way in other["findings"]["ways"]:
        way["scores"][k], way["score"], way["lowest"], way["gain"], way["ptr"] = 0.5, 0.6, 0.5, 0.1, None
        way["others"] = {"auroc": 0.123}
    for entry in other["methods"].values():
        entry |= {"accuracy": 0.11, "accuracy_samples": 0.12, "r_accuracy": 0.1, "low5": 0.1, "std": 0.3}
        entry |= {"bytes_up": 5, "bytes_down": 6, "train_seconds": 7.0, "samples_per_second": 8.0}
        entry["search"] = [{"lr": 0.1, "round": 1, "loss": 9.9, "tried": {}, "trained": 3, "improving": False}]
    other["findings"]["recommendation"]["federation"] = {
        "method": None,
        "better": 1,
        "worse": 3,
        "why": "worse: valley",
    }
    assert share_of(one, "harbour") == share_of(other, "harbour")


def test_the_owners_page_begins_with_its_own_advice(tmp_path: Path) -> None:
    summary = with_secrets()
    folder = make_folder(tmp_path, summary)
    path = write_page(folder, "mountain")
    assert path == folder / "report-mountain.html"
    page = path.read_text(encoding="utf-8")
    (own,) = [one for one in summary["findings"]["recommendation"]["owners"] if one["owner"] == "mountain"]
    assert page.index("For mountain.") > page.index(own["why"].replace("'", "&#x27;"))
    assert not [name for name in NAMES if name != "mountain" and name in page]
    assert not (folder / "report.html").exists()


def test_curves_are_the_owners_own(tmp_path: Path) -> None:
    summary = with_secrets()
    folder = make_folder(tmp_path, summary)
    records = read_records(folder, summary)
    own = records_of(records, summary, "island")
    assert set(own["client"].to_pylist()) == {0}
    expected = [row["accuracy"] for row in records.to_pylist() if row["client"] == 2]
    assert own["accuracy"].to_pylist() == expected


def test_an_unknown_owner_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, with_secrets())
    with pytest.raises(InputError, match="owner 'mountian' is unknown; did you mean 'mountain'"):
        write_page(folder, "mountian")


def test_a_file_name_never_leaves_the_folder() -> None:
    names = ["../../etc/passwd", "a/b", "a b", "ä", "", "CON", "x" * 500]
    files = [file_name(name) for name in names]
    assert len(set(files)) == len(names)
    for name in files:
        assert Path(name).name == name
        assert name.isascii()
        assert len(name) < 100
