"""Summaries of training rows, computed where the data is; `merge` makes a schema of them.

A table in one place is summarised client by client and merged in the same way, so that the simulator uses the schema
that a deployment would.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from fedtilt.config.setting_fields import REQUIRED, setting
from fedtilt.config.tables import format_value, read_values
from fedtilt.data.tables.cells import ColumnValues, join_spellings, text_kind
from fedtilt.data.tables.reader import TableReader, columns_at_once, map_columns
from fedtilt.data.tables.schema import KINDS, NUMERIC, Schema
from fedtilt.data.tables.text_values import MAX_CODES, find_codes, is_code
from fedtilt.data.tables.values import check_finite, read_column, read_target
from fedtilt.errors import InputError

MAX_ROWS = 10**12
MAX_COLUMNS = 10_000
MAX_CLASSES = 1_000
MAX_CATEGORIES = 1_000  # of one column at one site
MAX_NAME = 200  # characters
MAX_QUANTILES = 15
_COLUMNS_AT_ONCE = 7  # of numbers; one by one, threads would wait for Python's lock more often
_TEXT = f"text of at most {MAX_NAME} characters"
# what columns of some kinds alone have
_ONLY_OF = {
    **dict.fromkeys(("mean", "squares", "quantiles"), NUMERIC),
    **dict.fromkeys(("decimal", "unit"), ("number",)),
    "codes": ("number", "date"),
    "format": ("date",),
    "categories": ("category",),
}


def _is_name(value: str) -> bool:
    return len(value) <= MAX_NAME


def _are_names(most: int) -> Callable[[Collection[str]], bool]:
    return lambda names: len(names) <= most and len(set(names)) == len(names) and all(map(_is_name, names))


@dataclass(frozen=True, kw_only=True)
class ColumnSummary:
    """One column at one site."""

    name: str = setting(REQUIRED, "the name of the column", allowed=_TEXT, check=_is_name)
    kind: str | None = setting(None, "what it is at this site; None: no row has a value", choices=KINDS)
    rows: int = setting(REQUIRED, "the number of rows with a value", ge=0)
    missing: int = setting(REQUIRED, "the number of rows without", ge=0)
    mean: float | None = setting(None, "the mean of the values")
    squares: float | None = setting(None, "the sum of the squared distances to that mean", ge=0)
    quantiles: tuple[float, ...] = setting(
        (), "the values at (j + ½) / m of the sorted rows, m of them",
        allowed=f"at most {MAX_QUANTILES} ascending numbers",
        check=lambda values: len(values) <= MAX_QUANTILES and list(values) == sorted(values),
    )  # fmt: skip
    categories: dict[str, int] | None = setting(
        None, "the names with at least `min_count` rows, and their counts", ge=1,
        allowed=f"at most {MAX_CATEGORIES} names and whole numbers ≥ 1", check=_are_names(MAX_CATEGORIES),
    )  # fmt: skip
    rare: int = setting(0, "the number of rows with other names", ge=0)
    format: str | None = setting(None, "how dates are written, if not as in 2026-01-31", allowed=_TEXT, check=_is_name)
    decimal: str | None = setting(
        None, 'the decimal separator of its numbers, or "both"', allowed=_TEXT, check=_is_name
    )
    unit: str | None = setting(None, "what its cells have behind the number", allowed=_TEXT, check=_is_name)
    codes: tuple[float, ...] = setting(
        (), "numbers that stand for missing cells, such as -999; of dates, in days since 1970",
        allowed=f"at most {MAX_CODES} codes such as -999",
        check=lambda codes: len(codes) <= MAX_CODES and all(is_code(x) or is_code(x, "date") for x in codes),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SiteSummary:
    """One site's training rows: what it sends for the schema, and nothing else."""

    site: str = setting(REQUIRED, "the name of the site, for error messages", allowed=_TEXT, check=_is_name)
    rows: int = setting(REQUIRED, "the number of training rows", ge=0)
    classes: tuple[str, ...] = setting(
        REQUIRED, "the names of its classes", allowed=f"at most {MAX_CLASSES} different names",
        check=_are_names(MAX_CLASSES),
    )  # fmt: skip
    columns: tuple[ColumnSummary, ...]
    numbers: ColumnSummary | None = None  # its target, if that is a number

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, max_rows: int = MAX_ROWS) -> Self:
        """The inverse of `to_json`; raise InputError about a value that no table of `max_rows` training rows gives."""
        try:
            own = {key: value for key, value in values.items() if key not in ("columns", "numbers")}
            if len(values["columns"]) > MAX_COLUMNS:
                raise ValueError(f"it has {len(values['columns'])} columns, and at most {MAX_COLUMNS} are read")
            summary = cls(
                **read_values(cls, own, [], _unknown_key), columns=tuple(map(_read_column, values["columns"])),
                numbers=None if values["numbers"] is None else _read_column(values["numbers"]),
            )  # fmt: skip
            _check_summary(summary, max_rows)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"the summary of a site's table is damaged: {error}") from error
        return summary


def _read_column(values: Mapping[str, Any]) -> ColumnSummary:
    path = [f"column {format_value(values['name'])}"]
    return ColumnSummary(**read_values(ColumnSummary, values, path, _unknown_key))


def _unknown_key(path: Sequence[str], key: str, value: object, table: type) -> InputError:
    return InputError(f"{'.'.join(path) or 'it'} has the unknown key {format_value(key)}")


def _check_summary(summary: SiteSummary, max_rows: int) -> None:
    """Raise ValueError about the first values that a site's table cannot have together."""
    if summary.rows > max_rows:
        raise ValueError(f"it has {summary.rows} rows, and a site has at most {max_rows}")
    names = [column.name for column in summary.columns]
    if len(set(names)) != len(names):
        raise ValueError("two columns have the same name")
    for column in summary.columns:
        _check_column(column, summary.rows)
    if summary.numbers is not None:
        _check_column(summary.numbers, summary.rows)
        if summary.numbers.kind not in ("number", None):
            raise ValueError("the target is no number")


def _check_column(column: ColumnSummary, rows: int) -> None:
    kind = column.kind
    what = f"column {format_value(column.name)} of kind {kind!r}"
    if column.rows + column.missing != rows:
        raise ValueError(f"{what} has {column.rows} rows with and {column.missing} without a value, of {rows}")
    if (kind is None) != (column.rows == 0) and kind not in ("ignore", "identifier"):
        raise ValueError(f"{what} has {column.rows} rows with a value")
    for key, kinds in _ONLY_OF.items():
        if kind not in kinds and getattr(column, key) not in (None, (), {}):
            raise ValueError(f"{what} has a value of {key}")
    if column.rare > column.rows:
        raise ValueError(f"{what} has {column.rare} rows with rare names, of {column.rows}")
    if kind in NUMERIC:
        if column.mean is None or column.squares is None:
            raise ValueError(f"{what} has no value of mean or of squares")
        if kind == "yes/no" and not 0 <= column.mean <= 1:
            raise ValueError(f"the mean of {what} is not in 0 to 1")
        if not _fits_quantiles(column.mean, column.squares, column.rows, column.quantiles):
            raise ValueError(f"mean and squares of {what} are not those of rows with its quantiles")
    if kind == "category":
        named = sum((column.categories or {}).values()) + column.rare
        if column.categories is None or named != column.rows:
            raise ValueError(f"the categories of {what} have {named} rows instead of {column.rows}")


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


def summarise_sites(
    reader: TableReader, names: Sequence[str], rows: Mapping[str, np.ndarray], classes: Mapping[str, Sequence[str]],
    schema: Schema,
) -> list[SiteSummary]:  # fmt: skip
    """The summaries of sites whose rows are in one table, of the columns that the schema does not describe in full.

    Each site's own rows tell categories, free text and identifiers apart; other kinds are inferred from all rows.
    `names` are the columns that may be features, `rows` the positions of each site's training rows.
    """
    known = {column.name: column for column in schema.columns}
    min_count, joins = schema.min_count, reader.files.ignore_case is None
    positions, ends = np.concatenate(list(rows.values())), np.cumsum([len(part) for part in rows.values()])

    def read(name: str) -> ColumnValues:
        return read_column(reader, name, known.get(name), finite=False)

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
        codes[name] = () if column.kind == "yes/no" else find_codes(values[k, : observed[k]], column.kind or "number")
        if codes[name]:
            values[k, np.isin(values[k], codes[name])] = np.nan
            values[k].sort()
            observed[k] = int(np.searchsorted(values[k], np.nan))
    return codes


def _summarise_names(
    name: str, column: ColumnValues, positions: np.ndarray, min_count: int, is_given: bool, joins: bool
) -> ColumnSummary:
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
