"""Tables and names in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_text(text: str) -> str:
    r"""A text without Markdown and HTML: names come from users.

    >>> print(markdown_text("a|b\n<i>"))
    a\|b &lt;i>
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in text)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---") -> str:
    """A table; texts are not escaped. `align` is that of all columns but the first, such as "---:" for numbers."""
    lines = [columns, ["---", *[align] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
