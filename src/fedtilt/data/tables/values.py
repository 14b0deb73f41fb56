"""The values of a column, as numbers or names, and the kind of a column that the schema does not give."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from fedtilt.data.naming import sort_names
from fedtilt.data.tables.cells import BadCells, ColumnValues, SchemaMismatch, all_missing, distinct_texts
from fedtilt.data.tables.client_table import has_fraction, is_number, is_text
from fedtilt.data.tables.reader import TableReader, join_arrays
from fedtilt.data.tables.schema import Column
from fedtilt.data.tables.text_column import TextColumn
from fedtilt.data.tables.text_values import (
    DAY,
    UNKNOWN_WORDS,
    common_decimal,
    format_value,
    to_days,
    to_number,
    yes_no_values,
)
from fedtilt.errors import InputError

_EXACT = 10**15  # float64 has all digits of whole numbers below


def read_column(reader: TableReader, name: str, known: Column | None = None, *, finite: bool = True) -> ColumnValues:
    """The values of a column; raise InputError, which names the row, if a cell is not of its kind.

    Without `finite`, an infinite number does not raise: the caller calls `check_finite`.
    """
    kind = None if known is None else known.kind
    if kind in ("ignore", "identifier"):
        return ColumnValues(kind)
    arrays, typed = zip(*reader.read_files(name), strict=True)
    if all(array.null_count == len(array) for array in arrays):
        return all_missing(kind, len(reader))
    if any(is_text(array.type) for array in arrays):
        return _without_codes(_read_text(reader, name, arrays, typed, known), known)
    column = join_arrays(arrays)
    found, values = _numbers(reader, name, column)
    if kind is None and pa.types.is_integer(column.type) and _are_names_or_dates(values):
        return TextColumn(reader, name, [array.cast(pa.string()) for array in arrays], typed).read(None)
    values = _without_missing(values, found, reader.missing_in(name))
    if kind == "category":
        return _number_names(values, found)
    if kind == "date" and found == "number" and known is not None and known.format is not None:
        return TextColumn(reader, name, [array.cast(pa.string()) for array in arrays], typed).read(known)
    if kind is not None and kind != found and {kind, found} != {"number", "yes/no"}:
        text = f"column {name!r} of {reader.name} is a {found}, not a {kind}; correct its kind in the schema"
        raise SchemaMismatch(text, f"has a {found} in column {name!r}, which is a {kind} in the schema")
    if finite:
        check_finite(reader, name, values)
    if kind == "yes/no":
        bad = np.flatnonzero(~(np.isnan(values) | (values == 0) | (values == 1)))
        if len(bad):
            raise BadCells(reader, name, {int(i): f"{values[i]:g}" for i in bad}, "yes/no columns have 0 and 1")
    has_point = found == "number" and pa.types.is_floating(column.type) and has_fraction(values)
    decimal = common_decimal(table.point for table in reader.tables) if has_point else None
    notes = ("times as hours",) if pa.types.is_time(column.type) else ()
    return _without_codes(ColumnValues(kind or found, values=values, decimal=decimal, notes=notes), known)


def _read_text(
    reader: TableReader, name: str, arrays: Sequence[pa.ChunkedArray], typed: Sequence[bool], known: Column | None
) -> ColumnValues:
    """A column of text; beside values that are no names, words such as unknown are missing cells."""
    column = TextColumn(reader, name, arrays, typed)
    words = sorted(text for text in column.present if text.casefold() in UNKNOWN_WORDS)
    if not words or not reader.files.find_missing or name in reader.exact:
        return column.read(known)
    found = TextColumn(reader, name, arrays, typed, unknown=UNKNOWN_WORDS)
    values = found.read_values(known) if found.rows else None
    if values is None:
        return column.read(known)
    return replace(values, notes=(*values.notes, f"{', '.join(words)} read as missing"))


def _are_names_or_dates(values: np.ndarray) -> bool:
    """Whether whole numbers may be names, with too many digits for a number, or dates such as 20260131."""
    if np.nanmax(np.abs(values)) >= _EXACT:
        return True
    months, days = values // 100 % 100, values % 100
    is_date = (
        (values >= 1800_01_01) & (values <= 9999_12_31) & (months > 0) & (months <= 12) & (days > 0) & (days <= 31)
    )
    return bool((is_date | np.isnan(values)).all())


def _without_codes(found: ColumnValues, known: Column | None) -> ColumnValues:
    """The values without the codes for missing cells that the schema has."""
    if known is None or not known.missing or found.values is None:
        return found
    is_code = np.isin(found.values, known.missing)
    if not is_code.any():
        return found
    codes = ", ".join(format_value(code, found.kind) for code in sorted(set(found.values[is_code].tolist())))
    values = np.where(is_code, math.nan, found.values)
    return replace(found, values=values, notes=(*found.notes, f"{codes} read as missing in {is_code.sum()} rows"))


def read_names(reader: TableReader, name: str, *, gaps: bool = False) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column of names, such as labels or clients, as numbers 0, 1, …, and the sorted names.

    With `gaps`, a row may have no name, which is −1; otherwise it is an error.
    """
    column = reader.read(name)
    if pa.types.is_boolean(column.type):
        column = pa.chunked_array([pa.array([None if v is None else str(v) for v in column.to_pylist()])])
    text = column if is_text(column.type) else column.cast(pa.string())
    codes, texts = distinct_texts(text, bool(reader.files.ignore_case))
    missing = {"", *(word.casefold() for word in reader.missing_in(name))}
    empty = np.array([text.casefold() in missing for text in texts] + [True])  # the last: a row without a value
    used = np.roll(np.bincount(codes + 1, minlength=len(empty)) > 0, -1)
    if not gaps and (empty & used).any():
        row = reader.rows[int(np.flatnonzero(empty[codes])[0])]
        raise InputError(f"table {reader.name} has an empty cell in {row}, column {name!r}; fill it or drop the row")
    named = used & ~empty
    names = sort_names({text for text, is_named in zip(texts, named, strict=False) if is_named})
    number = {name: k for k, name in enumerate(names)}
    numbers = [number[text] if is_named else -1 for text, is_named in zip(texts, named, strict=False)]
    return np.array([*numbers, -1], np.int64)[codes], names


def read_target(reader: TableReader, target: str, *, gaps: bool = False) -> ColumnValues:
    """The numbers to predict; a row without a finite one is an error, unless it may have gaps."""
    try:
        found = read_column(reader, target, Column(name=target, kind="number"))
    except BadCells as error:
        if error.has_remedy:
            raise
        remedy = "correct the cell, or predict classes: task = 'classification'"
        raise BadCells(reader, target, error.cells, "targets of regression are numbers", remedy) from None
    assert found.values is not None
    bad = np.flatnonzero(~np.isfinite(found.values))
    if len(bad) and not gaps:
        row = reader.rows[int(bad[0])]
        raise InputError(
            f"table {reader.name} has no number in {row}, column {target!r}, which is the target; fill it, or leave "
            "such rows out: drop_unlabelled = true (data.drop_unlabelled in a spec)"
        )
    return found


def check_finite(reader: TableReader, name: str, values: np.ndarray) -> None:
    """Raise InputError if a column has an infinite number."""
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise BadCells(reader, name, {int(i): f"{values[i]:g}" for i in infinite}, "features are finite numbers")


def _numbers(reader: TableReader, name: str, column: pa.ChunkedArray) -> tuple[str, np.ndarray]:
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
    raise InputError(f"column {name!r} of {reader.name} has values of type {kind}; leave it out: drop = [{name!r}]")


def _without_missing(values: np.ndarray, kind: str, words: Sequence[str]) -> np.ndarray:
    """The values with NaN in place of the user's words for missing cells."""
    if not words:
        return values
    numbers = [to_days(word, "%Y-%m-%d") if kind == "date" else to_number(word) for word in words]
    return np.where(np.isin(values, numbers), math.nan, values)


def _number_names(values: np.ndarray, kind: str) -> ColumnValues:
    """Numbers as categories: 1.0 and 1 are the same name, whatever a file has missing."""
    distinct, codes = np.unique(values, return_inverse=True)
    present = ~np.isnan(distinct)
    if kind == "yes/no":
        names = tuple(str(bool(value)) for value in distinct[present])
    else:
        names = tuple(str(int(value)) if value.is_integer() else str(value) for value in distinct[present].tolist())
    return ColumnValues("category", codes=np.where(np.isnan(values), -1, codes).astype(np.int64), names=names)


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


def common_classes(names: Sequence[str]) -> tuple[str, ...]:
    """The classes that labels are: as written, but yes and no where more than two words mean these.

    >>> common_classes(["Ja", "nein"]), common_classes(["Ja", "JA", "nein", "no"])
    (('Ja', 'nein'), ('no', 'yes'))
    """
    return ("no", "yes") if len(names) > 2 and yes_no_values(names) else tuple(names)


def class_numbers(names: Sequence[str], classes: Sequence[str]) -> dict[str, int]:
    """The class of each label that has one: of the same name, or else of the same meaning as yes or no.

    >>> class_numbers(["JA", "no"], ["no", "yes"]), class_numbers(["ill"], ["well", "ill"])
    ({'no': 0, 'JA': 1}, {'ill': 1})
    """
    found = {name: classes.index(name) for name in names if name in classes}
    meanings = yes_no_values(classes) if len(classes) == 2 else None
    if meanings is None:
        return found
    number = {meaning: classes.index(name) for name, meaning in meanings.items()}
    together = yes_no_values([*classes, *names]) or {}  # a letter counts beside a word
    for name in names:
        meaning = together.get(name, (yes_no_values([*classes, name]) or {}).get(name))
        if name not in found and meaning in number:
            found[name] = number[meaning]
    return found
