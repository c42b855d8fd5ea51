"""The page's section on the data."""

import re
from typing import Any

from report_folders import make_summary

from fairlead.report.about_data import data_section, differences


def rows_of(text: str) -> list[list[str]]:
    """The texts of each row's cells."""
    return [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr.*?</tr>", text)]


def with_survey(classes: int = 2, **more: Any) -> Any:
    summary = make_summary(("local", "ditto"), clients=3, seeds=1, own=True)
    owners = []
    for k in range(3):
        counts = {f"<c{i}>": 10 + k * i for i in range(classes)}
        owners.append(
            {"name": f"owner {k}", "rows": sum(counts.values()), "classes": counts, "missing": {"age": 2 * k}}
        )
    column = {"name": "age", "role": "number", "missing": 6, "done": "filled in", "why": "it has numbers", "kept": True}
    about = {"name": "x", "rows": 90, "target": "'y', one of 2 classes", "owners": owners, "columns": [column]}
    summary["data"] = {"notes": ["'age' is odd."]} | about | more
    return summary


def test_sizes_classes_and_empty_cells_stand_by_owner() -> None:
    text = data_section(with_survey())
    assert "90 rows; to predict: &#x27;y&#x27;, one of 2 classes." in text
    assert "<li>Rows: from 20 (owner 0) to 22 (owner 2).</li>" in text
    assert "<li>Share of &#x27;&lt;c1&gt;&#x27;: from 50% (owner 0) to 55% (owner 2).</li>" in text
    assert "<li>&#x27;age&#x27; is odd.</li>" in text
    assert ["owner 2", "82", "200", "10 (45%)", "12 (55%)", "4"] in rows_of(text)
    assert "<td>age</td><td>number</td><td>6</td>" in text
    assert "<c1>" not in text


def test_many_classes_are_one_bar() -> None:
    text = data_section(with_survey(classes=10))
    assert text.count("class='mix'") == 3
    assert "10 of 10" in text
    assert "title='&lt;c9&gt;: 28 (15%)'" in text


def test_a_summary_without_a_survey_has_sizes() -> None:
    summary = make_summary(("local", "ditto"), clients=2, seeds=1)
    text = data_section(summary)
    assert ["owner 1", "81", "200"] in rows_of(text)
    assert "<ul>" not in text


def test_quantities_and_events_differ_by_their_means_and_shares() -> None:
    owners = [{"name": "a", "rows": 10, "mean": 1.5, "sd": 1.0}, {"name": "b", "rows": 10, "mean": 2.5, "sd": 1.0}]
    assert differences(owners) == ["Mean: from 1.50 (a) to 2.50 (b)"]
    times = [{"name": "a", "rows": 10, "events": 1}, {"name": "b", "rows": 10, "events": 5}]
    assert differences(times) == ["Share of rows with the event: from 10% (a) to 50% (b)"]
    assert differences(owners[:1]) == []
