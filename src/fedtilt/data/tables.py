"""A person's own table: numeric features, a label column and, if they like, a client column."""

import csv
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedtilt import checks, seeds
from fedtilt.data.dataset import Dataset
from fedtilt.data.strata import held_out, stratified
from fedtilt.errors import InputError


@dataclass(frozen=True)
class Columns:
    """A table as columns of text or numbers; `rows` gives each row's number in the file (the header is row 1)."""

    path: Path
    cells: dict[str, Sequence[str] | np.ndarray]
    rows: Sequence[int]


def table(
    path: str | os.PathLike[str], *, target: str, client: str | None = None, test_share: float = 0.25, seed: int = 0
) -> Dataset:
    """A CSV, TSV or Parquet file as a data set: every column but `target` and `client` is a numeric feature.

    Labels and clients may be text. `test_share` of each client's rows (of all rows without a client column) is test
    data, with the classes in proportion; features are standardised with the training rows' mean and deviation, and one
    that is constant there becomes 0.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"table takes the path of a file, not a {type(path).__name__}; save it as CSV or Parquet first, "
            "or build a ft.data.Dataset"
        )
    test_share, seed = checks.number(test_share, "test_share"), checks.whole(seed, "seed")
    if not 0 < test_share < 1:
        raise InputError(f"test_share = {test_share} must lie between 0 and 1, both excluded; 0.25 is usual")
    columns = _read(Path(path))
    _check_names(columns, target, client)
    y, class_names = _numbered(columns, target)
    if len(class_names) < 2:
        raise InputError(
            f"target = {target!r} has one class, {class_names[0]!r}, in {columns.path}; it needs two or more"
        )
    group, client_names = _numbered(columns, client) if client else (np.zeros_like(y), ("0",))
    features = [name for name in columns.cells if name not in (target, client)]
    x = np.stack([_numbers(columns, name) for name in features], axis=1)
    test = _test_rows(y, group, test_share, seed)
    x_all, y_all, client_all = (torch.from_numpy(part) for part in (_standardised(x, ~test), y, group))
    train_rows, test_rows = torch.from_numpy(~test), torch.from_numpy(test)
    return Dataset(
        name=columns.path.stem,
        x_train=x_all[train_rows],
        y_train=y_all[train_rows],
        x_test=x_all[test_rows],
        y_test=y_all[test_rows],
        classes=len(class_names),
        class_names=class_names,
        client_train=client_all[train_rows] if client else None,
        client_test=client_all[test_rows] if client else None,
        client_names=client_names if client else None,
    )


def _test_rows(y: np.ndarray, group: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A mask of the test rows, drawn client by client."""
    test = np.zeros(len(y), bool)
    order = np.argsort(group, kind="stable")
    for number, rows in enumerate(np.split(order, np.cumsum(np.bincount(group))[:-1])):
        rng = seeds.generator(seeds.key(seed, "table/test", client=number))
        test[rows] = stratified(y[rows], held_out(len(rows), share), rng)
    return test


def _standardised(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Features with mean 0 and deviation 1 over the training rows; one that is constant there becomes 0 everywhere."""
    mean, deviation = x[train].mean(axis=0), x[train].std(axis=0)
    varies = x[train].min(axis=0) < x[train].max(axis=0)  # the deviation of equal numbers may be rounding
    return np.divide(x - mean, deviation, out=np.zeros_like(x), where=varies).astype(np.float32)


def _read(path: Path) -> Columns:
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet, ".pq": _read_parquet}
    if path.suffix.lower() not in readers:
        raise InputError(f"table {path} has the ending {path.suffix!r}; give a .csv, .tsv or .parquet file")
    if not path.is_file():
        raise InputError(f"table {path} does not exist; check the path")
    columns = readers[path.suffix.lower()](path)
    if len(columns.rows) < 2:
        raise InputError(f"table {path} has {len(columns.rows)} rows below its header; it needs at least 2")
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


def _check_names(columns: Columns, target: str, client: str | None) -> None:
    known = ", ".join(columns.cells)
    for key, name in (("target", target), ("client", client)):
        if name is not None and name not in columns.cells:
            raise InputError(f"{key} = {name!r} is not a column of {columns.path}; its columns are {known}")
    if target == client:
        raise InputError(f"target and client are both {target!r}; they must be two columns of {columns.path}")
    if not set(columns.cells) - {target, client}:
        raise InputError(f"table {columns.path} has no feature column beside {known}; add one")


def _numbered(columns: Columns, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column of names as numbers 0, 1, … in the names' order."""
    text = [str(value).strip() for value in columns.cells[name]]
    if "" in text:
        row = columns.rows[text.index("")]
        raise InputError(
            f"table {columns.path} has an empty cell in row {row}, column {name!r}; fill it or drop the row"
        )
    ordered = _ordered(set(text))
    number = {value: k for k, value in enumerate(ordered)}
    return np.array([number[value] for value in text], np.int64), ordered


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Names by value if all are finite numbers, else as text: 'nan' has no place among numbers.

    >>> _ordered(["10", "9"]), _ordered(["10", "9", "nan"])
    (('9', '10'), ('10', '9', 'nan'))
    """
    value = {name: _number(name) for name in names}
    if all(map(math.isfinite, value.values())):
        return tuple(sorted(value, key=lambda name: (value[name], name)))
    return tuple(sorted(value))


def _numbers(columns: Columns, name: str) -> np.ndarray:
    """A feature column as finite float64 numbers."""
    values = [_number(value) for value in columns.cells[name]]
    bad = [k for k, value in enumerate(values) if not np.isfinite(value)]
    if bad:
        row, cell = columns.rows[bad[0]], columns.cells[name][bad[0]]
        what = "an empty cell" if str(cell).strip() == "" else f"{str(cell)!r}"
        raise InputError(
            f"table {columns.path} has {what} in row {row}, column {name!r}, where a finite number belongs; "
            "fill it, encode it as a number or drop it"
        )
    return np.array(values, np.float64)


def _number(cell: object) -> float:
    try:
        return float(cell)  # type: ignore[arg-type]
    except ValueError:
        return float("nan")
