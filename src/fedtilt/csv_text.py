"""CSV files that a spreadsheet shows as text: no name of a client or a sample is a formula."""

import csv
import io
from collections.abc import Iterable, Sequence

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet starts a formula with


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    r"""Rows as CSV: floats unrounded, None as an empty field, an apostrophe before a text that looks like a formula.

    >>> csv_text([["client", "loss"], ["=1+1", -0.5]])
    "client,loss\n'=1+1,-0.5\n"
    """
    lines = []
    for row in rows:
        line = io.StringIO(newline="")
        csv.writer(line).writerow(map(_safe, row))  # its line ends with \r\n, so that it quotes both
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
