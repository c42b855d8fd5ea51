"""Tables, figures and a page, from a comparison's saved files alone.

The figures are imported when first asked for: drawing takes half a second to load, a table none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairlead.report.page import write_page
from fairlead.report.read import read_records
from fairlead.report.tables import (
    can_predict,
    caption,
    data_notes,
    headline,
    latex_table,
    markdown_table,
    opening_lines,
    verdict_lines,
    verdict_table,
)

if TYPE_CHECKING:
    from fairlead.report.figures import client_differences, curves, save_png, save_svg, scatter

FIGURES = ("client_differences", "curves", "save_png", "save_svg", "scatter")

__all__ = [
    "can_predict",
    "caption",
    "client_differences",
    "curves",
    "data_notes",
    "headline",
    "latex_table",
    "markdown_table",
    "opening_lines",
    "read_records",
    "save_png",
    "save_svg",
    "scatter",
    "verdict_lines",
    "verdict_table",
    "write_page",
]


def __getattr__(name: str) -> Any:
    if name in FIGURES:
        return getattr(import_module("fairlead.report.figures"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
