"""Checks of a summary that a site sent: a value that no table can give is refused before it is used."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedtilt.data.tables.kinds import KINDS, NUMERIC

MAX_ROWS = 10**12
MAX_COLUMNS = 10_000
MAX_CLASSES = 1_000
MAX_CATEGORIES = 1_000  # of one column at one site
MAX_NAME = 200  # characters
MAX_QUANTILES = 15

_KEYS = {"site", "rows", "classes", "columns", "numbers"}
_COLUMN_KEYS = {
    "name", "kind", "rows", "missing", "mean", "squares", "quantiles", "categories", "rare", "format",
}  # fmt: skip


def check_summary(values: Any, max_rows: int = MAX_ROWS) -> None:
    """Raise a ValueError about the first value that a site's table cannot have.

    Args:
        values: the JSON values of a summary
        max_rows: the most training rows that a site may have
    """
    _check_keys(values, _KEYS, "the summary")
    _check_name(values["site"], "the site's name")
    rows = _whole(values["rows"], "rows", 0, max_rows)
    _check_names(values["classes"], "classes", MAX_CLASSES)
    columns = values["columns"]
    if not isinstance(columns, Sequence) or isinstance(columns, str) or len(columns) > MAX_COLUMNS:
        raise ValueError(f"columns are not a list of at most {MAX_COLUMNS}")
    for column in columns:
        _check_keys(column, _COLUMN_KEYS, "a column")
    _check_names([column["name"] for column in columns], "columns", MAX_COLUMNS)
    for column in columns:
        _check_column(column, rows)
    if values["numbers"] is not None:
        _check_keys(values["numbers"], _COLUMN_KEYS, "the target")
        _check_name(values["numbers"]["name"], "the target's name")
        _check_column(values["numbers"], rows)
        if values["numbers"]["kind"] not in ("number", None):
            raise ValueError("the target is no number")


def shorten(text: object) -> str:
    """A name that a site sent, as at most 60 printable characters."""
    shown = ascii(text)
    return shown if len(shown) <= 60 else shown[:59] + "…"


def _check_column(column: Mapping[str, Any], rows: int) -> None:
    what, kind = f"column {shorten(column['name'])}", column["kind"]
    if kind is not None and kind not in KINDS:
        raise ValueError(f"{what} has the unknown kind {shorten(kind)}")
    observed, missing = (_whole(column[key], f"{key} of {what}", 0, rows) for key in ("rows", "missing"))
    if observed + missing != rows:
        raise ValueError(f"{what} has {observed} rows with and {missing} without a value, of {rows}")
    if (kind is None) != (observed == 0) and kind not in ("ignore", "identifier"):
        raise ValueError(f"{what} has the kind {shorten(kind)} and {observed} rows with a value")
    is_numeric = kind in NUMERIC
    for key in ("mean", "squares"):
        if (column[key] is None) == is_numeric:
            raise ValueError(f"{what} of kind {shorten(kind)} has {'no' if is_numeric else 'a'} value of {key}")
        if column[key] is not None:
            _number(column[key], f"{key} of {what}", least=0.0 if key == "squares" else -math.inf)
    quantiles = _list(column["quantiles"], f"quantiles of {what}", MAX_QUANTILES if is_numeric else 0)
    if [_number(value, f"quantiles of {what}") for value in quantiles] != sorted(quantiles):
        raise ValueError(f"quantiles of {what} are not sorted")
    rare = _whole(column["rare"], f"rare of {what}", 0, observed)
    _check_categories(column["categories"], what, kind, observed, rare)
    if column["format"] is not None and kind != "date":
        raise ValueError(f"{what} of kind {shorten(kind)} has a format")
    if column["format"] is not None:
        _check_name(column["format"], f"format of {what}")


def _check_categories(categories: Any, what: str, kind: str | None, observed: int, rare: int) -> None:
    if kind != "category":
        if categories:
            raise ValueError(f"{what} of kind {shorten(kind)} has categories")
        return
    if not isinstance(categories, Mapping):
        raise ValueError(f"{what} has no categories")
    _check_names(list(categories), f"categories of {what}", MAX_CATEGORIES)
    counts = [_whole(count, f"a category's rows of {what}", 1, observed) for count in categories.values()]
    if sum(counts) + rare != observed:
        raise ValueError(f"the categories of {what} have {sum(counts) + rare} rows instead of {observed}")


def _check_keys(values: Any, keys: set[str], what: str) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} is no object")
    missing, unknown = sorted(keys - set(values)), [key for key in values if key not in keys]
    if missing or unknown:
        raise ValueError(
            f"{what} lacks {missing[0]!r}" if missing else f"{what} has the unknown key {shorten(unknown[0])}"
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
