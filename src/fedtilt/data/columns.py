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

_WORDS = {"true": 1.0, "false": 0.0}  # as pandas and spreadsheets write them

Source = Union[str, os.PathLike[str], "pandas.DataFrame"]


@dataclass(frozen=True)
class Columns:
    """A table as columns of text or numbers; `rows` gives each row's number in the file (the header is row 1)."""

    name: str  # the file's path
    cells: dict[str, Sequence[str] | np.ndarray]
    rows: Sequence[object]  # of a frame, its index


def read(source: Source) -> Columns:
    """The columns of a CSV, TSV or Parquet file or of a pandas DataFrame."""
    columns = _read_file(Path(source)) if isinstance(source, str | os.PathLike) else _read_frame(source)
    if not len(columns.rows):
        raise InputError(f"table {columns.name} has 0 rows below its header; give it some")
    return columns


def _read_file(path: Path) -> Columns:
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet, ".pq": _read_parquet}
    if path.suffix.lower() not in readers:
        raise InputError(f"table {path} has the ending {path.suffix!r}; give a .csv, .tsv or .parquet file")
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
        raise InputError(f"table {path} is empty; give it a header and rows")
    header = [name.strip() for name in rows[0]]
    _check_header(str(path), header)
    for row, number in zip(rows, numbers, strict=True):
        if len(row) != len(header):
            raise InputError(
                f"table {path} has {len(row)} cells in row {number} but {len(header)} columns; mend that row"
            )
    cells = zip(*rows[1:], strict=True) if len(rows) > 1 else ((),) * len(header)
    return Columns(str(path), dict(zip(header, cells, strict=True)), numbers[1:])


def _separator(header: str) -> str:
    """What separates the cells, seen from the header; spreadsheets write semicolons where the comma is for decimals.

    >>> _separator('age;"dose, in mg";well')
    ';'
    """
    return max(",;\t", key=re.sub('"[^"]*"', "", header).count)


def _check_header(name: str, header: Sequence[str]) -> None:
    if len(set(header)) != len(header):
        twice = next(column for column in header if header.count(column) > 1)
        raise InputError(f"table {name} has the column {twice!r} twice; rename one of them")


def _read_parquet(path: Path) -> Columns:
    hint = 'reading Parquet needs pandas and pyarrow: pip install "fedtilt[report]" pyarrow'
    try:
        import pandas
    except ImportError as error:
        raise InputError(f"table {path} cannot be read; {hint}") from error
    try:
        frame = pandas.read_parquet(path)
    except ImportError as error:  # pandas is here, its Parquet engine is not
        raise InputError(f"table {path} cannot be read; {hint}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"table {path} is not a readable Parquet file ({error}); write it again") from error
    return _columns(str(path), frame, range(2, len(frame) + 2))


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
    return _columns("DataFrame", source, list(source.index))


def _columns(name: str, frame: "pandas.DataFrame", rows: Sequence[object]) -> Columns:
    header = [str(column) for column in frame.columns]
    _check_header(name, header)
    cells: dict[str, Sequence[str] | np.ndarray] = {}
    for place, title in enumerate(header):
        column = frame.iloc[:, place]
        if column.isna().any() or column.dtype.kind not in "biuf":
            cells[title] = ["" if missing else str(v) for v, missing in zip(column, column.isna(), strict=True)]
        else:
            cells[title] = column.to_numpy()
    return Columns(name, cells, rows)


def matrix(columns: Columns, names: Sequence[str], remedy: str = "") -> np.ndarray:
    """These columns as finite float64 numbers (rows, columns); `remedy` is what else to do about those that are not."""
    x = np.stack([[number(cell) for cell in columns.cells[name]] for name in names], axis=1)
    spots, wrong = [], []
    for name, values in zip(names, x.T, strict=True):
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            cell = str(columns.cells[name][bad[0]])
            spots.append(
                f"{repr(cell) if cell.strip() else 'an empty cell'} in row {columns.rows[bad[0]]}, column {name!r}"
            )
            wrong.append(name)
    if spots:
        raise InputError(
            f"table {columns.name} has {'; '.join(spots)}, where finite numbers belong: fill the cells, encode them as "
            f"numbers{remedy.format(wrong=wrong)}"
        )
    return x


def number(cell: object) -> float:
    """A cell as a number; NaN where it is none.

    >>> number("2.5"), number("True"), number("often")
    (2.5, 1.0, nan)
    """
    try:
        return float(cell)  # type: ignore[arg-type]
    except ValueError:
        return _WORDS.get(str(cell).strip().lower(), float("nan"))
