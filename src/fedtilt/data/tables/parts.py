"""One file or data frame of a table, column by column, as Arrow arrays.

Arrow reads CSV on all cores and knows missing values in columns of every type; a Parquet file is read a few columns at
a time, so that it never is in memory twice.
"""

import contextlib
import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedtilt.data.row_names import FileRows, IndexRows
from fedtilt.errors import InputError
from fedtilt.files import reading

if TYPE_CHECKING:
    import pandas

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
MISSING_WORDS = ("", "-", "--", ".", "?", "#n/a", "#na", "-nan", "<na>", "n/a", "na", "nan", "none", "null")
_MISSING_SPELLINGS = sorted(
    {spell(word) for word in MISSING_WORDS for spell in (str, str.upper, str.capitalize)} | {"NaN", "-NaN"}
)
_TEXT = pa.dictionary(pa.int32(), pa.string())  # the different texts, and which of them each row has
_HEAD = 1 << 16  # bytes of a CSV file that tell which columns have fractions

Types = dict[str, pa.DataType]  # by column


@dataclass(frozen=True)
class Part:
    """One file or data frame of a table."""

    name: str  # the file's path, or "DataFrame"
    header: tuple[str, ...]
    read: Callable[[str], pa.ChunkedArray]
    rows: FileRows | IndexRows
    client: str = ""  # whose rows they are, if the table has several parts


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type has text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def file_part(path: Path, text: Sequence[str]) -> Part:
    """A file; `text`: columns to read as they are written, without looking for numbers."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"table {path} has the suffix {path.suffix!r}; give a .csv, .tsv or .parquet file")
    if not path.is_file():
        raise InputError(f"table {path} does not exist; check the path")
    return _csv(path, text) if suffix in (".csv", ".tsv") else _parquet(path)


def _csv(path: Path, text: Sequence[str]) -> Part:
    try:
        with path.open("rb") as file:
            header_line, head = file.readline(), file.read(_HEAD)
        separator = "\t" if path.suffix.lower() == ".tsv" else _separator(header_line.decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"table {path} cannot be read: {error.strerror}; check its permissions") from error
    except UnicodeDecodeError as error:
        raise _not_text(path, error) from error
    types = dict.fromkeys(text, _TEXT)
    try:
        # newlines inside quotes are rare, and reading is faster without them and with known types
        fractions = _fractions(header_line + head, separator, types)
        table = _arrow_csv(path, separator, fractions | types, quoted_newlines=False)
    except pa.ArrowInvalid:
        try:
            table = _arrow_csv(path, separator, types, quoted_newlines=True)
        except pa.ArrowInvalid as error:
            _raise_csv_problem(path, separator, error)
    header = _header(str(path), table.column_names)
    for name, column in zip(header, table.columns, strict=True):
        if pa.types.is_binary(getattr(column.type, "value_type", column.type)):
            raise InputError(f"table {path} has a column {name!r} that is not UTF-8 text; save it as UTF-8 CSV")
    columns = dict(zip(header, table.columns, strict=True))

    def read(name: str) -> pa.ChunkedArray:
        if columns[name].num_chunks > 1:  # in one piece, it is read again without a copy
            columns[name] = pa.chunked_array([columns[name].combine_chunks()])
        return columns[name]

    return Part(str(path), header, read, FileRows(str(path), table.num_rows, separator))


def _fractions(head: bytes, separator: str, types: Types) -> Types:
    """The columns with a fraction in the first lines of a file: if they are numbers at all, they are float64."""
    lines = head[: head.rfind(b"\n") + 1]
    if not lines:
        return {}
    schema = _arrow_csv(io.BytesIO(lines), separator, types, quoted_newlines=False).schema
    return {field.name: field.type for field in schema if pa.types.is_float64(field.type)}


def _arrow_csv(source: Path | BinaryIO, separator: str, types: Types, *, quoted_newlines: bool) -> pa.Table:
    with reading(source) if isinstance(source, Path) else contextlib.nullcontext():
        return pyarrow.csv.read_csv(
            source,
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=quoted_newlines),
            convert_options=pyarrow.csv.ConvertOptions(
                null_values=_MISSING_SPELLINGS, column_types=types, auto_dict_encode=True
            ),
        )


def _separator(header: str) -> str:
    """The separator, from the header; spreadsheets write semicolons where decimals have a comma.

    >>> _separator('age;"dose, in mg";well')
    ';'
    """
    return max(",;\t", key=re.sub('"[^"]*"', "", header).count)


def _raise_csv_problem(path: Path, separator: str, problem: Exception) -> None:
    """Read a file that Arrow refuses again, slowly, to name the row."""
    try:
        with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=separator)
            header = next((row for row in reader if row), None)
            if header is None:
                raise InputError(f"table {path} is empty; add a header and rows")
            for row in reader:
                if row and len(row) != len(header):
                    raise InputError(
                        f"table {path} has {len(row)} cells in row {reader.line_num} but {len(header)} columns; fix "
                        "that row"
                    )
    except (UnicodeDecodeError, csv.Error) as error:
        raise _not_text(path, error) from error
    raise _not_text(path, problem)


def _not_text(path: Path, error: Exception) -> InputError:
    return InputError(f"table {path} is not a readable text table ({error}); save it as UTF-8 CSV")


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
