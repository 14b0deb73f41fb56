"""A page that index.md does not name is listed below the guides, so that nothing is lost."""

from pathlib import Path

from sphinx.application import Sphinx

_MARK = "% pages that no table of contents names"


def _list(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname != "index":
        return
    named = set(source[0].split())
    pages = sorted(path.stem for path in Path(app.srcdir).glob("*.md") if path.stem not in named)
    assert _MARK in source[0], f"index.md lacks the line {_MARK!r}"
    source[0] = source[0].replace(_MARK, "\n".join(page for page in pages if page != "index"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Complete index.md as it is read."""
    app.connect("source-read", _list)
    return {"parallel_read_safe": True}
