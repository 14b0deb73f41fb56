"""The columns of a table, from a file or from pandas, and their cells as numbers."""

import csv
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from fedtilt.errors import InputError

if TYPE_CHECKING:
    import pandas

_BOOLEANS = {"true": 1.0, "false": 0.0}  # as pandas and spreadsheets write them

Source = Union[str, os.PathLike[str], "pandas.DataFrame"]


@dataclass(frozen=True)
class Columns:
    """A table as columns of text or numbers; `rows` are the row numbers in the file (the header is row 1)."""

    name: str  # the file's path, or "DataFrame"
    cells: dict[str, Sequence[str] | np.ndarray]
    rows: Sequence[object]  # of a DataFrame: its index


def read_columns(source: Source) -> Columns:
    """Read a CSV, TSV or Parquet file or a pandas DataFrame."""
    columns = _read_file(Path(source)) if isinstance(source, str | os.PathLike) else _read_frame(source)
    if not len(columns.rows):
        raise InputError(f"table {columns.name} has 0 rows below its header; add some")
    return columns


def _read_file(path: Path) -> Columns:
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet, ".pq": _read_parquet}
    if path.suffix.lower() not in readers:
        raise InputError(f"table {path} has the suffix {path.suffix!r}; give a .csv, .tsv or .parquet file")
    if not path.is_file():
        raise InputError(f"table {path} does not exist; check the path")
    return readers[path.suffix.lower()](path)


def _read_csv(path: Path) -> Columns:
    rows: list[list[str]] = []
    numbers: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            separator = "\t" if path.suffix.lower() == ".tsv" else _separator(file.readline())
            file.seek(0)
            reader = csv.reader(file, delimiter=separator)
            for row in reader:
                if row:
                    rows.append(row)
                    numbers.append(reader.line_num)
    except OSError as error:
        raise InputError(f"table {path} cannot be read: {error.strerror}; check its permissions") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"table {path} is not a readable text table ({error}); save it as UTF-8 CSV") from error
    if not rows:
        raise InputError(f"table {path} is empty; add a header and rows")
    header = [name.strip() for name in rows[0]]
    _check_header(str(path), header)
    for row, number in zip(rows, numbers, strict=True):
        if len(row) != len(header):
            raise InputError(
                f"table {path} has {len(row)} cells in row {number} but {len(header)} columns; fix that row"
            )
    cells = zip(*rows[1:], strict=True) if len(rows) > 1 else ((),) * len(header)
    return Columns(str(path), dict(zip(header, cells, strict=True)), numbers[1:])


def _separator(header: str) -> str:
    """The separator, from the header; spreadsheets write semicolons where decimals have a comma.

    >>> _separator('age;"dose, in mg";well')
    ';'
    """
    return max(",;\t", key=re.sub('"[^"]*"', "", header).count)


def _check_header(name: str, header: Sequence[str]) -> None:
    if len(set(header)) != len(header):
        duplicate = next(column for column in header if header.count(column) > 1)
        raise InputError(f"table {name} has the column {duplicate!r} twice; rename one of them")


def _read_parquet(path: Path) -> Columns:
    hint = 'reading Parquet needs pandas and pyarrow: pip install "fedtilt[report]"'
    try:
        import pandas
    except ImportError as error:
        raise InputError(f"table {path} cannot be read; {hint}") from error
    try:
        frame = pandas.read_parquet(path)
    except ImportError as error:  # pandas is installed, its Parquet engine is not
        raise InputError(f"table {path} cannot be read; {hint}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"table {path} is not a readable Parquet file ({error}); write it again") from error
    return _from_frame(str(path), frame, range(2, len(frame) + 2))


def _read_frame(source: Any) -> Columns:
    try:
        import pandas
    except ImportError:
        is_frame = False
    else:
        is_frame = isinstance(source, pandas.DataFrame)
    if not is_frame:
        raise InputError(
            f"a table is the path of a file or a pandas DataFrame, not a {type(source).__name__}; save it as CSV "
            "first, or build a ft.data.Dataset"
        )
    return _from_frame("DataFrame", source, list(source.index))


def _from_frame(name: str, frame: "pandas.DataFrame", rows: Sequence[object]) -> Columns:
    header = [str(column) for column in frame.columns]
    _check_header(name, header)
    cells: dict[str, Sequence[str] | np.ndarray] = {}
    for position, title in enumerate(header):
        column = frame.iloc[:, position]
        if column.isna().any() or column.dtype.kind not in "biuf":
            cells[title] = ["" if missing else str(v) for v, missing in zip(column, column.isna(), strict=True)]
        else:
            cells[title] = column.to_numpy()
    return Columns(name, cells, rows)


def to_matrix(columns: Columns, names: Sequence[str], remedy: str = "") -> np.ndarray:
    """These columns as finite float64 numbers, shape (rows, columns); `remedy` is added to the error about others."""
    x = np.stack([[to_number(cell) for cell in columns.cells[name]] for name in names], axis=1)
    problems, bad_columns = [], []
    for name, values in zip(names, x.T, strict=True):
        bad_rows = np.flatnonzero(~np.isfinite(values))
        if len(bad_rows):
            cell = str(columns.cells[name][bad_rows[0]])
            problems.append(
                f"{repr(cell) if cell.strip() else 'an empty cell'} in row {columns.rows[bad_rows[0]]}, column {name!r}"
            )
            bad_columns.append(name)
    if problems:
        raise InputError(
            f"table {columns.name} has {'; '.join(problems)}, but features are finite numbers: fill the cells, encode "
            f"them as numbers{remedy.format(columns=bad_columns)}"
        )
    return x


def to_number(cell: object) -> float:
    """A cell as a number; NaN if it is not one.

    >>> to_number("2.5"), to_number("True"), to_number("often")
    (2.5, 1.0, nan)
    """
    try:
        return float(cell)  # type: ignore[arg-type]
    except ValueError:
        return _BOOLEANS.get(str(cell).strip().lower(), float("nan"))
