"""An owner's gain with its interval, drawn in a table's cell; all cells of a page share one scale."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from fairlead.report.tables import VERDICTS, ways
from fairlead.runs.summary import Summary

WIDTH, MIDDLE, EDGE = 176, 8, 7
MARKS = {  # a shape for each verdict, around (0, 0)
    "better": "M0 -5 5 4 -5 4Z",
    "worse": "M0 5 5 -4 -5 -4Z",
    "no difference found": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "too few rows to tell": "M0 -5 5 0 0 5 -5 0Z",
}


class Axis(NamedTuple):
    """From the lowest to the highest gain that is drawn."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Where a gain is drawn; what lies outside is drawn at the edge."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(EDGE + share * (WIDTH - 2 * EDGE), 1)


def axis_of(summary: Summary) -> Axis:
    """Wide enough for zero and for every gain and interval of the methods."""
    judged = [v for way in ways(summary, "method") for v in way["verdicts"]]
    ends = [v[key] for v in judged for key in ("gain", "lower", "upper") if v[key] is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    return Axis(low, high) if high > low else Axis(-1.0, 1.0)


def drawn(axis: Axis, verdict: dict[str, Any], said: str) -> str:
    """The interval as a line, the gain as its verdict's mark, zero as a dashed line; `said` shows on hover."""
    low = axis.low if verdict["lower"] is None else verdict["lower"]
    high = axis.high if verdict["upper"] is None else verdict["upper"]
    return (
        f"<svg class='span' viewBox='0 0 {WIDTH} {2 * MIDDLE}' role='img'><title>{escape(said)}</title>"
        f"<line class='zero' x1='{axis.place(0)}' x2='{axis.place(0)}' y1='0' y2='{2 * MIDDLE}'/>"
        f"<line x1='{axis.place(low)}' x2='{axis.place(high)}' y1='{MIDDLE}' y2='{MIDDLE}'/>"
        f"<path transform='translate({axis.place(verdict['gain'])} {MIDDLE})' d='{MARKS[verdict['verdict']]}'/></svg>"
    )


def legend() -> str:
    """The marks and their verdicts."""
    box = "class='span' viewBox='-8 -8 16 16'"
    keys = [f"<li class='{w.split()[0]}'><svg {box}><path d='{MARKS[w]}'/></svg> {w}</li>" for w in VERDICTS]
    return f"<ul class='key'>{''.join(keys)}</ul>"
