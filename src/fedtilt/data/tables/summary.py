"""What a site tells about its training rows, so that all sites agree on one schema: plain numbers and names."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from fedtilt.data.tables.summary_checks import MAX_ROWS, check_summary
from fedtilt.errors import InputError


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
