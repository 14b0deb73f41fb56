"""A table opened for reading: one file or data frame, or several with the same columns, one per client."""

import csv
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union

import numpy as np
import pyarrow as pa

from fedtilt.data.dataset import Dataset
from fedtilt.data.naming import FileRows, IndexRows, RowNames
from fedtilt.data.tables.client_table import ClientTable, check_header, from_arrow, is_number, is_text
from fedtilt.data.tables.csv_file import read_csv
from fedtilt.data.tables.parquet_file import read_parquet
from fedtilt.errors import InputError
from fedtilt.files import local_path, reading

if TYPE_CHECKING:
    import pandas

_File = str | os.PathLike[str]
Source = Union[_File, Sequence[_File], "pandas.DataFrame", Mapping[str, Union[_File, "pandas.DataFrame"]]]
Result = TypeVar("Result")

# suffix → function of the path and the columns to read as text; a new kind of file is a module and a line here
READERS: dict[str, Callable[[Path, Sequence[str]], ClientTable]] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".pq": read_parquet,
}
_MAX_THREADS = 4
_MAX_NUMBERS = 1 << 22  # that a thread has in memory, unless one column is longer


@dataclass(frozen=True)
class TableReader:
    """A table of one or several files or data frames with the same columns; `read` returns one column of all."""

    title: str  # of the data set
    name: str  # of the files, in error messages
    tables: tuple[ClientTable, ...]
    gaps: Mapping[str, Collection[int]] = field(default_factory=dict)  # column → rows whose cells count as missing

    def __len__(self) -> int:
        return sum(len(table.rows) for table in self.tables)

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns, in the order of the first file."""
        return self.tables[0].header

    @property
    def rows(self) -> RowNames:
        """The name of every row, such as `patients.csv, row 17`."""
        return RowNames(tuple(table.rows for table in self.tables))

    def with_missing(self, names: Iterable[str]) -> "TableReader":
        """The same table with columns of these names, whose values are missing, where it lacks them."""
        names = tuple(names)
        return replace(self, tables=tuple(_with_missing(table, names) for table in self.tables))

    def with_gaps(self, column: str, rows: Collection[int]) -> "TableReader":
        """The same table, in which these cells of a column are missing."""
        return replace(self, gaps={**self.gaps, column: {*self.gaps.get(column, ()), *rows}})

    def read(self, column: str) -> pa.ChunkedArray:
        """One column; the files' types become one: float64 for numbers, text if they differ otherwise."""
        found = self._read(column)
        if column not in self.gaps:
            return found
        mask = np.zeros(len(self), bool)
        mask[list(self.gaps[column])] = True
        return found.take(pa.array(np.arange(len(self)), mask=mask))  # a missing position gives a missing cell

    def _read(self, column: str) -> pa.ChunkedArray:
        arrays = [_decoded(table.read(column)) for table in self.tables]
        if len(arrays) == 1:
            return arrays[0]
        types = {array.type for array in arrays if not pa.types.is_null(array.type)} or {pa.null()}
        if len(types) == 1:
            target = types.pop()
        elif all(is_number(kind) for kind in types):
            target = pa.float64()
        elif all(pa.types.is_date(kind) or pa.types.is_timestamp(kind) for kind in types):
            target = pa.timestamp("us")
        else:
            target = pa.string()
        return pa.chunked_array([chunk for array in arrays for chunk in array.cast(target).chunks], target)


def _decoded(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of categories by their values, unless these are text."""
    is_coded = pa.types.is_dictionary(array.type) and not is_text(array.type)
    return array.cast(array.type.value_type) if is_coded else array


def open_reader(source: Source, text: Iterable[str] = (), optional: Iterable[str] = ()) -> TableReader:
    """Open a table.

    Args:
        source: a file or a data frame (pandas, or any other that Arrow can read); or several of them: a folder, a list
            of files, or a dictionary by client
        text: columns to read as they are written, without looking for numbers
        optional: columns whose values are missing in a file that lacks them, if another file has them
    """
    text = tuple(text)
    if isinstance(source, str | os.PathLike):
        path = local_path(source, "table")
        title, name = (path.name if path.is_dir() else path.stem), str(path)
        tables = _open_files(tables_in(path), text) if path.is_dir() else [_open_file(path, text)]
        if not tables:
            raise InputError(f"folder {path} has no table; put one .csv, .tsv or .parquet file per client into it")
    elif isinstance(source, Mapping):
        title, name = "table", ", ".join(map(str, source))
        tables = [_open_client(str(client), table, text) for client, table in source.items()]
    elif isinstance(source, Sequence) and source and all(isinstance(file, str | os.PathLike) for file in source):
        paths = [local_path(file, "table") for file in source]
        title, name = paths[0].parent.resolve().name, ", ".join(map(str, paths))
        tables = _open_files(paths, text)
    else:
        title, name, tables = "DataFrame", "DataFrame", [_open_frame(source)]
    for table in tables:
        if not len(table.rows):
            raise InputError(f"table {table.name} has 0 rows below its header; add some")
    if len(tables) > 1:
        tables = [_with_file_name(table) for table in tables]
    known = [column for column in optional if any(column in table.header for table in tables)]
    tables = [_with_missing(table, known) for table in tables]
    _check_same_columns(tables)
    return TableReader(title, name, tuple(tables))


def is_table(source: _File) -> bool:
    """Whether this path can be a table: a file with a table's suffix, or a folder with such files."""
    path = Path(source)
    return path.suffix.lower() in READERS or (path.is_dir() and bool(tables_in(path)))


def tables_in(folder: Path) -> list[Path]:
    """The tables in a folder, by name."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in READERS)


def _open_file(path: Path, text: Sequence[str]) -> ClientTable:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"table {path} has the suffix {path.suffix!r}; give a .csv, .tsv or .parquet file")
    if not path.is_file():
        raise InputError(f"table {path} does not exist; check the path")
    return reader(path, text)


def _open_files(paths: Sequence[Path], text: Sequence[str]) -> list[ClientTable]:
    """One file per client, who is called like the file."""
    stems = Counter(path.stem for path in paths)
    for path in paths:
        if stems[path.stem] > 1:
            raise InputError(
                f"two tables are called {path.stem!r}, as {path}; a file's name is its client's: rename one"
            )
    return [replace(_open_file(path, text), client=path.stem) for path in paths]


def _open_client(client: str, source: Any, text: Sequence[str]) -> ClientTable:
    """The table of a client, who is named in error messages if it is a data frame."""
    if isinstance(source, str | os.PathLike):
        return replace(_open_file(local_path(source, "table"), text), client=client)
    return replace(_open_frame(source), name=f"DataFrame of client {client!r}", client=client)


def _open_frame(source: Any) -> ClientTable:
    """A pandas data frame, or another one that has Arrow's interface."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(source, pandas.DataFrame):
        if not hasattr(source, "__arrow_c_stream__"):
            raise InputError(
                f"a table is the path of a file or a pandas DataFrame, not a {type(source).__name__}; save it as CSV "
                "first, or build a ft.data.Dataset"
            )
        table = pa.table(source)
        return from_arrow("DataFrame", table, IndexRows(range(table.num_rows)))
    header = check_header("DataFrame", source.columns)

    def read(column: str) -> pa.ChunkedArray:
        series = source.iloc[:, header.index(column)]
        try:
            array = pa.array(series, from_pandas=True)
        except pa.ArrowException:  # a column of several types
            array = pa.array([None if gap else str(value) for value, gap in zip(series, series.isna(), strict=True)])
        return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])

    return ClientTable("DataFrame", header, read, IndexRows(source.index.tolist()))


def _check_same_columns(tables: Sequence[ClientTable]) -> None:
    """Raise InputError, with what differs, if tables do not have the same set of columns."""
    first = tables[0]
    for table in tables[1:]:
        for a, b in ((first, table), (table, first)):
            lacking = [name for name in a.header if name not in b.header]
            if lacking:
                columns = ", ".join(map(repr, lacking))
                raise InputError(
                    f"table {b.name} has no column {columns}, which {a.name} has; add it, or remove it there"
                )


def _with_file_name(table: ClientTable) -> ClientTable:
    """The same table with the file's name in the names of its rows."""
    rows = table.rows
    return replace(table, rows=replace(rows, is_one_of_several=True)) if isinstance(rows, FileRows) else table


def _with_missing(table: ClientTable, names: Sequence[str]) -> ClientTable:
    """The same table with columns of these names, whose values are missing, where it lacks them."""
    lacking = [name for name in names if name not in table.header]
    if not lacking:
        return table

    def read(column: str) -> pa.ChunkedArray:
        return pa.chunked_array([pa.nulls(len(table.rows))]) if column in lacking else table.read(column)

    return replace(table, header=(*table.header, *lacking), read=read)


def map_columns(function: Callable[..., Result], *columns: Iterable[Any]) -> list[Result]:
    """`list(map(function, *columns))` on as many threads as Arrow uses, at most 4.

    numpy and Arrow release Python's lock while they compute.
    """
    with ThreadPoolExecutor(min(_MAX_THREADS, pa.cpu_count())) as pool:
        return list(pool.map(function, *columns))


def columns_at_once(most: int, rows: int) -> int:
    """How many columns a thread works on at once: up to `most`, and of a large table one.

    >>> columns_at_once(14, rows=150_000), columns_at_once(14, rows=10_000_000)
    (14, 1)
    """
    return max(1, min(most, _MAX_NUMBERS // rows))


def original_rows(dataset: Dataset, samples: Sequence[int]) -> dict[int, Mapping[str, str]]:
    """Training sample → column → the text in its file; without samples that do not come from a table's file."""
    names, positions = dataset.row_names, dataset.rows_train
    if dataset.schema is None or positions is None or not isinstance(names, RowNames):
        return {}
    by_file: dict[FileRows, dict[int, int]] = {}  # file → row in it → training sample
    for sample in samples:
        file, row = names.locate(int(positions[sample]))
        if isinstance(file, FileRows):
            by_file.setdefault(file, {})[row] = sample
    return {
        wanted[row]: texts
        for file, wanted in by_file.items()
        for row, texts in _texts(file, sorted(wanted)).items()
    }  # fmt: skip


def _texts(file: FileRows, rows: Sequence[int]) -> dict[int, Mapping[str, str]]:
    """The cells of these rows of a file, as text."""
    path = Path(file.path)
    if file.separator is None:
        table = _open_file(path, ())
        columns = {name: table.read(name).take(rows).to_pylist() for name in table.header}
        return {row: {name: str(columns[name][n]) for name in columns} for n, row in enumerate(rows)}
    with reading(path), path.open(newline="", encoding="utf-8-sig") as opened:
        lines = (line for line in csv.reader(opened, delimiter=file.separator) if line)
        header, wanted = next(lines), set(rows)
        return {row: dict(zip(header, line, strict=False)) for row, line in enumerate(lines) if row in wanted}
