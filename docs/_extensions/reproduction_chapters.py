"""The chapters of the reproduction, written from the results in the repository when the site is built."""

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_CHAPTERS = "reproduction/chapters"


def _write(app: Sphinx) -> None:
    sys.path.insert(0, str(Path(app.srcdir).parent))
    from reproduction.page.build import build_page
    from reproduction.page.markdown import site_pages
    from reproduction.results import RESULTS, ResultsFolder

    folder = Path(app.srcdir, _CHAPTERS)
    folder.mkdir(exist_ok=True)
    pages = site_pages(build_page(ResultsFolder(RESULTS)))
    for path in folder.glob("*.md"):
        if path.stem not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def _add_scripts(app: Sphinx, name: str, *_: Any) -> None:
    if name.startswith(_CHAPTERS):
        app.add_js_file("plotly-cartesian.min.js")
        app.add_js_file("figures.js")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx looks for them; those with figures load plotly."""
    app.connect("builder-inited", _write)
    app.connect("html-page-context", _add_scripts)
    return {"parallel_read_safe": True}
