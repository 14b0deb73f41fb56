"""The cells of a column as numbers or categories, and the kind of the column if nobody says what it is."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import numpy as np
import pyarrow as pa

from fedtilt.data.naming import sort_names
from fedtilt.data.tables.columns import MISSING_WORDS, Columns
from fedtilt.errors import InputError

KINDS = ("number", "yes/no", "category", "date", "ignore", "identifier")
NUMERIC = ("number", "yes/no", "date")  # kinds with a mean and a deviation
TEXT_KINDS = ("category", "ignore", "identifier")

_YES_NO = [({"true": 1.0, "false": 0.0}), ({"yes": 1.0, "no": 0.0}), ({"y": 1.0, "n": 0.0}), ({"t": 1.0, "f": 0.0})]
_BOOLEANS = _YES_NO[0]  # as pandas and spreadsheets write them
_MOSTLY = 0.8  # a text column with this share of numbers, or dates, is one with wrong cells
_FEW = 20  # a column with at most so many different texts is always a category
_LONG_TEXT = 60  # characters
ISO_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")
DATE_FORMATS = (
    *ISO_FORMATS, "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M", "%d-%m-%Y", "%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400  # seconds


@dataclass(frozen=True)
class Cells:
    """One column: `values` of numbers, yes/no and dates (in days since 1970), else `codes` into `names`."""

    kind: str | None  # None: no cell has a value
    values: np.ndarray | None = None  # float64; NaN where missing
    codes: np.ndarray | None = None  # −1 where missing
    names: tuple[str, ...] = ()
    format: str | None = None  # of dates written as text, if it is not ISO


def read_cells(columns: Columns, name: str, kind: str | None = None, date_format: str | None = None) -> Cells:
    """A column's cells; with a kind, cells that are not of it are refused by row.

    Args:
        columns: the table
        name: the column
        kind: what the column is; None: found out
        date_format: how dates are written, as in `datetime.strptime`; None: found out
    """
    if kind in ("ignore", "identifier"):
        return Cells(kind)
    column = columns.read(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count == len(column):
        return _all_missing(kind, len(column))
    if _is_text(column.type):
        return _TextColumn(columns, name, column).read(kind, date_format)
    found, values = _numbers(columns, name, column)
    if kind == "category":
        return _number_names(values, found)
    if kind == "date" and found == "number" and date_format is not None:
        text = column.cast(pa.string())
        return _TextColumn(columns, name, text).read(kind, date_format)
    if kind is not None and kind != found and (kind, found) not in (("number", "yes/no"), ("yes/no", "number")):
        raise InputError(
            f"column {name!r} of {columns.name} is a {found}, not a {kind}; correct its kind in the schema"
        )
    _check_finite(columns, name, values)
    if kind == "yes/no":
        bad = np.flatnonzero(~(np.isnan(values) | (values == 0) | (values == 1)))
        if len(bad):
            raise _bad_cell(columns, name, f"{values[bad[0]]:g}", int(bad[0]), "yes/no columns have 0 and 1")
    return Cells(kind or found, values=values)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _all_missing(kind: str | None, length: int) -> Cells:
    if kind == "category":
        return Cells(kind, codes=np.full(length, -1, np.int64))
    return Cells(kind, values=np.full(length, np.nan))


def _numbers(columns: Columns, name: str, column: pa.ChunkedArray) -> tuple[str, np.ndarray]:
    """A column that is no text as its kind and float64 values."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return "yes/no", column.cast(pa.int8()).to_numpy().astype(np.float64)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = column.chunk(0).to_numpy(zero_copy_only=False) if column.num_chunks == 1 else column.to_numpy()
        return "number", numbers.astype(np.float64, copy=False)
    if pa.types.is_decimal(kind):
        return "number", column.cast(pa.float64()).to_numpy()
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        microseconds = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
        return "date", microseconds.to_numpy().astype(np.float64) / (_DAY * 1e6)
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


def _check_finite(columns: Columns, name: str, values: np.ndarray) -> None:
    bad = np.flatnonzero(np.isinf(values))
    if len(bad):
        raise _bad_cell(columns, name, f"{values[bad[0]]:g}", int(bad[0]), "features are finite numbers")


def _bad_cell(columns: Columns, name: str, cell: str, position: int, rule: str) -> InputError:
    return InputError(
        f"table {columns.name} has {cell!r} in {columns.rows[position]}, column {name!r}, but {rule}: correct the "
        f"cell or empty it, or leave the column out: drop = [{name!r}] (data.drop in a spec)"
    )


class _TextColumn:
    """A column of text: its different cells and, for every row, which of them it has."""

    def __init__(self, columns: Columns, name: str, column: pa.ChunkedArray) -> None:
        self.columns, self.name = columns, name
        encoded = column.dictionary_encode().combine_chunks()
        encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0)
        self.texts = [text.strip() for text in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        self.missing = np.array([text.casefold() in MISSING_WORDS for text in self.texts] + [True])  # the last: null
        self.codes = codes
        counts = np.bincount(codes + 1, minlength=len(self.texts) + 1)[1:]
        self.counts = np.where(self.missing[:-1], 0, counts)
        self.rows = int(self.counts.sum())  # with a value

    def read(self, kind: str | None, date_format: str | None) -> Cells:
        """The column as `kind`, or as what it looks like."""
        if not self.rows:
            return _all_missing(kind, len(self.codes))
        if kind == "number" and (cells := self._as_yes_no(required=False)):  # yes/no here, numbers at another site
            return Cells(kind, values=cells.values)
        for reader, read_kind in ((self._as_yes_no, "yes/no"), (self._as_numbers, "number")):
            if kind in (None, read_kind) and (cells := reader(required=kind is not None)):
                return cells
        if kind in (None, "date") and (cells := self._as_dates(date_format, required=kind is not None)):
            return cells
        return self._as_category(kind or text_kind(self._present(), self.rows))

    def _present(self) -> list[str]:
        return [text for text, missing in zip(self.texts, self.missing, strict=False) if not missing]

    def _as_yes_no(self, *, required: bool) -> Cells | None:
        words = {text.casefold() for text in self._present()}
        pair = next((pair for pair in _YES_NO if words <= set(pair)), None)
        if pair is not None:
            return Cells("yes/no", values=self._map(lambda text: pair[text.casefold()]))
        if required:
            numbers = self._map(to_number)
            if np.isin(numbers[~np.isnan(numbers)], (0, 1)).all() and not self._failures(numbers).any():
                return Cells("yes/no", values=numbers)
            bad = np.array([text.casefold() not in _YES_NO[1] for text in self.texts]) & ~self.missing[:-1]
            raise self._bad(bad, "yes/no columns have two words: yes and no, true and false, y and n, or t and f")
        return None

    def _as_numbers(self, *, required: bool) -> Cells | None:
        found = self._best([to_number, _decimal_comma], required)
        if found is None:
            return None
        numbers, failures, _ = found
        if failures.any():
            raise self._bad(failures, "the column has numbers")
        _check_finite(self.columns, self.name, numbers)
        return Cells("number", values=numbers)

    def _as_dates(self, date_format: str | None, *, required: bool) -> Cells | None:
        formats = [date_format] if date_format else list(DATE_FORMATS)
        found = self._best([partial(_days, date_format=known) for known in formats], required)
        if found is None:
            return None
        days, failures, number = found
        if failures.any():
            raise self._bad(failures, f"the column has dates such as {datetime(2026, 1, 31).strftime(formats[number])}")
        return Cells("date", values=days, format=None if formats[number] in ISO_FORMATS else formats[number])

    def _best(
        self, readers: Sequence[Callable[[str], float]], required: bool
    ) -> tuple[np.ndarray, np.ndarray, int] | None:
        """What the reader that reads most rows makes of them, which cells it cannot read, and its number.

        None: even it reads too few rows, and the column may be something else.
        """
        best: tuple[np.ndarray, np.ndarray, int] | None = None
        least = 0.0 if required else _MOSTLY
        for number, reader in enumerate(readers):
            values = self._map(reader)
            failures = self._failures(values)
            share = float(1 - self.counts[failures].sum() / self.rows)
            if share > least or (best is None and share == least):
                best, least = (values, failures, number), share
            if share == 1:
                break
        return best

    def _as_category(self, kind: str) -> Cells:
        names = sort_names(set(self._present()))
        number = {name: k for k, name in enumerate(names)}
        codes = np.array(
            [-1 if gap else number[text] for text, gap in zip(self.texts, self.missing, strict=False)] + [-1]
        )
        return Cells(kind, codes=codes[self.codes], names=names)

    def _map(self, function: Callable[[str], float]) -> np.ndarray:
        """A number for every row, from its text; NaN where missing."""
        values = [math.nan if gap else function(text) for text, gap in zip(self.texts, self.missing, strict=False)]
        return np.array([*values, math.nan])[self.codes]

    def _failures(self, values: np.ndarray) -> np.ndarray:
        """Which of the different cells have no number although they have a value."""
        failed = np.zeros(len(self.texts) + 1, bool)
        failed[self.codes[np.isnan(values)]] = True
        return (failed & ~self.missing)[:-1]

    def _bad(self, failures: np.ndarray, rule: str) -> InputError:
        """The error about the first cell that failed; Arrow numbers the different cells as they appear."""
        number = int(np.flatnonzero(failures)[0])
        position = int(np.flatnonzero(self.codes == number)[0])
        return _bad_cell(self.columns, self.name, self.texts[number], position, rule)


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


def to_number(text: str) -> float:
    """A text as a number; NaN if it is not one.

    >>> to_number("2.5"), to_number("True"), to_number("often"), to_number("1_000")
    (2.5, 1.0, nan, nan)
    """
    try:
        return float(text) if "_" not in text else math.nan
    except ValueError:
        return _BOOLEANS.get(text.strip().casefold(), math.nan)


def _decimal_comma(text: str) -> float:
    """A number with a decimal comma; NaN if it is not one."""
    return float(text.replace(",", ".")) if re.fullmatch(r"[+-]?\d+(,\d+)?", text) else math.nan


def _days(text: str, date_format: str) -> float:
    """Days since 1970 of a date; NaN if it is not written so.

    >>> _days("2.1.1970", "%d.%m.%Y")
    1.0
    """
    try:
        return (datetime.strptime(text, date_format).replace(tzinfo=UTC) - _EPOCH).total_seconds() / _DAY
    except ValueError:
        return math.nan


def read_names(columns: Columns, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column of names, such as labels or clients, as numbers 0, 1, …, and the sorted names; a gap is refused."""
    column = columns.read(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type):
        column = pa.chunked_array([pa.array([None if v is None else str(v) for v in column.to_pylist()])])
    text = column if _is_text(column.type) else column.cast(pa.string())
    encoded = text.dictionary_encode().combine_chunks()
    encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    texts = [value.strip() for value in encoded.dictionary.to_pylist()]
    empty = np.array([not value for value in texts] + [True])
    if empty[codes].any():
        row = columns.rows[int(np.flatnonzero(empty[codes])[0])]
        raise InputError(f"table {columns.name} has an empty cell in {row}, column {name!r}; fill it or drop the row")
    names = sort_names(set(texts))
    number = {value: k for k, value in enumerate(names)}
    return np.array([number[value] for value in texts], np.int64)[codes], names


def classes_problem(names: Sequence[str], counts: Sequence[int]) -> str | None:
    """Why a column does not look like classes: measurements, or nearly one class per row; None if it does."""
    values = [to_number(name) for name in names]
    fractions = [name for name, value in zip(names, values, strict=True) if not value.is_integer()]
    if fractions and all(map(math.isfinite, values)):
        return (
            f"has numbers such as {fractions[0]}, which are not classes; group them into a few, named by text or whole "
            "numbers"
        )
    once, rows = sum(count == 1 for count in counts), sum(counts)
    if 2 * once > len(names) or (len(names) > 20 and rows < 10 * len(names)):  # many classes need 10 rows each
        return (
            f"has {len(names)} classes in {rows} rows, {once} of them in one row; name a column of classes, or group "
            "them into fewer"
        )
    return None
