"""Links of a page to files of the repository: to the page that has the file, or their text alone where none has it.

On GitHub such a link opens the file. On the site, Sphinx offers files of code for download by itself.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md",
          "SECURITY.md": "security.md"}  # fmt: skip
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\(\.\./(?P<path>[^)#\s]+)(?:#[^)]*)?\)")


def _rewrite(app: Sphinx, docname: str, source: list[str]) -> None:
    root = Path(app.srcdir).parent

    def rewritten(link: re.Match[str]) -> str:
        path = link["path"]
        if path in _PAGES:
            return f"[{link['text']}]({_PAGES[path]})"
        return link["text"] if path.endswith(".md") or (root / path).is_dir() else link[0]

    if "/" not in docname:
        source[0] = _LINK.sub(rewritten, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Rewrite pages as they are read."""
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True}
