"""One file or data frame of a table, column by column, as Arrow arrays.

A CSV file is in memory once it is open; a Parquet file is read a few columns at a time, so that it never is in memory
twice.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from fedtilt.data.row_names import FileRows, IndexRows
from fedtilt.data.tables.arrow_types import is_text
from fedtilt.data.tables.csv_file import read_csv
from fedtilt.data.tables.threads import in_background
from fedtilt.errors import InputError

if TYPE_CHECKING:
    import pandas

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")


@dataclass(frozen=True)
class Part:
    """One file or data frame of a table."""

    name: str  # the file's path, or "DataFrame"
    header: tuple[str, ...]
    read: Callable[[str], pa.ChunkedArray]
    rows: FileRows | IndexRows
    client: str = ""  # whose rows they are, if the table has several parts


def file_part(path: Path, text: Sequence[str]) -> Part:
    """A file; `text`: columns to read as they are written, without looking for numbers."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"table {path} has the suffix {path.suffix!r}; give a .csv, .tsv or .parquet file")
    if not path.is_file():
        raise InputError(f"table {path} does not exist; check the path")
    return _csv(path, text) if suffix in (".csv", ".tsv") else _parquet(path)


def _csv(path: Path, text: Sequence[str]) -> Part:
    table, separator = read_csv(path, text)
    header = _header(str(path), table.column_names)
    for name, column in zip(header, table.columns, strict=True):
        if pa.types.is_binary(getattr(column.type, "value_type", column.type)):
            raise InputError(f"table {path} has a column {name!r} that is not UTF-8 text; save it as UTF-8 CSV")
    order = sorted(range(len(header)), key=lambda n: header[n] not in text)  # labels and clients are needed first
    pieces = in_background(_one_piece, [table.column(n) for n in order])
    columns = dict(zip([header[n] for n in order], pieces, strict=True))

    def read(name: str) -> pa.ChunkedArray:
        return columns[name].result()

    return Part(str(path), header, read, FileRows(str(path), table.num_rows, separator))


def _one_piece(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same column in one chunk, which is read without a copy."""
    return pa.chunked_array([column.combine_chunks()], column.type) if column.num_chunks > 1 else column


def _header(name: str, names: Iterable[object]) -> tuple[str, ...]:
    header = [str(column).strip() for column in names]
    if len(set(header)) != len(header):
        duplicate = next(column for column in header if header.count(column) > 1)
        raise InputError(f"table {name} has the column {duplicate!r} twice; rename one of them")
    return tuple(header)


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """A Parquet file; damage that is found while it is open is an `InputError`."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (OSError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise InputError(f"table {path} is not a readable Parquet file ({error}); write it again") from error


def _parquet(path: Path) -> Part:
    with _open_parquet(path) as file:
        index = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
        names = [name for name in file.schema_arrow.names if name not in index]
        length = file.metadata.num_rows
    header = _header(str(path), names)
    stored = dict(zip(header, names, strict=True))
    return Part(str(path), header, partial(_parquet_column, path, stored), FileRows(str(path), length))


def _parquet_column(path: Path, stored: dict[str, str], column: str) -> pa.ChunkedArray:
    with _open_parquet(path) as file:
        array = file.read(columns=[stored[column]]).column(0)
        array.validate(full=is_text(array.type))  # of text, that it is UTF-8
        return array


def frame_part(source: Any) -> Part:
    """A pandas data frame, or another one that has Arrow's interface."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(source, pandas.DataFrame):
        header = _header("DataFrame", source.columns)
        return Part("DataFrame", header, partial(_frame_column, source, header), IndexRows(source.index.tolist()))
    if not hasattr(source, "__arrow_c_stream__"):
        raise InputError(
            f"a table is the path of a file or a pandas DataFrame, not a {type(source).__name__}; save it as CSV "
            "first, or build a ft.data.Dataset"
        )
    table = pa.table(source)
    header = _header("DataFrame", table.column_names)
    read = dict(zip(header, table.columns, strict=True)).__getitem__
    return Part("DataFrame", header, read, IndexRows(range(table.num_rows)))


def _frame_column(frame: "pandas.DataFrame", header: Sequence[str], column: str) -> pa.ChunkedArray:
    series = frame.iloc[:, header.index(column)]
    try:
        array = pa.array(series, from_pandas=True)
    except pa.ArrowException:  # a column of several types
        array = pa.array([None if missing else str(v) for v, missing in zip(series, series.isna(), strict=True)])
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
