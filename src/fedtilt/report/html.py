"""The pieces of an HTML page that needs nothing but itself: style, script, plotly.js and data are all inside."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from fedtilt.errors import InputError
from fedtilt.version import __version__

# The page may load nothing from anywhere; plotly makes its PNGs from blobs and data.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def document(*, title: str, what: str, main: str, footer: str, plots: bool = True) -> str:
    """The whole page around its content; without `plots`, plotly is not needed."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="fedtilt {escape(__version__)}">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<header class="bar"><span class="brand">fedtilt</span><span class="what">{escape(what)}</span>
<button type="button" id="theme" aria-pressed="false">Dark</button></header>
<main>
{main}
</main>
<footer>{escape(footer)}</footer>
<script>{plotly() if plots else ""}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return (resources.files("fedtilt.report") / name).read_text("utf-8")


def plotly() -> str:
    """plotly.js, fit to stand in a page."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise InputError('a report needs plotly; pip install "fedtilt[report]"') from None
    return str(get_plotlyjs()).replace("</script", r"<\/script")


def text(content: str) -> str:
    """Escaped, with numbers and their units kept on one line."""
    return escape(content).replace(" %", "\N{NO-BREAK SPACE}%").replace(" points", "\N{NO-BREAK SPACE}points")


def label(name: str) -> str:
    """A name in a table: as wide as it is, up to a limit, then on several lines."""
    return f'<span class="label">{escape(name)}</span>'


def table(head: str, body: Sequence[str], title: str) -> str:
    """A table that sorts and, where it is wide, scrolls."""
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}"><table class="sortable">
<thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>"""


def head(title: str, left: bool, *, hint: str = "", first: str = "ascending", swatch: str = "") -> str:
    """A heading that sorts; `first` is the order that its first click gives."""
    mark = f'<i class="swatch" style="background:{swatch}"></i>' if swatch else ""
    side = "" if left else ' class="number"'
    tip = f' title="{escape(hint)}"' if hint else ""
    return f'<th scope="col"{side}><button type="button" data-first="{first}"{tip}>{mark}{text(title)}</button></th>'


def figure(
    key: str, *, title: str, note: str, data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any], csv: str,
    selectors: Mapping[str, Sequence[str]] | None = None,
) -> str:  # fmt: skip
    """A plot that the script draws when it comes near, with its choices and downloads."""
    choices = "".join(
        f'<label>{escape(part)} <select data-part="{escape(part)}">'
        + "".join(f"<option>{escape(choice)}</option>" for choice in options)
        + "</select></label>"
        for part, options in (selectors or {}).items()
    )
    wide = ' class="wide"' if "xaxis2" in layout else ""  # several panels: a narrow page scrolls instead of squeezing
    return f"""<figure id="{key}"{wide}><figcaption><h4>{escape(title)}</h4>
<p class="note">{escape(note)}</p></figcaption>{f'<div class="choices">{choices}</div>' if choices else ""}
<div class="plot" role="img" aria-label="{escape(title)}" style="height:{layout["height"]}px"></div>
<div class="downloads"><button type="button" data-download="png" aria-label="{escape(title)} as PNG">PNG</button>
<button type="button" data-download="csv" aria-label="Data of {escape(title)} as CSV">CSV</button></div>
<script type="application/json">{inline_json({"data": data, "layout": layout, "csv": csv})}</script></figure>"""


def inline_json(content: Any) -> str:
    """JSON that cannot end the script it stands in."""
    dumped = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return dumped.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
