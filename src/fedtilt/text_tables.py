"""Lists in words; tables as CSV, Markdown and HTML, in which no name of a user is a formula, Markdown or HTML."""

import csv
import io
from collections.abc import Iterable, Sequence
from html import escape

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet starts a formula with


def article(word: str) -> str:
    """ "an" before an accuracy or an MAE, else "a".

    >>> article("MAE"), article("loss")
    ('an', 'a')
    """
    return "an" if word[0] in "aM" else "a"


def join_words(words: Sequence[str]) -> str:
    """Join words with commas and "and".

    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def first_names(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first names, and how many more there are.

    >>> first_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def csv_text(rows: Iterable[Sequence[object]], separator: str = ",") -> str:
    r"""Rows as CSV: floats unrounded, None as an empty field, an apostrophe before a text that looks like a formula.

    >>> csv_text([["client", "loss"], ["=1+1", -0.5]])
    "client,loss\n'=1+1,-0.5\n"
    """
    lines = []
    for row in rows:
        line = io.StringIO(newline="")
        # its line ends with \r\n, so that it quotes both
        csv.writer(line, delimiter=separator).writerow(map(_safe, row))
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def original_text(cell: str) -> str:
    """The text of a cell that `csv_text` wrote.

    >>> original_text("'=1+1"), original_text("'tis")
    ('=1+1', "'tis")
    """
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def _safe(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) and not _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A small table as HTML, for notebooks; all texts are escaped, and floats have two digits.

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
