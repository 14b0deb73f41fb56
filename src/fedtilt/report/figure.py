"""A figure of a page: plain plotly JSON and its data as CSV, the styles of methods, and names as plotly text."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtilt.text_tables import csv_text


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plotly figure, and its data as rows of a CSV file."""

    name: str  # of the element of a page, and of downloaded files
    title: str
    note: str  # one line of explanation
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    selectors: dict[str, list[str]] = field(default_factory=dict)  # key in a trace's meta → choices

    @property
    def csv(self) -> str:
        """The data."""
        return csv_text([self.columns, *self.rows])


def figure_layout(height: int, legend_names: Sequence[str] = (), **layout: Any) -> dict[str, Any]:
    """A layout of that height, taller if the legend needs several rows on a narrow page."""
    widest = max((7 * len(plotly_text(name)) + 50 for name in legend_names), default=1)
    height += 20 * (len(legend_names) // max(1, 290 // widest))
    margin = {"l": 52, "r": 12, "t": 12, "b": 44}
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left", "maxheight": 400}
    legend["tracegroupgap"] = 0
    return {"height": height, "margin": margin, "legend": legend, "hovermode": "closest"} | layout


def axis(title: str, unit: str = "", **more: Any) -> dict[str, Any]:
    """An axis with its title and unit."""
    return {"title": {"text": f"{title} ({unit})" if unit else title}} | more


def trace(kind: str, method: str, **more: Any) -> dict[str, Any]:
    """What a figure shows of one method."""
    return {"type": kind, "name": plotly_text(method), "meta": {"method": method}} | more


def line(method: str, style: "Style", x: Iterable[Any], y: Iterable[Any], hover: str, **more: Any) -> dict[str, Any]:
    """The line of a method."""
    values = {
        "mode": "lines", "x": [round4(value) for value in x], "y": [round4(value) for value in y],
        "line": {"color": style.color, "dash": style.dash, "width": 2},
        "marker": {"color": style.color, "symbol": style.symbol, "size": 6},
        "hovertemplate": f"{hover}<extra>%{{fullData.name}}</extra>",
    }  # fmt: skip
    return trace("scatter", method, **values | more)


def heat(method: str, x: list[str], y: list[str], z: Any, text: Any, hover: str, **more: Any) -> dict[str, Any]:
    """The cells of a method; the page has the colours."""
    values = {
        "x": x, "y": y, "z": z, "text": text, "coloraxis": "coloraxis", "xgap": 1, "ygap": 1,
        "hovertemplate": f"{hover}<extra>%{{fullData.name}}</extra>",
    }  # fmt: skip
    return trace("heatmap", method, **values | more)


def heat_layout(height: int, x: str, y: str, largest: float, unit: str, **scale: Any) -> dict[str, Any]:
    """The layout of `heat` with the titles of its axes and its largest value."""
    bar = {"thickness": 10, "outlinewidth": 0, "ticksuffix": unit}
    x_axis, y_axis = axis(x, type="category", nticks=25), axis(y, type="category", autorange="reversed")
    colours = {"cmin": 0, "cmax": largest, "colorbar": bar} | scale
    return figure_layout(height, xaxis=x_axis, yaxis=y_axis, coloraxis=colours)


def capitalise(text: str) -> str:
    """The text with a capital letter first."""
    return text[0].upper() + text[1:]


def round4(value: Any) -> float:
    """Four decimals are enough for a figure and keep the page small."""
    return round(float(value), 4)


@dataclass(frozen=True)
class Style:
    """The colour, dash and marker of a method on the whole page."""

    color: str
    dash: str
    symbol: str

    def faint(self, alpha: float) -> str:
        """The colour with an opacity of `alpha`, as CSS."""
        r, g, b = (int(self.color[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({r},{g},{b},{alpha})"


# The palette of Okabe and Ito, shifted to a contrast of 3 : 1 on both white and near-black.
_METHOD_STYLES = {
    "fedtilt": Style("#1a7fc4", "solid", "circle"),
    "ditto": Style("#d55e00", "dash", "diamond"),
    "fedavg": Style("#7f858d", "dot", "square"),
    "fedprox": Style("#c46a9c", "dashdot", "triangle-up"),
    "term": Style("#009e73", "longdash", "triangle-down"),
}
_OTHER_COLORS = ("#9a7b00", "#8c6bd1", "#009e73", "#c46a9c", "#1a7fc4", "#d55e00", "#7f858d")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down", "cross", "x")


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """One style per method; the presets have the same style on every page."""
    by_method = {name: _METHOD_STYLES[name] for name in methods if name in _METHOD_STYLES}
    used = {style.color for style in by_method.values()}
    free = [color for color in _OTHER_COLORS if color not in used] or list(_OTHER_COLORS)
    others = [name for name in methods if name not in _METHOD_STYLES]
    for i, name in enumerate(others):
        by_method[name] = Style(free[i % len(free)], _DASHES[(i // len(free)) % 5], _SYMBOLS[i % 7])
    return by_method


def plotly_text(text: str, limit: int = 28) -> str:
    """Escape a name for plotly, which renders some HTML, and cut it if it is long.

    >>> plotly_text("<b>x")
    '&lt;b&gt;x'
    """
    text = " ".join(text.split())
    return html.escape(text if len(text) <= limit else f"{text[: limit - 1]}…", quote=False)


def axis_labels(names: Sequence[str]) -> list[str]:
    """Names as labels of an axis; names that are equal once cut get a number."""
    labels = [plotly_text(name, 18) for name in names]
    return [label if labels.count(label) == 1 else f"{label} ({i})" for i, label in enumerate(labels)]
