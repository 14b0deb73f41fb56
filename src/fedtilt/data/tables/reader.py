"""A table opened for reading: one file or data frame, or several with the same columns, one per client."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, Union

import numpy as np
import pyarrow as pa

from fedtilt.data.dataset import Dataset
from fedtilt.data.naming import FileRows, IndexRows, RowNames
from fedtilt.data.tables.client_table import ClientTable, check_header, from_arrow, is_number, is_text
from fedtilt.data.tables.file_formats import READERS
from fedtilt.data.tables.settings import Files
from fedtilt.data.tables.text_values import written_cells
from fedtilt.errors import InputError
from fedtilt.files import local_path

if TYPE_CHECKING:
    import pandas

_File = str | os.PathLike[str]
Source = Union[_File, Sequence[_File], "pandas.DataFrame", Mapping[str, Union[_File, "pandas.DataFrame"]]]
Result = TypeVar("Result")

SUFFIXES = "a .csv, .tsv, .csv.gz, .parquet or .xlsx file"
_NOT_TABLES = (".", "~$")  # hidden files, and what a spreadsheet program leaves beside an open one
_MAX_THREADS = 4
_MAX_NUMBERS = 1 << 22  # that a thread has in memory, unless one column is longer


@dataclass(frozen=True)
class TableReader:
    """A table of one or several files or data frames with the same columns; `read` returns one column of all."""

    title: str  # of the data set
    name: str  # of the files, in error messages
    tables: tuple[ClientTable, ...]
    files: Files = field(default_factory=Files)
    exact: Collection[str] = ()  # columns in which the user's words for missing cells are names
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

    def missing_in(self, column: str) -> Sequence[str]:
        """The user's words for missing cells of a column."""
        return () if column in self.exact else self.files.missing

    def read(self, column: str) -> pa.ChunkedArray:
        """One column; the files' types become one: float64 for numbers, text if they differ otherwise."""
        return join_arrays([array for array, _ in self.read_files(column, lambda table: table.read)])

    def read_files(
        self, column: str,
        how: Callable[[ClientTable], Callable[[str], pa.ChunkedArray]] = lambda table: table.read_numbers_as_written,
    ) -> list[tuple[pa.ChunkedArray, bool]]:  # fmt: skip
        """One column of each file, in a common type as of `read`, and whether the file has a type that is not text."""
        arrays = [_decoded(how(table)(column)) for table in self.tables]
        if column in self.gaps:
            arrays = self._with_gaps(arrays, self.gaps[column])
        target = _common_type(arrays)
        return [(_cast(array, target), not is_text(array.type)) for array in arrays]

    def _with_gaps(self, arrays: Iterable[pa.ChunkedArray], rows: Collection[int]) -> list[pa.ChunkedArray]:
        """The arrays of all files without these rows' cells."""
        mask = np.zeros(len(self), bool)
        mask[list(rows)] = True
        ends = np.cumsum([len(table.rows) for table in self.tables])[:-1]
        return [  # a missing position gives a missing cell
            array.take(pa.array(np.arange(len(part)), mask=part))
            for array, part in zip(arrays, np.split(mask, ends), strict=True)
        ]


def _common_type(arrays: Iterable[pa.ChunkedArray]) -> pa.DataType:
    types = {array.type for array in arrays if not pa.types.is_null(array.type)} or {pa.null()}
    if len(types) == 1:
        return types.pop()
    if all(is_number(kind) for kind in types):
        return pa.float64()
    if all(pa.types.is_date(kind) or pa.types.is_timestamp(kind) for kind in types):
        return pa.timestamp("us")
    return pa.string()


def _cast(array: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_string(target) and pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("s", array.type.tz), safe=False)  # 2026-01-31 12:00:00, without fractions
    return array if array.type == target else array.cast(target)


def join_arrays(arrays: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """The rows of several files, one after the other."""
    if len(arrays) == 1:
        return arrays[0]
    return pa.chunked_array([chunk for array in arrays for chunk in array.chunks], arrays[0].type)


def _decoded(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of categories by their values, unless these are text."""
    is_coded = pa.types.is_dictionary(array.type) and not is_text(array.type)
    return array.cast(array.type.value_type) if is_coded else array


def open_reader(
    source: Source, text: Iterable[str] = (), optional: Iterable[str] = (), files: Files | None = None,
    exact: Collection[str] = (),
) -> TableReader:  # fmt: skip
    """Open a table.

    Args:
        source: a file or a data frame (pandas, or any other that Arrow can read); or several of them: a folder, a list
            of files, or a dictionary by client
        text: columns to read as they are written, without looking for numbers
        optional: columns whose values are missing in a file that lacks them, if another file has them
        files: how the files are written
        exact: columns in which the user's words for missing cells are names
    """
    text, files = tuple(text), files or Files()
    tables: list[ClientTable]
    if isinstance(source, Mapping):
        title, name = "table", ", ".join(map(str, source))
        tables = [_open(each, text, files, str(client)) for client, each in source.items()]
    elif isinstance(source, Sequence) and not isinstance(source, str) and source and all(map(_is_path, source)):
        paths = [local_path(file, "table") for file in source]
        title, name = paths[0].parent.resolve().name, ", ".join(map(str, paths))
        tables = _open_files(paths, text, files)
    elif _is_path(source) and (path := local_path(source, "table")).is_dir():
        title, name, tables = path.name, str(path), _open_files(tables_in(path), text, files)
        if not tables:
            raise InputError(f"folder {path} has no table; put {SUFFIXES} per client into it")
    else:
        tables = [_open(source, text, files)]
        name = tables[0].name
        title = _stem(Path(name)) if _is_path(source) else name
    for table in tables:
        if not len(table.rows):
            raise InputError(f"table {table.name} has 0 rows below its header; add some")
    tables = [_renamed(table, files.rename) for table in tables]
    if len(tables) > 1:
        tables = [_with_file_name(table) for table in tables]
    known = [column for column in optional if any(column in table.header for table in tables)]
    tables = [_with_missing(table, known) for table in tables]
    _check_same_columns(tables)
    return TableReader(title, name, tuple(tables), files, exact)


def _is_path(source: object) -> TypeGuard[_File]:
    return isinstance(source, str | os.PathLike)


def is_table(source: _File) -> bool:
    """Whether this path can be a table: a file with a table's suffix, or a folder with such files."""
    path = Path(source)
    return table_suffix(path) in READERS or (path.is_dir() and bool(tables_in(path)))


def tables_in(folder: Path) -> list[Path]:
    """The tables in a folder, by name."""
    return sorted(f for f in folder.iterdir() if table_suffix(f) in READERS and not f.name.startswith(_NOT_TABLES))


def table_suffix(path: Path) -> str:
    """The kind of a file: `.csv`, or `.csv.gz` if it is compressed."""
    return "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]).lower()


def _stem(path: Path) -> str:
    """The name of a file without its suffix, which is the client's."""
    return path.name[: len(path.name) - len(table_suffix(path))]


def _open_file(path: Path, text: Sequence[str], files: Files) -> ClientTable:
    reader = READERS.get(table_suffix(path))
    if reader is None:
        raise InputError(f"table {path} has the suffix {table_suffix(path)!r}; give {SUFFIXES}")
    if not path.is_file():
        raise InputError(f"table {path} does not exist; check the path")
    return reader(path, text, files)


def _open_files(paths: Sequence[Path], text: Sequence[str], files: Files) -> list[ClientTable]:
    """One file per client, who is called like the file."""
    stems = Counter(map(_stem, paths))
    for path in paths:
        if stems[_stem(path)] > 1:
            raise InputError(
                f"two tables are called {_stem(path)!r}, as {path}; a file's name is its client's: rename one"
            )
    return [replace(_open_file(path, text, files), client=_stem(path)) for path in paths]


def _open(source: Any, text: Sequence[str], files: Files, client: str = "") -> ClientTable:
    """A file, or a data frame; of several, the client is named in error messages about a data frame."""
    if _is_path(source):
        return replace(_open_file(local_path(source, "table"), text, files), client=client)
    return replace(
        _open_frame(source), name=f"DataFrame of client {client!r}" if client else "DataFrame", client=client
    )


_ARROW = ("stream", "array")  # what Arrow reads from other libraries' tables


def _open_frame(source: Any) -> ClientTable:
    """A pandas data frame, a row of one, or another data frame that has Arrow's interface."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(source, pandas.Series):
        source = source.to_frame().T
    if pandas is None or not isinstance(source, pandas.DataFrame):
        if not isinstance(source, Mapping) and not any(hasattr(source, f"__arrow_c_{kind}__") for kind in _ARROW):
            raise InputError(
                f"a table is the path of a file or a pandas DataFrame, not a {type(source).__name__}; save it as CSV "
                "first, or build a ft.data.Dataset"
            )
        try:
            table = pa.table(source)
        except (TypeError, ValueError) as error:  # such as columns of different lengths
            raise InputError(f"the {type(source).__name__} is no table ({error})") from error
        return from_arrow("DataFrame", table, IndexRows(range(table.num_rows)))
    header = check_header("DataFrame", source.columns)

    def read(column: str) -> pa.ChunkedArray:
        series = source.iloc[:, header.index(column)]
        try:
            array = pa.array(series, from_pandas=True)
        except pa.ArrowException:  # a column of several types
            cells = [None if gap else value for value, gap in zip(series, series.isna(), strict=True)]
            array = pa.array(written_cells(cells), pa.string())
        return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])

    return ClientTable("DataFrame", header, read, IndexRows(source.index.tolist()))


def _check_same_columns(tables: Sequence[ClientTable]) -> None:
    """Raise InputError, with what differs, if tables do not have the same set of columns."""
    first = tables[0]
    for table in tables[1:]:
        for a, b in ((first, table), (table, first)):
            lacking = [name for name in a.header if name not in b.header]
            if lacking:
                own = [name for name in b.header if name not in a.header]
                others = f", but {', '.join(map(repr, own))}" if own else ""
                old = repr(own[0]) if own else "old"
                raise InputError(
                    f"table {b.name} has no column {', '.join(map(repr, lacking))}, which {a.name} has{others}; add "
                    f"it, remove it there, or rename another: rename = {{{old} = {lacking[0]!r}}}, say (data.rename "
                    "in a spec)"
                )


def _with_file_name(table: ClientTable) -> ClientTable:
    """The same table with the file's name in the names of its rows."""
    rows = table.rows
    return replace(table, rows=replace(rows, is_one_of_several=True)) if isinstance(rows, FileRows) else table


def _renamed(table: ClientTable, rename: Mapping[str, str]) -> ClientTable:
    """The same table with other names of columns, where it has the old ones."""
    old = {rename.get(name, name): name for name in table.header}
    if all(new == name for new, name in old.items()) and len(old) == len(table.header):
        return table
    header, text = check_header(table.name, (rename.get(name, name) for name in table.header)), table.read_text
    return replace(
        table, header=header, read=lambda name: table.read(old[name]),
        read_text=None if text is None else lambda name, first: text(old[name], first),
    )  # fmt: skip


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
        for row, texts in _texts(file, sorted(wanted), dataset.schema.files).items()
    }  # fmt: skip


def _texts(file: FileRows, rows: Sequence[int], files: Files) -> dict[int, Mapping[str, str]]:
    """The cells of these rows of a file, as text."""
    path = Path(file.path)
    if file.separator is None:
        table = _open_file(path, (), files)
        columns = {name: table.read(name).take(rows).to_pylist() for name in table.header}
        return {row: {name: str(columns[name][n]) for name in columns} for n, row in enumerate(rows)}
    lines = (cells for _, cells in file.lines())
    header, wanted = next(lines), set(rows)
    return {row: dict(zip(header, line, strict=False)) for row, line in enumerate(lines) if row in wanted}
