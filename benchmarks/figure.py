"""How a round's cost grows with clients and with parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt

COLOURS = ["#0072b2", "#8a8a8a"]


def figure(rows: list[dict[str, Any]]) -> alt.HConcatChart:
    """Seconds of local training, library and reference, both axes logarithmic; a panel per quantity."""
    measured = [r for r in rows if r["section"] == "growth"]
    points = [
        {"axis": r["more"]["axis"], "value": r["more"]["value"], "seconds": s, "who": who}
        for r in measured
        for who, s in (("fairlead", r["seconds"]), ("plain loop, one thread", r["more"]["reference seconds"]))
    ]

    legend = alt.Legend(symbolType="stroke", symbolSize=400)

    def panel(axis: str) -> alt.Chart:
        data = alt.Data(values=[p for p in points if p["axis"] == axis])  # type: ignore[no-untyped-call]
        chart: alt.Chart = alt.Chart(data).mark_line(point=True)
        return chart.encode(
            alt.X("value:Q", title=axis, scale=alt.Scale(type="log")),
            alt.Y("seconds:Q", title="seconds a round", scale=alt.Scale(type="log")),
            color=alt.Color("who:N", title=None, scale=alt.Scale(range=COLOURS), legend=legend),
            strokeDash=alt.StrokeDash("who:N", title=None, legend=legend),
        ).properties(width=300, height=240)

    return alt.hconcat(panel("clients"), panel("parameters")).properties(
        title="Local training, MLP: 128 samples a client, batch 64, 5 epochs (right: 20 clients, wider layers)"
    )


def draw(rows: list[dict[str, Any]], folder: Path) -> Path:
    """Write the figure as SVG."""
    path = folder / "growth.svg"
    figure(rows).save(str(path), format="svg")
    return path
