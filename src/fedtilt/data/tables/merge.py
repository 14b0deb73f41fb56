"""One schema of several sites' summaries.

Counts, means and sums of squares merge exactly: mean and deviation equal those of the pooled rows, to rounding. A
median does not: a site sends up to 15 quantiles, each standing for `min_count` rows or more, and the merged median is
the weighted median of all sites' quantiles. With 15 of each site its rank is off by at most 1 / 30 of the rows; with
one site it is exact.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedtilt.data.naming import sort_names
from fedtilt.data.tables.cells import join_spellings, similar_spellings
from fedtilt.data.tables.schema import NUMERIC, TEXT_KINDS, Column, Schema
from fedtilt.data.tables.summary import ColumnSummary, SiteSummary
from fedtilt.data.tables.text_values import BETWEEN, common_decimal, join_formats
from fedtilt.data.tables.values import class_numbers, common_classes
from fedtilt.data.targets import RANGES, NumericTarget, inner_bounds
from fedtilt.errors import InputError

_MAX_INPUTS = 100  # of one category
_MOST_SHIFT = 2.5  # of the mean of all sites, by one of them, in spreads
_MOST_SPREAD = 5.0  # of the deviation of all sites, by one of them, in deviations


def merge(summaries: Sequence[SiteSummary], schema: Schema | None = None) -> Schema:
    """One schema for all sites, of what is known already and what they send, in an order that does not change.

    Raises InputError, which names the site and what differs, if one does not fit.
    """
    schema = schema or Schema(columns=())
    for site, reason in misfits(summaries, schema).items():
        raise InputError(f"{describe_site(site)} {reason}")
    known = {column.name: column for column in schema.columns}
    extra = extra_columns(summaries, schema)
    joins = schema.files.ignore_case is None
    inferred = {
        name: Column(name=name, kind="ignore")
        if name in extra
        else _merge_column(name, list(sites.values()), known.get(name), joins)
        for name, sites in _by_column(summaries).items()
    }
    names = [*known, *(name for name in inferred if name not in known)]
    columns = tuple(inferred.get(name) or known[name] for name in names)
    if schema.is_regression:
        numbers = schema.numbers or _merge_target([s.numbers for s in summaries if s.numbers is not None])
        return replace(schema, columns=columns, numbers=numbers)
    found = sort_names({name for summary in summaries for name in summary.classes})
    return replace(schema, columns=columns, classes=schema.classes or common_classes(found) or None)


def _by_column(summaries: Sequence[SiteSummary], with_target: bool = False) -> dict[str, dict[str, ColumnSummary]]:
    """The summaries of each column by site."""
    found: dict[str, dict[str, ColumnSummary]] = {}
    for summary in summaries:
        target = [summary.numbers] if with_target and summary.numbers is not None else []
        for column in (*summary.columns, *target):
            found.setdefault(column.name, {})[summary.site] = column
    return found


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


def _merge_column(name: str, sites: Sequence[ColumnSummary], known: Column | None, joins: bool) -> Column:
    """One column of the merged schema; values that are known already stay."""
    kind = known.kind if known else _merge_kind(sites)
    present = [summary for summary in sites if summary.rows]
    values: dict[str, Any] = {"gaps": any(summary.missing for summary in sites)}
    if kind in NUMERIC:
        values |= dict(zip(("fill", "mean", "deviation"), _merge_numbers(present), strict=True))
        values |= _merge_writing(kind, present)
    elif kind == "category":
        values |= _merge_categories(present, joins)
    else:
        values = {}
    given = {} if known is None else {key: v for key, v in asdict(known).items() if v is not None}
    if given.get("categories") is not None and known and known.other is None:
        kept = set(given["categories"])
        values["other"] = any(s.rare or set(s.categories or {}) - kept for s in present)
    return Column(**{"name": name, "kind": kind} | values | given)


def _merge_writing(kind: str, sites: Sequence[ColumnSummary]) -> dict[str, Any]:
    """How the sites write dates, numbers and missing cells."""
    missing = tuple(sorted({code for site in sites for code in site.codes})) or None
    if kind == "date":
        formats = [part for site in sites for part in (site.format or "").split(BETWEEN) if part]
        return {"format": join_formats(formats), "missing": missing}
    if kind != "number":
        return {}
    unit = next((site.unit for site in sites if site.unit), None)
    return {"decimal": common_decimal(site.decimal for site in sites), "unit": unit, "missing": missing}


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
    if not math.isfinite(mean + deviation):  # as where the rows are
        mean, deviation = 0.0, 0.0
    return _weighted_quantile(sites, 0.5, mean), mean, deviation


def _weighted_quantile(sites: Iterable[ColumnSummary], share: float, default: float) -> float:
    """The weighted quantile of all sites' quantiles, such as the median; the default if no site sends any."""
    weighted = [(s.quantiles, s.rows / len(s.quantiles)) for s in sites if s.quantiles]
    points = sorted([(value, weight) for values, weight in weighted for value in values])
    if not points:
        return default
    below = math.fsum([weight for _, weight in points]) * share
    total = 0.0
    for (value, weight), (after, _) in zip(points, [*points[1:], points[-1]], strict=True):
        total += weight
        if math.isclose(total, below, rel_tol=1e-12):
            return (value + after) / 2
        if total > below:
            return value
    return points[-1][0]


def _merge_categories(sites: Sequence[ColumnSummary], joins: bool) -> dict[str, Any]:
    """The names that have inputs of their own: at most 100, the most frequent."""
    counts = Counter[str]()
    for summary in sites:
        counts.update(summary.categories or {})
    if joins:
        apart = {name for summary in sites for name in similar_spellings(summary.categories or {})}
        counts = Counter(join_spellings(counts, apart))
    frequent = sorted(counts, key=lambda name: (-counts[name], name))[:_MAX_INPUTS]
    rare = sum(summary.rare for summary in sites) + sum(counts.values()) - sum(counts[name] for name in frequent)
    return {"categories": sort_names(frequent), "other": rare > 0}


_FAMILY = {"number": "number", "yes/no": "number", "date": "date"} | dict.fromkeys(TEXT_KINDS, "text")


def misfits(summaries: Sequence[SiteSummary], schema: Schema) -> dict[str, str]:
    """By site: the first thing in which it differs from the schema or from most other sites.

    A column that all other sites leave out of the features may be absent, and so may `extra_columns`; the order of
    columns and classes may differ. Where as many sites have a column as lack it, those that lack it do not fit.
    """
    reasons: dict[str, str] = {}
    described, extra = {column.name for column in schema.columns}, extra_columns(summaries, schema)
    for name, sites in _by_column(summaries).items():
        if name in extra:
            continue
        lacking = [summary.site for summary in summaries if summary.site not in sites]
        kinds = {} if name in described else _other_kind(name, sites)
        reasons = _other_unit(name, sites) | kinds | _lacks_column(name, sites, lacking) | reasons  # the first counts
    for summary in summaries:
        known_names = class_numbers(summary.classes, schema.classes or summary.classes)
        unknown = [name for name in summary.classes if name not in known_names]
        if unknown:
            known = ", ".join(schema.classes or ())
            reason = f"has the class {unknown[0]!r}, which the schema lacks; its classes are {known}"
            reasons.setdefault(summary.site, reason)
    return {summary.site: reasons[summary.site] for summary in summaries if summary.site in reasons}


def extra_columns(summaries: Sequence[SiteSummary], schema: Schema) -> dict[str, list[str]]:
    """The columns that fewer than half of the sites have and the schema does not describe, and these sites.

    They concern these sites alone: they are no features.
    """
    described = {column.name for column in schema.columns}
    return {
        name: list(sites)
        for name, sites in _by_column(summaries).items()
        if 2 * len(sites) < len(summaries) and name not in described
    }


def outliers(summaries: Sequence[SiteSummary], schema: Schema) -> dict[str, str]:
    """By site: the first column in which it moves the mean or the deviation of all sites too far; of three or more.

    A spread is the larger of the median deviation of the sites and the median distance of their means from the median
    mean. The mean of a site with the share p of the rows may be 2.5 / p spreads from that median, and its deviation
    5 / √p spreads.
    """
    known = {column.name for column in schema.columns if column.is_complete}
    reasons: dict[str, str] = {}
    for name, columns in _by_column(summaries, with_target=True).items():
        sites = {site: column for site, column in columns.items() if column.kind in ("number", "date") and column.rows}
        if name in known or len(sites) < 3:
            continue
        for site, reason in _outliers_of_column(sites).items():
            reasons.setdefault(
                site,
                f"has a column {name!r} whose {reason}; correct it there, or write the column's mean and deviation "
                "into the schema",
            )
    return reasons


def _outliers_of_column(sites: Mapping[str, ColumnSummary]) -> dict[str, str]:
    rows = np.array([column.rows for column in sites.values()], np.float64)
    means = np.array([column.mean for column in sites.values()], np.float64)
    deviations = np.sqrt(np.array([column.squares for column in sites.values()], np.float64) / rows)
    centre, deviation = float(np.median(means)), float(np.median(deviations))
    spread = max(deviation, float(np.median(abs(means - centre)))) or max(abs(centre), 1.0)
    shares = rows / rows.sum()
    found = {}
    for site, share, mean, own in zip(sites, shares, means, deviations, strict=True):
        shift = abs(mean - centre) / spread
        if share * shift > _MOST_SHIFT:
            found[site] = f"mean is {shift:.3g} spreads from that of the others"
        elif math.sqrt(share) * own > _MOST_SPREAD * spread:
            found[site] = f"deviation is {own / spread:.3g} times the spread of the others"
    return found


def describe_site(name: str) -> str:
    """A site in a message; a table without a site's name is the only one."""
    return f"site {name!r}" if name else "the table"


def _lacks_column(name: str, sites: Mapping[str, ColumnSummary], lacking: Sequence[str]) -> dict[str, str]:
    if not lacking or all(column.kind in (None, "ignore", "identifier") for column in sites.values()):
        return {}
    reason = (
        f"has no column {name!r}, which {describe_site(next(iter(sites)))} has; add it there, or give every site a "
        "schema without it"
    )
    return dict.fromkeys(lacking, reason)


def _other_kind(name: str, sites: Mapping[str, ColumnSummary]) -> dict[str, str]:
    families: dict[str, list[str]] = {}
    for site, column in sites.items():
        if column.kind is not None:
            families.setdefault(_FAMILY[column.kind], []).append(site)
    if len(families) < 2:
        return {}
    most = max(families.values(), key=len)  # the first of equals
    usual = f"{sites[most[0]].kind} at {describe_site(most[0])}"
    return {
        site: f"has column {name!r} as {sites[site].kind}, and it is {usual}; make them the same, or write the "
        "column's kind into the schema"
        for others in families.values() if others is not most
        for site in others
    }  # fmt: skip


def _other_unit(name: str, sites: Mapping[str, ColumnSummary]) -> dict[str, str]:
    units = {site: column.unit for site, column in sites.items() if column.unit}
    usual = next(iter(units), "")
    return {
        site: f"has column {name!r} in {unit}, and {describe_site(usual)} has it in {units[usual]}; convert one of them"
        for site, unit in units.items()
        if unit.casefold() != units[usual].casefold()
    }
