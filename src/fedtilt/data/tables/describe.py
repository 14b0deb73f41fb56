"""A table in words: one line per column, the classes, the clients and the split."""

from dataclasses import dataclass

import numpy as np

from fedtilt.data.tables.cells import read_cells
from fedtilt.data.tables.column import Column
from fedtilt.data.tables.columns import Columns
from fedtilt.data.tables.kinds import Cells
from fedtilt.data.tables.schema import Schema

_SHOWN = 4  # categories


@dataclass(frozen=True)
class ColumnDescription:
    """One column, for people."""

    name: str
    kind: str
    missing: str  # the share of rows without a value
    values: str  # range or categories
    inputs: int  # how many of the model's inputs it is


def describe_columns(columns: Columns, schema: Schema) -> list[ColumnDescription]:
    """One description per column of the schema, over all rows."""
    return [_describe(columns, column) for column in schema.columns]


def _describe(columns: Columns, column: Column) -> ColumnDescription:
    if not column.is_feature:
        text = {"identifier": "left out: names the row", "ignore": "left out"}[column.kind]
        return ColumnDescription(column.name, column.kind, "", text, 0)
    cells = read_cells(columns, column.name, column.kind, column.format)
    missing = cells.codes < 0 if cells.codes is not None else np.isnan(cells.values)  # type: ignore[arg-type]
    share = missing.mean()
    text = _percent(share) if share else ""
    return ColumnDescription(column.name, column.kind, text, _values(column, cells, ~missing), len(column.inputs))


def _values(column: Column, cells: Cells, present: np.ndarray) -> str:
    if not present.any():
        return "no value"
    if cells.codes is not None:
        counts = np.bincount(cells.codes[present], minlength=len(cells.names))
        order = sorted(range(len(counts)), key=lambda k: (-counts[k], k))
        named = [f"{cells.names[k]} {_percent(counts[k] / present.sum())}" for k in order[:_SHOWN]]
        rest = len(order) - _SHOWN
        rare = len(cells.names) - len(column.categories or ())
        return (
            ", ".join(named)
            + (f", {rest} more" if rest > 0 else "")
            + (f"; {rare} rare → other" if column.other and rare else "")
        )
    assert cells.values is not None
    values = cells.values[present]
    if column.kind == "yes/no":
        return f"{_percent(values.mean())} yes"
    if column.kind == "date":
        first, last = (np.datetime64(int(np.floor(day)), "D") for day in (values.min(), values.max()))
        return f"{first} to {last}"
    return f"{values.min():.6g} to {values.max():.6g}, median {np.median(values):.6g}"


def _percent(share: float) -> str:
    return "< 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"
