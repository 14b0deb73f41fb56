"""Figures as SVG files, drawn by plotly in a headless browser, for pages that cannot run scripts."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fedtilt.errors import InputError
from fedtilt.files import write_bytes
from fedtilt.report import html
from reproduction.chapter import CaptionedFigure
from reproduction.page.build import digest, themed

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_WIDTHS = (560, 1000)  # of a figure with one panel, and with several
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
    """Whether the folder has the SVG file of this figure as it is now."""
    path = folder / f"{figure.name}.svg"
    return path.exists() and f"sha256:{digest(figure)}" in path.read_text("utf-8")


def write_svgs(figures: Sequence[CaptionedFigure], folder: Path) -> list[str]:
    """Draw the figures whose SVG file is missing or outdated, delete other SVG files; the names of those drawn."""
    outdated = [figure for figure in figures if not up_to_date(figure, folder)]
    for figure, svg in zip(outdated, _draw(outdated), strict=True):
        write_bytes(folder / f"{figure.name}.svg", f"{svg}\n<!-- sha256:{digest(figure)} -->\n".encode())
    names = {f"{figure.name}.svg" for figure in figures}
    for path in folder.glob("*.svg"):
        if path.name not in names:
            path.unlink()
    return [figure.name for figure in outdated]


def _draw(figures: Sequence[CaptionedFigure]) -> list[str]:
    if not figures:
        return []
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise InputError("SVG figures are drawn by a browser, and none is installed; install chromium")
    content = {figure.name: _with_width(figure) for figure in figures}
    with tempfile.TemporaryDirectory(prefix="fedtilt-") as folder:
        page = Path(folder, "figures.html")
        page.write_text(
            '<!doctype html><meta charset="utf-8"><body>'
            f'<script type="application/json" id="figures">{html.inline_json(content)}</script>'
            f"<script>{html.plotly()}</script><script>{_SCRIPT}</script>",
            "utf-8",
        )
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        # virtual time: the page is read when everything is drawn, however long that takes
        command = [browser, *arguments, "--virtual-time-budget=600000", "--dump-dom", page.as_uri()]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise InputError(f"{browser} could not draw the figures ({error}); check that it starts") from error
    svgs = []
    for figure in figures:
        match = re.search(f'<pre id="{figure.name}">data:image/svg\\+xml,([^<]*)</pre>', process.stdout)
        if match is None:
            raise InputError(f"plotly could not draw figure {figure.name!r}; open it in the HTML page to see why")
        svgs.append(_replace_random_id(unquote(match[1])))
    return svgs


def _with_width(figure: CaptionedFigure) -> dict[str, Any]:
    content = themed(figure)
    return content | {"layout": content["layout"] | {"width": _WIDTHS["xaxis2" in content["layout"]]}}


def _replace_random_id(svg: str) -> str:
    """The same text for the same figure: plotly puts a random word into the names of clips and gradients."""
    match = re.search(r'id="(?:topdefs|defs)-([0-9a-f]{6})"', svg)
    return svg.replace(match[1], "figure") if match else svg
