"""What a schema needs to know of each site's training rows, and how the sites' summaries become one schema.

`summarise` runs where the data is; its result is plain numbers and names. `merge` makes a schema of one or several
summaries. A table in one place is summarised client by client and merged in the same way, so that the simulator uses
the schema that a deployment would.

Counts, means and sums of squares merge exactly: mean and deviation equal those of the pooled rows, to rounding. A
median does not: a site sends up to 15 quantiles, each standing for `min_count` rows or more, and the merged median is
the weighted median of all sites' quantiles. With 15 of each site its rank is off by at most 1 / 30 of the rows; with
one site it is exact.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np

from fedtilt.data.naming import sort_names
from fedtilt.data.tables.alignment import describe_site, misfits
from fedtilt.data.tables.cells import read_cells, read_numbers
from fedtilt.data.tables.columns import Columns
from fedtilt.data.tables.kinds import NUMERIC, TEXT_KINDS, Cells, text_kind
from fedtilt.data.tables.schema import MIN_COUNT, Column, Schema
from fedtilt.data.tables.summary_checks import MAX_CATEGORIES, MAX_NAME, MAX_QUANTILES, MAX_ROWS, check_summary
from fedtilt.data.tables.threads import map_columns
from fedtilt.data.targets import RANGES, NumericTarget, inner_bounds
from fedtilt.errors import InputError

_MAX_INPUTS = 100  # of one category


@dataclass(frozen=True, kw_only=True)
class ColumnSummary:
    """One column at one site.

    Args:
        name: the name of the column
        kind: what it is at this site; None: no row has a value
        rows: the number of rows with a value
        missing: the number of rows without
        mean: the mean of the values
        squares: the sum of the squared distances to that mean
        quantiles: the values at (j + ½) / m of the sorted rows, m of them
        categories: the names with at least `min_count` rows, and their counts
        rare: the number of rows with other names
        format: how dates are written, if not as in 2026-01-31
    """

    name: str
    kind: str | None
    rows: int
    missing: int
    mean: float | None = None
    squares: float | None = None
    quantiles: tuple[float, ...] = ()
    categories: Mapping[str, int] | None = None
    rare: int = 0
    format: str | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One site's training rows: what it sends for the schema, and nothing else.

    Args:
        site: the name of the site, for error messages
        rows: the number of training rows
        classes: the names of its classes
        columns: its columns
        numbers: its target, if that is a number
    """

    site: str
    rows: int
    classes: tuple[str, ...]
    columns: tuple[ColumnSummary, ...]
    numbers: ColumnSummary | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, max_rows: int = MAX_ROWS) -> Self:
        """The inverse of `to_json`; what a site sent is checked, and it may have at most `max_rows` training rows."""
        try:
            check_summary(values, max_rows)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the summary of a site's table is damaged: {error}") from error
        columns = tuple(map(_column_from_json, values["columns"]))
        numbers = None if values["numbers"] is None else _column_from_json(values["numbers"])
        classes = tuple(values["classes"])
        return cls(site=values["site"], rows=values["rows"], classes=classes, columns=columns, numbers=numbers)


def _column_from_json(values: Mapping[str, Any]) -> ColumnSummary:
    return ColumnSummary(**{**values, "quantiles": tuple(values["quantiles"])})


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


def merge(summaries: Sequence[Summary], schema: Schema | None = None) -> Schema:
    """One schema for all sites; sites whose columns or kinds do not fit are refused by name with what differs.

    Args:
        summaries: the sites' summaries, in an order that does not change
        schema: what is known already; it goes before what the sites send
    """
    schema = schema or Schema(columns=())
    for site, reason in misfits(summaries, schema).items():
        raise InputError(f"{describe_site(site)} {reason}")
    sites: dict[str, list[ColumnSummary]] = {}
    for column in (column for summary in summaries for column in summary.columns):
        sites.setdefault(column.name, []).append(column)
    known = {column.name: column for column in schema.columns}
    inferred = {name: _merge_column(name, columns, known.get(name)) for name, columns in sites.items()}
    names = [*known, *(name for name in inferred if name not in known)]
    columns = tuple(inferred.get(name) or known[name] for name in names)
    if schema.is_regression:
        numbers = schema.numbers or _merge_target([s.numbers for s in summaries if s.numbers is not None])
        return replace(schema, columns=columns, numbers=numbers)
    classes = schema.classes or sort_names({name for summary in summaries for name in summary.classes}) or None
    return replace(schema, columns=columns, classes=classes)


def _merge_target(sites: Sequence[ColumnSummary]) -> NumericTarget | None:
    """The scale of the target, and its ranges between the quartiles of all sites' quantiles; None: nobody has rows."""
    present = [site for site in sites if site.rows]
    if not present:
        return None
    _, mean, deviation = _merge_numbers(present)
    if not deviation:
        raise InputError(
            f"target = {present[0].name!r} has one value in the training rows, or values too large to standardise; "
            "regression needs several"
        )
    bounds = sorted({_weighted_quantile(present, k / RANGES, mean) for k in range(1, RANGES)})
    values = [value for site in present for value in site.quantiles] or [mean]
    return NumericTarget(mean=mean, deviation=deviation, bounds=inner_bounds(bounds, min(values), max(values)))


def _merge_column(name: str, sites: Sequence[ColumnSummary], known: Column | None) -> Column:
    """One column of the merged schema; values that are known already stay."""
    kind = known.kind if known else _merge_kind(sites)
    present = [summary for summary in sites if summary.rows]
    values: dict[str, Any] = {"gaps": any(summary.missing for summary in sites)}
    if kind in NUMERIC:
        formats = {summary.format for summary in present}
        values |= dict(zip(("fill", "mean", "deviation"), _merge_numbers(present), strict=True))
        values |= {"format": formats.pop() if kind == "date" and len(formats) == 1 else None}
    elif kind == "category":
        values |= _merge_categories(present)
    else:
        values = {}
    given = {} if known is None else {key: v for key, v in asdict(known).items() if v is not None}
    if given.get("categories") is not None and known and known.other is None:
        kept = set(given["categories"])
        values["other"] = any(s.rare or set(s.categories or {}) - kept for s in present)
    return Column(**{"name": name, "kind": kind} | values | given)


def _merge_kind(sites: Sequence[ColumnSummary]) -> str:
    """The kind that all sites can use."""
    rows = Counter[str]()
    for summary in sites:
        if summary.kind is not None:
            rows[summary.kind] += summary.rows
    kinds = set(rows)
    if not kinds:
        return "ignore"  # no site has a value
    if len(kinds) == 1:
        return kinds.pop()
    if kinds <= {"number", "yes/no"}:
        return "number"
    return max(TEXT_KINDS, key=lambda kind: rows[kind])  # a small site cannot tell them apart: most rows decide


def _merge_numbers(sites: Sequence[ColumnSummary]) -> tuple[float, float, float]:
    """Median, mean and deviation over all sites.

    Chan, Golub and LeVeque, Algorithms for computing the sample variance, The American Statistician 37 (1983).
    """
    rows = np.array([summary.rows for summary in sites], np.float64)
    if not rows.sum():
        return 0.0, 0.0, 0.0
    means = np.array([summary.mean for summary in sites], np.float64)
    squares = np.array([summary.squares for summary in sites], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if (means == means[0]).all():
            mean, between = float(means[0]), 0.0
        else:
            mean = float((rows * means).sum() / rows.sum())
            between = float((rows * (means - mean) ** 2).sum())
        deviation = math.sqrt((float(squares.sum()) + between) / float(rows.sum()))
    if not math.isfinite(mean + deviation):  # as `_moments`
        mean, deviation = 0.0, 0.0
    return _weighted_quantile(sites, 0.5, mean), mean, deviation


def _weighted_quantile(sites: Iterable[ColumnSummary], share: float, default: float) -> float:
    """The weighted quantile of all sites' quantiles, such as the median; the default if no site sends any."""
    points = sorted((value, s.rows / len(s.quantiles)) for s in sites for value in s.quantiles)
    if not points:
        return default
    below = math.fsum(weight for _, weight in points) * share
    total = 0.0
    for (value, weight), (after, _) in zip(points, [*points[1:], points[-1]], strict=True):
        total += weight
        if math.isclose(total, below, rel_tol=1e-12):
            return (value + after) / 2
        if total > below:
            return value
    return points[-1][0]


def _merge_categories(sites: Sequence[ColumnSummary]) -> dict[str, Any]:
    """The names that have inputs of their own: at most 100, the most frequent."""
    counts = Counter[str]()
    for summary in sites:
        counts.update(summary.categories or {})
    frequent = sorted(counts, key=lambda name: (-counts[name], name))[:_MAX_INPUTS]
    rare = sum(summary.rare for summary in sites) + sum(counts.values()) - sum(counts[name] for name in frequent)
    return {"categories": sort_names(frequent), "other": rare > 0}
