"""A line chart with two logarithmic axes as an SVG file that is readable on light and dark pages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 78, 18, 44, 56  # margins around the plot
COLORS = ("#1a7fc4", "#d55e00", "#009e73", "#8c6bd1")
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class LogAxis:
    """A logarithmic axis: values from `low` to `high` at the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def pixel(self, value: float) -> float:
        """The pixel of a value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of every power of ten, or only the powers over three decades and more."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        digits = (1, 2, 5) if math.log10(self.high / self.low) < 3 else (1,)
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        return [tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001]


def log_log_chart(
    title: str, x_label: str, y_label: str, series: Mapping[str, Points], *, reference: Points = ()
) -> str:
    """The chart as SVG.

    Args:
        title: the heading.
        x_label: the label of the horizontal axis.
        y_label: the label of the vertical axis.
        series: points by name; one line with markers each.
        reference: points of a thin dashed line without markers.
    """
    points = [point for line in (*series.values(), reference) for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_axis = LogAxis(low=min(xs) / 1.15, high=max(xs) * 1.15, start=LEFT, end=WIDTH - RIGHT)
    y_axis = LogAxis(low=min(ys) / 1.4, high=max(ys) * 1.4, start=HEIGHT - BOTTOM, end=TOP)
    middle_x, middle_y = (x_axis.start + x_axis.end) / 2, (y_axis.start + y_axis.end) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="13" fill="#24292f">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
        f'<text x="{middle_x:g}" y="24" text-anchor="middle" font-weight="600">{escape(title)}</text>',
        f'<text x="{middle_x:g}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="18" y="{middle_y:g}" text-anchor="middle" transform="rotate(-90 18 {middle_y:g})">'
        f"{escape(y_label)}</text>",
    ]
    for tick in x_axis.ticks():
        x = x_axis.pixel(tick)
        parts.append(_polyline([(x, y_axis.start), (x, y_axis.end)], "#eaeef2"))
        parts.append(f'<text x="{x:.1f}" y="{y_axis.start + 18:g}" text-anchor="middle">{tick:,g}</text>')
    for tick in y_axis.ticks():
        y = y_axis.pixel(tick)
        parts.append(_polyline([(x_axis.start, y), (x_axis.end, y)], "#eaeef2"))
        parts.append(f'<text x="{x_axis.start - 8:g}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    if reference:
        pixels = [(x_axis.pixel(x), y_axis.pixel(y)) for x, y in reference]
        parts.append(_polyline(pixels, "#8c959f", 'stroke-dasharray="5 4"'))
    for i, (name, line) in enumerate(series.items()):
        color = COLORS[i % len(COLORS)]
        pixels = [(x_axis.pixel(x), y_axis.pixel(y)) for x, y in line]
        parts.append(_polyline(pixels, color, 'stroke-width="2.5"'))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>' for x, y in pixels]
        parts.append(
            f'<text x="{x_axis.start + 12:g}" y="{y_axis.end + 18 + 18 * i:g}" fill="{color}" font-weight="600">'
            f"{escape(name)}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _polyline(points: Points, color: str, attributes: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" {attributes}/>'.replace(" />", "/>")
