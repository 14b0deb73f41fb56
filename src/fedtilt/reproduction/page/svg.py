"""Figures as SVG files: plotly draws them in a headless browser, for pages that cannot run a script."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from fedtilt.errors import InputError
from fedtilt.files import write_bytes
from fedtilt.report import html
from fedtilt.reproduction.chapter import CaptionedFigure
from fedtilt.reproduction.page.build import digest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_WIDTHS = (560, 1000)  # of a plain figure, and of one with several panels
_AXIS = {"gridcolor": "#eceef1", "linecolor": "#e2e5e9", "zerolinecolor": "#e2e5e9", "automargin": True}
# the page's light theme; the background is painted, because a repository may be shown on black
_TEMPLATE = {
    "layout": {
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#1d2127"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "coloraxis": {"colorscale": [[0, "#8c2d04"], [0.25, "#d9731f"], [0.5, "#f3b67a"], [1, "#8fbbdd"]]},
    }
}
_SCRIPT = """
(async () => {
  for (const [name, figure] of Object.entries(JSON.parse(document.getElementById("figures").textContent))) {
    const holder = document.createElement("div");
    document.body.append(holder);
    await Plotly.newPlot(holder, figure.data, figure.layout, { staticPlot: true });
    const { width, height } = figure.layout;
    const url = await Plotly.toImage(holder, { format: "svg", width, height });
    holder.replaceWith(Object.assign(document.createElement("pre"), { id: name, textContent: url }));
  }
})();
"""


def up_to_date(figure: CaptionedFigure, folder: Path) -> bool:
    """Whether the picture that lies in the folder is this figure's."""
    path = folder / f"{figure.name}.svg"
    return path.exists() and f"sha256:{digest(figure)}" in path.read_text("utf-8")


def write_pictures(figures: Sequence[CaptionedFigure], folder: Path) -> list[str]:
    """Draw the figures that are not yet in the folder as they are now, and delete those that are no longer wanted."""
    due = [figure for figure in figures if not up_to_date(figure, folder)]
    for figure, drawn in zip(due, _drawn(due), strict=True):
        write_bytes(folder / f"{figure.name}.svg", f"{drawn}\n<!-- sha256:{digest(figure)} -->\n".encode())
    wanted = {f"{figure.name}.svg" for figure in figures}
    for path in folder.glob("*.svg"):
        if path.name not in wanted:
            path.unlink()
    return [figure.name for figure in due]


def _drawn(figures: Sequence[CaptionedFigure]) -> list[str]:
    if not figures:
        return []
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise InputError("pictures are drawn by a browser, and none is here; install chromium")
    content = {figure.name: _framed(figure) for figure in figures}
    with tempfile.TemporaryDirectory(prefix="fedtilt-") as folder:
        page = Path(folder, "figures.html")
        page.write_text(
            '<!doctype html><meta charset="utf-8"><body>'
            f'<script type="application/json" id="figures">{html.inline_json(content)}</script>'
            f"<script>{html.plotly()}</script><script>{_SCRIPT}</script>",
            "utf-8",
        )
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        # virtual time: the page is taken when all of it has been drawn, however long that takes
        command = [browser, *arguments, "--virtual-time-budget=600000", "--dump-dom", page.as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise InputError(f"{browser} could not draw the figures ({error}); try it by hand") from error
    out = []
    for figure in figures:
        found = re.search(f'<pre id="{figure.name}">data:image/svg\\+xml,([^<]*)</pre>', done.stdout)
        if found is None:
            raise InputError(f"plotly could not draw figure {figure.name!r}; open it in the HTML page to see why")
        out.append(_settled(unquote(found[1])))
    return out


def _framed(figure: CaptionedFigure) -> dict[str, object]:
    layout = {"height": 360} | figure.figure["layout"]
    width = _WIDTHS["xaxis2" in layout]
    return {"data": figure.figure["data"], "layout": layout | {"width": width, "template": _TEMPLATE}}


def _settled(svg: str) -> str:
    """The same for the same figure: plotly puts a random word into the names of clips and gradients."""
    found = re.search(r'id="(?:topdefs|defs)-([0-9a-f]{6})"', svg)
    return svg.replace(found[1], "figure") if found else svg
