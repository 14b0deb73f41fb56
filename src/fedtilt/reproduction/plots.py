"""Figures of experiments as plotly's plain JSON; the colours of text and grid are the page's."""

import base64
import hashlib
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtilt.report.compare import SeedValues
from fedtilt.report.style import Style

_BLUE, _ORANGE, _GREY = "#1a7fc4", "#d55e00", "#7f858d"  # FedTilt, Ditto, FedAvg, as in `report.look`
_ROWS = {
    "fedavg": Style(_GREY, "dot", "square"),
    "ditto": Style(_ORANGE, "dash", "diamond-open"),
    "ditto-validated": Style(_ORANGE, "solid", "diamond"),
    "fedtilt": Style(_BLUE, "dash", "circle-open"),
    "fedtilt-validated": Style(_BLUE, "solid", "circle"),
}
# from cool to warm, for a row of tilts from negative to positive
_RAMP = ("#3b4cc0", "#1a7fc4", "#5aa7b5", "#9a7b00", "#d98032", "#c0392b")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down", "x")
_LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left", "tracegroupgap": 0}


def layout(height: int, **parts: Any) -> dict[str, Any]:
    """The frame of a figure."""
    frame = {"height": height, "margin": {"l": 52, "r": 12, "t": 12, "b": 44}, "legend": _LEGEND}
    return frame | {"hovermode": "closest"} | parts


def curves(
    rounds: Sequence[int], lines: Mapping[str, Sequence[SeedValues]], titles: Mapping[str, str]
) -> dict[str, Any]:
    """Accuracy over rounds, a line per method, in a band of one standard deviation where there are seeds for one."""
    data: list[dict[str, Any]] = []
    for row, values in lines.items():
        style = _ROWS[row]
        if all(value.std is not None for value in values):
            edges = [[round(v.mean + way * (v.std or 0.0), 2) for v in values] for way in (1, -1)]
            data.append(
                {
                    "type": "scatter", "mode": "lines", "name": titles[row], "legendgroup": row, "showlegend": False,
                    "x": [*rounds, *reversed(rounds)], "y": [*edges[0], *reversed(edges[1])], "hoverinfo": "skip",
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
    """A symmetric-log axis for tilts: where each value lies, and the axis that says so.

    Plotly has no such scale, so points are placed by sign and magnitude and ticks carry the values.

    >>> tilt_axis([-10.0, 0.0, 10.0])[0]
    {-10.0: -3.0, 0.0: 0.0, 10.0: 3.0}
    """
    low = min((math.floor(math.log10(abs(v))) for v in values if v), default=0)
    low = min(low, -1)  # one decade below 0.1 stands for zero
    places = {v: 0.0 if v == 0 else math.copysign(math.log10(abs(v)) - low + 1, v) for v in values}
    axis = {"tickvals": [places[v] for v in values], "ticktext": [f"{v:g}" for v in values], "zeroline": True}
    return places, axis


Lines = Mapping[float, Sequence[float | None]]  # value of the other tilt → the metric along this one


def against(
    values: Sequence[float], rows: Mapping[str, Mapping[str, Lines]], *, across: str, along: str
) -> dict[str, Any]:
    """Metrics (columns) against one tilt, `across`, with a line for each value of the other, `along`."""
    places, ticks = tilt_axis(values)
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    columns = len(next(iter(rows.values())))
    for r, (title, metrics) in enumerate(rows.items()):
        top, height = 1 - r / len(rows), 1 / len(rows)
        for c, (metric, lines) in enumerate(metrics.items()):
            n = str(r * columns + c + 1) if r or c else ""
            side = [c / columns + 0.06 * (c > 0), (c + 1) / columns - 0.01]
            axes[f"xaxis{n}"] = {"domain": side, "anchor": f"y{n}", "title": _small(across)} | ticks
            named = f"{metric} ({'%' if metric == 'accuracy' else 'points'})"
            axes[f"yaxis{n}"] = {
                "domain": [top - height + (0.14 if r < len(rows) - 1 else 0), top], "anchor": f"x{n}",
                "title": _small(f"{title}<br>{named}" if c == 0 else named),
            }  # fmt: skip
            for i, (tilt, line) in enumerate(lines.items()):
                color = _RAMP[round(i * (len(_RAMP) - 1) / max(1, len(lines) - 1))]
                data.append(
                    {
                        "type": "scatter", "mode": "lines+markers", "name": f"{along} {tilt:g}",
                        "legendgroup": f"{tilt:g}", "showlegend": not (r or c), "xaxis": f"x{n}", "yaxis": f"y{n}",
                        "x": [places[v] for v in values], "y": [None if y is None else round(y, 2) for y in line],
                        "text": [f"{across} {v:g}" for v in values], "line": {"color": color, "width": 1.6},
                        "marker": {"color": color, "size": 6, "symbol": _SYMBOLS[i % len(_SYMBOLS)]},
                        "hovertemplate": "%{text}: %{y:.2f}<extra>%{fullData.name}</extra>",
                    }
                )  # fmt: skip
    return {"data": data, "layout": layout(60 + 270 * len(rows), **axes)}


def _small(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 11}, "standoff": 6}


def sheet(rows: Mapping[str, Tensor]) -> dict[str, Any]:
    """Images (N, channels, height, width) in rows with a name each, as one picture inside the figure."""
    gap = 2
    lines = [_row(images, gap) for images in rows.values()]
    pixels = torch.cat([torch.nn.functional.pad(line, (0, 0, 0, 0, 0, gap)) for line in lines])  # (H, W, 4)
    height, width = pixels.shape[0] - gap, pixels.shape[1]
    step = height / len(rows)
    axis = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    return {
        "data": [
            {
                "type": "image", "source": f"data:image/png;base64,{_png(pixels[:height])}", "hoverinfo": "skip",
                # what a digest of the figure goes by: compressed bytes differ from one zlib to the next
                "meta": {"pixels": hashlib.sha256(pixels.contiguous().numpy().tobytes()).hexdigest()},
            },
        ],
        "layout": layout(
            40 + 86 * len(rows), margin={"l": 110, "r": 8, "t": 8, "b": 8},
            xaxis=axis | {"visible": False, "range": [-0.5, width - 0.5]},
            yaxis=axis | {
                "tickvals": [step * (i + 0.5) for i in range(len(rows))], "ticktext": list(rows),
                "range": [height - 0.5, -0.5], "scaleanchor": "x",
            },
        ),
    }  # fmt: skip


def _row(images: Tensor, gap: int) -> Tensor:
    """Images side by side as red, green, blue, alpha (height, width, 4); gaps are see-through."""
    count, channels, height, width = images.shape
    colored = images.expand(count, 3, height, width) if channels == 1 else images
    opaque = torch.cat([colored, torch.full((count, 1, height, width), 255, dtype=torch.uint8)], dim=1)
    spaced = torch.nn.functional.pad(opaque, (0, gap))
    return spaced.permute(2, 0, 3, 1).reshape(height, count * (width + gap), 4)


def _png(pixels: Tensor) -> str:
    """(height, width, 4) bytes as a PNG, base64: the standard library alone can write one."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + row.contiguous().numpy().tobytes() for row in pixels)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return base64.b64encode(content).decode()
