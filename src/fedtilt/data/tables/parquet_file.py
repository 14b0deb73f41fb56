"""A Parquet file, read one column at a time, so that it is never in memory twice."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from fedtilt.data.naming import FileRows
from fedtilt.data.tables.client_table import ClientTable, check_header, is_text
from fedtilt.data.tables.settings import Files
from fedtilt.errors import InputError


def read_parquet(path: Path, text: Sequence[str], files: Files) -> ClientTable:
    """Open a file; its columns have types, so that none has to be read as text."""
    with _open(path) as file:
        index = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
        names = [name for name in file.schema_arrow.names if name not in index]
        length = file.metadata.num_rows
    header = check_header(str(path), names)
    stored = dict(zip(header, names, strict=True))

    def read(column: str) -> pa.ChunkedArray:
        with _open(path) as file:
            array = file.read(columns=[stored[column]]).column(0)
            array.validate(full=is_text(array.type))  # of text, that it is UTF-8
            return array

    return ClientTable(str(path), header, read, FileRows(str(path), length))


@contextlib.contextmanager
def _open(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """A Parquet file; damage that is found while it is open is an `InputError`."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (OSError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise InputError(f"table {path} is not a readable Parquet file ({error}); write it again") from error
