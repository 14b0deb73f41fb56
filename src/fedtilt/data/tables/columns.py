"""The columns of a table as Arrow arrays: read from CSV, TSV and Parquet files, folders of them, and data frames.

Arrow reads CSV on all cores and knows missing values in columns of every type; a Parquet file is read one column at a
time, so that it never is in memory twice.
"""

import csv
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedtilt.data.row_names import FileRows, IndexRows, RowNames
from fedtilt.errors import InputError

if TYPE_CHECKING:
    import pandas

_File = str | os.PathLike[str]
Source = Union[_File, Sequence[_File], "pandas.DataFrame", Mapping[str, Union[_File, "pandas.DataFrame"]]]

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
MISSING_WORDS = ("", "-", "--", ".", "?", "#n/a", "#na", "-nan", "<na>", "n/a", "na", "nan", "none", "null")
_MISSING_SPELLINGS = sorted(
    {spell(word) for word in MISSING_WORDS for spell in (str, str.upper, str.capitalize)} | {"NaN", "-NaN"}
)


@dataclass(frozen=True)
class Part:
    """One file or data frame of a table."""

    name: str  # the file's path, or "DataFrame"
    header: tuple[str, ...]
    read: Callable[[str], pa.ChunkedArray]
    rows: FileRows | IndexRows
    client: str = ""  # whose rows they are, if the table has several parts


@dataclass(frozen=True)
class Columns:
    """A table of one or several parts with the same columns; `read` returns one column of all parts."""

    title: str  # of the data set
    name: str  # of the files, in error messages
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns, in the order of the first part."""
        return self.parts[0].header

    @property
    def rows(self) -> RowNames:
        """The name of every row, such as `patients.csv, row 17`."""
        return RowNames(tuple(part.rows for part in self.parts))

    def with_missing(self, names: Iterable[str]) -> "Columns":
        """The same table with columns of these names, whose values are missing, where it lacks them."""
        names = tuple(names)
        return replace(self, parts=tuple(_with_missing(part, names) for part in self.parts))

    def read(self, column: str) -> pa.ChunkedArray:
        """One column; the parts' types become one."""
        arrays = [part.read(column) for part in self.parts]
        if len({array.type for array in arrays}) > 1:
            arrays = _one_type(arrays)
        return arrays[0] if len(arrays) == 1 else pa.chunked_array([c for array in arrays for c in array.chunks])


def read_columns(source: Source, text: Iterable[str] = (), optional: Iterable[str] = ()) -> Columns:
    """Open a table.

    Args:
        source: a CSV, TSV or Parquet file or a data frame (pandas, or any other that Arrow can read); or several of
            them: a folder, a list of files, or a dictionary by client
        text: columns to read as they are written, without looking for numbers
        optional: columns whose values are missing in a file that lacks them, if another file has them
    """
    text, optional = tuple(text), tuple(optional)
    if isinstance(source, str | os.PathLike):
        path = Path(_local(source))
        if not path.is_dir():
            return _checked(path.stem, str(path), [_file(path, text)], optional)
        files = {file.stem: file for file in _files_of(path)}
        parts = [replace(_file(file, text), client=stem) for stem, file in files.items()]
        return _checked(path.name, str(path), parts, optional)
    if isinstance(source, Mapping):
        parts = [_client_part(str(key), part, text) for key, part in source.items()]
        return _checked("table", ", ".join(str(key) for key in source), parts, optional)
    if isinstance(source, Sequence) and source and all(isinstance(part, str | os.PathLike) for part in source):
        paths = [Path(_local(part)) for part in source]
        _check_stems(paths)
        parts = [replace(_file(path, text), client=path.stem) for path in paths]
        return _checked(paths[0].parent.resolve().name, ", ".join(map(str, paths)), parts, optional)
    return _checked("DataFrame", "DataFrame", [_frame(source)], optional)


def is_table(source: _File) -> bool:
    """Whether this path can be a table: a file with a table's suffix, or a folder with such files."""
    path = Path(source)
    return path.suffix.lower() in SUFFIXES or (path.is_dir() and bool(tables_in(path)))


def _local(source: _File) -> str:
    """The path; a URL is refused."""
    path = os.fspath(source)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path):
        raise InputError(f"table {path} is a URL; download it first, and give the path of the file")
    return path


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = tables_in(path)
    if not files:
        raise InputError(f"folder {path} has no table; put one .csv, .tsv or .parquet file per client into it")
    _check_stems(files)
    return files


def tables_in(folder: Path) -> list[Path]:
    """The tables in a folder, by name."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)


def _check_stems(files: Sequence[Path]) -> None:
    """Refuse files of the same stem: the stem is the client's name."""
    stems = [file.stem for file in files]
    for file in files:
        if stems.count(file.stem) > 1:
            raise InputError(
                f"two tables are called {file.stem!r}, as {file}; a file's name is its client's: rename one"
            )


def _same_columns(parts: list[Part]) -> tuple[Part, ...]:
    """Parts with the same set of columns; anything else is refused with what differs."""
    first = parts[0]
    for part in parts[1:]:
        for a, b in ((first, part), (part, first)):
            lacking = [name for name in a.header if name not in b.header]
            if lacking:
                columns = ", ".join(map(repr, lacking))
                raise InputError(
                    f"table {b.name} has no column {columns}, which {a.name} has; add it, or remove it there"
                )
    return tuple(parts)


def _checked(title: str, name: str, parts: list[Part], optional: Sequence[str]) -> Columns:
    for part in parts:
        if not len(part.rows):
            raise InputError(f"table {part.name} has 0 rows below its header; add some")
    known = [name for name in optional if any(name in part.header for part in parts)]
    return Columns(title, name, _same_columns([_with_missing(part, known) for part in parts]))


def _with_missing(part: Part, names: Sequence[str]) -> Part:
    """The same part with columns of these names, whose values are missing, where it lacks them."""
    lacking = [name for name in names if name not in part.header]
    if not lacking:
        return part

    def read(column: str) -> pa.ChunkedArray:
        return pa.chunked_array([pa.nulls(len(part.rows))]) if column in lacking else part.read(column)

    return replace(part, header=(*part.header, *lacking), read=read)


def _part(source: Any, text: Sequence[str]) -> Part:
    return _file(Path(_local(source)), text) if isinstance(source, str | os.PathLike) else _frame(source)


def _client_part(client: str, source: Any, text: Sequence[str]) -> Part:
    """The table of a client, who is named in error messages if it is a data frame."""
    part = _part(source, text)
    name = f"DataFrame of client {client!r}" if part.name == "DataFrame" else part.name
    return replace(part, name=name, client=client)


def _file(path: Path, text: Sequence[str]) -> Part:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"table {path} has the suffix {path.suffix!r}; give a .csv, .tsv or .parquet file")
    if not path.is_file():
        raise InputError(f"table {path} does not exist; check the path")
    return _csv(path, text) if suffix in (".csv", ".tsv") else _parquet(path)


def _csv(path: Path, text: Sequence[str]) -> Part:
    try:
        with path.open("rb") as file:
            header_line = file.readline().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"table {path} cannot be read: {error.strerror}; check its permissions") from error
    except UnicodeDecodeError as error:
        raise _not_text(path, error) from error
    separator = "\t" if path.suffix.lower() == ".tsv" else _separator(header_line)
    try:
        # newlines inside quotes are rare, and reading is faster without them
        table = _arrow_csv(path, separator, text, quoted_newlines=False)
    except pa.ArrowInvalid:
        try:
            table = _arrow_csv(path, separator, text, quoted_newlines=True)
        except pa.ArrowInvalid as error:
            _raise_csv_problem(path, separator, error)
    header = _header(str(path), table.column_names)
    for name, column in zip(header, table.columns, strict=True):
        if pa.types.is_binary(column.type):
            raise InputError(f"table {path} has a column {name!r} that is not UTF-8 text; save it as UTF-8 CSV")
    read = dict(zip(header, table.columns, strict=True)).__getitem__
    return Part(str(path), header, read, FileRows(str(path), table.num_rows, separator))


def _arrow_csv(path: Path, separator: str, text: Sequence[str], *, quoted_newlines: bool) -> pa.Table:
    table = pyarrow.csv.read_csv(
        path,
        parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=quoted_newlines),
        convert_options=pyarrow.csv.ConvertOptions(
            null_values=_MISSING_SPELLINGS, column_types=dict.fromkeys(text, pa.string())
        ),
    )
    return table.combine_chunks()  # a column in one piece is read without a copy


def _separator(header: str) -> str:
    """The separator, from the header; spreadsheets write semicolons where decimals have a comma.

    >>> _separator('age;"dose, in mg";well')
    ';'
    """
    return max(",;\t", key=re.sub('"[^"]*"', "", header).count)


def _raise_csv_problem(path: Path, separator: str, problem: Exception) -> None:
    """Read a file that Arrow refuses again, slowly, to name the row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
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


def _parquet(path: Path) -> Part:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            index = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
            names = [name for name in file.schema_arrow.names if name not in index]
            length = file.metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"table {path} is not a readable Parquet file ({error}); write it again") from error
    header = _header(str(path), names)
    stored = dict(zip(header, names, strict=True))
    return Part(str(path), header, partial(_parquet_column, path, stored), FileRows(str(path), length))


def _parquet_column(path: Path, stored: dict[str, str], column: str) -> pa.ChunkedArray:
    with pyarrow.parquet.ParquetFile(path) as file:
        return file.read(columns=[stored[column]]).column(0)


def _frame(source: Any) -> Part:
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


def _one_type(arrays: Sequence[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
    """Columns of several files, cast to one type: float64 for numbers, text if they differ otherwise."""
    known = [array.type for array in arrays if not pa.types.is_null(array.type)]
    if len(set(known)) == 1:
        target = known[0]
    elif all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in known):
        target = pa.float64()
    elif all(pa.types.is_date(t) or pa.types.is_timestamp(t) for t in known):
        target = pa.timestamp("us")
    else:
        target = pa.string()
    return [array.cast(target) for array in arrays]
