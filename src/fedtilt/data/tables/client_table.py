"""One file or data frame of a table, column by column, as Arrow arrays; every file reader returns one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from fedtilt.data.naming import FileRows, IndexRows
from fedtilt.errors import InputError

TEXT = pa.dictionary(pa.int32(), pa.string())  # the different texts, and which of them each row has


@dataclass(frozen=True)
class ClientTable:
    """One file or data frame of a table; of several, each has the rows of one client."""

    name: str  # the file's path, or "DataFrame"
    header: tuple[str, ...]
    read: Callable[[str], pa.ChunkedArray]
    rows: FileRows | IndexRows
    client: str = ""  # whose rows they are, if there are several


def from_arrow(name: str, table: pa.Table, rows: FileRows | IndexRows) -> ClientTable:
    """A table in memory."""
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
        raise InputError(f"table {name} has the column {duplicate!r} twice; rename one of them")
    return tuple(header)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this Arrow type has text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this Arrow type has whole numbers or fractions."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
