"""A figure of the report: plain plotly JSON, and its data as rows of a CSV file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtilt.report.style import plotly_text


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plotly figure, and its data as rows of a CSV file."""

    name: str
    title: str
    note: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    selectors: dict[str, list[str]] = field(default_factory=dict)  # key in a trace's meta → choices


def figure_layout(height: int, legend_names: Sequence[str] = (), **layout: Any) -> dict[str, Any]:
    """A layout of that height, taller if the legend needs several rows on a narrow page."""
    widest = max((7 * len(plotly_text(name)) + 50 for name in legend_names), default=1)
    height += 20 * (len(legend_names) // max(1, 290 // widest))
    margin = {"l": 52, "r": 12, "t": 12, "b": 44}
    legend = {
        "orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left", "maxheight": 400,
        "tracegroupgap": 0,
    }  # fmt: skip
    return {"height": height, "margin": margin, "legend": legend, "hovermode": "closest"} | layout


def capitalise(text: str) -> str:
    """The text with a capital letter first."""
    return text[0].upper() + text[1:]


def round4(value: Any) -> float:
    """Four decimals are enough for a figure and keep the page small."""
    return round(float(value), 4)
