"""The values of a column, as numbers or names, and the kind of a column that the schema does not give."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import numpy as np
import pyarrow as pa

from fedtilt.data.naming import sort_names
from fedtilt.data.tables.client_table import is_number, is_text
from fedtilt.data.tables.csv_file import MISSING_WORDS
from fedtilt.data.tables.reader import TableReader
from fedtilt.errors import InputError

_YES_NO = [{"true": 1.0, "false": 0.0}, {"yes": 1.0, "no": 0.0}, {"y": 1.0, "n": 0.0}, {"t": 1.0, "f": 0.0}]
_MOSTLY = 0.8  # a text column with this share of numbers, or dates, is one with wrong cells
_ISO_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")
_DATE_FORMATS = (
    *_ISO_FORMATS, "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M", "%d-%m-%Y", "%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400  # seconds
_MAX_CATEGORIES = 20  # a column with up to this number of different texts is always a category
_LONG_TEXT = 60  # characters


@dataclass(frozen=True)
class ColumnValues:
    """One column: `values` of numbers, yes/no and dates (in days since 1970), else `codes` into `names`."""

    kind: str | None  # None: no cell has a value
    values: np.ndarray | None = None  # float64; NaN where missing
    codes: np.ndarray | None = None  # −1 where missing
    names: tuple[str, ...] = ()
    format: str | None = None  # of dates written as text, if it is not ISO


def read_values(
    reader: TableReader, name: str, kind: str | None = None, date_format: str | None = None, *, finite: bool = True
) -> ColumnValues:
    """The values of a column; raise InputError, which names the row, if a cell is not of its kind.

    Args:
        reader: the table
        name: the column
        kind: what the column is; None: inferred
        date_format: how dates are written, as in `datetime.strptime`; None: inferred
        finite: whether an infinite number raises here; False: the caller calls `check_finite`
    """
    if kind in ("ignore", "identifier"):
        return ColumnValues(kind)
    column = reader.read(name)
    if column.null_count == len(column):
        return _all_missing(kind, len(column))
    if is_text(column.type):
        return _TextColumn(reader, name, column).read(kind, date_format)
    found, values = _numbers(reader, name, column)
    if kind == "category":
        return _number_names(values, found)
    if kind == "date" and found == "number" and date_format is not None:
        return _TextColumn(reader, name, column.cast(pa.string())).read(kind, date_format)
    if kind is not None and kind != found and {kind, found} != {"number", "yes/no"}:
        raise InputError(f"column {name!r} of {reader.name} is a {found}, not a {kind}; correct its kind in the schema")
    if finite:
        check_finite(reader, name, values)
    if kind == "yes/no":
        bad = np.flatnonzero(~(np.isnan(values) | (values == 0) | (values == 1)))
        if len(bad):
            raise BadCells(reader, name, {int(i): f"{values[i]:g}" for i in bad}, "yes/no columns have 0 and 1")
    return ColumnValues(kind or found, values=values)


def read_names(reader: TableReader, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column of names, such as labels or clients, as numbers 0, 1, …, and the sorted names; a gap is an error."""
    column = reader.read(name)
    if pa.types.is_boolean(column.type):
        column = pa.chunked_array([pa.array([None if v is None else str(v) for v in column.to_pylist()])])
    codes, texts = _distinct_texts(column if is_text(column.type) else column.cast(pa.string()))
    empty = np.array([not text for text in texts] + [True])  # the last: a row without a value
    used = np.roll(np.bincount(codes + 1, minlength=len(empty)) > 0, -1)
    if (empty & used).any():
        row = reader.rows[int(np.flatnonzero(empty[codes])[0])]
        raise InputError(f"table {reader.name} has an empty cell in {row}, column {name!r}; fill it or drop the row")
    names = sort_names({text for text, is_used in zip(texts, used, strict=False) if is_used})
    number = {name: k for k, name in enumerate(names)}
    return np.array([number.get(text, -1) for text in texts], np.int64)[codes], names


def read_target(reader: TableReader, target: str) -> ColumnValues:
    """The numbers to predict; a row without a finite one is an error."""
    found = read_values(reader, target, "number")
    assert found.values is not None
    bad = np.flatnonzero(~np.isfinite(found.values))
    if len(bad):
        row = reader.rows[int(bad[0])]
        raise InputError(
            f"table {reader.name} has no number in {row}, column {target!r}, which is the target; fill it or drop the "
            "row"
        )
    return found


def check_finite(reader: TableReader, name: str, values: np.ndarray) -> None:
    """Raise InputError if a column has an infinite number."""
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise BadCells(reader, name, {int(i): f"{values[i]:g}" for i in infinite}, "features are finite numbers")


class BadCells(InputError):
    """Cells of one column that cannot be used; the message is about the first."""

    def __init__(self, reader: TableReader, column: str, cells: Mapping[int, str], rule: str) -> None:
        """Args:
        reader: the table
        column: the name of the column
        cells: the texts by row
        rule: what the cells of the column are
        """
        position, cell = next(iter(cells.items()))
        super().__init__(
            f"table {reader.name} has {cell!r} in {reader.rows[position]}, column {column!r}, but {rule}: correct the "
            f"cell or empty it, or leave the column out: drop = [{column!r}] (data.drop in a spec)"
        )
        self.column = column
        self.reasons = {row: f"{text!r} in column {column!r}, but {rule}" for row, text in cells.items()}


def _all_missing(kind: str | None, length: int) -> ColumnValues:
    if kind == "category":
        return ColumnValues(kind, codes=np.full(length, -1, np.int64))
    return ColumnValues(kind, values=np.full(length, np.nan))


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
        return "date", microseconds.to_numpy().astype(np.float64) / (_DAY * 1e6)
    if pa.types.is_time(kind):
        return "number", column.cast(pa.time64("us")).cast(pa.int64()).to_numpy().astype(np.float64) / 3.6e9  # hours
    raise InputError(f"column {name!r} of {reader.name} has values of type {kind}; leave it out: drop = [{name!r}]")


def _number_names(values: np.ndarray, kind: str) -> ColumnValues:
    """Numbers as categories: 1.0 and 1 are the same name, whatever a file has missing."""
    distinct, codes = np.unique(values, return_inverse=True)
    present = ~np.isnan(distinct)
    if kind == "yes/no":
        names = tuple(str(bool(value)) for value in distinct[present])
    else:
        names = tuple(str(int(value)) if value.is_integer() else str(value) for value in distinct[present].tolist())
    return ColumnValues("category", codes=np.where(np.isnan(values), -1, codes).astype(np.int64), names=names)


def text_kind(texts: Sequence[str], rows: int) -> str:
    """Category, free text to ignore, or an identifier, from the different texts and the number of rows with a text."""
    if len(texts) <= _MAX_CATEGORIES:
        return "category"
    if sum(map(len, texts)) / len(texts) > _LONG_TEXT:
        return "ignore"
    if 2 * len(texts) > rows:
        spaces = sum(text.count(" ") for text in texts) / len(texts)
        return "ignore" if spaces >= 3 else "identifier"
    return "category"


def _distinct_texts(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """For every row which of the different texts it has, −1 if none, and these texts; some may have no row."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    encoded = encoded.unify_dictionaries().combine_chunks()
    encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [text.strip() for text in encoded.dictionary.to_pylist()]


class _TextColumn:
    """A column of text: its different cells and, for every row, which of them it has."""

    def __init__(self, reader: TableReader, name: str, column: pa.ChunkedArray) -> None:
        self.reader, self.name = reader, name
        self.codes, self.texts = _distinct_texts(column)
        counts = np.bincount(self.codes + 1, minlength=len(self.texts) + 1)[1:]
        empty = np.array([text.casefold() in MISSING_WORDS for text in self.texts], bool)
        self.missing = empty | (counts == 0)
        self.counts = np.where(self.missing, 0, counts)
        self.rows = int(self.counts.sum())  # with a value
        self.present = [text for text, gap in zip(self.texts, self.missing, strict=True) if not gap]

    def read(self, kind: str | None, date_format: str | None) -> ColumnValues:
        """The column as `kind`, or as what it looks like."""
        required = kind is not None
        if not self.rows:
            return _all_missing(kind, len(self.codes))
        if kind == "number" and (found := self._as_yes_no(required=False)):  # yes/no here, numbers at another site
            return ColumnValues(kind, values=found.values)
        if kind in (None, "yes/no") and (found := self._as_yes_no(required=required)):
            return found
        if kind in (None, "number") and (found := self._as_numbers(required=required)):
            return found
        if kind in (None, "date") and (found := self._as_dates(date_format, required=required)):
            return found
        names = sort_names(set(self.present))
        number = {name: k for k, name in enumerate(names)}
        codes = [-1 if gap else number[text] for text, gap in zip(self.texts, self.missing, strict=True)]
        return ColumnValues(
            kind or text_kind(self.present, self.rows), codes=np.array([*codes, -1])[self.codes], names=names
        )

    def _as_yes_no(self, *, required: bool) -> ColumnValues | None:
        words = {text.casefold() for text in self.present}
        pair = next((pair for pair in _YES_NO if words <= set(pair)), None)
        if pair is not None:
            return self._by_row("yes/no", self._map(lambda text: pair[text.casefold()]))
        if not required:
            return None
        numbers = self._map(to_number)
        if np.isin(numbers[~self.missing], (0, 1)).all():
            return self._by_row("yes/no", numbers)
        bad = np.array([text.casefold() not in _YES_NO[1] for text in self.texts]) & ~self.missing
        raise self._bad(bad, "yes/no columns have two words: yes and no, true and false, y and n, or t and f")

    def _as_numbers(self, *, required: bool) -> ColumnValues | None:
        best = self._best([to_number, _decimal_comma], required)
        if best is None:
            return None
        numbers, failures, _ = best
        if failures.any():
            raise self._bad(failures, "the column has numbers")
        found = self._by_row("number", numbers)
        check_finite(self.reader, self.name, found.values)  # type: ignore[arg-type]
        return found

    def _as_dates(self, date_format: str | None, *, required: bool) -> ColumnValues | None:
        formats = [date_format] if date_format else list(_DATE_FORMATS)
        best = self._best([partial(_days, date_format=known) for known in formats], required)
        if best is None:
            return None
        days, failures, number = best
        if failures.any():
            raise self._bad(failures, f"the column has dates such as {datetime(2026, 1, 31).strftime(formats[number])}")
        return self._by_row("date", days, None if formats[number] in _ISO_FORMATS else formats[number])

    def _best(
        self, parsers: Sequence[Callable[[str], float]], required: bool
    ) -> tuple[np.ndarray, np.ndarray, int] | None:
        """The numbers of the parser that reads most rows, the cells that it cannot read, and its position.

        None: even it reads too few rows, and the column may be something else.
        """
        best: tuple[np.ndarray, np.ndarray, int] | None = None
        least = 0.0 if required else _MOSTLY
        for number, parser in enumerate(parsers):
            values = self._map(parser)
            failures = np.isnan(values) & ~self.missing
            share = float(1 - self.counts[failures].sum() / self.rows)
            if share > least or (best is None and share == least):
                best, least = (values, failures, number), share
            if share == 1:
                break
        return best

    def _map(self, function: Callable[[str], float]) -> np.ndarray:
        """A number for every different text; NaN where missing."""
        return np.array([math.nan if gap else function(t) for t, gap in zip(self.texts, self.missing, strict=True)])

    def _by_row(self, kind: str, values: np.ndarray, date_format: str | None = None) -> ColumnValues:
        """The values of all rows, from those of the different texts."""
        return ColumnValues(kind, values=np.append(values, math.nan)[self.codes], format=date_format)

    def _bad(self, failures: np.ndarray, rule: str) -> BadCells:
        """The error about the rows whose cells failed."""
        rows = np.flatnonzero(np.append(failures, False)[self.codes])
        return BadCells(self.reader, self.name, {int(row): self.texts[self.codes[row]] for row in rows}, rule)


def to_number(text: str) -> float:
    """A text as a number; NaN if it is not one.

    >>> to_number("2.5"), to_number("True"), to_number("often"), to_number("1_000")
    (2.5, 1.0, nan, nan)
    """
    try:
        return float(text) if "_" not in text else math.nan
    except ValueError:
        return _YES_NO[0].get(text.strip().casefold(), math.nan)


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
