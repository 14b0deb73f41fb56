"""Rows of a table as a model's input, as a schema says."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import numpy as np

from fedtilt.data.tables.cells import BadCells, ColumnValues
from fedtilt.data.tables.reader import TableReader, columns_at_once, map_columns
from fedtilt.data.tables.schema import Column, Schema
from fedtilt.data.tables.values import check_finite, read_column

_TOGETHER = 14  # inputs
_BLOCK = 1 << 16  # numbers that are turned from columns into rows at once


def encode(
    reader: TableReader, schema: Schema, parts: Sequence[np.ndarray],
    inspect: Callable[[Column, ColumnValues], None] | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """The model's input for these parts of the rows, float32; a part is ascending positions, as of the test rows.

    A few columns are read at a time, so that a large file is not in memory twice. `inspect` is called with each feature
    while its values are in memory.
    """
    matrices = [np.empty((len(part), len(schema.inputs)), np.float32) for part in parts]
    features = [column for column in schema.columns if column.is_feature]
    batches = _batches(features, columns_at_once(_TOGETHER, len(reader)))
    ends = accumulate(sum(len(column.inputs) for column in batch) for batch in batches)

    def encode_batch(batch: Sequence[Column], end: int) -> None:
        count = sum(len(column.inputs) for column in batch)
        inputs = np.zeros((count, len(reader)), np.float32)
        unfilled = inputs
        for column in batch:
            cells = read_column(reader, column.name, column, finite=False)
            fill = _fill_numbers if cells.codes is None else _fill_names
            fill(unfilled[: len(column.inputs)], reader, column, cells)
            unfilled = unfilled[len(column.inputs) :]
            if inspect is not None:
                inspect(column, cells)
        height = max(1, _BLOCK // max(1, count))
        for start in range(0, len(reader), height):
            block = np.ascontiguousarray(inputs[:, start : start + height].T)
            for matrix, part in zip(matrices, parts, strict=True):
                first, last = np.searchsorted(part, (start, start + height))
                matrix[first:last, end - count : end] = block.take(part[first:last] - start, axis=0)

    map_columns(encode_batch, batches, ends)
    return matrices


def _batches(features: Iterable[Column], together: int) -> list[list[Column]]:
    """Consecutive columns with up to `together` inputs, or a single one with more.

    Numbers that are neighbours in a matrix are written together, which is faster than one by one.
    """
    batches: list[list[Column]] = []
    for column in features:
        if batches and sum(len(other.inputs) for other in (*batches[-1], column)) <= together:
            batches[-1].append(column)
        else:
            batches.append([column])
    return batches


def _fill_numbers(inputs: np.ndarray, reader: TableReader, column: Column, cells: ColumnValues) -> None:
    """The inputs (inputs, rows) of numbers, yes/no and dates; they are 0 before."""
    assert cells.values is not None
    assert column.fill is not None
    values, missing = cells.values, None
    if not _standardise(inputs[0], column, values):
        check_finite(reader, column.name, values)
        missing = np.isnan(values)
        values = np.where(missing, column.fill, values)
        if not _standardise(inputs[0], column, values):
            far = {int(row): f"{values[row]:g}" for row in np.flatnonzero(~np.isfinite(inputs[0]))}
            rule = f"is too far from the training rows (mean {column.mean:g}) for float32"
            raise BadCells(reader, column.name, far, rule)
    if column.kind == "date":
        days = np.floor(values)
        months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12
        for k, turn in ((1, months / 12), (3, (days + 3) % 7 / 7)):  # 1970 began on a Thursday
            inputs[k], inputs[k + 1] = np.sin(2 * np.pi * turn), np.cos(2 * np.pi * turn)
    if column.gaps and missing is not None:
        inputs[-1] = missing


def _standardise(scaled: np.ndarray, column: Column, values: np.ndarray) -> bool:
    """(values − mean) / deviation, and 0 if the deviation is 0; False if a value or a result is not finite."""
    if not column.deviation:
        scaled[:] = 0.0
        return bool(np.isfinite(values).all())
    with np.errstate(over="ignore", invalid="ignore"):
        np.divide(values - column.mean, column.deviation, out=scaled, casting="same_kind")
    scaled += 0.0  # −0 becomes 0
    return bool(np.isfinite(scaled).all())


def _fill_names(inputs: np.ndarray, reader: TableReader, column: Column, cells: ColumnValues) -> None:
    """One input per known name, one for all others and one for missing, where the schema has them."""
    categories = column.categories or ()
    known = {name: position for position, name in enumerate(categories)}
    is_constant = len(inputs) == 1 and not column.gaps  # in the training rows, so a new name must not change its input
    other = len(categories) if column.other else 0 if is_constant else -1  # −1: all inputs are 0
    position = np.array([known.get(name, other) for name in cells.names] + [len(inputs) - 1 if column.gaps else other])
    where = position[cells.codes]  # code −1, missing, is the last
    present = np.flatnonzero(where >= 0)
    inputs[where[present], present] = 1.0
