import base64
import hashlib
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
from fairlead.metrics import METRICS
from fairlead.report import caption, headline, read_records, write_page
from fairlead.report.charts import line_of
from fairlead.report.page import MEANINGS
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
    order = ["<h2 id='who'>", "<h2 id='how-much'>", "<h2 id='how-sure'>", "<h2 id='owner-by-owner'>"]
    places = [page.index(part) for part in (headline(summary), *order)]
    assert places == sorted(places)
    assert caption(summary).replace("'", "&#x27;") in page
    for chart in ("costs", "curves"):
        assert f"data-chart='{chart}'" in page
    assert f"<h1 class='join'>{headline(summary)}</h1>" in page
    for said in ("R-Acc", "Positive transfer ratio", "vectorised", "2.13.0", "30, 35, 40"):
        assert said in page
    for name in ("differences", "curves"):
        with Image.open(written.parent / "figures" / f"{name}.png") as image:
            image.verify()


def test_every_owner_is_told_what_to_do_and_why(page: str, summary: Any) -> None:
    rows = Tags(page).rows
    for one in summary["findings"]["recommendation"]["owners"]:
        told = f"join with {one['method']}" if one["action"] == "join" else one["action"]
        why = one["why"].partition(": ")[2]  # what to do stands beside it
        assert [one["owner"], told, why] in rows


def test_the_metric_is_explained_and_settings_that_nothing_looked_at_are_left_out(page: str, tmp_path: Path) -> None:
    assert set(MEANINGS) == set(METRICS)
    assert MEANINGS["accuracy"] in page
    summary = make_summary(("local", "ditto"), own=True)
    summary["scenario"] |= {"split": "dirichlet", "shift": "none", "beta": 0.1, "skew": 1.0, "angle": 7.0}
    rows = Tags(write_page(make_folder(tmp_path, summary)).read_text(encoding="utf-8")).rows
    assert ["beta", "0.1"] in rows
    assert not [row for row in rows if row and row[0] in ("skew", "angle")]


def numbers_in(page: str) -> Any:
    """What the page's script draws."""
    (text,) = re.findall(r"<script id='data' type='application/json'>(.*?)</script>", page, re.DOTALL)
    return json.loads(text)


def test_every_verdict_is_there_with_gain_interval_and_reason(page: str, summary: Any) -> None:
    data = numbers_in(page)
    assert data["words"] == list(VERDICTS)
    seen = set()
    for told, way in zip(data["ways"], summary["findings"]["ways"], strict=True):
        assert told["name"] == way["name"]
        for k, v in enumerate(way["verdicts"]):
            assert (data["owners"][k], data["words"][told["verdicts"][k]]) == (v["owner"], v["verdict"])
            assert told["gains"][k] == pytest.approx(100 * v["gain"], rel=1e-5)
            assert [told["low"][k], told["high"][k]] == pytest.approx([100 * v["lower"], 100 * v["upper"]], rel=1e-5)
            assert told["why"][k] == v["why"]
            seen.add(v["verdict"])
    assert seen >= {"better", "worse", "too few rows to tell"}


def test_few_owners_have_a_row_with_every_gain_and_its_interval(page: str, summary: Any) -> None:
    for way in summary["findings"]["ways"][1:]:
        for v in way["verdicts"]:
            low, high = (percent(v[end], "+").replace("-", "−") for end in ("lower", "upper"))
            gain = percent(v["gain"], "+").replace("-", "−")
            assert f"<b class='gain'>{gain}</b> <small>({low} to {high})</small>" in page
    assert len(re.findall(r"<span class='span[ a-z]*' style=", page)) == 5 * 12


def test_all_intervals_share_one_scale_and_one_that_goes_on_beyond_it_has_an_arrow(page: str, summary: Any) -> None:
    low, high = numbers_in(page)["axis"]
    judged = [v for way in summary["findings"]["ways"] for v in way["verdicts"]]
    assert low <= min(100 * v["gain"] for v in judged) <= max(100 * v["gain"] for v in judged) <= high
    beyond = [v for v in judged if 100 * v["upper"] > high + 1e-9]
    assert {v["owner"] for v in beyond} == {"owner 0"}  # which has six rows
    assert len(re.findall(r"class='span[ a-z]* above'", page)) == len(beyond) > 0
    assert {float(share) for share in re.findall(r"--z:([\d.]+)%", page)} == {float(f"{100 * -low / (high - low):.3g}")}


def test_curves_are_there_for_every_owner_and_thinned_out_for_many(page: str, folder: Path, summary: Any) -> None:
    records = read_records(folder, summary)
    test = [row for row in records.to_pylist() if (row["method"], row["split"], row["round"]) == ("ditto", "test", 30)]
    line = numbers_in(page)["curves"]["lines"]["ditto"]
    at = line["rounds"].index(30)
    own = [100 * row["accuracy"] for row in test if row["client"] == 5]
    assert line["owners"][5][at] == pytest.approx(sum(own) / 3, rel=1e-3)
    means = [100 * sum(row["accuracy"] for row in test if row["seed"] == seed) / 12 for seed in range(3)]
    assert [line["low"][at], line["mean"][at], line["high"][at]] == pytest.approx(
        [min(means), sum(means) / 3, max(means)], rel=1e-3
    )
    assert [r for r, _ in line["chosen"]] == [30, 35, 40]
    whole = line_of(records, "ditto", ("test", "accuracy"), 12, 3)
    thin = whole.drawn(60)
    assert thin["rounds"] == [5, 20, 35, 50]
    assert {len(own) for own in thin["owners"]} == {4}


def test_own_data_shows_its_company_the_search_and_the_notes(tmp_path: Path) -> None:
    summary = make_summary(("local", "ditto"), own=True)
    note = "still improving after 60 rounds: a longer training may change the verdict"
    ditto = next(way for way in summary["findings"]["ways"] if way["name"] == "ditto")
    ditto["notes"] = ["step size 0.1, 60 rounds", note]
    summary["data"]["notes"] = ["owner 0 has 6 rows"]
    page = write_page(make_folder(tmp_path, summary)).read_text(encoding="utf-8")
    rows = Tags(page).rows
    assert ["ditto", "0", "0.03: 0.310, 0.1: 0.250", "0.1", "30", "0.250", "no"] in rows
    assert {row[0] for row in rows if row} >= {"local *", "majority", "ditto †", "pooled"}
    assert page.count(note) == 1, "below the table, and not again"
    assert f"†: ditto was {note}." in page
    assert "The data</h2><ul><li>Owner 0 has 6 rows.</li></ul>" in page
    assert "R-Acc" not in page


def test_few_owners_are_named_and_many_are_counted_sorted_and_filtered(page: str, tmp_path: Path) -> None:
    many = make_summary(("local", "ditto"), clients=60, seeds=1)
    text = write_page(make_folder(tmp_path, many)).read_text(encoding="utf-8")
    assert "data-chart='gains'" in text
    assert "data-chart='gains'" not in page
    rows = Tags(text).rows
    assert any(row[:2] == ["Recommendation", "Owners"] for row in rows)
    assert ["cannot tell", "60 (100%)", "owner 0, owner 1, owner 2, ..."] in rows
    assert "<b>60</b> of 60: cannot tell" in text
    gains = sorted(v["gain"] for v in many["findings"]["ways"][1]["verdicts"])
    (spread,) = [row for row in rows if row[:1] == ["ditto"] and len(row) == 6]
    assert [spread[1], spread[-1]] == [percent(end, "+").replace("-", "−") for end in (gains[0], gains[-1])]
    assert "All 60 owners, one by one" in text
    assert any("owner 11" in cell for row in Tags(page).rows if row[:1] == ["fedavg"] for cell in row)
    assert "owest 5%" not in page + text


def test_page_loads_nothing(page: str) -> None:
    bare = page.replace("'http://www.w3.org/2000/svg'", "")  # the name of a language, not an address
    assert "http://" not in bare
    assert "https://" not in bare
    assert not re.search(r"<(link|img|iframe|script src)|@import|url\((?!#)", bare)


def test_the_browser_is_told_to_run_this_script_alone(page: str) -> None:
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; connect-src 'none'" in page
    assert "innerHTML" not in script


def test_names_are_escaped(tmp_path: Path) -> None:
    summary = make_summary(("local", "<em>&'x'"))
    summary["scenario"]["name"] = "</title><script>alert(1)</script>"
    summary["settings"]["note"] = "<i>a"
    found = summary["findings"]
    found["owners"][0] = found["recommendation"]["owners"][0]["owner"] = "'><q>"
    found["ways"][1]["verdicts"][0] |= {"owner": "'><q>", "why": "<q>"}
    found["ways"][1]["notes"], summary["data"]["notes"] = ["<q>"], ["<q>"]
    found["why_bar"] = found["recommendation"]["federation"]["why"] = "<q>"
    page = write_page(make_folder(tmp_path, summary)).read_text(encoding="utf-8")
    for raw in ("<em>", "<script>alert", "<i>a", "<q>"):
        assert raw not in page
    assert "&lt;q&gt;" in page
    assert "data-owner=''" not in page
    assert numbers_in(page)["owners"][0] == "'><q>"


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
    text = write_page(make_folder(tmp_path, summary)).read_text(encoding="utf-8")
    rows = Tags(text).rows
    row = next(row for row in rows if row and row[0] == "ditto")
    assert row[-4] == "–"
    assert any(row[0] == "owner 0" and "no test rows" in row for row in rows if row)
    assert any(row[0] == "owner 1" and "too few rows to tell" in row for row in rows if row)
    assert "to –" in text
    told = next(way for way in numbers_in(text)["ways"] if way["name"] == "fedora")
    assert (told["verdicts"][0], told["gains"][0], told["why"][0]) == (None, None, "No test rows.")
    assert (told["verdicts"][1], told["gains"][1], told["why"][1]) == (3, None, "Not judged: no value.")
    assert told["high"][2] is None


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
