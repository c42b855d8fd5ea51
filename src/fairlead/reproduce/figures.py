"""The papers' figures, drawn from our runs; where the paper has a table, its numbers and ours side by side."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import altair as alt

from fairlead.reproduce.cells import Found, measure, values
from fairlead.reproduce.study import Cell, Picture, Study

INK = "#333333"
# Told apart by colour-blind readers (Okabe and Ito), and dashed in turn.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a8a8a", "#000000"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]
Point = dict[str, Any]


def draw(study: Study, found: Found, seeds: int, folder: Path) -> list[Path]:
    """Write the study's figure as PNG and SVG, if there is something to draw."""
    kinds = {"rounds": by_round, "clients": by_client, "columns": by_column}
    points = (kinds[study.picture.kind] if study.picture else by_number)(study, found, seeds)
    if not points:
        return []
    chart = panels(study.picture, points) if study.picture else dots(study, points, seeds)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "figure.png", folder / "figure.svg"]
    chart.save(str(paths[0]), format="png", scale_factor=2)
    chart.save(str(paths[1]), format="svg")
    return paths


def by_round(study: Study, found: Found, seeds: int) -> list[Point]:
    """The mean curve over seeds of every row, a panel per group of columns."""
    points = []
    for group, columns in study.groups.items():
        scale = columns[0].scale
        for row in study.rows:
            entry = next((study.entries[row, c.key] for c in columns if (row, c.key) in study.entries), None)
            if entry is None or entry.cell.key in found.missing:
                continue
            curves = [dict(found.results[entry.cell.key, s]["curve"]) for s in range(seeds)]
            for t in curves[0]:
                mean = scale * statistics.fmean(curve[t] for curve in curves)
                points.append({"panel": group, "series": row, "x": t, "y": mean})
    return points


def by_client(study: Study, found: Found, seeds: int) -> list[Point]:
    """Relative accuracy of every client, a panel per row."""
    points = []
    first: dict[str, Any] = {}
    for (row, _), entry in study.entries.items():
        first.setdefault(row, entry)
    for row, entry in first.items():
        cell = entry.cell
        if not isinstance(cell, Cell) or {cell.key, cell.control.key} & found.missing.keys():
            continue
        pairs = [(found.results[cell.key, s], found.results[cell.control.key, s]) for s in range(seeds)]
        for k in range(len(pairs[0][0]["accuracy"])):
            mean = statistics.fmean(measure(f"gain.{k}", own, alone) for own, alone in pairs)
            points.append({"panel": row, "series": row, "x": k, "y": mean})
    return points


def by_column(study: Study, found: Found, seeds: int) -> list[Point]:
    """Every row along the columns of a group, a panel per group."""
    points = []
    for group, columns in study.groups.items():
        for column in columns:
            for row in study.rows:
                entry = study.entries.get((row, column.key))
                got = values(entry, found, seeds) if entry else ""
                if not isinstance(got, str):
                    point = {
                        "panel": group,
                        "series": row,
                        "x": column.title,
                        "y": column.scale * statistics.fmean(got),
                    }
                    points.append(point)
    return points


def by_number(study: Study, found: Found, seeds: int) -> list[Point]:
    """Every number of a table with its spread over seeds, and the paper's where it is printed; a panel per column."""
    points = []
    for group, columns in study.groups.items():
        for column in columns:
            panel = column.title if group in ("", column.title) else f"{group}: {column.title}"
            for row in study.rows:
                entry = study.entries.get((row, column.key))
                got = values(entry, found, seeds) if entry else ""
                if entry is None or isinstance(got, str):
                    continue
                ours, place = [column.scale * x for x in got], {"panel": panel, "row": row}
                mean, spread = statistics.fmean(ours), statistics.stdev(ours) if seeds > 1 else 0.0
                points.append(place | {"of": "ours", "x": mean, "low": mean - spread, "high": mean + spread})
                if entry.published is not None:
                    points.append(place | {"of": "paper", "x": entry.published})
    return points


def styles(series: list[str]) -> list[tuple[str, list[int]]]:
    """A colour and a dash for each: no two alike up to four times as many as colours; "A + B" has the colour of A.

    >>> [dash for _, dash in styles(["A", "A + B", "C", "C + B"])]
    [[1, 0], [6, 3], [1, 0], [6, 3]]
    """
    hosts: dict[str, list[str]] = {}
    for name in series:
        host = name.partition(" + ")[0]
        hosts.setdefault(host if host in series else name, []).append(name)
    together = len(hosts) < len(series)
    places = {name: (i, hosts[host].index(name)) for i, host in enumerate(hosts) for name in hosts[host]}
    found = []
    for name in series:
        i, j = places[name]
        turn = j if together else i  # without pairs to show, dashes help to tell colours apart
        found.append((COLOURS[i % len(COLOURS)], DASHES[(turn + i // len(COLOURS)) % len(DASHES)]))
    return found


def panels(picture: Picture, points: list[Point]) -> alt.FacetChart:
    """A panel each, side by side."""
    names = list(dict.fromkeys(p["panel"] for p in points))
    series = list(dict.fromkeys(p["series"] for p in points))
    width = 360 if len(names) < 3 else 230
    up = alt.Y("y:Q", title=picture.y, scale=alt.Scale(zero=picture.kind == "clients"))
    if picture.kind == "clients":
        across = alt.X("x:O", title=picture.x, axis=alt.Axis(labelOverlap=True, labelAngle=0))
        sign = alt.condition("datum.y < 0", alt.value(COLOURS[1]), alt.value(COLOURS[0]))
        marks = alt.Chart().mark_bar().encode(across, up, color=sign)
    else:
        kind = "Q" if picture.kind == "rounds" else "O"
        across = alt.X(f"x:{kind}", title=picture.x, sort=None, axis=alt.Axis(labelAngle=0))
        colours, dashes = zip(*styles(series), strict=True)
        colour, dash = alt.Scale(domain=series, range=colours), alt.Scale(domain=series, range=dashes)
        legend = alt.Legend(columns=4, symbolType="stroke", labelLimit=320)
        marks = alt.Chart().mark_line(strokeWidth=2, point=picture.kind == "columns")
        marks = marks.encode(across, up, color=alt.Color("series:N", scale=colour, title=None, legend=legend))
        marks = marks.encode(strokeDash=alt.StrokeDash("series:N", scale=dash, title=None, legend=legend))
    facet = alt.Facet("panel:N", sort=names, title=None, header=alt.Header(labelFontWeight="bold", labelColor=INK))
    chart = marks.properties(width=width, height=200).facet(
        facet, data=alt.InlineData(values=points), columns=min(len(names), 3 if len(names) != 4 else 2)
    )
    chart = chart.resolve_scale(y="shared" if picture.kind == "clients" else "independent")
    return dressed(chart.resolve_axis(x="independent"), picture.title)


def dots(study: Study, points: list[Point], seeds: int) -> alt.FacetChart:
    """A dot for each number of a table, a line through ours for its spread, rows as in the table."""
    sides = [side for side in ("paper", "ours") if any(p["of"] == side for p in points)]
    names = list(dict.fromkeys(p["panel"] for p in points))
    rows = [row for row in study.rows if any(p["row"] == row for p in points)]
    down = alt.Y("row:N", sort=rows, title=None, axis=alt.Axis(labelLimit=320, grid=True))
    across = alt.X("x:Q", title=None, scale=alt.Scale(zero=False))
    whose = alt.Scale(domain=sides, range=[COLOURS[6], COLOURS[0]][-len(sides) :])
    shape = alt.Scale(domain=sides, range=["diamond", "circle"][-len(sides) :])
    dot = alt.Chart().mark_point(filled=True, size=45, opacity=1)
    dot = dot.encode(across, down, alt.Color("of:N", scale=whose, title=None))
    dot = dot.encode(alt.Shape("of:N", scale=shape, title=None))
    spread = alt.Chart().mark_rule(strokeWidth=2, color=COLOURS[0]).encode(alt.X("low:Q"), down, alt.X2("high:Q"))
    spread = spread.transform_filter("datum.of == 'ours'")
    marks = alt.layer(spread, dot).properties(width=190, height=alt.Step(16))
    facet = alt.Facet("panel:N", sort=names, title=None, header=alt.Header(labelFontWeight="bold", labelColor=INK))
    chart = marks.facet(facet, data=alt.InlineData(values=points), columns=min(len(names), 3))
    lines = f"Lines: one standard deviation over {seeds} seeds." if seeds > 1 else ""
    return dressed(chart.resolve_scale(x="independent"), study.title, lines)


def dressed(chart: alt.FacetChart, title: str, subtitle: str = "") -> alt.FacetChart:
    """With its title, and in the colours of all our figures."""
    chart = chart.properties(title=alt.Title(title, subtitle=subtitle, anchor="start", offset=8, color=INK))
    chart = chart.configure(background="white", font="sans-serif", aria=False).configure_view(stroke=None)
    chart = chart.configure_axis(gridColor=INK, gridOpacity=0.12, domain=False, titleFontWeight="normal")
    finished: alt.FacetChart = chart.configure_legend(orient="top")
    return finished
