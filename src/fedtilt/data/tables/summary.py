"""Summaries of training rows, computed where the data is; `merge` makes a schema of them.

A table in one place is summarised client by client and merged in the same way, so that the simulator uses the schema
that a deployment would.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Self

import numpy as np

from fedtilt.data.tables.cells import ColumnValues, join_spellings, text_kind
from fedtilt.data.tables.missing_codes import find_codes, is_code
from fedtilt.data.tables.reader import TableReader, columns_at_once, map_columns
from fedtilt.data.tables.schema import KINDS, NUMERIC, Schema
from fedtilt.data.tables.values import check_finite, read_target, read_values
from fedtilt.errors import InputError

MAX_ROWS = 10**12
MAX_COLUMNS = 10_000
MAX_CLASSES = 1_000
MAX_CATEGORIES = 1_000  # of one column at one site
MAX_NAME = 200  # characters
MAX_QUANTILES = 15
MAX_CODES = 4  # for missing cells, of one column
_COLUMNS_AT_ONCE = 7  # of numbers; one by one, threads would wait for Python's lock more often


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
        decimal: the decimal separator of its numbers, or "both"
        unit: what its cells have behind the number
        codes: numbers that stand for missing cells, such as -999
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
    decimal: str | None = None
    unit: str | None = None
    codes: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SiteSummary:
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
        """The inverse of `to_json`; raise InputError about a value that no table of `max_rows` training rows gives."""
        try:
            _check_summary(values, max_rows)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the summary of a site's table is damaged: {error}") from error

        def column(found: Mapping[str, Any]) -> ColumnSummary:
            return ColumnSummary(**{**found, "quantiles": tuple(found["quantiles"]), "codes": tuple(found["codes"])})

        return cls(
            site=values["site"], rows=values["rows"], classes=tuple(values["classes"]),
            columns=tuple(map(column, values["columns"])),
            numbers=None if values["numbers"] is None else column(values["numbers"]),
        )  # fmt: skip


def _check_summary(values: Any, max_rows: int) -> None:
    """Raise ValueError about the first of these JSON values that a site's table cannot have."""
    _check_keys(values, SiteSummary, "the summary")
    _check_name(values["site"], "the site's name")
    rows = _whole(values["rows"], "rows", 0, max_rows)
    _check_names(values["classes"], "classes", MAX_CLASSES)
    columns = values["columns"]
    if not isinstance(columns, Sequence) or isinstance(columns, str) or len(columns) > MAX_COLUMNS:
        raise ValueError(f"columns are not a list of at most {MAX_COLUMNS}")
    for column in columns:
        _check_keys(column, ColumnSummary, "a column")
    _check_names([column["name"] for column in columns], "columns", MAX_COLUMNS)
    for column in columns:
        _check_column(column, rows)
    if values["numbers"] is not None:
        _check_keys(values["numbers"], ColumnSummary, "the target")
        _check_name(values["numbers"]["name"], "the target's name")
        _check_column(values["numbers"], rows)
        if values["numbers"]["kind"] not in ("number", None):
            raise ValueError("the target is no number")


def _shorten(text: object) -> str:
    """A name that a site sent, as at most 60 printable characters."""
    shown = ascii(text)
    return shown if len(shown) <= 60 else shown[:59] + "…"


def _check_column(column: Mapping[str, Any], rows: int) -> None:
    what, kind = f"column {_shorten(column['name'])}", column["kind"]
    if kind is not None and kind not in KINDS:
        raise ValueError(f"{what} has the unknown kind {_shorten(kind)}")
    observed, missing = (_whole(column[key], f"{key} of {what}", 0, rows) for key in ("rows", "missing"))
    if observed + missing != rows:
        raise ValueError(f"{what} has {observed} rows with and {missing} without a value, of {rows}")
    if (kind is None) != (observed == 0) and kind not in ("ignore", "identifier"):
        raise ValueError(f"{what} has the kind {_shorten(kind)} and {observed} rows with a value")
    is_numeric = kind in NUMERIC
    for key in ("mean", "squares"):
        if (column[key] is None) == is_numeric:
            raise ValueError(f"{what} of kind {_shorten(kind)} has {'no' if is_numeric else 'a'} value of {key}")
        if column[key] is not None:
            _number(column[key], f"{key} of {what}", least=0.0 if key == "squares" else -math.inf)
    quantiles = _list(column["quantiles"], f"quantiles of {what}", MAX_QUANTILES if is_numeric else 0)
    if [_number(value, f"quantiles of {what}") for value in quantiles] != sorted(quantiles):
        raise ValueError(f"quantiles of {what} are not sorted")
    if is_numeric and not _fits_quantiles(column["mean"], column["squares"], observed, quantiles):
        raise ValueError(f"mean and squares of {what} are not those of rows with its quantiles")
    codes = _list(column["codes"], f"codes of {what}", MAX_CODES if kind == "number" else 0)
    if not all(is_code(_number(code, f"codes of {what}")) for code in codes):
        raise ValueError(f"codes of {what} are no codes for missing cells, such as -999")
    if kind == "yes/no" and not 0 <= column["mean"] <= 1:
        raise ValueError(f"the mean of {what} of kind 'yes/no' is not in 0 to 1")
    rare = _whole(column["rare"], f"rare of {what}", 0, observed)
    _check_categories(column["categories"], what, kind, observed, rare)
    for key, needed in (("format", "date"), ("decimal", "number"), ("unit", "number")):
        if column[key] is not None and kind != needed:
            raise ValueError(f"{what} of kind {_shorten(kind)} has a {key}")
        if column[key] is not None:
            _check_name(column[key], f"{key} of {what}")


def _fits_quantiles(mean: float, squares: float, rows: int, quantiles: Sequence[float]) -> bool:
    """Whether some rows have this mean, these squares and these quantiles.

    By Cantelli's inequality the quantile at p is at most √((1 − p) / p) deviations below the mean, and at most
    √(p / (1 − p)) above it. Both are 0 if the table's numbers are too large for float64: see `_moments`.
    """
    if mean == squares == 0.0 or not quantiles:
        return True
    deviation, slack = math.sqrt(squares / rows), 1e-6 * max(abs(mean), *map(abs, quantiles))
    for j, value in enumerate(quantiles):
        share = (j + 0.5) / len(quantiles)
        below, above = max(share - 2 / rows, 1 / rows), max(1 - share - 2 / rows, 1 / rows)  # of few rows, interpolated
        low, high = deviation * math.sqrt(1 / below - 1), deviation * math.sqrt(1 / above - 1)
        if not mean - low - slack <= value <= mean + high + slack:
            return False
    return True


def _check_categories(categories: Any, what: str, kind: str | None, observed: int, rare: int) -> None:
    if kind != "category":
        if categories:
            raise ValueError(f"{what} of kind {_shorten(kind)} has categories")
        return
    if not isinstance(categories, Mapping):
        raise ValueError(f"{what} has no categories")
    _check_names(list(categories), f"categories of {what}", MAX_CATEGORIES)
    counts = [_whole(count, f"a category's rows of {what}", 1, observed) for count in categories.values()]
    if sum(counts) + rare != observed:
        raise ValueError(f"the categories of {what} have {sum(counts) + rare} rows instead of {observed}")


def _check_keys(values: Any, fields_of: type, what: str) -> None:
    keys = {field.name for field in fields(fields_of)}
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} is no object")
    missing, unknown = sorted(keys - set(values)), [key for key in values if key not in keys]
    if missing or unknown:
        raise ValueError(
            f"{what} lacks {missing[0]!r}" if missing else f"{what} has the unknown key {_shorten(unknown[0])}"
        )


def _check_names(values: Any, what: str, most: int) -> None:
    names = _list(values, what, most)
    for name in names:
        _check_name(name, f"a name in {what}")
    if len(set(names)) != len(names):
        raise ValueError(f"{what} have a name twice")


def _check_name(value: Any, what: str) -> None:
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise ValueError(f"{what} is not a text of at most {MAX_NAME} characters")


def _list(values: Any, what: str, most: int) -> Sequence[Any]:
    if not isinstance(values, list | tuple):
        raise ValueError(f"{what} are no list")
    if len(values) > most:
        raise ValueError(f"{what} are {len(values)}, and at most {most} are read")
    return values


def _whole(value: Any, what: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} is not a whole number in {least} to {most}")
    return value


def _number(value: Any, what: str, least: float = -math.inf) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < least:
        raise ValueError(f"{what} is not a finite number{'' if least == -math.inf else f' ≥ {least:g}'}")
    return float(value)


def summarise_sites(
    reader: TableReader, names: Sequence[str], rows: Mapping[str, np.ndarray], classes: Mapping[str, Sequence[str]],
    schema: Schema,
) -> list[SiteSummary]:  # fmt: skip
    """The summaries of sites whose rows are in one table, of the columns that the schema does not describe in full.

    Each site's own rows tell categories, free text and identifiers apart; other kinds are inferred from all rows.

    Args:
        reader: the table
        names: the columns that may be features
        rows: the positions of each site's training rows
        classes: the names of each site's classes
        schema: what is known already
    """
    known = {column.name: column for column in schema.columns}
    min_count, joins = schema.min_count, reader.files.ignore_case is None
    positions, ends = np.concatenate(list(rows.values())), np.cumsum([len(part) for part in rows.values()])

    def read(name: str) -> ColumnValues:
        return read_values(reader, name, known.get(name), finite=False)

    def summarise_numbers(
        columns: Mapping[str, ColumnValues], is_target: bool = False
    ) -> list[dict[str, ColumnSummary]]:
        values = np.empty((len(columns), len(positions)))
        for row, column in zip(values, columns.values(), strict=True):
            assert column.values is not None
            column.values.take(positions, out=row, mode="clip")  # the default mode would copy
        parts = np.split(values, ends[:-1], axis=1)
        return [_summarise_numbers(reader, columns, part, min_count, is_target) for part in parts]

    def summarise_batch(names: Sequence[str]) -> list[dict[str, ColumnSummary]]:
        columns = {name: read(name) for name in names}
        summaries = summarise_numbers({name: column for name, column in columns.items() if column.values is not None})
        for name, column in columns.items():
            if column.values is None:
                for site, part in zip(summaries, rows.values(), strict=True):
                    site[name] = _summarise_names(name, column, part, min_count, name in known, joins)
        return summaries

    unknown = [name for name in names if name not in known or not known[name].is_complete]
    together = columns_at_once(_COLUMNS_AT_ONCE, len(reader))
    batches = [unknown[start : start + together] for start in range(0, len(unknown), together)]
    found: list[dict[str, ColumnSummary]] = [{} for _ in rows]
    for batch in map_columns(summarise_batch, batches):
        for site, summaries in zip(found, batch, strict=True):
            site |= summaries
    targets: list[ColumnSummary | None] = [None] * len(rows)
    if schema.is_regression and schema.target is not None and schema.numbers is None:
        numbers = summarise_numbers({schema.target: read_target(reader, schema.target, gaps=True)}, is_target=True)
        targets = [site[schema.target] for site in numbers]
    return [
        SiteSummary(
            site=site, rows=len(rows[site]), classes=tuple(classes[site]),
            columns=tuple(found[n][name] for name in unknown), numbers=targets[n],
        )
        for n, site in enumerate(rows)
    ]  # fmt: skip


def _summarise_numbers(
    reader: TableReader, columns: Mapping[str, ColumnValues], values: np.ndarray, min_count: int, is_target: bool
) -> dict[str, ColumnSummary]:
    """One site's columns of numbers, yes/no and dates, by name; its values (columns, rows) are overwritten."""
    values.sort(axis=1)
    observed = [int(np.searchsorted(row, np.nan)) for row in values]  # NaN comes last
    if values.size and np.isinf([values[:, 0], values[np.arange(len(values)), np.subtract(observed, 1)]]).any():
        for name, column in columns.items():
            check_finite(reader, name, column.values)  # type: ignore[arg-type]
    finds = reader.files.find_missing and not is_target
    codes = _remove_codes(columns, values, observed) if finds else dict.fromkeys(columns, ())
    summaries: dict[str, ColumnSummary] = {}
    for count in set(observed):
        names = [name for name, other in zip(columns, observed, strict=True) if other == count]
        missing = values.shape[1] - count
        if not count:
            summaries |= {name: ColumnSummary(name=name, kind=None, rows=0, missing=missing) for name in names}
            continue
        same = values[:, :count] if len(names) == len(columns) else values[np.array(observed) == count, :count]
        quantiles = _quantiles(same, min_count)
        for name, own, mean, squares in zip(names, quantiles, *_moments(same), strict=True):
            summaries[name] = ColumnSummary(
                name=name, kind=columns[name].kind, rows=count, missing=missing, mean=mean, squares=squares,
                quantiles=tuple(own), format=columns[name].format, decimal=columns[name].decimal,
                unit=columns[name].unit, codes=codes[name],
            )  # fmt: skip
    return summaries


def _remove_codes(
    columns: Mapping[str, ColumnValues], values: np.ndarray, observed: list[int]
) -> dict[str, tuple[float, ...]]:
    """The codes for missing cells of each column; they are removed from its sorted values, and from `observed`."""
    codes: dict[str, tuple[float, ...]] = {}
    for k, (name, column) in enumerate(columns.items()):
        codes[name] = find_codes(values[k, : observed[k]]) if column.kind == "number" else ()
        if codes[name]:
            values[k, np.isin(values[k], codes[name])] = np.nan
            values[k].sort()
            observed[k] = int(np.searchsorted(values[k], np.nan))
    return codes


def _summarise_names(
    name: str, column: ColumnValues, positions: np.ndarray, min_count: int, is_given: bool, joins: bool
) -> ColumnSummary:  # fmt: skip
    """A column of names; a site with few rows of it may find another kind than one with many."""
    if column.codes is None:  # ignored, or an identifier
        return ColumnSummary(name=name, kind=column.kind, rows=len(positions), missing=0)
    codes = column.codes[positions]
    present, rows = np.unique(codes[codes >= 0], return_counts=True)
    counts = {column.names[code]: int(n) for code, n in zip(present, rows, strict=True)}
    observed = sum(counts.values())
    missing = len(codes) - observed
    if not observed:
        return ColumnSummary(name=name, kind=None, rows=0, missing=missing)
    counts = join_spellings(counts) if joins else counts
    kind = column.kind if is_given else text_kind(list(counts), observed)
    kept: dict[str, int] = {}
    if kind == "category":
        frequent = sorted((-n, label) for label, n in counts.items())[:MAX_CATEGORIES]
        kept = {label: -n for n, label in frequent if -n >= min_count and len(label) <= MAX_NAME}
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
