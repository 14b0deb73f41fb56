"""Summaries of training rows, computed where the data is; `merge` makes a schema of them.

A table in one place is summarised client by client and merged in the same way, so that the simulator uses the schema
that a deployment would.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from fedtilt.data.tables.cells import read_cells, read_numbers
from fedtilt.data.tables.columns import Columns
from fedtilt.data.tables.kinds import Cells, text_kind
from fedtilt.data.tables.schema import MIN_COUNT, Schema
from fedtilt.data.tables.summary import ColumnSummary, Summary
from fedtilt.data.tables.summary_checks import MAX_CATEGORIES, MAX_NAME, MAX_QUANTILES
from fedtilt.data.tables.threads import map_columns


def summarise(
    columns: Columns, names: Sequence[str], *, site: str = "", schema: Schema | None = None,
    classes: Sequence[str] = (), rows: np.ndarray | None = None,
) -> Summary:  # fmt: skip
    """One site's summary.

    Args:
        columns: the site's table
        names: the columns that may be features
        site: the name of the site
        schema: what is known already: kinds, and columns that need no summary because they are complete
        classes: the names of the site's classes
        rows: the positions of the training rows; left out: all
    """
    rows = np.arange(len(columns)) if rows is None else rows
    return summarise_sites(columns, names, {site: rows}, {site: classes}, schema)[0]


def summarise_sites(
    columns: Columns, names: Sequence[str], rows: Mapping[str, np.ndarray], classes: Mapping[str, Sequence[str]],
    schema: Schema | None = None,
) -> list[Summary]:  # fmt: skip
    """The summaries of sites whose rows are in one table.

    Each site's own rows tell categories, free text and identifiers apart; other kinds are found out from all rows.
    """
    known = {column.name: column for column in schema.columns} if schema else {}
    min_count = schema.min_count if schema else MIN_COUNT

    def summarise_column(name: str) -> list[ColumnSummary]:
        column = known.get(name)
        kind, date_format = (None, None) if column is None else (column.kind, column.format)
        cells = read_cells(columns, name, kind, date_format)
        return [_summarise_column(name, cells, positions, min_count, kind is not None) for positions in rows.values()]

    unknown = [name for name in names if name not in known or not known[name].is_complete]
    by_column = map_columns(summarise_column, unknown)
    numbers: list[ColumnSummary | None] = [None] * len(rows)
    if schema is not None and schema.is_regression and schema.target is not None and schema.numbers is None:
        cells = read_numbers(columns, schema.target)
        numbers = [_summarise_column(schema.target, cells, part, min_count, True) for part in rows.values()]
    return [
        Summary(
            site=site, rows=len(rows[site]), classes=tuple(classes[site]), columns=tuple(c[n] for c in by_column),
            numbers=numbers[n],
        )
        for n, site in enumerate(rows)
    ]  # fmt: skip


def _summarise_column(
    name: str, cells: Cells, positions: np.ndarray, min_count: int, is_given: bool
) -> ColumnSummary:  # fmt: skip
    if cells.codes is not None:
        return _summarise_names(name, cells, cells.codes[positions], min_count, is_given)
    if cells.values is None:  # ignored, or an identifier
        return ColumnSummary(name=name, kind=cells.kind, rows=len(positions), missing=0)
    values = cells.values.take(positions)
    values.sort()
    observed = int(np.searchsorted(values, np.nan))  # NaN comes last
    values, missing = values[:observed], len(values) - observed
    if not observed:
        return ColumnSummary(name=name, kind=None, rows=0, missing=missing)
    mean, squares = _moments(values)
    return ColumnSummary(
        name=name, kind=cells.kind, rows=observed, missing=missing, mean=mean, squares=squares,
        quantiles=_quantiles(values, min_count), format=cells.format,
    )  # fmt: skip


def _summarise_names(name: str, cells: Cells, codes: np.ndarray, min_count: int, is_given: bool) -> ColumnSummary:
    """A column of names; a site with few rows of it may find another kind than one with many."""
    present, counts = np.unique(codes[codes >= 0], return_counts=True)
    observed = int(counts.sum())
    missing = len(codes) - observed
    if not observed:
        return ColumnSummary(name=name, kind=None, rows=0, missing=missing)
    names = [cells.names[code] for code in present]
    kind = cells.kind if is_given else text_kind(names, observed)
    kept: dict[str, int] = {}
    if kind == "category":
        frequent = sorted(zip(-counts, names, strict=True))[:MAX_CATEGORIES]
        kept = {label: int(-n) for n, label in frequent if -n >= min_count and len(label) <= MAX_NAME}
    return ColumnSummary(
        name=name, kind=kind, rows=observed, missing=missing, categories=kept if kind == "category" else None,
        rare=observed - sum(kept.values()),
    )  # fmt: skip


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Mean and sum of squared distances of sorted values; (0, 0) if float64 cannot hold them."""
    if values[0] == values[-1]:  # rounding would make the squares of equal numbers > 0
        return float(values[0]), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(values.mean())
        distances = values - mean
        squares = float(np.square(distances, out=distances).sum())
    return (mean, squares) if math.isfinite(mean) and math.isfinite(squares) else (0.0, 0.0)


def _quantiles(values: np.ndarray, min_count: int) -> tuple[float, ...]:
    """An odd number of quantiles of sorted values, each standing for at least `min_count` of them.

    >>> _quantiles(np.arange(11.0), 5)
    (5.0,)
    """
    low, high, share = _quantile_positions(len(values), min_count)
    below = values[low]
    return tuple((below + (values[high] - below) * share).tolist())


@lru_cache(maxsize=1024)
def _quantile_positions(length: int, min_count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The positions of the neighbours of each quantile, and the share of the upper one; often the same for columns."""
    count = min(MAX_QUANTILES, length // min_count)  # 15 is odd: the middle one is the median
    count -= count > 0 and count % 2 == 0
    position = (np.arange(count) + 0.5) / max(count, 1) * (length - 1)
    low = np.floor(position).astype(np.int64)
    return low, np.minimum(low + 1, length - 1), position - low
