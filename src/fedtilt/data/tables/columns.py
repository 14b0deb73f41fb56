"""The columns of a table: of one file or data frame, or of several with the same columns, one per client."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import pyarrow as pa

from fedtilt.data.row_names import FileRows, RowNames
from fedtilt.data.tables.arrow_types import decoded, one_type
from fedtilt.data.tables.parts import SUFFIXES, Part, file_part, frame_part
from fedtilt.errors import InputError
from fedtilt.files import local_path

if TYPE_CHECKING:
    import pandas

_File = str | os.PathLike[str]
Source = Union[_File, Sequence[_File], "pandas.DataFrame", Mapping[str, Union[_File, "pandas.DataFrame"]]]


@dataclass(frozen=True)
class Columns:
    """A table of one or several parts with the same columns; `read` returns one column of all parts."""

    title: str  # of the data set
    name: str  # of the files, in error messages
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return sum(len(part.rows) for part in self.parts)

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
        arrays = [decoded(part.read(column)) for part in self.parts]
        if len({array.type for array in arrays}) > 1:
            arrays = one_type(arrays)
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
        path = local_path(source, "table")
        if not path.is_dir():
            return _checked(path.stem, str(path), [file_part(path, text)], optional)
        parts = [replace(file_part(file, text), client=file.stem) for file in _files_of(path)]
        return _checked(path.name, str(path), parts, optional)
    if isinstance(source, Mapping):
        parts = [_client_part(str(key), part, text) for key, part in source.items()]
        return _checked("table", ", ".join(str(key) for key in source), parts, optional)
    if isinstance(source, Sequence) and source and all(isinstance(part, str | os.PathLike) for part in source):
        paths = [local_path(part, "table") for part in source]
        _check_stems(paths)
        parts = [replace(file_part(path, text), client=path.stem) for path in paths]
        return _checked(paths[0].parent.resolve().name, ", ".join(map(str, paths)), parts, optional)
    return _checked("DataFrame", "DataFrame", [frame_part(source)], optional)


def is_table(source: _File) -> bool:
    """Whether this path can be a table: a file with a table's suffix, or a folder with such files."""
    path = Path(source)
    return path.suffix.lower() in SUFFIXES or (path.is_dir() and bool(tables_in(path)))


def _files_of(folder: Path) -> list[Path]:
    files = tables_in(folder)
    if not files:
        raise InputError(f"folder {folder} has no table; put one .csv, .tsv or .parquet file per client into it")
    _check_stems(files)
    return files


def tables_in(folder: Path) -> list[Path]:
    """The tables in a folder, by name."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)


def _check_stems(files: Sequence[Path]) -> None:
    """Refuse files of the same stem: the stem is the client's name."""
    stems = Counter(file.stem for file in files)
    for file in files:
        if stems[file.stem] > 1:
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
    if len(parts) > 1:
        parts = [_one_of_several(part) for part in parts]
    known = [name for name in optional if any(name in part.header for part in parts)]
    return Columns(title, name, _same_columns([_with_missing(part, known) for part in parts]))


def _one_of_several(part: Part) -> Part:
    """The same part with the file's name in the names of its rows."""
    rows = part.rows
    return replace(part, rows=replace(rows, is_one_of_several=True)) if isinstance(rows, FileRows) else part


def _with_missing(part: Part, names: Sequence[str]) -> Part:
    """The same part with columns of these names, whose values are missing, where it lacks them."""
    lacking = [name for name in names if name not in part.header]
    if not lacking:
        return part

    def read(column: str) -> pa.ChunkedArray:
        return pa.chunked_array([pa.nulls(len(part.rows))]) if column in lacking else part.read(column)

    return replace(part, header=(*part.header, *lacking), read=read)


def _part(source: Any, text: Sequence[str]) -> Part:
    return file_part(local_path(source, "table"), text) if isinstance(source, str | os.PathLike) else frame_part(source)


def _client_part(client: str, source: Any, text: Sequence[str]) -> Part:
    """The table of a client, who is named in error messages if it is a data frame."""
    part = _part(source, text)
    name = f"DataFrame of client {client!r}" if part.name == "DataFrame" else part.name
    return replace(part, name=name, client=client)
