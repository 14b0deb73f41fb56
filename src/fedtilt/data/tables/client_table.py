"""One file or data frame of a table, column by column, as Arrow arrays; every file reader returns one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedtilt.data.naming import FileRows, IndexRows
from fedtilt.data.tables.text_values import parse_number, proven_decimals
from fedtilt.errors import InputError

TEXT = pa.dictionary(pa.int32(), pa.string())  # the different texts, and which of them each row has
_SAMPLE = 1000  # numbers to look at before a column is looked at as a whole


@dataclass(frozen=True)
class ClientTable:
    """One file or data frame of a table; of several, each has the rows of one client."""

    name: str  # the file's path, or "DataFrame"
    header: tuple[str, ...]
    read: Callable[[str], pa.ChunkedArray]
    rows: FileRows | IndexRows
    client: str = ""  # whose rows they are, if there are several
    read_text: Callable[[str, bool], pa.ChunkedArray] | None = None  # a column as written; True: of its first rows
    point: str = "."  # the decimal separator with which `read` found numbers in text

    @property
    def short_name(self) -> str:
        """The name of the file, without its folder."""
        return Path(self.name).name

    def read_numbers_as_written(self, column: str) -> pa.ChunkedArray:
        """`read`, but as text where the file's numbers can be read in two ways, such as 15.300."""
        array = self.read(column)
        if self.read_text is None or not pa.types.is_float64(array.type) or not _can_be_thousands(array):
            return array
        if self.point in proven_decimals(_distinct(self.read_text(column, True))):
            return array
        texts = self.read_text(column, False)
        return texts if any(parse_number(text).is_ambiguous for text in _distinct(texts)) else array

    @cached_property
    def decimal(self) -> str | None:
        """The decimal separator that the columns of this file prove; None: none does, or they differ."""
        found: set[str] = set()
        for name in self.header:
            array = self.read_numbers_as_written(name)
            if is_text(array.type):
                parsed = [parse_number(text) for text in _distinct(array)]
                numbers = [each for each in parsed if each.is_number]
                found |= {each.decimal for each in numbers} - {""} if 2 * len(numbers) > len(parsed) else set()
            elif self.read_text is not None and pa.types.is_float64(array.type) and has_fraction(array.to_numpy()):
                found.add(self.point)
        return found.pop() if len(found) == 1 else None

    def texts(self) -> Iterable[str]:
        """The different texts of its columns of text."""
        for name in self.header:
            if is_text((array := self.read(name)).type):
                yield from _distinct(array)


def _distinct(array: pa.ChunkedArray) -> list[str]:
    """The different texts of a column."""
    return [text.strip() for text in array.unique().to_pylist() if text is not None]


def _can_be_thousands(array: pa.ChunkedArray) -> bool:
    """Whether these numbers can be written with three digits behind the separator, and one to three before it."""
    values = array.to_numpy()
    for part in (values[:_SAMPLE], values):
        size = np.abs(part[np.isfinite(part)])
        thousandths = np.round(size * 1000)
        if ((size > 0) & (size < 1)).any() or (size >= 1e6).any() or (thousandths / 1000 != size).any():
            return False
    return True


def has_fraction(values: np.ndarray) -> bool:
    """Whether a number is no whole number."""
    for part in (values[:_SAMPLE], values):
        finite = part[np.isfinite(part)]
        if (finite != np.floor(finite)).any():
            return True
    return False


def from_arrow(name: str, table: pa.Table, rows: FileRows | IndexRows) -> ClientTable:
    """A table in memory, without columns that have neither a name nor a cell, as spreadsheets write them."""
    table = table.select(
        [n for n, name in enumerate(table.column_names) if name.strip() or table[n].null_count < len(table)]
    )
    header = check_header(name, table.column_names)
    columns = dict(zip(header, table.columns, strict=True))

    def read(column: str) -> pa.ChunkedArray:
        found = columns[column]
        if found.num_chunks > 1:  # one chunk is read without a copy
            found = columns[column] = pa.chunked_array([found.combine_chunks()], found.type)
        return found

    return ClientTable(name, header, read, rows)


def check_header(name: str, names: Iterable[object]) -> tuple[str, ...]:
    """The names of a table's columns as text; raise InputError if two are the same."""
    header = [str(column).strip() for column in names]
    if len(set(header)) != len(header):
        duplicate = next(column for column in header if header.count(column) > 1)
        if not duplicate:
            unnamed = f"table {name} has {header.count('')} columns without a name"
            raise InputError(f"{unnamed}; name them, or delete what is above the header")
        raise InputError(f"table {name} has the column {duplicate!r} twice; rename one of them")
    return tuple(header)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this Arrow type has text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this Arrow type has whole numbers or fractions."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
