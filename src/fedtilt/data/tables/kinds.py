"""The kinds of columns, and the cells of a column as numbers or categories."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedtilt.data.tables.columns import Columns
from fedtilt.errors import InputError

KINDS = ("number", "yes/no", "category", "date", "ignore", "identifier")
NUMERIC = ("number", "yes/no", "date")  # kinds with a mean and a deviation
TEXT_KINDS = ("category", "ignore", "identifier")
_FEW = 20  # a column with at most so many different texts is always a category
_LONG_TEXT = 60  # characters


@dataclass(frozen=True)
class Cells:
    """One column: `values` of numbers, yes/no and dates (in days since 1970), else `codes` into `names`."""

    kind: str | None  # None: no cell has a value
    values: np.ndarray | None = None  # float64; NaN where missing
    codes: np.ndarray | None = None  # −1 where missing
    names: tuple[str, ...] = ()
    format: str | None = None  # of dates written as text, if it is not ISO


def all_missing(kind: str | None, length: int) -> Cells:
    """A column without any value."""
    if kind == "category":
        return Cells(kind, codes=np.full(length, -1, np.int64))
    return Cells(kind, values=np.full(length, np.nan))


def check_finite(columns: Columns, name: str, values: np.ndarray) -> None:
    """Refuse a column with an infinite number."""
    infinite = np.isinf(values)
    if infinite.any():
        position = int(infinite.argmax())
        raise bad_cell(columns, name, f"{values[position]:g}", position, "features are finite numbers")


def bad_cell(columns: Columns, name: str, cell: str, position: int, rule: str) -> InputError:
    """The error about a cell that does not fit its column."""
    return InputError(
        f"table {columns.name} has {cell!r} in {columns.rows[position]}, column {name!r}, but {rule}: correct the "
        f"cell or empty it, or leave the column out: drop = [{name!r}] (data.drop in a spec)"
    )


def text_kind(texts: Sequence[str], rows: int) -> str:
    """Category, free text to ignore, or an identifier.

    Args:
        texts: the different texts of a column
        rows: the number of rows with a text
    """
    if len(texts) <= _FEW:
        return "category"
    if sum(map(len, texts)) / len(texts) > _LONG_TEXT:
        return "ignore"
    if 2 * len(texts) > rows:
        spaces = sum(text.count(" ") for text in texts) / len(texts)
        return "ignore" if spaces >= 3 else "identifier"
    return "category"
