"""The cells of a column: its values, errors about them, and the spellings of names."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fedtilt.data.tables.reader import TableReader
from fedtilt.errors import InputError

MAX_CATEGORIES = 20  # a column with up to this number of different texts is always a category
_LONG_TEXT = 60  # characters


@dataclass(frozen=True)
class ColumnValues:
    """One column: `values` of numbers, yes/no and dates (in days since 1970), else `codes` into `names`."""

    kind: str | None  # None: no cell has a value
    values: np.ndarray | None = None  # float64; NaN where missing
    codes: np.ndarray | None = None  # −1 where missing
    names: tuple[str, ...] = ()
    format: str | None = None  # of dates written as text, if it is not ISO
    decimal: str | None = None  # the decimal separator of its cells, "both" if files differ; None: no cell has one
    unit: str | None = None  # that cells have behind the number
    notes: tuple[str, ...] = ()  # how its text was read, for people
    doubts: tuple[str, ...] = ()  # what may be wrong with how its text was read, with the remedy


class SchemaMismatch(InputError):
    """A table that does not fit the schema.

    `difference` says so to others: of the table, it has no more than names and kinds of columns, and names of classes.
    `withheld` says it without the names that the schema lacks.
    """

    def __init__(self, message: str, difference: str, withheld: str | None = None) -> None:
        super().__init__(message)
        self.difference, self.withheld = difference, withheld or difference


class BadCells(SchemaMismatch):
    """Cells of one column that cannot be used; the message is about the first."""

    def __init__(
        self, reader: TableReader, column: str, cells: Mapping[int, str], rule: str, remedy: str | None = None
    ) -> None:
        """`cells` are texts by row, `rule` says what the cells of the column are."""
        position, cell = next(iter(cells.items()))
        self.column, self.cells, self.has_remedy = column, cells, remedy is not None
        remedy = remedy or (
            f"correct the cell or empty it, or leave the column out: drop = [{column!r}] (data.drop in a spec)"
        )
        where = f"table {reader.name} has {cell!r} in {reader.rows[position]}, column {column!r}"
        super().__init__(f"{where}, but {rule}: {remedy}", f"has cells in column {column!r} that cannot be used")
        self.reasons = {row: f"{text!r} in column {column!r}, but {rule}" for row, text in cells.items()}


def all_missing(kind: str | None, length: int) -> ColumnValues:
    """A column without a value."""
    if kind == "category":
        return ColumnValues(kind, codes=np.full(length, -1, np.int64))
    return ColumnValues(kind, values=np.full(length, np.nan))


def distinct_texts(column: pa.ChunkedArray, ignore_case: bool = False) -> tuple[np.ndarray, list[str]]:
    """For every row which of the different texts it has, −1 if none, and these texts; some may have no row."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    encoded = encoded.unify_dictionaries().combine_chunks()
    encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [spelling(text, ignore_case) for text in encoded.dictionary.to_pylist()]


def spelling(text: str, ignore_case: bool) -> str:
    """A text without blanks around it; with `ignore_case`, in small letters and with single blanks.

    >>> spelling(" North  Wing ", True)
    'north wing'
    """
    return " ".join(text.split()).casefold() if ignore_case else text.strip()


def similar_spellings(names: Iterable[str]) -> set[str]:
    """Spellings, as of `spelling`, that several of these names have."""
    return {text for text, n in Counter(spelling(name, True) for name in names).items() if n > 1}


def join_spellings(counts: Mapping[str, int], apart: Collection[str] | None = None) -> dict[str, int]:
    """The counts of names, in which names that differ only in case and blanks are the most frequent of them.

    >>> join_spellings({"North": 7, "NORTH": 2, "a": 3, "A": 2})
    {'North': 9, 'a': 3, 'A': 2}

    Spellings in `apart` are not joined; default: single letters, such as genotypes.
    """
    joined: dict[str, dict[str, int]] = {}
    for name, count in counts.items():
        text = spelling(name, True)
        stays = len(text) < 2 if apart is None else text in apart
        joined.setdefault(f"{text} {name}" if stays else text, {})[name] = count
    return {max(names, key=lambda name: (names[name], name)): sum(names.values()) for names in joined.values()}


def text_kind(texts: Sequence[str], rows: int) -> str:
    """Category, free text to ignore, or an identifier, from the different texts and the number of rows with a text."""
    if len(texts) <= MAX_CATEGORIES:
        return "category"
    if sum(map(len, texts)) / len(texts) > _LONG_TEXT:
        return "ignore"
    if 2 * len(texts) > rows:
        spaces = sum(text.count(" ") for text in texts) / len(texts)
        return "ignore" if spaces >= 3 else "identifier"
    return "category"
