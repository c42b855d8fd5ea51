import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from report_folders import make_summary

from fairlead import report


def rows(chart: Any) -> list[dict[str, Any]]:
    (data,) = chart.to_dict()["datasets"].values()
    return list(data)


def test_differences_hold_every_client_in_points(summary: dict[str, Any]) -> None:
    found = {(row["method"], row["client"]): row for row in rows(report.client_differences(summary))}
    assert len(found) == 5 * 12
    for client in summary["methods"]["fedrep"]["clients"]:
        row = found["fedrep", client["id"]]
        assert row["difference"] == pytest.approx(100 * client["difference"])
        assert [row["low"], row["high"]] == pytest.approx([100 * end for end in client["interval"]])
        assert row["verdict"] == client["verdict"]


def test_curves_are_means_over_clients_with_the_seeds_extremes(folder: Path, summary: dict[str, Any]) -> None:
    records = report.read_records(folder, summary)
    test = [row for row in records.to_pylist() if row["split"] == "test"]
    picked = [row for row in test if row["method"] == "ditto" and row["round"] == 30]
    means = [100 * sum(row["accuracy"] for row in picked if row["seed"] == seed) / 12 for seed in range(3)]
    drawn = rows(report.curves(records, summary))
    (row,) = [
        row
        for row in drawn
        if row["panel"] == "ditto" and row["series"] == "method" and row["round"] == 30 and "mean" in row
    ]
    assert [row["mean"], row["low"], row["high"]] == pytest.approx([sum(means) / 3, min(means), max(means)])
    dots = [row for row in drawn if row["panel"] == "ditto" and "dot" in row]
    assert [dot["round"] for dot in dots] == [30, 35, 40]
    assert dots[0]["dot"] == pytest.approx(means[0])
    assert "never on test" in report.curves(records).to_dict()["title"]["subtitle"]


def test_figures_save_as_png_and_svg(tmp_path: Path, summary: dict[str, Any]) -> None:
    chart = report.scatter(summary)
    small, large = (report.save_png(chart, tmp_path / f"{scale}.png", scale) for scale in (1, 2))
    sizes = [Image.open(BytesIO(path.read_bytes())).size for path in (small, large)]
    assert sizes[1] == pytest.approx([2 * side for side in sizes[0]], abs=2)
    assert report.save_svg(chart, tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<svg")


def test_many_clients_are_drawn() -> None:
    summary = make_summary(("local", *(f"m{i}" for i in range(12))), clients=500)
    assert len(rows(report.client_differences(summary))) == 12 * 500


def test_tables_do_not_load_the_drawing_library() -> None:
    code = "import sys, fairlead.report; assert 'altair' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pie'"):
        report.pie  # noqa: B018
