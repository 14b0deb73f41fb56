"""Rows of a table as a model's input, as a schema says."""

from collections.abc import Sequence

import numpy as np

from fedtilt.data.tables.cells import read_cells
from fedtilt.data.tables.columns import Columns
from fedtilt.data.tables.kinds import Cells
from fedtilt.data.tables.schema import Column, Schema
from fedtilt.errors import InputError


def encode(columns: Columns, schema: Schema, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The model's input for these parts of the rows (positions, such as training and test rows), float32.

    Columns are read one at a time, so that a large file is not in memory twice.
    """
    matrices = [np.empty((len(part), len(schema.inputs)), np.float32) for part in parts]
    start = 0
    for column in schema.columns:
        if not column.is_feature:
            continue
        cells = read_cells(columns, column.name, column.kind, column.format)
        end = start + len(column.inputs)
        for matrix, part in zip(matrices, parts, strict=True):
            matrix[:, start:end] = _encode_column(columns, column, cells, part)
        start = end
    return matrices


def _encode_column(columns: Columns, column: Column, cells: Cells, rows: np.ndarray) -> np.ndarray:
    """The inputs of one column (rows, inputs)."""
    if cells.codes is not None:
        return _encode_names(column, cells, rows)
    assert cells.values is not None
    assert column.mean is not None
    assert column.deviation is not None
    values = cells.values[rows]
    missing = np.isnan(values)
    values[missing] = column.fill
    inputs = [_standardise(columns, column, values, rows)]
    if column.kind == "date":
        days = np.floor(values)
        months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12
        for turn in (months / 12, (days + 3) % 7 / 7):  # 1970 began on a Thursday
            inputs += [np.sin(2 * np.pi * turn), np.cos(2 * np.pi * turn)]
    if column.gaps:
        inputs.append(missing)
    return np.stack(inputs, axis=1)


def _standardise(columns: Columns, column: Column, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if not column.deviation:
        return np.zeros(len(values), np.float32)
    scaled = (values - column.mean) / column.deviation + 0.0  # −0 becomes 0
    with np.errstate(over="ignore"):
        result = scaled.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(result))
    if len(bad):
        row = columns.rows[int(rows[bad[0]])]
        raise InputError(
            f"table {columns.name} has {values[bad[0]]:g} in {row}, column {column.name!r}, which is too far from the "
            f"training rows (mean {column.mean:g}) for float32; correct the cell or empty it"
        )
    return result


def _encode_names(column: Column, cells: Cells, rows: np.ndarray) -> np.ndarray:
    """One input per known name, one for all others and one for missing, where the schema has them."""
    inputs, categories = column.inputs, column.categories or ()
    known = {name: position for position, name in enumerate(categories)}
    other = len(categories) if column.other else -1  # −1: all inputs are 0
    position = np.array([known.get(name, other) for name in cells.names] + [len(inputs) - 1 if column.gaps else other])
    where = position[cells.codes[rows]]  # type: ignore[index]  # code −1, missing, is the last
    matrix = np.zeros((len(rows), len(inputs)), np.float32)
    present = np.flatnonzero(where >= 0)
    matrix[present, where[present]] = 1.0
    return matrix
