import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from report_folders import make_folder, make_summary

from fairlead.core.errors import RunError
from fairlead.report import caption, headline, write_page
from fairlead.report.tables import VERDICTS, percent
from fairlead.runs.files import append_part


class Tags(HTMLParser):
    """Opens and closes must match, and every cell's text is kept by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "input"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(make_folder(tmp_path_factory.mktemp("comparison"), make_summary()))


@pytest.fixture(scope="module")
def page(written: Path) -> str:
    return written.read_text(encoding="utf-8")


def test_page_is_whole_and_says_the_recommendation_first(page: str, summary: Any, written: Path) -> None:
    tags = Tags(page)
    assert not tags.open
    assert (
        page.index(headline(summary)) < page.index("<h2>Who") < page.index("<h2>How much") < page.index("<h2>How sure")
    )
    assert caption(summary).replace("'", "&#x27;") in page
    assert page.count("<figure") == 5  # a curve per method
    for said in ("R-Acc", "Positive transfer ratio", "vectorised", "2.13.0", "30, 35, 40"):
        assert said in page
    for name in ("differences", "curves"):
        with Image.open(written.parent / "figures" / f"{name}.png") as image:
            image.verify()


def test_every_owner_is_told_what_to_do_and_why(page: str, summary: Any) -> None:
    rows = Tags(page).rows
    for one in summary["findings"]["recommendation"]["owners"]:
        told = f"join with {one['method']}" if one["action"] == "join" else one["action"]
        assert [one["owner"], told, one["why"]] in rows


def test_every_verdict_stands_in_its_words_with_gain_interval_and_reason(page: str, summary: Any) -> None:
    found = [row for row in Tags(page).rows if row[1:2] and row[1] in VERDICTS]
    judged = [v for way in summary["findings"]["ways"] for v in way["verdicts"]]
    assert [(row[0], row[1]) for row in found] == [(v["owner"], v["verdict"]) for v in judged]
    assert {v["verdict"] for v in judged} >= {"better", "worse", "too few rows to tell"}
    for row, v in zip(found, judged, strict=True):
        assert row[2].replace("−", "-") == percent(v["gain"], "+")
    assert page.count("<svg class='span' viewBox='0 0") == len(judged)


def test_own_data_shows_its_company_the_search_and_the_notes(tmp_path: Path) -> None:
    summary = make_summary(("local", "ditto"), own=True)
    note = "still improving after 60 rounds: a longer training may change the verdict"
    ditto = next(way for way in summary["findings"]["ways"] if way["name"] == "ditto")
    ditto["notes"] = ["step size 0.1, 60 rounds", note]
    summary["data"]["notes"] = ["owner 0 has 6 rows"]
    page = write_page(make_folder(tmp_path, summary)).read_text(encoding="utf-8")
    rows = Tags(page).rows
    assert ["ditto", "0", "0.03: 0.31, 0.1: 0.25", "0.1", "30", "0.25", "no"] in rows
    assert {row[0] for row in rows if row} >= {"local *", "majority", "ditto †", "pooled"}
    assert f"<li>ditto: {note}.</li>" in page
    assert "<h2>The data</h2><p>Data: owner 0 has 6 rows.</p>" in page
    assert "R-Acc" not in page


def test_few_owners_are_named_and_many_are_counted_sorted_and_filtered(page: str, tmp_path: Path) -> None:
    many = make_summary(("local", "ditto"), clients=60, seeds=1)
    text = write_page(make_folder(tmp_path, many)).read_text(encoding="utf-8")
    assert "type='search'" in text
    assert "<details open>" not in text
    assert "All owners, sorted by gain" in text
    assert any(row[0] == "Recommendation" and row[1] == "Owners" for row in Tags(text).rows if len(row) > 1)
    assert "type='search'" not in page
    assert any("owner 11" in cell for row in Tags(page).rows if row[:1] == ["fedavg"] for cell in row)
    assert "owest 5%" not in page + text


def test_page_loads_nothing(page: str) -> None:
    bare = re.sub(r'xmlns(:\w+)?="http://www\.w3\.org/[^"]*"', "", page)
    assert "http://" not in bare
    assert "https://" not in bare
    assert not re.search(r"<(link|img|iframe|script src)|@import|url\((?!#)", bare)


def test_drawings_share_no_identifier(page: str) -> None:
    found = re.findall(r' id="([^"]+)"', page)
    assert len(found) == len(set(found))


def test_names_are_escaped(tmp_path: Path) -> None:
    summary = make_summary(("local", "<em>&'x'"))
    summary["scenario"]["name"] = "</title><script>alert(1)</script>"
    summary["settings"]["note"] = "<i>"
    found = summary["findings"]
    found["owners"][0] = found["recommendation"]["owners"][0]["owner"] = "'><u>"
    found["ways"][1]["verdicts"][0] |= {"owner": "'><u>", "why": "<u>"}
    found["ways"][1]["notes"], summary["data"]["notes"] = ["<u>"], ["<u>"]
    found["why_bar"] = found["recommendation"]["federation"]["why"] = "<u>"
    page = write_page(make_folder(tmp_path, summary)).read_text(encoding="utf-8")
    for raw in ("<em>", "<script>alert", "<i>", "<u>"):
        assert raw not in page
    assert "&lt;u&gt;" in page
    assert "data-owner=''" not in page


def test_the_control_alone_makes_a_page(tmp_path: Path) -> None:
    page = write_page(make_folder(tmp_path, make_summary(("local",), seeds=1))).read_text(encoding="utf-8")
    assert "nothing to compare it with" in page


def test_what_is_not_known_is_a_dash(tmp_path: Path, summary: Any) -> None:
    summary["methods"]["ditto"] |= {"bytes_up": None}
    fedora = next(way for way in summary["findings"]["ways"] if way["name"] == "fedora")
    del fedora["verdicts"][0]
    fedora["scores"][0] = None
    unknown = dict.fromkeys(("gain", "lower", "upper", "method_score", "control_score"))
    fedora["verdicts"][0] |= unknown | {"verdict": "too few rows to tell", "why": "Not judged: no value."}
    fedora["verdicts"][1]["upper"] = None
    rows = Tags(write_page(make_folder(tmp_path, summary)).read_text(encoding="utf-8")).rows
    row = next(row for row in rows if row and row[0] == "ditto")
    assert row[-3] == "–"
    (row,) = [row for row in rows if row[1:2] == ["not judged"]]
    assert (row[0], row[2], row[3], row[5], row[6]) == ("owner 0", "–", "–", "–", "No test rows.")
    (row,) = [row for row in rows if "Not judged: no value." in row]
    assert row[:4] == ["owner 1", "too few rows to tell", "–", "–"]
    assert any("95% interval" in row for row in rows)


def test_a_folder_without_summary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no such file, expected a finished comparison; run `fairlead compare`"):
        write_page(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("methods"), "methods: field required"),
        (lambda s: s.update(control="nobody"), "the control 'nobody' is not among the methods"),
        (lambda s: s["settings"].update(seeds=[]), "settings.seeds is"),
        (lambda s: s["methods"].update(ditto=3), "methods.ditto: input should be a valid dictionary"),
        (lambda s: s["methods"]["ditto"].pop("ptr"), "methods.ditto.ptr: field required"),
        (
            lambda s: s["methods"]["ditto"].update(accuracy="high"),
            "ditto.accuracy: input should be a valid",
        ),
        (lambda s: s["methods"]["ditto"].update(round={}), "methods.ditto.round.rule: field required"),
        (lambda s: s["methods"]["ditto"].update(worse=[99]), "calls [99] worse off"),
        (
            lambda s: s["methods"]["ditto"]["clients"][0].update(interval=[1]),
            "ditto.clients.0.interval: list should",
        ),
        (lambda s: s.pop("findings"), "findings: field required"),
        (lambda s: s["findings"].update(bar="nobody"), "the bar 'nobody' is not among the ways to train"),
        (lambda s: s["findings"].pop("recommendation"), "findings.recommendation: field required"),
        (lambda s: s["findings"]["ways"][0].pop("scores"), "findings.ways.0.scores: field required"),
    ],
)
def test_a_damaged_summary_is_refused(tmp_path: Path, summary: Any, change: Any, said: str) -> None:
    change(summary)
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    with pytest.raises(RunError, match=re.escape(said)) as caught:
        write_page(tmp_path)
    assert "expected" in str(caught.value)
    assert str(caught.value).endswith("run the comparison again to rewrite it")


@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_a_summary_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match="expected"):
        write_page(tmp_path)


def test_missing_damaged_or_foreign_records_are_refused(folder: Path) -> None:
    path = folder / "runs" / "ditto-seed1" / "records.parquet"
    (part,) = path.iterdir()
    whole = part.read_bytes()
    part.write_bytes(whole[:-9] + b"x" + whole[-8:])
    with pytest.raises(RunError, match="does not fit its checksum"):
        write_page(folder)
    part.unlink()
    append_part(path, 1, {"round": [1]})
    with pytest.raises(RunError, match=r"the columns client, split, .* are missing"):
        write_page(folder)
    shutil.rmtree(path)
    with pytest.raises(RunError, match="the records of ditto with seed 1"):
        write_page(folder)
