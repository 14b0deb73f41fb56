"""Cells of text: the yes/no words, numbers, dates or names that they are."""

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import numpy as np
import pyarrow as pa

from fedtilt.data.naming import sort_names
from fedtilt.data.tables.columns import Columns
from fedtilt.data.tables.csv_file import MISSING_WORDS
from fedtilt.data.tables.kinds import Cells, all_missing, bad_cell, check_finite, text_kind
from fedtilt.errors import InputError

_YES_NO = [({"true": 1.0, "false": 0.0}), ({"yes": 1.0, "no": 0.0}), ({"y": 1.0, "n": 0.0}), ({"t": 1.0, "f": 0.0})]
_BOOLEANS = _YES_NO[0]  # as pandas and spreadsheets write them
_MOSTLY = 0.8  # a text column with this share of numbers, or dates, is one with wrong cells
ISO_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")
DATE_FORMATS = (
    *ISO_FORMATS, "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M", "%d-%m-%Y", "%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = 86_400  # seconds


def distinct_texts(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """For every row which of the different texts it has, −1 if none, and these texts; some may have no row."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    encoded = encoded.unify_dictionaries().combine_chunks()
    encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [text.strip() for text in encoded.dictionary.to_pylist()]


class TextColumn:
    """A column of text: its different cells and, for every row, which of them it has."""

    def __init__(self, columns: Columns, name: str, column: pa.ChunkedArray) -> None:
        self.columns, self.name = columns, name
        self.codes, self.texts = distinct_texts(column)
        counts = np.bincount(self.codes + 1, minlength=len(self.texts) + 1)[1:]
        empty = np.array([text.casefold() in MISSING_WORDS for text in self.texts], bool)
        self.missing = np.append(empty | (counts == 0), True)  # the last: a row without a value
        self.counts = np.where(self.missing[:-1], 0, counts)
        self.rows = int(self.counts.sum())  # with a value

    def read(self, kind: str | None, date_format: str | None) -> Cells:
        """The column as `kind`, or as what it looks like."""
        if not self.rows:
            return all_missing(kind, len(self.codes))
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
        check_finite(self.columns, self.name, numbers)
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
        """The error about the first row whose cell failed."""
        position = int(np.flatnonzero(np.append(failures, False)[self.codes])[0])
        return bad_cell(self.columns, self.name, self.texts[self.codes[position]], position, rule)


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
        return (datetime.strptime(text, date_format).replace(tzinfo=UTC) - _EPOCH).total_seconds() / DAY
    except ValueError:
        return math.nan
