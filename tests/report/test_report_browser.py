"""The page in a real browser: what a reader clicks, types, hovers over and downloads."""

from __future__ import annotations

import base64
import csv
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, DRIVER, chromium, resize
from report_folders import make_folder, make_summary, repeated

from fairlead.report import write_page
from fairlead.report.live import watching_server
from fairlead.report.page import page_of_folder
from fairlead.report.tables import VERDICTS
from fairlead.runs.files import append_part

pytest.importorskip("selenium", reason="selenium is not installed: pip install -e '.[dev]'")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser here: apt-get install chromium chromium-driver"
)
HOSTILE = [
    "</script><script>window.hit=1</script>",
    "<img src=x onerror='window.hit=1'>",
    "=1+1",
    'it\'s "so", they say',
]
METHODS = ("local", "fedavg", "ditto")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Comparisons of so many owners, made once."""
    made: dict[int, Path] = {}

    def folder(owners: int) -> Path:
        if owners not in made:
            summary = make_summary(METHODS, clients=min(owners, 50), own=owners == 4)
            summary = repeated(summary, owners // 50) if owners > 50 else summary
            made[owners] = make_folder(tmp_path_factory.mktemp(f"of{owners}"), summary)
            (made[owners] / "report.html").write_text(page_of_folder(made[owners]), encoding="utf-8")
        return made[owners]

    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("browser")) as found:
        yield found


class Page:
    """What the tests do with a page."""

    def __init__(self, driver: Any, address: str, width: int = 1280, scheme: str = "light") -> None:
        self.driver = driver
        resize(driver, width, scheme=scheme)
        driver.get_log("browser")
        driver.get(address)
        self.run("document.querySelectorAll('details').forEach(part => part.open = true)")

    def run(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def texts(self, what: str) -> list[str]:
        """The texts of all that is visible."""
        seen = "[...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility())"
        return list(self.run(f"return {seen}.map(e => e.innerText ?? e.textContent)", what))

    def click(self, what: str, text: str | None = None) -> None:
        """A real click, which fails where something else lies above."""
        script = "const all = [...document.querySelectorAll(arguments[0])];"
        script += "const one = all.find(e => arguments[1] === null || e.innerText.includes(arguments[1]));"
        script += "one.scrollIntoView({block: 'center'}); return one"
        self.run(script, what, text).click()

    def type(self, text: str) -> None:
        box = self.driver.find_element("css selector", "input[type=search]")
        box.clear()
        box.send_keys(text)

    def hover(self, what: str, x: float = 0.5) -> str:
        """The text that shows at the pointer, `x` of the way across."""
        from selenium.webdriver.common.action_chains import ActionChains

        element = self.driver.find_element("css selector", what)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        shift = int((x - 0.5) * element.size["width"])
        ActionChains(self.driver, duration=0).move_to_element_with_offset(element, shift, 0).perform()
        return "\n".join(self.texts("#tip"))

    def complaints(self) -> list[Any]:
        return list(self.driver.get_log("browser"))

    def drag(self, what: str, start: float, end: float) -> None:
        """Press the mouse at one part of the way across an element and let it go at another."""
        script = "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
        script += "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]"
        left, top, width, height = self.run(script, what)
        y = top + height / 2
        for kind, share in (("mousePressed", start), ("mouseMoved", (start + end) / 2), ("mouseReleased", end)):
            where = {"type": kind, "x": left + share * width, "y": y, "button": "left", "clickCount": 1}
            self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", where)

    def saved(self, name: str) -> list[list[str]]:
        """The file that a click on its button downloads."""
        folder = Path(self.driver.capabilities["chrome"]["userDataDir"]).parent / "downloads"
        path = folder / f"{name}.csv"
        path.unlink(missing_ok=True)
        self.driver.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
        self.click(f"button[data-csv={name}]")
        for _ in range(100):
            if path.exists():
                break
            time.sleep(0.05)
        return list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))


Open = Callable[..., Page]


@pytest.fixture
def opened(driver: Any, folders: Callable[[int], Path]) -> Open:
    return lambda owners, **how: Page(driver, (folders(owners) / "report.html").as_uri(), **how)


@pytest.mark.parametrize("owners", [1, 4, 30, 1000])
def test_pages_of_any_size_open_without_a_complaint_and_fit_the_screen(opened: Open, owners: int) -> None:
    for width in (1280, 390):
        page = opened(owners, width=width)
        assert page.complaints() == []
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert len(page.texts("[data-chart=costs] svg")) == 2
        assert page.texts("[data-chart=curves] path.line") == [""] * len(METHODS)
        assert len(page.texts("[data-chart=gains] svg")) == (2 if owners == 1000 else 0)
        assert len(page.texts("table.matrix")) == (owners <= 30)
    assert page.run("return performance.getEntriesByType('resource').length") == 0


def test_the_page_is_dark_where_the_reader_wants_it_and_light_on_paper(opened: Open) -> None:
    page = opened(4, scheme="dark")
    background = "return getComputedStyle(document.body).backgroundColor"
    assert page.run(background) == "rgb(21, 25, 29)"
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    assert page.run(background) == "rgb(255, 255, 255)"
    assert page.run("return getComputedStyle(document.querySelector('thead')).display") == "table-header-group"
    # Chromium paints no button in a head that is repeated on the next page, but its text.
    assert page.run("return getComputedStyle(document.querySelector('.head')).display") == "contents"
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    printed = page.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
    assert page.run("return [...document.querySelectorAll('details')].every(d => d.open)")


@pytest.mark.parametrize("owners", [1, 4, 30, 1000])
def test_on_a_phone_the_recommendation_is_read_without_moving_the_page_sideways(opened: Open, owners: int) -> None:
    page = opened(owners, width=390)
    inside = """return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility())
      .map(e => e.getBoundingClientRect()).every(b => b.left >= 0 && b.right <= innerWidth)"""
    for what in ("h1", ".actions li", "table.who td", "table.actions-of td", "table.ways td", "table.data td"):
        assert page.run(inside, what), what
    size = page.run("return parseFloat(getComputedStyle(document.querySelector('h1')).fontSize)")
    assert size >= 16


@pytest.mark.parametrize("width", [1280, 390])
def test_the_name_of_the_bar_covers_no_point(driver: Any, tmp_path: Path, width: int) -> None:
    summary = make_summary(METHODS, clients=4)
    local, fedavg, ditto = (summary["methods"][name] for name in METHODS)
    for costly in (fedavg, ditto):  # at the right end of the bar's line, where its name stands otherwise
        costly |= {"accuracy": local["accuracy"], "bytes_up": 9e6, "bytes_down": 9e6, "train_seconds": 90.0}
    page = Page(driver, write_page(make_folder(tmp_path, summary)).as_uri(), width)
    script = """return [...document.querySelectorAll('[data-chart=costs] svg')].flatMap(svg => {
      const named = [...svg.querySelectorAll('text')].find(t => t.textContent.startsWith('the bar:'));
      const title = named.getBoundingClientRect();
      return [...svg.querySelectorAll('circle[r="5"]')].map(c => c.getBoundingClientRect()).filter(b =>
        b.left < title.right && b.right > title.left && b.top + 2 < title.bottom && b.bottom - 2 > title.top);
    }).length"""
    assert page.run(script) == 0


def test_headings_sort_both_ways_and_by_the_keyboard(opened: Open) -> None:
    page = opened(30)

    def column(number: int) -> list[float]:
        cells = page.texts(f"table.verdicts tbody td:nth-child({number})")
        return [float(cell.replace("−", "-")) for cell in cells if cell != "–"]

    assert column(4) == sorted(column(4), reverse=True)
    page.click("table.verdicts thead th:nth-child(4) button")
    assert column(4) == sorted(column(4))
    page.run("document.querySelector('table.verdicts thead th:nth-child(7) button').focus()")
    for key, order in (("\n", "ascending"), (" ", "descending")):
        page.driver.switch_to.active_element.send_keys(key)
        assert column(7) == sorted(column(7), reverse=order == "descending")
        assert page.run("return document.activeElement.closest('th').ariaSort") == order
    owners = page.texts("table.matrix tbody td:first-child")
    page.click("table.matrix thead th:first-child button")
    page.click("table.matrix thead th:first-child button")
    assert page.texts("table.matrix tbody td:first-child") == owners[::-1]
    assert page.complaints() == []


def test_a_name_that_is_typed_filters_tables_and_curves(opened: Open) -> None:
    page = opened(30)
    page.type("owner 7")
    assert page.texts("table.who tbody td:first-child") == ["owner 7"]
    assert page.texts("table.matrix tbody td:first-child") == ["owner 7"]
    assert set(page.texts("table.verdicts tbody td:first-child")) == {"owner 7"}
    assert any("accuracy, %, owner 7" in text for text in page.texts("[data-chart=curves] text"))
    assert "1 of 30 owners" in page.texts(".controls .note")[0]
    page.type("owner 2")
    assert len(page.texts("table.matrix tbody tr")) == 1
    page.type("OWNER 1")  # is there by that name; with nobody of the name it is part of names
    assert page.texts("table.matrix tbody td:first-child") == ["owner 1"]
    page.type("ner 1")
    assert len(page.texts("table.matrix tbody tr")) == 11
    page.click(".controls button", "Show all")
    assert len(page.texts("table.matrix tbody tr")) == 30


def test_methods_and_verdicts_are_chosen_by_a_click(opened: Open, folders: Callable[[int], Path]) -> None:
    page = opened(30)
    page.click(".controls button", "ditto")
    assert page.texts("table.matrix thead th[data-way]")[0].startswith("fedavg")
    assert set(page.texts("table.verdicts tbody td:nth-child(2)")) == {"fedavg"}
    assert len(page.texts("[data-chart=curves] path.line")) == 2
    for word in VERDICTS[:1] + VERDICTS[2:]:
        page.click(".controls button", word)
    assert [text.strip("▼ ") for text in page.texts("table.verdicts tbody td:nth-child(3)")] == ["worse"]
    page.click("table.verdicts button.plain")
    assert page.texts("table.matrix tbody td:first-child") == ["owner 29"]
    assert page.complaints() == []


def test_values_show_at_the_pointer(opened: Open) -> None:
    page = opened(1000)
    said = page.hover("[data-chart=gains] svg", 0.95)
    assert "owner " in said
    assert "95% interval" in said
    assert any(word in said for word in VERDICTS)
    curve = page.hover("[data-chart=curves] svg", 0.6)
    assert curve.startswith("round ")
    assert all(name in curve for name in METHODS)
    assert "MB sent" in page.hover("[data-chart=costs] .point circle")
    page.hover("h1")
    assert page.texts("#tip") == []


def test_curves_have_a_logarithmic_axis_and_are_enlarged_by_the_mouse(opened: Open) -> None:
    page = opened(4)  # own data: the validation loss

    def marks() -> list[float]:
        found = page.texts("[data-chart=curves] svg text[text-anchor=end]")
        return [float(text) for text in found]

    even = marks()
    assert even[1] - even[0] == pytest.approx(even[2] - even[1])
    page.click(".tools button", "Logarithmic")
    assert marks() != even
    assert all(mark > 0 for mark in marks())
    page.drag("[data-chart=curves] svg", 0.5, 0.8)
    rounds = [float(text) for text in page.texts("[data-chart=curves] svg text[text-anchor=middle]")[:-1]]
    assert 20 <= min(rounds) < max(rounds) <= 45
    assert len(page.texts("[data-chart=curves] path.line")) == len(METHODS)
    page.click(".tools button", "All rounds")
    assert "50" in page.texts("[data-chart=curves] svg text[text-anchor=middle]")
    assert page.complaints() == []


def test_arrow_keys_tell_the_values_of_a_chart(opened: Open) -> None:
    page = opened(1000)
    page.run("document.querySelector('[data-chart=curves] svg').focus()")
    arrow = "\ue014"  # right
    page.driver.switch_to.active_element.send_keys(arrow, arrow)
    assert page.texts("#tip")[0].startswith("round 5\nlocal: ")
    page.run("document.querySelector('[data-chart=gains] svg').focus()")
    page.driver.switch_to.active_element.send_keys(arrow)
    assert "worse" in page.texts("#tip")[0]  # the lowest gain


@pytest.mark.parametrize("owners", [1, 4, 30, 1000])
def test_whoever_cannot_see_or_point_finds_names_and_order(opened: Open, owners: int) -> None:
    page = opened(owners)
    unnamed = "[...document.querySelectorAll('button, input, select, svg, a, summary')].filter(e => !(e.ariaLabel ||"
    unnamed += " e.textContent.trim() || e.closest('label'))).map(e => e.outerHTML)"
    assert page.run(f"return {unnamed}") == []
    unsorted = "[...document.querySelectorAll('.wide thead th')].filter(e => !e.ariaSort || !e.querySelector('button'))"
    assert page.run(f"return {unsorted}.length") == 0
    levels = page.run("return [...document.querySelectorAll('h1, h2, h3, h4')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 2 for a, b in pairwise(levels))
    links = page.run("return [...document.querySelectorAll('nav a')].map(e => e.getAttribute('href').slice(1))")
    assert links == page.run("return [...document.querySelectorAll('h2')].map(e => e.id)")


def test_a_thousand_owners_are_a_distribution_and_unfold_on_demand(opened: Open) -> None:
    page = opened(1000)
    page.run("document.querySelectorAll('details').forEach(part => part.open = false)")
    assert page.texts("table.who tbody tr") == page.texts("table.verdicts tbody tr") == []
    lowest, highest = (page.texts(f"table.spread td:nth-child({i})")[0] for i in (3, 7))
    assert float(lowest.replace("−", "-")) < 0 < float(highest)
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert len(page.texts("table.verdicts tbody tr")) == 60
    assert page.texts("#verdicts p") == ["The first 60 of 2,000, by gain, points."]  # on paper, too
    page.click("button.more")
    assert len(page.texts("table.verdicts tbody tr")) == 2000
    assert page.texts("#verdicts p") == []
    lines = "return document.querySelector('[data-chart=gains] .too .range')?.getAttribute('d') ?? ''"
    assert page.run(lines) == "", "a thousand intervals would be one block"
    page.click("[data-chart=gains] svg")  # the owner at the pointer
    assert len(page.texts("table.who tbody tr")) == 1
    assert page.complaints() == []


def test_tables_are_downloaded_with_all_their_digits(opened: Open) -> None:
    page, summary = opened(30), make_summary(METHODS, clients=30)
    head, *rows = page.saved("verdicts")
    found = {(row[0], row[1]): dict(zip(head, row, strict=True)) for row in rows}
    for way in summary["findings"]["ways"][1:]:
        for v in way["verdicts"]:
            row = found[v["owner"], way["name"]]
            assert row["verdict"] == v["verdict"]
            assert float(row["gain"]) == pytest.approx(100 * v["gain"], rel=1e-5)
            assert float(row["lower"]) == pytest.approx(100 * v["lower"], rel=1e-5)
    assert [row[0] for row in page.saved("ways")] == ["Way to train", "local *", *METHODS[1:]]
    curves = page.saved("curves")
    assert curves[0] == ["way", "owner", "round", "test accuracy, %"]
    assert len(curves) == 1 + 3 * 31 * 11


def hostile_summary() -> Any:
    summary = make_summary(METHODS, clients=4)
    names = dict(zip(summary["findings"]["owners"], HOSTILE, strict=True))
    found = summary["findings"]
    found["owners"] = HOSTILE
    for one in [*found["recommendation"]["owners"], *(v for way in found["ways"] for v in way["verdicts"])]:
        one["owner"] = names[one["owner"]]
        one["why"] = f"{one['owner']}: {one['why']}"
    for entry in summary["methods"].values():
        for client in entry["clients"]:
            client["name"] = names[client["name"]]
    summary["data"]["notes"] = HOSTILE
    return summary


def test_names_of_strangers_stay_text_in_page_and_file(driver: Any, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, hostile_summary())
    for owner in (None, *HOSTILE):
        page = Page(driver, write_page(folder, owner).as_uri())
        assert page.run("return window.hit") is None
        assert page.complaints() == []
    page = Page(driver, (folder / "report.html").as_uri())
    assert page.texts("table.matrix tbody td:first-child") == HOSTILE
    page.hover("[data-chart=curves] svg")
    page.type(HOSTILE[1])
    assert page.texts("table.who tbody td:first-child") == HOSTILE[1:2]
    page.click(".controls button", "Show all")
    assert {row[0] for row in page.saved("verdicts")[1:]} == {*HOSTILE[:2], "'=1+1", HOSTILE[3]}
    assert page.run("return window.hit") is None


def test_a_run_is_watched_until_its_verdict(driver: Any, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, make_summary(METHODS, clients=4, seeds=1))
    going_on(folder)
    with watching_server(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = Page(driver, server.address)
        assert "no verdict yet" in page.texts("h1")[0]
        assert len(page.texts("[data-chart=curves] path.line")) == len(METHODS)
        assert "validation loss" in " ".join(page.texts("[data-chart=curves] text"))
        assert page.texts("#verdicts") == []
        page.type("2")
        next((folder / "runs" / "ditto-seed0" / "records.parquet").iterdir()).touch()
        page.run("window.before = true")
        wait(lambda: page.run("return window.before") is None)
        assert page.run("return document.querySelector('input').value") == "2"
        (folder / "later.json").rename(folder / "summary.json")
        (folder / "summary.json").touch()
        wait(lambda: bool(page.texts("table.matrix")))
        server.shutdown()
    assert [one for one in page.complaints() if "favicon" not in one["message"]] == []


def going_on(folder: Path) -> None:
    """Make it a comparison that is not finished."""
    import json

    (folder / "summary.json").rename(folder / "later.json")
    experiment = {"name": "custom", "rounds": 50, "scenario": {"data": "patients.csv"}}
    (folder / "settings.json").write_text(json.dumps({"methods": METHODS, "seeds": [0], "experiment": experiment}))
    for name in METHODS:
        run = folder / "runs" / f"{name}-seed0"
        (run / "settings.json").write_text(json.dumps({"method": name, "seed": 0, "experiment": experiment}))
        append_part(run / "rounds.parquet", 2, {"round": [1, 2], "seconds": [0.5, 0.5]})


def wait(until: Callable[[], bool], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.1)
