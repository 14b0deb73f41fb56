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
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

import numpy as np

from fedtilt import checks
from fedtilt.data.cells import KINDS, NUMERIC, Cells, read_cells
from fedtilt.data.columns import Columns
from fedtilt.data.names import sort_names
from fedtilt.data.schema import Column, Schema
from fedtilt.errors import InputError

_QUANTILES = 15  # odd: the middle one is the median
_MAX_CATEGORIES = 100


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
    """

    site: str
    rows: int
    classes: tuple[str, ...]
    columns: tuple[ColumnSummary, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The inverse of `to_json`; what a site sent is checked."""
        try:
            known = {field.name for field in fields(ColumnSummary)}
            columns = [dict(column) for column in values["columns"]]
            if set(values) != {"site", "rows", "classes", "columns"} or any(set(column) - known for column in columns):
                raise ValueError("unknown keys")
            summaries = [ColumnSummary(**column | {"quantiles": tuple(column["quantiles"])}) for column in columns]
            for summary in summaries:
                _check(summary)
            classes = tuple(str(name) for name in values["classes"])
            return cls(
                site=str(values["site"]),
                rows=checks.whole(values["rows"], "rows", 0),
                classes=classes,
                columns=tuple(summaries),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the summary of a site's table is damaged ({error})") from error


def _check(summary: ColumnSummary) -> None:
    """Refuse numbers that no rows can have."""
    checks.whole(summary.rows, "rows", 0)
    checks.whole(summary.missing, "missing", 0)
    checks.whole(summary.rare, "rare", 0)
    numbers = [summary.mean, summary.squares, *summary.quantiles]
    if summary.kind not in (None, *KINDS) or not all(math.isfinite(n) for n in numbers if n is not None):
        raise ValueError(f"column {summary.name!r} has the kind {summary.kind!r} and the numbers {numbers}")
    if (summary.squares or 0) < 0 or any(checks.whole(n, "count", 1) < 1 for n in (summary.categories or {}).values()):
        raise ValueError(f"column {summary.name!r} has negative counts or squares")
    if summary.kind in NUMERIC and summary.rows and (summary.mean is None or summary.squares is None):
        raise ValueError(f"column {summary.name!r} has no mean")


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
    """The summaries of sites whose rows are in one table; kinds are found out from all rows."""
    schema = schema or Schema(columns=())
    by_site: dict[str, list[ColumnSummary]] = {site: [] for site in rows}
    for name in names:
        known = schema.column(name)
        if known is not None and known.is_complete:
            continue
        kind, date_format = (None, None) if known is None else (known.kind, known.format)
        cells = read_cells(columns, name, kind, date_format)
        for site, positions in rows.items():
            by_site[site].append(_summarise_column(name, cells, positions, schema.min_count))
    return [
        Summary(site=site, rows=len(rows[site]), classes=tuple(classes[site]), columns=tuple(by_site[site]))
        for site in rows
    ]


def _summarise_column(name: str, cells: Cells, positions: np.ndarray, min_count: int) -> ColumnSummary:
    if cells.codes is not None and cells.kind == "category":
        counts = np.bincount(cells.codes[positions] + 1, minlength=len(cells.names) + 1)
        kept = {label: int(n) for label, n in zip(cells.names, counts[1:], strict=True) if n >= min_count}
        observed = int(counts[1:].sum())
        return ColumnSummary(
            name=name, kind=cells.kind if observed else None, rows=observed, missing=int(counts[0]), categories=kept,
            rare=observed - sum(kept.values()),
        )  # fmt: skip
    if cells.values is None:  # ignored, or an identifier
        return ColumnSummary(name=name, kind=cells.kind, rows=len(positions), missing=0)
    values = np.sort(cells.values[positions])
    observed = len(values) - int(np.isnan(values).sum())
    values, missing = values[:observed], len(values) - observed
    if not observed:
        return ColumnSummary(name=name, kind=None, rows=0, missing=missing)
    mean, squares = _moments(values)
    return ColumnSummary(
        name=name, kind=cells.kind, rows=observed, missing=missing, mean=mean, squares=squares,
        quantiles=_quantiles(values, min_count), format=cells.format,
    )  # fmt: skip


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Mean and sum of squared distances of sorted values; (0, 0) if float64 cannot hold them."""
    if values[0] == values[-1]:  # rounding would make the squares of equal numbers > 0
        return float(values[0]), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(values.mean())
        squares = float(np.square(values - mean).sum())
    return (mean, squares) if math.isfinite(mean) and math.isfinite(squares) else (0.0, 0.0)


def _quantiles(values: np.ndarray, min_count: int) -> tuple[float, ...]:
    """An odd number of quantiles of sorted values, each standing for at least `min_count` of them.

    >>> _quantiles(np.arange(11.0), 5)
    (5.0,)
    """
    count = min(_QUANTILES, len(values) // min_count)
    count -= count > 0 and count % 2 == 0
    position = (np.arange(count) + 0.5) / max(count, 1) * (len(values) - 1)
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, len(values) - 1)
    return tuple((values[low] + (values[high] - values[low]) * (position - low)).tolist())


def merge(summaries: Sequence[Summary], schema: Schema | None = None) -> Schema:
    """One schema for all sites; sites whose columns or kinds do not fit are refused by name with what differs.

    Args:
        summaries: the sites' summaries, in an order that does not change
        schema: what is known already; it goes before what the sites send
    """
    schema = schema or Schema(columns=())
    _check_same_columns(summaries)
    known = {column.name: column for column in schema.columns}
    inferred = {
        name: _merge_column(name, {s.site: c for s in summaries for c in s.columns if c.name == name}, known.get(name))
        for name in (column.name for column in summaries[0].columns)
    }
    names = [*known, *(name for name in inferred if name not in known)]
    classes = schema.classes or sort_names({name for summary in summaries for name in summary.classes}) or None
    for summary in summaries:
        unknown = [name for name in summary.classes if name not in (classes or ())]
        if unknown:
            raise InputError(
                f"{_site(summary.site)} has the class {unknown[0]!r}, which the schema lacks; its classes are "
                f"{', '.join(classes or ())}"
            )
    return replace(schema, columns=tuple(inferred.get(name) or known[name] for name in names), classes=classes)


def _site(name: str) -> str:
    return f"site {name!r}" if name else "the table"


def _check_same_columns(summaries: Sequence[Summary]) -> None:
    first = summaries[0]
    for other in summaries[1:]:
        for a, b in ((first, other), (other, first)):
            lacking = {column.name for column in a.columns} - {column.name for column in b.columns}
            if lacking:
                raise InputError(
                    f"{_site(b.site)} has no column {', '.join(map(repr, sorted(lacking)))}, which {_site(a.site)} "
                    "has; add it there, or give every site a schema without it"
                )


def _merge_column(name: str, sites: Mapping[str, ColumnSummary], known: Column | None) -> Column:
    """One column of the merged schema; values that are known already stay."""
    kind = known.kind if known else _merge_kind(name, sites)
    present = [summary for summary in sites.values() if summary.rows]
    values: dict[str, Any] = {"gaps": any(summary.missing for summary in sites.values())}
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


def _merge_kind(name: str, sites: Mapping[str, ColumnSummary]) -> str:
    """The kind that all sites can use."""
    rows = Counter[str]()
    for summary in sites.values():
        if summary.kind is not None:
            rows[summary.kind] += summary.rows
    kinds = set(rows)
    if not kinds:
        return "ignore"  # no site has a value
    if len(kinds) == 1:
        return kinds.pop()
    if kinds <= {"number", "yes/no"}:
        return "number"
    if kinds <= {"category", "ignore", "identifier"}:  # a small site cannot tell them apart: most rows decide
        return max(KINDS, key=lambda kind: rows[kind])
    shown = [f"{summary.kind} at {_site(site)}" for site, summary in sites.items() if summary.kind is not None]
    first = next(text for text in shown if text.partition(" at ")[0] != shown[0].partition(" at ")[0])
    raise InputError(
        f"column {name!r} is {shown[0]} and {first}; make them the same, or write the column's kind into the schema"
    )


def _merge_numbers(sites: Sequence[ColumnSummary]) -> tuple[float, float, float]:
    """Median, mean and deviation over all sites.

    Chan, Golub and LeVeque, Algorithms for computing the sample variance, The American Statistician 37 (1983).
    """
    rows = np.array([summary.rows for summary in sites], np.float64)
    if not rows.sum():
        return 0.0, 0.0, 0.0
    means = np.array([summary.mean for summary in sites], np.float64)
    squares = np.array([summary.squares for summary in sites], np.float64)
    if (means == means[0]).all():
        mean, between = float(means[0]), 0.0
    else:
        mean = float((rows * means).sum() / rows.sum())
        between = float((rows * (means - mean) ** 2).sum())
    deviation = math.sqrt((float(squares.sum()) + between) / float(rows.sum()))
    return _weighted_median(sites, mean), mean, deviation


def _weighted_median(sites: Iterable[ColumnSummary], default: float) -> float:
    """The weighted median of all sites' quantiles; the default if no site sends any."""
    points = sorted((value, s.rows / len(s.quantiles)) for s in sites for value in s.quantiles)
    if not points:
        return default
    half = math.fsum(weight for _, weight in points) / 2
    total = 0.0
    for (value, weight), (after, _) in zip(points, [*points[1:], points[-1]], strict=True):
        total += weight
        if math.isclose(total, half, rel_tol=1e-12):
            return (value + after) / 2
        if total > half:
            return value
    return points[-1][0]


def _merge_categories(sites: Sequence[ColumnSummary]) -> dict[str, Any]:
    """The names that have inputs of their own: at most 100, the most frequent."""
    counts = Counter[str]()
    for summary in sites:
        counts.update(summary.categories or {})
    frequent = sorted(counts, key=lambda name: (-counts[name], name))[:_MAX_CATEGORIES]
    rare = sum(summary.rare for summary in sites) + sum(counts.values()) - sum(counts[name] for name in frequent)
    return {"categories": sort_names(frequent), "other": rare > 0}
