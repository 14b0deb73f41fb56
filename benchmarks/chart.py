"""A line chart with two logarithmic axes as an SVG file: readable on light and dark pages, nothing to install."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 78, 18, 44, 56  # what lies around the plot
COLORS = ("#1a7fc4", "#d55e00", "#009e73", "#8c6bd1")
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Positive numbers on a line of so many pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value lies, in pixels."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of every power of ten, or only the powers where that would be crowded."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        leads = (1, 2, 5) if math.log10(self.high / self.low) < 3 else (1,)
        all_ticks = [lead * 10.0**decade for decade in decades for lead in leads]
        return [tick for tick in all_ticks if self.low * 0.999 <= tick <= self.high * 1.001]


def log_log(title: str, x_label: str, y_label: str, series: Mapping[str, Points], *, dashed: Points = ()) -> str:
    """The chart; `dashed` is a thin line without marks, for what one compares with."""
    every = [point for points in (*series.values(), dashed) for point in points]
    xs, ys = [x for x, _ in every], [y for _, y in every]
    across = Axis(low=min(xs) / 1.15, high=max(xs) * 1.15, start=LEFT, end=WIDTH - RIGHT)
    up = Axis(low=min(ys) / 1.4, high=max(ys) * 1.4, start=HEIGHT - BOTTOM, end=TOP)
    middle_x, middle_y = (across.start + across.end) / 2, (up.start + up.end) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="13" fill="#24292f">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
        f'<text x="{middle_x:g}" y="24" text-anchor="middle" font-weight="600">{escape(title)}</text>',
        f'<text x="{middle_x:g}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="18" y="{middle_y:g}" text-anchor="middle" transform="rotate(-90 18 {middle_y:g})">'
        f"{escape(y_label)}</text>",
    ]
    for tick in across.ticks():
        parts.append(_line([(across(tick), up.start), (across(tick), up.end)], "#eaeef2"))
        parts.append(f'<text x="{across(tick):.1f}" y="{up.start + 18:g}" text-anchor="middle">{tick:,g}</text>')
    for tick in up.ticks():
        parts.append(_line([(across.start, up(tick)), (across.end, up(tick))], "#eaeef2"))
        parts.append(f'<text x="{across.start - 8:g}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    if dashed:
        parts.append(_line([(across(x), up(y)) for x, y in dashed], "#8c959f", 'stroke-dasharray="5 4"'))
    for i, (name, points) in enumerate(series.items()):
        color = COLORS[i % len(COLORS)]
        placed = [(across(x), up(y)) for x, y in points]
        parts.append(_line(placed, color, 'stroke-width="2.5"'))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>' for x, y in placed]
        parts.append(
            f'<text x="{across.start + 12:g}" y="{up.end + 18 + 18 * i:g}" fill="{color}" font-weight="600">'
            f"{escape(name)}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(points: Points, color: str, more: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" {more}/>'.replace(" />", "/>")
