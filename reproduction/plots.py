"""Figures of experiments as Plotly JSON, built without plotly; the page sets the colours of text and grid."""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtilt.evaluation.results import SeedValues
from fedtilt.report.figure import Style

_BLUE, _ORANGE, _GREY = "#1a7fc4", "#d55e00", "#7f858d"  # FedTilt, Ditto, FedAvg, as in `report.figure`
_ROWS = {
    "fedavg": Style(_GREY, "dot", "square"),
    "ditto": Style(_ORANGE, "dash", "diamond-open"),
    "ditto-validated": Style(_ORANGE, "solid", "diamond"),
    "fedtilt": Style(_BLUE, "dash", "circle-open"),
    "fedtilt-validated": Style(_BLUE, "solid", "circle"),
}
# from cool to warm, for tilts from negative to positive
_RAMP = ("#3b4cc0", "#1a7fc4", "#5aa7b5", "#9a7b00", "#d98032", "#c0392b")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down", "x")
_LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left", "tracegroupgap": 0}


def layout(height: int, **parts: Any) -> dict[str, Any]:
    """The layout of a figure: what all figures share, and its own parts."""
    shared = {"height": height, "margin": {"l": 52, "r": 12, "t": 12, "b": 44}, "legend": _LEGEND}
    return shared | {"hovermode": "closest"} | parts


def learning_curves(
    rounds: Sequence[int], lines: Mapping[str, Sequence[SeedValues]], titles: Mapping[str, str]
) -> dict[str, Any]:
    """Accuracy over rounds, a line per method, in a band of one standard deviation where there are several seeds."""
    data: list[dict[str, Any]] = []
    for row, values in lines.items():
        style = _ROWS[row]
        if all(value.std is not None for value in values):
            upper, lower = ([round(v.mean + sign * (v.std or 0.0), 2) for v in values] for sign in (1, -1))
            data.append(
                {
                    "type": "scatter", "mode": "lines", "name": titles[row], "legendgroup": row, "showlegend": False,
                    "x": [*rounds, *reversed(rounds)], "y": [*upper, *reversed(lower)], "hoverinfo": "skip",
                    "fill": "toself", "fillcolor": style.faint(0.14), "line": {"width": 0},
                }
            )  # fmt: skip
        data.append(
            {
                "type": "scatter", "mode": "lines", "name": titles[row], "legendgroup": row, "x": list(rounds),
                "y": [round(value.mean, 2) for value in values],
                "line": {"color": style.color, "dash": style.dash, "width": 2},
            }
        )  # fmt: skip
    return {
        "data": data,
        "layout": layout(
            340, xaxis={"title": {"text": "round"}}, yaxis={"title": {"text": "test accuracy (%)"}}
        ),
    }  # fmt: skip


def tilt_axis(values: Sequence[float]) -> tuple[dict[float, float], dict[str, Any]]:
    """A symmetric-log axis for tilts: value → position, and the axis with the values as tick labels.

    Plotly has no such scale.

    >>> tilt_axis([-10.0, 0.0, 10.0])[0]
    {-10.0: -3.0, 0.0: 0.0, 10.0: 3.0}
    """
    low = min((math.floor(math.log10(abs(v))) for v in values if v), default=0)
    low = min(low, -1)  # 0 is one decade below the smallest magnitude, at most below 0.1
    positions = {v: 0.0 if v == 0 else math.copysign(math.log10(abs(v)) - low + 1, v) for v in values}
    axis = {"tickvals": [positions[v] for v in values], "ticktext": [f"{v:g}" for v in values], "zeroline": True}
    return positions, axis


Lines = Mapping[float, Sequence[float | None]]  # value of the other tilt → the metric along this one


def metrics_against_tilt(
    values: Sequence[float], rows: Mapping[str, Mapping[str, Lines]], *, across: str, along: str
) -> dict[str, Any]:
    """Metrics (columns of panels) against one tilt, `across`, with a line for each value of the other, `along`.

    Args:
        values: the values of `across`.
        rows: title of a row of panels → metric → its lines.
        across: the tilt on the x axes, "tau" or "lam".
        along: the other tilt.
    """
    positions, ticks = tilt_axis(values)
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    columns = len(next(iter(rows.values())))
    for r, (title, metrics) in enumerate(rows.items()):
        for c, (metric, lines) in enumerate(metrics.items()):
            n = axis_suffix(r * columns + c)
            metric_title = f"{metric} ({'%' if metric == 'accuracy' else 'points'})"
            axes[f"xaxis{n}"] = {"anchor": f"y{n}", "title": _small(across)} | ticks
            axes[f"yaxis{n}"] = {
                "anchor": f"x{n}", "title": _small(f"{title}<br>{metric_title}" if c == 0 else metric_title)
            }  # fmt: skip
            for i, (tilt, line) in enumerate(lines.items()):
                color = _RAMP[round(i * (len(_RAMP) - 1) / max(1, len(lines) - 1))]
                data.append(
                    {
                        "type": "scatter", "mode": "lines+markers", "name": f"{along} {tilt:g}",
                        "legendgroup": f"{tilt:g}", "showlegend": not (r or c), "xaxis": f"x{n}", "yaxis": f"y{n}",
                        "x": [positions[v] for v in values], "y": [None if y is None else round(y, 2) for y in line],
                        "text": [f"{across} {v:g}" for v in values], "line": {"color": color, "width": 1.6},
                        "marker": {"color": color, "size": 6, "symbol": _SYMBOLS[i % len(_SYMBOLS)]},
                        "hovertemplate": "%{text}: %{y:.2f}<extra>%{fullData.name}</extra>",
                    }
                )  # fmt: skip
    return {"data": data, "layout": layout(60 + 270 * len(rows), grid=panels(len(rows), columns), **axes)}


def panels(rows: int, columns: int) -> dict[str, Any]:
    """The `grid` of a layout: panels row by row, each with axes of its own."""
    return {"rows": rows, "columns": columns, "pattern": "independent", "xgap": 0.2, "ygap": 0.3}


def axis_suffix(panel: int) -> str:
    """The number in the names of a panel's axes.

    >>> [f"xaxis{axis_suffix(panel)}" for panel in range(3)]
    ['xaxis', 'xaxis2', 'xaxis3']
    """
    return str(panel + 1) if panel else ""


def _small(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 11}, "standoff": 6}


def image_sheet(rows: Mapping[str, Tensor]) -> dict[str, Any]:
    """Images (N, channels, height, width) in titled rows, as one image trace."""
    gap = 2
    lines = [torch.nn.functional.pad(_side_by_side(images, gap), (0, 0, 0, 0, 0, gap)) for images in rows.values()]
    pixels = torch.cat(lines)[:-gap].contiguous()  # (H, W, 4)
    height, width, _ = pixels.shape
    row_height = height / len(rows)
    axis = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    return {
        "data": [
            {
                "type": "image", "colormodel": "rgba256", "hoverinfo": "skip",
                "z": {  # Plotly's encoding of a typed array
                    "dtype": "u1", "shape": ", ".join(map(str, pixels.shape)),
                    "bdata": base64.b64encode(pixels.numpy().tobytes()).decode(),
                },
            },
        ],
        "layout": layout(
            40 + 86 * len(rows), margin={"l": 110, "r": 8, "t": 8, "b": 8},
            xaxis=axis | {"visible": False, "range": [-0.5, width - 0.5]},
            yaxis=axis | {
                "tickvals": [row_height * (i + 0.5) for i in range(len(rows))], "ticktext": list(rows),
                "range": [height - 0.5, -0.5], "scaleanchor": "x",
            },
        ),
    }  # fmt: skip


def _side_by_side(images: Tensor, gap: int) -> Tensor:
    """Images in a row as red, green, blue, alpha (height, width, 4); gaps are transparent."""
    count, channels, height, width = images.shape
    colored = images.expand(count, 3, height, width) if channels == 1 else images
    opaque = torch.cat([colored, torch.full((count, 1, height, width), 255, dtype=torch.uint8)], dim=1)
    spaced = torch.nn.functional.pad(opaque, (0, gap))
    return spaced.permute(2, 0, 3, 1).reshape(height, count * (width + gap), 4)
