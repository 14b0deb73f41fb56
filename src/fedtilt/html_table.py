"""Small tables for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A table as HTML; all texts are escaped, and floats have two digits.

    >>> html_table("a table", ["name", "size"], [["<b>", 1.0]])
    '<div><b>a table</b><table>...&lt;b&gt;</td><td>1.00</td></tr></tbody></table></div>'
    """
    head = "".join(_cell("th", name, i) for i, name in enumerate(columns))
    body = "".join(f"<tr>{''.join(_cell('td', value, i) for i, value in enumerate(row))}</tr>" for row in rows)
    below = f"<div><small>{escape(note)}</small></div>" if note else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div><b>{escape(title)}</b>{table}{below}</div>"


def _cell(tag: str, value: object, column: int) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    left = "" if column else ' style="text-align:left"'
    return f"<{tag}{left}>{escape(text)}</{tag}>"
