"""A line chart as an SVG file, readable on light and dark pages; method_in_pictures.py draws with it."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 40, 52  # margins around the plot; the names of the lines are to its right
COLORS = ("#1a7fc4", "#d55e00", "#009e73", "#8c6bd1")


def line_chart(
    title: str, x_label: str, y_label: str, x_values: Sequence[str], lines: Mapping[str, Sequence[float]]
) -> str:
    """The chart as SVG: the x values at equal distances, one line with markers for each name."""
    values = [value for line in lines.values() for value in line]
    low, high = min(values), max(values)
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if (high - low) / step <= 6)
    low, high = step * (low // step), step * (high // step + 1)

    def x(i: int) -> float:
        return LEFT + 20 + i * (WIDTH - LEFT - RIGHT - 40) / (len(x_values) - 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="13" fill="#24292f">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
        f'<text x="{LEFT}" y="24" font-weight="600">{escape(title)}</text>',
        f'<text x="{middle_x:g}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="16" y="{middle_y:g}" text-anchor="middle" transform="rotate(-90 16 {middle_y:g})">'
        f"{escape(y_label)}</text>",
    ]
    for i in range(round((high - low) / step) + 1):
        tick = low + i * step
        parts.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#e4e8ec"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for i, text in enumerate(x_values):
        parts.append(f'<text x="{x(i):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(text)}</text>')
    free = -1e9  # where the last name was written: names do not overlap
    for color, (name, line) in sorted(zip(COLORS, lines.items(), strict=False), key=lambda item: -item[1][1][-1]):
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(i):.1f}" cy="{y(value):.1f}" r="3.5" fill="{color}"/>' for i, value in enumerate(line)
        ]
        free = max(free + 16, y(line[-1]) + 4)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{free:.1f}" fill="{color}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
