"""The verdict in pictures: who gains, how training went, and each owner with and without the others.

The colours are told apart by colour-blind readers, and every colour comes with a shape or a dash of its own. Each
figure has a panel per method. They are for slides and papers; the page draws its own, which answer to the reader.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from fairlead.report.tables import VERDICTS, measure, published, ways
from fairlead.runs.summary import Summary

if TYPE_CHECKING:
    import pyarrow as pa

INK = "#333333"  # text and grid
COLOURS = ["#0072b2", "#d55e00", "#8a8a8a", "#b8920a"]  # by verdict, in the order of VERDICTS
SHAPES = ["triangle-up", "triangle-down", "circle", "diamond"]
BLUE, GREY = COLOURS[0], COLOURS[2]
FEW = 20  # up to so many owners are named; more are sorted by their gain


def client_differences(summary: Summary) -> alt.FacetChart:
    """Each owner's gain over the bar with its interval; many owners are sorted by their gain."""
    rows = _owners(summary)
    names = list(dict.fromkeys(row["method"] for row in rows))
    columns, width = _grid(len(names))
    few = len(summary["findings"]["owners"]) <= FEW
    ends = [row[key] for row in rows for key in ("low", "high", "gain") if row[key] is not None] or [-1.0, 1.0]
    scale = alt.Scale(domain=[min(0.0, *ends), max(0.0, *ends)], nice=True)
    gain: dict[str, Any] = {"title": f"gain over the bar{measure(summary).unit}", "scale": scale}
    gain |= {"axis": alt.Axis(tickCount=5, grid=True)}
    if few:
        owner = alt.Y("owner:O", sort=None, title=None, axis=alt.Axis(grid=False, ticks=False))
    else:
        owner = alt.Y("rank:Q", title="owners, sorted by gain", axis=alt.Axis(labels=False, grid=False, ticks=False))
    line = _guide("method").encode(x=alt.XDatum(0, **gain))
    spans = alt.Chart().mark_rule(strokeWidth=2 if few else 1, opacity=0.55 if few else 0.3)
    spans = spans.encode(alt.X("low:Q", **gain), owner, x2="high:Q")
    points = alt.Chart().mark_point(filled=True, size=45 if few else 18, opacity=1)
    points = points.encode(alt.X("gain:Q", **gain), owner, shape=_by_verdict(alt.Shape, SHAPES))
    coloured = [layer.encode(color=_by_verdict(alt.Color, COLOURS)) for layer in (spans, points)]
    height: Any = alt.Step(16) if few else 320
    panels = alt.layer(line, *coloured).properties(width=width, height=height)
    said = "with the interval; left of the dashed line the owner is worse off than with the best alone"
    return _facet(panels, rows, names, columns, "method", ["Gain, owner by owner", said])


def scatter(summary: Summary) -> alt.FacetChart:
    """Each owner's score with the bar against its score with the method; off the diagonal they differ."""
    rows = _owners(summary)
    names = list(dict.fromkeys(row["method"] for row in rows))
    columns, width = _grid(len(names))
    seen = [row[key] for row in rows for key in ("alone", "together") if row[key] is not None] or [0.0, 100.0]
    margin = (max(seen) - min(seen)) / 20 or 1.0
    ends = [min(seen) - margin, max(seen) + margin]
    scale, axis = alt.Scale(domain=ends, nice=False, zero=False), alt.Axis(tickCount=5, grid=True)
    heading = measure(summary).heading
    across: dict[str, Any] = {"title": f"bar: {heading}", "scale": scale, "axis": axis}
    up: dict[str, Any] = {"title": "with the method", "scale": scale, "axis": axis}
    line = _guide("method").encode(
        alt.XDatum(ends[0], **across), alt.YDatum(ends[0], **up), x2=alt.datum(ends[1]), y2=alt.datum(ends[1])
    )
    points = alt.Chart().mark_point(filled=True, size=45, opacity=0.85)
    points = points.encode(alt.X("alone:Q", **across), alt.Y("together:Q", **up))
    points = points.encode(color=_by_verdict(alt.Color, COLOURS), shape=_by_verdict(alt.Shape, SHAPES))
    side = min(width, 320)
    panels = alt.layer(line, points).properties(width=side, height=side)
    worse = "below" if measure(summary).higher else "above"
    said = f"a mark per owner; {worse} the dashed line the owner is worse off than with the best alone"
    return _facet(panels, rows, names, columns, "method", ["Each owner alone and together", said])


def curves(records: pa.Table, summary: Summary) -> alt.FacetChart:
    """How training went, round by round, with the control in every panel and a dot at each run's chosen round.

    For a published protocol the mean test accuracy, which is drawn and never used to choose; on own data the validation
    loss, by which the rounds were chosen. The band goes from the lowest to the highest run; both are drawn as far as
    all runs went. `records` are the runs' records with the columns `method` and `seed`.
    """
    control, seen = summary["control"], published(summary)
    rounds = _rounds(records, ("test", "accuracy") if seen else ("validation", "loss"))
    names = list(dict.fromkeys(row["method"] for row in rounds if row["method"] != control)) or [control]
    data = _lines(rounds, summary, names) + _reported(rounds, summary, names)
    legend: dict[str, Any] = {"title": None, "legend": alt.Legend(symbolType="stroke", symbolStrokeWidth=2)}
    colour = alt.Color("series:N", scale=alt.Scale(domain=["method", control], range=[BLUE, GREY]), **legend)
    dashes = alt.Scale(domain=["method", control], range=[[1, 0], [5, 3]])
    x = alt.X("round:Q", title="round", axis=alt.Axis(tickCount=5, grid=True))
    ends = [row[key] for row in rounds for key in ("low", "high")] or [0.0, 1.0]
    up: dict[str, Any] = {
        "title": "test accuracy, %" if seen else "validation loss",
        "scale": alt.Scale(zero=False, domain=[min(ends), max(ends)], nice=True),
        "axis": alt.Axis(tickCount=5, grid=True),
    }
    drawn = alt.Chart().transform_filter("isValid(datum.mean)")
    band = drawn.mark_area(opacity=0.18).encode(x, alt.Y("low:Q", **up), y2="high:Q", color=colour)
    line = drawn.mark_line(strokeWidth=2).encode(x, alt.Y("mean:Q", **up), color=colour)
    line = line.encode(strokeDash=alt.StrokeDash("series:N", scale=dashes, **legend))
    dots = alt.Chart().transform_filter("isValid(datum.dot)").mark_point(filled=True, size=40, opacity=1)
    dots = dots.encode(x, alt.Y("dot:Q", **up), color=colour)
    columns, width = _grid(len(names))
    panels = alt.layer(band, line, dots).properties(width=width, height=150)
    what = "Mean test accuracy by round" if seen else "Validation loss by round"
    said = f"band: lowest to highest {'seed' if seen else 'fold'}; dots: the rounds chosen, never on test rows"
    return _facet(panels, data, names, columns, "panel", [what, said])


def save_png(chart: alt.FacetChart, path: Path, scale: float = 2) -> Path:
    """Write the chart as a PNG, `scale` pixels to a point, on white."""
    chart.save(str(path), format="png", scale_factor=scale)
    return Path(path)


def save_svg(chart: alt.FacetChart, path: Path) -> Path:
    """Write the chart as an SVG on white."""
    chart.save(str(path), format="svg")
    return Path(path)


def _owners(summary: Summary) -> list[dict[str, Any]]:
    """A row per method and owner; what is not known, like a bound of an interval, is None."""
    scale = 100 if measure(summary).points else 1
    found = []
    for way in ways(summary, "method"):
        order = sorted(way["verdicts"], key=lambda v: (v["gain"] is None, v["gain"] or 0.0))
        ranks = {v["owner"]: rank for rank, v in enumerate(order)}
        for v in way["verdicts"]:
            known = {"alone": v["control_score"], "together": v["method_score"], "gain": v["gain"]}
            known |= {"low": v["lower"], "high": v["upper"]}
            told = {key: scale * x if x is not None and math.isfinite(x) else None for key, x in known.items()}
            rank = ranks[v["owner"]]
            found.append({"method": way["name"], "owner": v["owner"], "rank": rank, "verdict": v["verdict"]} | told)
    return found


def _rounds(records: pa.Table, what: tuple[str, str]) -> list[dict[str, Any]]:
    """Mean, lowest and highest seed per method and round, over the clients; accuracies in percent."""
    import pyarrow.compute as pc

    split, column = what
    scale = 100 if column == "accuracy" else 1
    kept = records.filter(pc.and_(pc.equal(records["split"], split), pc.is_finite(records[column])))
    means = kept.group_by(["method", "model", "seed", "round"]).aggregate([(column, "mean")]).to_pylist()
    personal = {row["method"] for row in means if row["model"] == "personal"}
    found: dict[tuple[str, int], dict[int, float]] = {}
    for row in means:
        if row["model"] == "personal" or row["method"] not in personal:
            found.setdefault((row["method"], row["round"]), {})[row["seed"]] = scale * row[f"{column}_mean"]
    return [
        {"method": method, "round": number, "seeds": seeds, "mean": sum(seeds.values()) / len(seeds)}
        | {"low": min(seeds.values()), "high": max(seeds.values())}
        for (method, number), seeds in sorted(found.items(), key=lambda item: item[0][1])
    ]


def _lines(rounds: list[dict[str, Any]], summary: Summary, names: list[str]) -> list[dict[str, Any]]:
    """The points of each panel's lines: the method's, and the control's in every other panel."""
    control, methods = summary["control"], summary["methods"]
    # A mean is drawn as far as all runs went: where one has stopped, it would jump.
    drawn = [row for row in rounds if len(row["seeds"]) == len(methods[row["method"]]["runs"])]
    plain = [{key: row[key] for key in ("method", "round", "mean", "low", "high")} for row in drawn]
    own = [row | {"panel": row["method"], "series": "method"} for row in plain if row["method"] in names]
    alone = [row | {"series": control} for row in plain if row["method"] == control]
    return own + [row | {"panel": name} for name in names if name != control for row in alone]


def _reported(rounds: list[dict[str, Any]], summary: Summary, names: list[str]) -> list[dict[str, Any]]:
    """A dot per method and seed, on that seed's own mean at the round its numbers come from."""
    means = {(row["method"], row["round"], seed): mean for row in rounds for seed, mean in row["seeds"].items()}
    return [
        {"panel": name, "series": "method", "round": number, "dot": means[name, number, seed]}
        for name in names
        for seed, number in zip(summary["settings"]["seeds"], summary["methods"][name]["round"]["rounds"], strict=False)
        if (name, number, seed) in means
    ]


def _by_verdict(channel: Any, marks: list[str]) -> Any:
    return channel("verdict:N", scale=alt.Scale(domain=list(VERDICTS), range=marks), title=None)


def _guide(by: str) -> Any:
    """A dashed line, drawn once per panel whatever the number of rows."""
    chart = alt.Chart().transform_aggregate(rows="count()", groupby=[by])
    return chart.mark_rule(color=INK, strokeDash=[3, 3], opacity=0.7)


def _grid(panels: int) -> tuple[int, int]:
    """Columns and panel width in points, so that a row of panels is about 960 points wide."""
    columns = max(1, panels if panels <= 3 else 3 if panels in (5, 6, 9) else 4)
    return columns, {1: 600, 2: 430, 3: 285, 4: 208}[columns]


def _facet(
    panels: Any, data: list[dict[str, Any]], names: list[str], columns: int, by: str, title: list[str]
) -> alt.FacetChart:
    panel = alt.Facet(f"{by}:N", sort=names, title=None, header=alt.Header(labelFontSize=12, labelFontWeight="bold"))
    chart: alt.FacetChart = panels.facet(panel, data=alt.InlineData(values=data), columns=columns, spacing=18)
    chart = chart.resolve_axis(x="independent")
    chart = chart.properties(title=alt.Title(title[0], subtitle=title[1], anchor="start", offset=8))
    chart = chart.configure(background="white", font="sans-serif", aria=False, padding=4)
    chart = chart.configure_title(color=INK, subtitleColor=INK, fontSize=15, subtitleFontSize=12, subtitlePadding=5)
    chart = chart.configure_view(stroke=None).configure_header(labelColor=INK)
    chart = chart.configure_legend(orient="top", labelColor=INK, labelFontSize=12, symbolSize=70, symbolOpacity=1)
    lines: dict[str, Any] = {"gridColor": INK, "gridOpacity": 0.12, "tickColor": INK, "tickOpacity": 0.3}
    texts: dict[str, Any] = {"labelColor": INK, "labelFontSize": 11, "titleColor": INK, "titleFontSize": 12}
    finished: alt.FacetChart = chart.configure_axis(domain=False, titleFontWeight="normal", **lines, **texts)
    return finished
