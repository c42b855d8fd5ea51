import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from PIL import Image
from report_folders import make_folder, make_summary

from fairlead import report


def rows(chart: Any) -> list[dict[str, Any]]:
    (data,) = chart.to_dict()["datasets"].values()
    return list(data)


def test_differences_hold_every_client_in_points(summary: Any) -> None:
    found = {(row["method"], row["owner"]): row for row in rows(report.client_differences(summary))}
    assert len(found) == 5 * 12
    for client in summary["methods"]["fedrep"]["clients"]:
        row = found["fedrep", client["name"]]
        assert row["gain"] == pytest.approx(100 * client["difference"])
        assert [row["low"], row["high"]] == pytest.approx([100 * end for end in client["interval"]])
        assert row["verdict"] == client["verdict"]


def test_own_data_shows_the_validation_loss_as_far_as_all_folds_went(tmp_path: Path) -> None:
    summary = make_summary(("local", "ditto"), own=True)
    records = report.read_records(make_folder(tmp_path, summary), summary)
    stopped = records.filter(pc.or_(pc.not_equal(records["seed"], 1), pc.less(records["round"], 40)))
    drawn = [row for row in rows(report.curves(stopped, summary)) if "mean" in row and row["series"] == "method"]
    assert max(row["round"] for row in drawn) == 35
    last = [row for row in records.to_pylist() if row["method"] == "ditto" and row["round"] == 35]
    losses = [row["loss"] for row in last if row["split"] == "validation"]
    assert drawn[-1]["mean"] == pytest.approx(sum(losses) / len(losses))


def test_curves_are_means_over_clients_with_the_seeds_extremes(folder: Path, summary: Any) -> None:
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
    assert "never on test" in report.curves(records, summary).to_dict()["title"]["subtitle"]


def test_figures_save_as_png_and_svg(tmp_path: Path, summary: Any) -> None:
    chart = report.scatter(summary)
    small, large = (report.save_png(chart, tmp_path / f"{scale}.png", scale) for scale in (1, 2))
    sizes = [Image.open(BytesIO(path.read_bytes())).size for path in (small, large)]
    assert sizes[1] == pytest.approx([2 * side for side in sizes[0]], abs=2)
    assert report.save_svg(chart, tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<svg")


def test_many_clients_are_drawn() -> None:
    drawn = rows(report.client_differences(make_summary(("local", "a", "b"), clients=60, seeds=1)))
    assert len(drawn) == 2 * 60
    first = sorted((row["rank"], row["gain"]) for row in drawn if row["method"] == "a")
    assert [gain for _, gain in first] == sorted(gain for _, gain in first)


def test_tables_do_not_load_the_drawing_library() -> None:
    code = "import sys, fairlead.report; assert 'altair' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pie'"):
        report.pie  # noqa: B018
