"""The cells of a column as numbers or categories, and the kind of the column if nobody says what it is."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fedtilt.data.naming import sort_names
from fedtilt.data.tables.arrow_types import is_number, is_text
from fedtilt.data.tables.columns import Columns
from fedtilt.data.tables.kinds import Cells, all_missing, bad_cell, check_finite
from fedtilt.data.tables.text_cells import DAY, TextColumn, distinct_texts, to_number
from fedtilt.errors import InputError


def read_cells(
    columns: Columns, name: str, kind: str | None = None, date_format: str | None = None, *, finite: bool = True
) -> Cells:
    """A column's cells; with a kind, cells that are not of it are refused by row.

    Args:
        columns: the table
        name: the column
        kind: what the column is; None: found out
        date_format: how dates are written, as in `datetime.strptime`; None: found out
        finite: whether an infinite number is refused here; False: the caller calls `check_finite`
    """
    if kind in ("ignore", "identifier"):
        return Cells(kind)
    column = columns.read(name)
    if column.null_count == len(column):
        return all_missing(kind, len(column))
    if is_text(column.type):
        return TextColumn(columns, name, column).read(kind, date_format)
    found, values = _numbers(columns, name, column)
    if kind == "category":
        return _number_names(values, found)
    if kind == "date" and found == "number" and date_format is not None:
        text = column.cast(pa.string())
        return TextColumn(columns, name, text).read(kind, date_format)
    if kind is not None and kind != found and (kind, found) not in (("number", "yes/no"), ("yes/no", "number")):
        raise InputError(
            f"column {name!r} of {columns.name} is a {found}, not a {kind}; correct its kind in the schema"
        )
    if finite:
        check_finite(columns, name, values)
    if kind == "yes/no":
        bad = np.flatnonzero(~(np.isnan(values) | (values == 0) | (values == 1)))
        if len(bad):
            raise bad_cell(columns, name, f"{values[bad[0]]:g}", int(bad[0]), "yes/no columns have 0 and 1")
    return Cells(kind or found, values=values)


def _numbers(columns: Columns, name: str, column: pa.ChunkedArray) -> tuple[str, np.ndarray]:
    """A column that is no text as its kind and float64 values."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return "yes/no", column.cast(pa.int8()).to_numpy().astype(np.float64)
    if is_number(kind):
        numbers = column.chunk(0).to_numpy(zero_copy_only=False) if column.num_chunks == 1 else column.to_numpy()
        return "number", numbers.astype(np.float64, copy=False)
    if pa.types.is_decimal(kind):
        return "number", column.cast(pa.float64()).to_numpy()
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        microseconds = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
        return "date", microseconds.to_numpy().astype(np.float64) / (DAY * 1e6)
    if pa.types.is_time(kind):
        return "number", column.cast(pa.time64("us")).cast(pa.int64()).to_numpy().astype(np.float64) / 3.6e9  # hours
    raise InputError(f"column {name!r} of {columns.name} has values of type {kind}; leave it out: drop = [{name!r}]")


def _number_names(values: np.ndarray, kind: str) -> Cells:
    """Numbers as categories: 1.0 and 1 are the same name, whatever a file has missing."""
    distinct, codes = np.unique(values, return_inverse=True)
    present = ~np.isnan(distinct)
    if kind == "yes/no":
        names = tuple(str(bool(value)) for value in distinct[present])
    else:
        names = tuple(str(int(value)) if value.is_integer() else str(value) for value in distinct[present].tolist())
    return Cells("category", codes=np.where(np.isnan(values), -1, codes).astype(np.int64), names=names)


def read_names(columns: Columns, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column of names, such as labels or clients, as numbers 0, 1, …, and the sorted names; a gap is refused."""
    column = columns.read(name)
    if pa.types.is_boolean(column.type):
        column = pa.chunked_array([pa.array([None if v is None else str(v) for v in column.to_pylist()])])
    codes, texts = distinct_texts(column if is_text(column.type) else column.cast(pa.string()))
    empty = np.array([not text for text in texts] + [True])  # the last: a row without a value
    used = np.roll(np.bincount(codes + 1, minlength=len(empty)) > 0, -1)
    if (empty & used).any():
        row = columns.rows[int(np.flatnonzero(empty[codes])[0])]
        raise InputError(f"table {columns.name} has an empty cell in {row}, column {name!r}; fill it or drop the row")
    names = sort_names({text for text, is_used in zip(texts, used, strict=False) if is_used})
    number = {name: k for k, name in enumerate(names)}
    return np.array([number.get(text, -1) for text in texts], np.int64)[codes], names


def read_numbers(columns: Columns, target: str) -> Cells:
    """The numbers to predict; a row without a finite one is refused."""
    cells = read_cells(columns, target, "number")
    assert cells.values is not None
    bad = np.flatnonzero(~np.isfinite(cells.values))
    if len(bad):
        row = columns.rows[int(bad[0])]
        raise InputError(
            f"table {columns.name} has no number in {row}, column {target!r}, which is the target; fill it or drop the "
            "row"
        )
    return cells


def classes_problem(names: Sequence[str], counts: Sequence[int]) -> str | None:
    """Why a column does not look like classes: measurements, or nearly one class per row; None if it does."""
    values = [to_number(name) for name in names]
    fractions = [name for name, value in zip(names, values, strict=True) if not value.is_integer()]
    if fractions and all(map(math.isfinite, values)):
        return (
            f"has numbers such as {fractions[0]}, which are not classes; set task = 'regression' to predict them, or "
            "group them into a few"
        )
    once, rows = sum(count == 1 for count in counts), sum(counts)
    if 2 * once > len(names) or (len(names) > 20 and rows < 10 * len(names)):  # many classes need 10 rows each
        remedy = (
            "set task = 'regression' if these are numbers" if all(map(math.isfinite, values)) else "name another column"
        )
        return f"has {len(names)} classes in {rows} rows, {once} of them in one row; {remedy}, or group them into fewer"
    return None
