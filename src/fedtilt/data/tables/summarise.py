"""Summaries of training rows, computed where the data is; `merge` makes a schema of them.

A table in one place is summarised client by client and merged in the same way, so that the simulator uses the schema
that a deployment would.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from fedtilt.data.tables.cells import read_cells, read_numbers
from fedtilt.data.tables.columns import Columns
from fedtilt.data.tables.kinds import Cells, check_finite, text_kind
from fedtilt.data.tables.schema import MIN_COUNT, Schema
from fedtilt.data.tables.summary import ColumnSummary, Summary
from fedtilt.data.tables.summary_checks import MAX_CATEGORIES, MAX_NAME, MAX_QUANTILES
from fedtilt.data.tables.threads import columns_at_once, map_columns

_TOGETHER = 7  # columns of numbers; one by one, threads would wait for Python's lock more often


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
    positions, ends = np.concatenate(list(rows.values())), np.cumsum([len(part) for part in rows.values()])

    def read(name: str) -> Cells:
        kind, date_format = (known[name].kind, known[name].format) if name in known else (None, None)
        return read_cells(columns, name, kind, date_format, finite=False)

    def summarise_numbers(cells: Mapping[str, Cells]) -> list[dict[str, ColumnSummary]]:
        values = np.empty((len(cells), len(positions)))
        for row, column in zip(values, cells.values(), strict=True):
            assert column.values is not None
            column.values.take(positions, out=row, mode="clip")  # the default mode would copy
        return [_summarise_numbers(columns, cells, part, min_count) for part in np.split(values, ends[:-1], axis=1)]

    def summarise_batch(names: Sequence[str]) -> list[dict[str, ColumnSummary]]:
        cells = {name: read(name) for name in names}
        summaries = summarise_numbers({name: column for name, column in cells.items() if column.values is not None})
        for name, column in cells.items():
            if column.values is None:
                for site, part in zip(summaries, rows.values(), strict=True):
                    site[name] = _summarise_names(name, column, part, min_count, name in known)
        return summaries

    unknown = [name for name in names if name not in known or not known[name].is_complete]
    together = columns_at_once(_TOGETHER, len(columns))
    batches = [unknown[start : start + together] for start in range(0, len(unknown), together)]
    found: list[dict[str, ColumnSummary]] = [{} for _ in rows]
    for batch in map_columns(summarise_batch, batches):
        for site, summaries in zip(found, batch, strict=True):
            site |= summaries
    targets: list[ColumnSummary | None] = [None] * len(rows)
    if schema is not None and schema.is_regression and schema.target is not None and schema.numbers is None:
        numbers = summarise_numbers({schema.target: read_numbers(columns, schema.target)})
        targets = [site[schema.target] for site in numbers]
    return [
        Summary(
            site=site, rows=len(rows[site]), classes=tuple(classes[site]),
            columns=tuple(found[n][name] for name in unknown), numbers=targets[n],
        )
        for n, site in enumerate(rows)
    ]  # fmt: skip


def _summarise_numbers(
    columns: Columns, cells: Mapping[str, Cells], values: np.ndarray, min_count: int
) -> dict[str, ColumnSummary]:
    """One site's columns of numbers, yes/no and dates, by name; its values (columns, rows) are overwritten."""
    values.sort(axis=1)
    observed = [int(np.searchsorted(row, np.nan)) for row in values]  # NaN comes last
    if values.size and np.isinf([values[:, 0], values[np.arange(len(values)), np.subtract(observed, 1)]]).any():
        for name, column in cells.items():
            check_finite(columns, name, column.values)  # type: ignore[arg-type]
    summaries: dict[str, ColumnSummary] = {}
    for count in set(observed):
        names = [name for name, other in zip(cells, observed, strict=True) if other == count]
        missing = values.shape[1] - count
        if not count:
            summaries |= {name: ColumnSummary(name=name, kind=None, rows=0, missing=missing) for name in names}
            continue
        same = values[:, :count] if len(names) == len(cells) else values[np.array(observed) == count, :count]
        quantiles = _quantiles(same, min_count)
        for name, own, mean, squares in zip(names, quantiles, *_moments(same), strict=True):
            summaries[name] = ColumnSummary(
                name=name, kind=cells[name].kind, rows=count, missing=missing, mean=mean, squares=squares,
                quantiles=tuple(own), format=cells[name].format,
            )  # fmt: skip
    return summaries


def _summarise_names(
    name: str, cells: Cells, positions: np.ndarray, min_count: int, is_given: bool
) -> ColumnSummary:  # fmt: skip
    """A column of names; a site with few rows of it may find another kind than one with many."""
    if cells.codes is None:  # ignored, or an identifier
        return ColumnSummary(name=name, kind=cells.kind, rows=len(positions), missing=0)
    codes = cells.codes[positions]
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


def _moments(values: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and sum of squared distances of sorted rows, which are overwritten; 0 if float64 cannot hold them."""
    lowest, highest = values[:, 0].copy(), values[:, -1].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(axis=1)
        values -= mean[:, None]
        squares = np.square(values, out=values).sum(axis=1)
    overflows = ~np.isfinite(mean + squares)
    mean[overflows], squares[overflows] = 0.0, 0.0
    constant = lowest == highest  # rounding would make the squares of equal numbers > 0
    mean[constant], squares[constant] = lowest[constant], 0.0
    return mean.tolist(), squares.tolist()


def _quantiles(values: np.ndarray, min_count: int) -> list[list[float]]:
    """An odd number of quantiles of each sorted row, each standing for at least `min_count` of its values.

    >>> _quantiles(np.arange(11.0)[None], 5)
    [[5.0]]
    """
    low, high, share = _quantile_positions(values.shape[1], min_count)
    below = values[:, low]
    return (below + (values[:, high] - below) * share).tolist()


@lru_cache(maxsize=1024)
def _quantile_positions(length: int, min_count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The positions of the neighbours of each quantile, and the share of the upper one; often the same for columns."""
    count = min(MAX_QUANTILES, length // min_count)  # 15 is odd: the middle one is the median
    count -= count > 0 and count % 2 == 0
    position = (np.arange(count) + 0.5) / max(count, 1) * (length - 1)
    low = np.floor(position).astype(np.int64)
    return low, np.minimum(low + 1, length - 1), position - low
