"""The columns of a table in a file, and the cells of one as numbers."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtilt.errors import InputError


@dataclass(frozen=True)
class Columns:
    """A table as columns of text or numbers; `rows` gives each row's number in the file (the header is row 1)."""

    path: Path
    cells: dict[str, Sequence[str] | np.ndarray]
    rows: Sequence[int]


def read(path: Path) -> Columns:
    """The columns of a CSV, TSV or Parquet file."""
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet, ".pq": _read_parquet}
    if path.suffix.lower() not in readers:
        raise InputError(f"table {path} has the ending {path.suffix!r}; give a .csv, .tsv or .parquet file")
    if not path.is_file():
        raise InputError(f"table {path} does not exist; check the path")
    columns = readers[path.suffix.lower()](path)
    if not columns.rows:
        raise InputError(f"table {path} has 0 rows below its header; give it some")
    return columns


def _read_csv(path: Path) -> Columns:
    rows: list[list[str]] = []
    numbers: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
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
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(f"table {path} has the column {twice!r} twice; rename one of them")
    for row, number in zip(rows, numbers, strict=True):
        if len(row) != len(header):
            raise InputError(
                f"table {path} has {len(row)} cells in row {number} but {len(header)} columns; mend that row"
            )
    cells = zip(*rows[1:], strict=True) if len(rows) > 1 else ((),) * len(header)
    return Columns(path, dict(zip(header, cells, strict=True)), numbers[1:])


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
    cells: dict[str, Sequence[str] | np.ndarray] = {}
    for name in frame.columns:
        column = frame[name]
        if column.isna().any() or column.dtype.kind not in "biuf":
            cells[str(name)] = ["" if missing else str(v) for v, missing in zip(column, column.isna(), strict=True)]
        else:
            cells[str(name)] = column.to_numpy()
    return Columns(path, cells, range(2, len(frame) + 2))


def matrix(columns: Columns, names: Sequence[str]) -> np.ndarray:
    """These columns as finite float64 numbers (rows, columns)."""
    return np.stack([numbers(columns, name) for name in names], axis=1)


def numbers(columns: Columns, name: str) -> np.ndarray:
    """A feature column as finite float64 numbers."""
    values = [number(value) for value in columns.cells[name]]
    bad = [k for k, value in enumerate(values) if not np.isfinite(value)]
    if bad:
        row, cell = columns.rows[bad[0]], columns.cells[name][bad[0]]
        what = "an empty cell" if str(cell).strip() == "" else f"{str(cell)!r}"
        raise InputError(
            f"table {columns.path} has {what} in row {row}, column {name!r}, where a finite number belongs; "
            "fill it, encode it as a number or drop it"
        )
    return np.array(values, np.float64)


def number(cell: object) -> float:
    """A cell as a number; NaN where it is none."""
    try:
        return float(cell)  # type: ignore[arg-type]
    except ValueError:
        return float("nan")
