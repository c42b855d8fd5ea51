"""The verdict in pictures: who gains, how training went, and each client with and without the others.

The colours are told apart by colour-blind readers, and every colour comes with a shape or a dash of its own.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from fairlead.report.read import Summary
from fairlead.report.tables import others

if TYPE_CHECKING:
    import pyarrow as pa

INK = "#333333"  # text and grid; the page swaps it for the reader's own text colour
VERDICTS = ["helped", "unclear", "hurt"]
COLOURS = ["#0072b2", "#8a8a8a", "#d55e00"]
SHAPES = ["triangle-up", "circle", "triangle-down"]
BLUE, GREY = COLOURS[:2]


def client_differences(summary: Summary) -> alt.FacetChart:
    """Each client's gain over training alone, in points, with its interval; a panel per method."""
    data, names = _clients(summary), list(others(summary))
    columns, width = _grid(len(names))
    step = max(3, min(15, 380 // max(1, len({row["client"] for row in data}))))
    gain: dict[str, Any] = {"title": "gain over alone, points", "axis": alt.Axis(tickCount=5, grid=True)}
    client = alt.Y("client:O", sort=None, title="client", axis=alt.Axis(labelOverlap=True, grid=False, ticks=False))
    line = _guide("method").encode(x=alt.XDatum(0, **gain))
    spans = alt.Chart().mark_rule(strokeWidth=2, opacity=0.55).encode(alt.X("low:Q", **gain), client, x2="high:Q")
    points = alt.Chart().mark_point(filled=True, size=45, opacity=1)
    points = points.encode(alt.X("difference:Q", **gain), client, shape=_by_verdict(alt.Shape, SHAPES))
    coloured = [layer.encode(color=_by_verdict(alt.Color, COLOURS)) for layer in (spans, points)]
    panels = alt.layer(line, *coloured).properties(width=width, height=alt.Step(step))
    said = "points of test accuracy, with the interval; left of the dashed line the client is worse off than alone"
    return _facet(panels, data, names, columns, "method", ["Gain over training alone, client by client", said])


def scatter(summary: Summary) -> alt.FacetChart:
    """Each client's accuracy alone against its accuracy with the method; below the diagonal it loses."""
    data, names = _clients(summary), list(others(summary))
    columns, width = _grid(len(names))
    seen = [row[key] for row in data for key in ("alone", "together") if row[key] is not None] or [0.0, 100.0]
    margin = max(1.0, (max(seen) - min(seen)) / 20)
    ends = [min(seen) - margin, max(seen) + margin]
    scale, axis = alt.Scale(domain=ends, nice=False, zero=False), alt.Axis(tickCount=5, grid=True)
    across: dict[str, Any] = {"title": "accuracy alone, %", "scale": scale, "axis": axis}
    up: dict[str, Any] = {"title": "with the method, %", "scale": scale, "axis": axis}
    line = _guide("method").encode(
        alt.XDatum(ends[0], **across), alt.YDatum(ends[0], **up), x2=alt.datum(ends[1]), y2=alt.datum(ends[1])
    )
    points = alt.Chart().mark_point(filled=True, size=45, opacity=0.85)
    points = points.encode(alt.X("alone:Q", **across), alt.Y("together:Q", **up))
    points = points.encode(color=_by_verdict(alt.Color, COLOURS), shape=_by_verdict(alt.Shape, SHAPES))
    side = min(width, 320)
    panels = alt.layer(line, points).properties(width=side, height=side)
    said = "a mark per client, test accuracy; below the dashed line the client is worse off than alone"
    return _facet(panels, data, names, columns, "method", ["Each client alone and together", said])


def curves(records: pa.Table, summary: Summary | None = None) -> alt.FacetChart:
    """Mean test accuracy by round, the band from the lowest to the highest seed, the control in every panel.

    `records` are the runs' records with the columns `method` and `seed`. With the summary, a dot marks each seed's
    reported round. Test accuracy is drawn, never used to choose a round.
    """
    control = summary["control"] if summary else "local"
    rounds = _rounds(records)
    names = list(dict.fromkeys(row["method"] for row in rounds if row["method"] != control)) or [control]
    plain = [{key: value for key, value in row.items() if key != "seeds"} for row in rounds]
    data = [row | {"panel": row["method"], "series": "method"} for row in plain if row["method"] in names]
    if names != [control]:
        alone = [row for row in plain if row["method"] == control]
        data += [row | {"panel": name, "series": control} for name in names for row in alone]
    said = "band: lowest to highest seed; rounds are chosen on validation accuracy or fixed beforehand, never on test"
    if summary:
        data += _reported(rounds, summary, names)
        said = f"{said}; dots: the rounds reported, one per seed"
    legend: dict[str, Any] = {"title": None, "legend": alt.Legend(symbolType="stroke", symbolStrokeWidth=2)}
    colour = alt.Color("series:N", scale=alt.Scale(domain=["method", control], range=[BLUE, GREY]), **legend)
    dashes = alt.Scale(domain=["method", control], range=[[1, 0], [5, 3]])
    x = alt.X("round:Q", title="round", axis=alt.Axis(tickCount=5, grid=True))
    up: dict[str, Any] = {
        "title": "accuracy, %",
        "scale": alt.Scale(zero=False),
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
    return _facet(panels, data, names, columns, "panel", ["Mean test accuracy by round", said])


def save_png(chart: alt.FacetChart, path: Path, scale: float = 2) -> Path:
    """Write the chart as a PNG, `scale` pixels to a point, on white."""
    chart.save(str(path), format="png", scale_factor=scale)
    return Path(path)


def save_svg(chart: alt.FacetChart, path: Path) -> Path:
    """Write the chart as an SVG on white."""
    chart.save(str(path), format="svg")
    return Path(path)


def _clients(summary: Summary) -> list[dict[str, Any]]:
    """A row per method and client, in percent; what is not known, like the interval of an empty test set, is None."""
    found = []
    for name, entry in others(summary).items():
        for client in entry["clients"]:
            low, high = (client.get("interval") if client["n_test"] else None) or (None, None)
            shares = {"alone": client["local_accuracy"], "together": client["accuracy"], "low": low, "high": high}
            shares["difference"] = client["difference"]
            points = {key: 100 * x if x is not None and math.isfinite(x) else None for key, x in shares.items()}
            verdict = client.get("verdict", "unclear")
            found.append({"method": name, "client": client.get("name", client["id"]), "verdict": verdict} | points)
    return found


def _rounds(records: pa.Table) -> list[dict[str, Any]]:
    """Mean, lowest and highest seed per method and round, over the clients' test accuracy, in percent."""
    import pyarrow.compute as pc

    kept = records.filter(pc.and_(pc.equal(records["split"], "test"), pc.is_finite(records["accuracy"])))
    means = kept.group_by(["method", "model", "seed", "round"]).aggregate([("accuracy", "mean")]).to_pylist()
    personal = {row["method"] for row in means if row["model"] == "personal"}
    found: dict[tuple[str, int], dict[int, float]] = {}
    for row in means:
        if row["model"] == "personal" or row["method"] not in personal:
            found.setdefault((row["method"], row["round"]), {})[row["seed"]] = 100 * row["accuracy_mean"]
    return [
        {"method": method, "round": number, "seeds": seeds, "mean": sum(seeds.values()) / len(seeds)}
        | {"low": min(seeds.values()), "high": max(seeds.values())}
        for (method, number), seeds in sorted(found.items(), key=lambda item: item[0][1])
    ]


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
    return channel("verdict:N", scale=alt.Scale(domain=VERDICTS, range=marks), title=None)


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
