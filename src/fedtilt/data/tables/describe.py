"""The columns of a table in words: what they have, and what a careful colleague would warn about."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedtilt.data.data_warnings import similar_names
from fedtilt.data.naming import FileRows
from fedtilt.data.tables.cells import ColumnValues
from fedtilt.data.tables.client_table import ClientTable, is_text
from fedtilt.data.tables.reader import TableReader
from fedtilt.data.tables.schema import NUMERIC, Column, Schema
from fedtilt.data.tables.text_values import format_value, is_code, is_code_text, parse_number, read_dates, yes_no_values
from fedtilt.data.tables.values import read_column, read_names

_SHOWN = 4  # categories


@dataclass(frozen=True)
class ColumnDescription:
    """One column, for people."""

    name: str
    kind: str
    missing: str  # the share of rows without a value
    values: str  # range or categories
    inputs: int  # how many of the model's inputs it is


def describe_file(table: ClientTable) -> str | None:
    """How a text file is written, if it is not in UTF-8 with commas between its cells and decimal points."""
    rows = table.rows
    if not isinstance(rows, FileRows):
        return None
    skipped, empty = rows.skipped, len(rows.empty)
    parts = [
        *([f"{skipped} line{'s' * (skipped > 1)} above the header skipped"] if skipped else []),
        *([f"{empty:,} empty row{'s' * (empty > 1)} skipped"] if empty else []),
        *([rows.encoding] if rows.encoding else []),
        *([f"separated by {rows.separator!r}"] if rows.separator not in (None, ",", "\t") else []),
        *(["decimal comma"] if table.point == "," else []),
    ]
    return f"{table.short_name} {', '.join(parts)}" if parts else None


def describe_labels(reader: TableReader, schema: Schema) -> str:
    """The labels that became yes and no, if these are the classes of a table."""
    if schema.target is None or schema.is_regression:
        return ""
    names = read_names(reader, schema.target, gaps=True)[1]
    return f"; from {', '.join(names)}" if len(names) > len(schema.classes or ()) else ""


def describe_columns(reader: TableReader, schema: Schema) -> list[ColumnDescription]:
    """One description per column of the schema, over all rows."""
    return [_describe(reader, column) for column in schema.columns]


def _describe(reader: TableReader, column: Column) -> ColumnDescription:
    if not column.is_feature:
        text = {"identifier": "dropped: names the row", "ignore": "dropped"}[column.kind]
        return ColumnDescription(column.name, column.kind, "", text, 0)
    cells = read_column(reader, column.name, column)
    missing = cells.codes < 0 if cells.codes is not None else np.isnan(cells.values)  # type: ignore[arg-type]
    share = missing.mean()
    text, values = _percent(share) if share else "", "; ".join([_values(column, cells, ~missing), *cells.notes])
    return ColumnDescription(column.name, column.kind, text, values, len(column.inputs))


def _values(column: Column, cells: ColumnValues, present: np.ndarray) -> str:
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


_SAMPLE = 200  # rows to look at before a column is looked at as a whole
_FEW_VALUES = 50
_FEW_MISSING = 0.5  # with more gaps, few rows say little about a copy of the label
_TOTALS = ("total", "totals", "grand total", "sum", "summe", "gesamt", "gesamtsumme", "insgesamt", "somme", "totale")
_MIN_ROWS = 20  # with fewer rows, a feature predicts the label by chance
_SENTINEL = re.compile(r"-?9{2,}(\.9+)?|-?8{3,}|-?7{3,}|-[1789]")
_MIN_HIGH = 10  # of numbers beside which one below 0 is suspicious; −1, 0 and 1 are not
_LOOKED_AT = 1000  # rows
_MIN_VALUES = 10  # different numbers or dates
_UNIT_IN_NAME = re.compile(r"[\[(]([^\])]*[/%°][^\])]*|[kmµ]?(?:g|m|l|mol)|[cm]m)[\])]$")
_IDENTIFIER = re.compile(r"(^|[\W_])(id|key|index|uuid|nr|no|number)$|^unnamed: 0$|^$", re.IGNORECASE)


def column_warnings(
    column: Column, cells: ColumnValues, train: np.ndarray, labels: np.ndarray, target: str | None
) -> list[str]:
    """One sentence per problem with a feature; `train` are the positions of the training rows."""
    return [f"column {column.name!r} {text}" for text in _problems(column, cells, train, labels, target)]


def _problems(
    column: Column, cells: ColumnValues, train: np.ndarray, labels: np.ndarray, target: str | None
) -> Iterator[str]:
    if column.kind in NUMERIC and not column.deviation and _overflows(cells.values[train]):  # type: ignore[index]
        largest = np.nanmax(np.abs(cells.values[train]))  # type: ignore[index]
        yield f"has values up to {largest:.0e}, too large to standardise; its input is 0: divide it"
        return
    if column.kind == "category" and not column.categories and len(cells.names) > 1:
        yield "has no name with enough rows at a client (min_count), and all are one input: drop it, or group them"
        return
    if _is_constant(column):
        yield "is constant in the training rows; its input is always the same: drop it"
        return
    if column.kind == "number" and _is_row_number(column, cells, train):
        yield "looks like an identifier: a different whole number in every row; drop it"
    yield from cells.doubts
    if column.missing:
        codes, kinds = " and ".join(format_value(code, column.kind) for code in column.missing), f"{column.kind}s"
        yield (
            f"has {codes} in several rows, far outside its other {kinds}, which count as missing; set find_missing = "
            f"false if they are {kinds}"
        )
    if column.kind == "number" and _are_months(cells.values[train]):  # type: ignore[index]
        yield "has numbers such as 3.2026, which look like months; write them as dates, such as 2026-03-01"
    if column.kind in ("number", "date"):
        yield from _sentinels(cells.values[train], column.kind)  # type: ignore[index]
    if similar := similar_names(cells.names if column.kind == "category" else ()):
        yield f"has names that differ only in case or blanks, such as {similar}; set ignore_case = true to merge them"
    if column.kind == "category" and (mixed := _values_beside_text(cells.names)):
        yield f"has {mixed}, and is read as names; correct the text, or set missing = […] if it means unknown"
    if others := _beside_yes_and_no(cells.names if column.kind == "category" else ()):
        yield f"has yes and no beside {others[0]!r}; if it means unknown, set missing = [{others[0]!r}]"
    if _predicts(column, cells, train, labels):
        yield f"alone predicts {target!r} in every row; if it is a copy of the label, drop it"


def _sentinels(values: np.ndarray, kind: str) -> Iterator[str]:
    """Numbers such as −9 or 9999 that are further from all others than these from each other, or alone below 0.

    Of dates, those that stand for none, such as 9999-12-31.
    """
    present = values[~np.isnan(values)]
    if not len(present) or not (_is_sentinel(present.min(), kind) or _is_sentinel(present.max(), kind)):
        return
    distinct, counts = np.unique(present, return_counts=True)
    usual = [value for value in distinct.tolist() if not _is_sentinel(value, kind)]
    if not usual:
        return
    low, high = usual[0], usual[-1]
    for value, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        gap = max(low - value, value - high)
        is_far = gap > (0 if kind == "date" else max(high - low, 1)) or (
            kind == "number" and value < 0 <= low and high > _MIN_HIGH
        )
        if _is_sentinel(value, kind) and is_far:
            text, first, last = (format_value(each, kind) for each in (value, low, high))
            yield (
                f"has {text} in {count} training rows, and all others are in {first} to {last}; if it means unknown, "
                f"set missing = ['{text}']" + (", written as in the file" if kind == "date" else "")
            )


def target_warnings(target: str | None, values: np.ndarray) -> list[str]:
    """One sentence per number of the target that may mean unknown."""
    return [f"target {target!r} {text} and drop_unlabelled = true" for text in _sentinels(values, "number")]


def _are_months(values: np.ndarray) -> bool:
    """Whether all numbers are a month and a year, such as 3.2026."""
    present = values[~np.isnan(values)]
    months, years = np.floor(present), np.round(present % 1 * 10_000)
    is_month = (months >= 1) & (months <= 12) & (years >= 1900) & (years < 2100)
    return len(present) >= _MIN_ROWS and bool((is_month & np.isclose(months + years / 10_000, present)).all())


def _beside_yes_and_no(names: Sequence[str]) -> list[str]:
    """The one name that is neither yes nor no, if all others are."""
    others = [name for name in names if yes_no_values([name, "yes", "no", "ja", "t", "f"]) is None]
    words = [name for name in names if name not in others]
    return others if len(others) == 1 and len(words) > 1 and yes_no_values(words) else []


def _is_sentinel(value: float, kind: str) -> bool:
    return is_code(value, kind) if kind == "date" else _SENTINEL.fullmatch(f"{value:.10g}") is not None


def dropped_columns(reader: TableReader, schema: Schema, described: Schema) -> Iterator[str]:
    """A warning about each column that is dropped although the user did not say so."""
    words = {"identifier": "looks like an identifier", "ignore": "is free text or empty"}
    for column in schema.columns:
        if column.is_feature or described.column(column.name) is not None:
            continue
        cells = reader.read(column.name)[:_LOOKED_AT]
        mixed = (
            _values_beside_text([text.strip() for text in cells.unique().to_pylist() if text])
            if is_text(cells.type)
            else ""
        )
        yield f"column {column.name!r} " + (
            f"has {mixed}, and is dropped; correct the text, or set missing = […] if it means unknown"
            if mixed
            else f"{words[column.kind]} and is dropped; add it to drop, or set its kind in a schema"
        )


def _values_beside_text(texts: Sequence[str]) -> str:
    """Numbers or dates and the text beside them, if these are many; empty if not."""
    parsed, days = [parse_number(text) for text in texts], read_dates(texts).days
    are_numbers = [
        each.is_number and not each.unit and not is_code_text(text) for each, text in zip(parsed, texts, strict=True)
    ]
    for word, found in (("numbers", are_numbers), ("dates", (~np.isnan(days)).tolist())):
        values, others = (
            [text for text, is_one in zip(texts, found, strict=True) if is_one == wanted and text]
            for wanted in (True, False)
        )
        if others and len(values) >= max(_MIN_VALUES, len(texts) / 3):
            return f"{word} such as {values[0]!r} beside text such as {others[0]!r}"
    return ""


def totals_warnings(reader: TableReader, columns: Sequence[str | None]) -> list[str]:
    """A warning about each file whose last row says in one of these columns that it has totals."""
    found: dict[int, str] = {}
    ends = np.cumsum([len(table.rows) for table in reader.tables]) - 1
    for name in dict.fromkeys(name for name in columns if name is not None):
        for (cells, _), row in zip(reader.read_files(name), ends.tolist(), strict=True):
            last = cells[-1].as_py() if len(cells) and is_text(cells.type) else None
            if last is not None and last.strip(" :").casefold() in _TOTALS:
                found[row] = f"{reader.rows[row]} may have totals: {last!r} in column {name!r}; if so, delete it"
    return list(found.values())


def renamed_units(reader: TableReader) -> list[str]:
    """A warning about each column to which files rename columns of different units, as in `Glucose (mg/dl)`."""
    found: dict[str, dict[str, str]] = {}  # column → unit → a name with it
    for old, new in reader.files.rename.items():
        for name in (old, new):
            if unit := _UNIT_IN_NAME.search(name):
                found.setdefault(new, {}).setdefault(unit[1].casefold(), name)
    return [
        f"column {new!r} has numbers of {' and '.join(map(repr, units.values()))}, whose units differ; renaming "
        "converts nothing: convert one of them"
        for new, units in found.items()
        if len(units) > 1
    ]


def _is_constant(column: Column) -> bool:
    if column.gaps:
        return False
    if column.kind in NUMERIC:
        return not column.deviation
    return len(column.inputs) < 2


def _overflows(values: np.ndarray) -> bool:
    """Whether the squares of these values are beyond float64."""
    present = values[~np.isnan(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        return len(present) > 0 and not np.isfinite(np.square(present - present.mean()).sum())


def _is_row_number(column: Column, cells: ColumnValues, train: np.ndarray) -> bool:
    """Whole numbers, all different, and either called an identifier or counted without gaps."""
    assert cells.values is not None
    is_named = bool(_IDENTIFIER.search(column.name))
    for rows in (train[:_SAMPLE], train):
        values = cells.values[rows]
        if len(values) < _MIN_ROWS or not (values == np.floor(values)).all():
            return False
    every = cells.values
    is_counted = len(every) >= 100 and every.max() - every.min() == len(every) - 1
    return (is_named or is_counted) and len(np.unique(values)) == len(values)


def _predicts(column: Column, cells: ColumnValues, train: np.ndarray, labels: np.ndarray) -> bool:
    """Whether this feature alone determines the label: by its value, or by thresholds on a number.

    A number as target rises or falls with the feature: where all values differ, any feature would tell them apart.
    """
    missing = cells.codes[train] < 0 if cells.codes is not None else np.isnan(cells.values[train])  # type: ignore[index]
    if missing.mean() > _FEW_MISSING:
        return False
    train = train[~missing]
    for rows in (train[:: max(1, len(train) // _SAMPLE)], train):
        if len(rows) < _MIN_ROWS:
            return False
        known = labels[rows]
        values = cells.codes[rows] if cells.codes is not None else cells.values[rows]  # type: ignore[index]
        order = np.lexsort((known, values))
        values, known = values[order], known[order]
        new_value = np.concatenate([[True], values[1:] != values[:-1]])
        if ((known[1:] != known[:-1]) & ~new_value[1:]).any():
            return False  # one value with two labels
        distinct, runs = int(new_value.sum()), 1 + int((known[1:] != known[:-1]).sum())
        by_value = distinct <= min(_FEW_VALUES, len(values) // 4)
        if np.issubdtype(known.dtype, np.floating):
            separated = bool((np.diff(known) >= 0).all() or (np.diff(known) <= 0).all())
        else:
            separated = runs == len(np.unique(known))
        by_threshold = column.kind != "category" and separated
        if not (by_value or by_threshold):
            return False
    return True
