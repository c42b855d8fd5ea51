import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from report_folders import make_folder, make_summary

from fairlead.core.errors import RunError
from fairlead.report import caption, headline, write_page


class Tags(HTMLParser):
    """Opens and closes must match, and every cell's text is kept by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "meta":
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


def test_page_is_whole_and_says_the_verdict(page: str, summary: dict[str, Any], written: Path) -> None:
    tags = Tags(page)
    assert not tags.open
    assert headline(summary) in page
    assert caption(summary).replace("'", "&#x27;") in page
    assert page.count("<svg") == 3
    for said in ("R-Acc", "Positive transfer ratio", "vectorised", "2.13.0", "30, 35, 40"):
        assert said in page
    for name in ("differences", "curves"):
        with Image.open(written.parent / "figures" / f"{name}.png") as image:
            image.verify()


def test_every_worse_off_client_is_told_in_words(page: str, summary: dict[str, Any]) -> None:
    told = [row for row in Tags(page).rows if "worse off" in row[-1]]
    lost = [
        (str(client["id"]), "surely" if client["verdict"] == "hurt" else "perhaps")
        for name, entry in summary["methods"].items()
        for client in entry["clients"]
        if name != "local" and client["id"] in entry["worse"]
    ]
    assert [(row[0], row[-1].split(", ")[-1]) for row in told] == lost
    assert lost


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
    summary["methods"]["<em>&'x'"]["clients"][0]["id"] = "<u>"
    summary["methods"]["<em>&'x'"]["worse"] = ["<u>"]
    page = write_page(make_folder(tmp_path, summary)).read_text(encoding="utf-8")
    for raw in ("<em>", "<script>alert", "<i>", "<u>"):
        assert raw not in page
    assert "&lt;u&gt;" in page


def test_the_control_alone_makes_a_page(tmp_path: Path) -> None:
    page = write_page(make_folder(tmp_path, make_summary(("local",), seeds=1))).read_text(encoding="utf-8")
    assert "nothing to compare it with" in page


def test_what_is_not_known_is_a_dash(tmp_path: Path, summary: dict[str, Any]) -> None:
    summary["settings"]["level"] = 0.95
    summary["methods"]["ditto"] |= {"low5": None, "samples_per_second": None, "bytes_up": None}
    empty = {"n_test": 0, "accuracy": float("nan"), "difference": None, "interval": [-1.0, 1.0], "verdict": "unclear"}
    summary["methods"]["fedora"]["clients"][0] |= empty
    rows = Tags(write_page(make_folder(tmp_path, summary)).read_text(encoding="utf-8")).rows
    row = next(row for row in rows if row[0] == "ditto")
    assert [row[4], row[7], row[10]] == ["–", "–", "–"]
    (row,) = [row for row in rows if row[-1] == "not known"]
    assert row[4:] == ["–", "–", "−100.0 to +100.0", "not known"]
    assert any("95% interval, points" in row for row in rows)


def test_a_folder_without_summary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no such file, expected a finished comparison; run `fairlead compare`"):
        write_page(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("methods"), "'methods' is missing"),
        (lambda s: s.update(control="nobody"), "the control 'nobody' is not among the methods"),
        (lambda s: s["settings"].update(seeds=[]), "settings.seeds is"),
        (lambda s: s["methods"].update(ditto=3), "'ditto' is a int"),
        (lambda s: s["methods"]["ditto"].pop("ptr"), "'ditto' lacks a usable 'ptr'"),
        (lambda s: s["methods"]["ditto"].update(accuracy="high"), "'ditto' lacks a usable 'accuracy'"),
        (lambda s: s["methods"]["ditto"].update(round={}), "'ditto' has round"),
        (lambda s: s["methods"]["ditto"].update(worse=[99]), "calls ['99'] worse off"),
        (lambda s: s["methods"]["ditto"]["clients"][0].update(interval=[1]), "'ditto' has the client"),
    ],
)
def test_a_damaged_summary_is_refused(tmp_path: Path, summary: dict[str, Any], change: Any, said: str) -> None:
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
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "runs" / "ditto-seed1" / "records.parquet"
    pq.write_table(pa.table({"round": [1]}), path)
    with pytest.raises(RunError, match=r"the columns client, split, .* are missing"):
        write_page(folder)
    path.write_bytes(b"not parquet")
    with pytest.raises(RunError, match="not readable as parquet"):
        write_page(folder)
    path.unlink()
    with pytest.raises(RunError, match="the records of ditto with seed 1"):
        write_page(folder)
