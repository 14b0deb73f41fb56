"""How methods and names look on a page."""

import html
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """How a method looks everywhere on a page."""

    color: str
    dash: str
    symbol: str

    def faint(self, alpha: float) -> str:
        """The colour, see-through."""
        r, g, b = (int(self.color[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({r},{g},{b},{alpha})"


# After Okabe and Ito, shifted to keep a contrast of 3 : 1 on both white and near-black.
_OWN = {
    "fedtilt": Style("#1a7fc4", "solid", "circle"),
    "ditto": Style("#d55e00", "dash", "diamond"),
    "fedavg": Style("#7f858d", "dot", "square"),
    "fedprox": Style("#c46a9c", "dashdot", "triangle-up"),
    "term": Style("#009e73", "longdash", "triangle-down"),
}
_FURTHER = ("#9a7b00", "#8c6bd1", "#009e73", "#c46a9c", "#1a7fc4", "#d55e00", "#7f858d")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down", "cross", "x")


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """One look per method; the usual names keep theirs on every page."""
    chosen = {name: _OWN[name] for name in methods if name in _OWN}
    taken = {style.color for style in chosen.values()}
    free = [c for c in _FURTHER if c not in taken] or list(_FURTHER)
    further = [name for name in methods if name not in _OWN]
    for i, name in enumerate(further):
        chosen[name] = Style(free[i % len(free)], _DASHES[(i // len(free)) % 5], _SYMBOLS[i % 7])
    return chosen


def shown(text: str, limit: int = 28) -> str:
    """A user's text for plotly, which reads some HTML: escaped, and cut where it is long.

    >>> shown("<b>x")
    '&lt;b&gt;x'
    """
    text = " ".join(text.split())
    return html.escape(text if len(text) <= limit else f"{text[: limit - 1]}…", quote=False)
