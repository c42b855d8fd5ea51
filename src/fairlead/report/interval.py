"""An owner's gain with its interval, drawn in a table's cell by the style sheet; a page has one scale."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from fairlead.report.parts import Html, minus
from fairlead.report.tables import NONE, VERDICTS, Measure, ways
from fairlead.runs.summary import Summary

WIDER = 2.5  # times the usual end of an interval, beyond which one is cut off


class Axis(NamedTuple):
    """From the lowest to the highest gain that is drawn."""

    low: float
    high: float

    def place(self, value: float) -> str:
        """Where a gain is drawn, in percent of the scale; what lies outside is drawn at the edge.

        >>> Axis(-0.1, 0.3).place(0.0), Axis(-0.1, 0.3).place(2.0)
        ('25%', '100%')
        """
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return f"{100 * share:.3g}%"


def axis_of(summary: Summary) -> Axis:
    """Wide enough for zero, for every gain of the methods and for all intervals but those that are far wider than most.

    An owner with a handful of rows has an interval of everything; drawn in full, it would leave no room for the others.
    """
    judged = [v for way in ways(summary, "method") for v in way["verdicts"] if v["gain"] is not None]
    gains = [v["gain"] for v in judged]
    ends = [v[key] for v in judged for key in ("lower", "upper") if v[key] is not None]
    far = WIDER * statistics.median(map(abs, ends)) if ends else 0.0
    near = [min(max(end, -far), far) for end in ends]
    low, high = min([0.0, *gains, *near]), max([0.0, *gains, *near])
    return Axis(low, high) if high > low else Axis(-1.0, 1.0)


def between(m: Measure, verdict: dict[str, Any]) -> str:
    """The interval's ends."""
    return " to ".join(NONE if verdict[end] is None else minus(m.gain(verdict[end])) for end in ("lower", "upper"))


def drawn(axis: Axis, verdict: dict[str, Any]) -> Html:
    """The interval as a line, the gain as its verdict's mark, zero as a dashed line."""
    low = axis.low if verdict["lower"] is None else verdict["lower"]
    high = axis.high if verdict["upper"] is None else verdict["upper"]
    places = {"a": low, "b": high, "g": verdict["gain"], "z": 0.0}
    style = ";".join(f"--{name}:{axis.place(value)}" for name, value in places.items())
    beyond = " below" * (verdict["lower"] is None or verdict["lower"] < axis.low)
    beyond += " above" * (verdict["upper"] is None or verdict["upper"] > axis.high)
    return Html(f"<span class='span{beyond}' style='{style}'><i></i><u></u></span>")


def scale(axis: Axis, m: Measure) -> Html:
    """The numbers that belong to the scale: its ends and zero, as far as they do not touch."""
    zero = float(axis.place(0.0).rstrip("%"))
    shown = {axis.low: zero > 25, 0.0: True, axis.high: zero < 75}
    marks = [f"<b style='left:{axis.place(v)}'>{_short(m, v)}</b>" for v, fits in shown.items() if fits]
    return Html(f"<span class='span scale'>{''.join(marks)}</span>")


def _short(m: Measure, value: float) -> str:
    return minus(f"{100 * value:+.0f}" if m.points and value else m.gain(value) if value else "0")


def kind(verdict: str) -> str:
    """The class by which a verdict has its colour and mark.

    >>> kind("no difference found")
    'no'
    """
    return verdict.split()[0]


def legend() -> str:
    """The marks and their verdicts."""
    keys = [f"<li class='{kind(word)}'><span class='word'>{word}</span></li>" for word in VERDICTS]
    return f"<ul class='key'>{''.join(keys)}</ul>"
