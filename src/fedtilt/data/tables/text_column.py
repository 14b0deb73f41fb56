"""A column of text as what it looks like: yes and no, numbers, dates or names, file by file."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedtilt.data.naming import sort_names
from fedtilt.data.tables.cells import (
    MAX_CATEGORIES,
    BadCells,
    ColumnValues,
    all_missing,
    distinct_texts,
    similar_spellings,
    spelling,
    text_kind,
)
from fedtilt.data.tables.client_table import ClientTable
from fedtilt.data.tables.reader import TableReader
from fedtilt.data.tables.schema import Column
from fedtilt.data.tables.text_values import (
    DECIMALS,
    MISSING_WORDS,
    SCALES,
    YES_NO,
    NumberText,
    common_decimal,
    is_code_text,
    is_compact_date,
    join_formats,
    parse_number,
    read_dates,
    to_hours,
    yes_no_values,
)

_TRUE_FALSE = {"true": NumberText(1.0, 1.0), "false": NumberText(0.0, 0.0)}
_FEW = 3  # different numbers
_MOSTLY = 0.8  # a text column with this share of numbers, or dates, is one with wrong cells


class _FileCells:
    """The text cells of one file: the different texts, and which of them each row has."""

    def __init__(self, table: ClientTable, column: pa.ChunkedArray, is_typed: bool, words: Collection[str]) -> None:
        self.table, self.is_typed = table, is_typed
        self.codes, self.texts = distinct_texts(column)
        counts = np.bincount(self.codes + 1, minlength=len(self.texts) + 1)[1:]
        empty = np.array([text.casefold() in words for text in self.texts], bool)
        self.missing = empty | (counts == 0)
        self.counts = np.where(self.missing, 0, counts)
        self.present = [text for text, gap in zip(self.texts, self.missing, strict=True) if not gap]

    def by_row(self, of_present: Iterable[float], default: float = math.nan) -> np.ndarray:
        """A value for each row, from those of the texts that are present."""
        values = np.full(len(self.texts) + 1, default)
        values[:-1][~self.missing] = np.fromiter(of_present, np.float64, len(self.present))
        return values[self.codes]


class TextColumn:
    """A column of text, file by file: each file may have its own way of writing numbers and dates."""

    def __init__(
        self, reader: TableReader, name: str, arrays: Sequence[pa.ChunkedArray], typed: Sequence[bool],
        unknown: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.reader, self.name = reader, name
        words = {*MISSING_WORDS, *(word.casefold() for word in reader.missing_in(name)), *unknown}
        parts = zip(reader.tables, arrays, typed, strict=True)
        self.files = [_FileCells(table, array, is_typed, words) for table, array, is_typed in parts]
        self.rows = int(sum(file.counts.sum() for file in self.files))  # with a value
        self.present = sorted({text for file in self.files for text in file.present})

    def read(self, known: Column | None) -> ColumnValues:
        """The column as the kind that is known, or as what it looks like."""
        kind = None if known is None else known.kind
        if not self.rows:
            return all_missing(kind, len(self.reader))
        return self.read_values(known) or self._as_names(known)

    def read_values(self, known: Column | None) -> ColumnValues | None:
        """The column as yes/no, numbers or dates; None if it has names."""
        kind = None if known is None else known.kind
        if kind == "number" and (found := self._as_yes_no(required=False)):  # yes/no here, numbers at another site
            return ColumnValues(kind, values=found.values)
        if kind in (None, "yes/no") and (found := self._as_yes_no(required=kind is not None)):
            return found
        if kind is None and any(map(_has_compact_dates, self.files)) and (found := self._as_dates(known)):
            return found
        if kind in (None, "number") and (found := self._as_numbers(known)):
            return found
        return self._as_dates(known) if kind in (None, "date") else None

    def _as_names(self, known: Column | None) -> ColumnValues:
        """The column as names; those of a schema are found in other spellings too."""
        spelled, notes = self._spelled(None if known is None else known.categories)
        names = sort_names(set(spelled.values()))
        number = {name: k for k, name in enumerate(names)}
        codes = [file.by_row((number[spelled[text]] for text in file.present), -1) for file in self.files]
        kind = text_kind(names, self.rows) if known is None else known.kind
        if any(map(is_code_text, names)) and all(map(str.isdecimal, names)):
            notes = (*notes, "digits as names, not numbers")
        return ColumnValues(kind, codes=np.concatenate(codes).astype(np.int64), names=names, notes=notes)

    def _spelled(self, categories: Collection[str] | None) -> tuple[dict[str, str], tuple[str, ...]]:
        """The name of each text, and which of them are joined, for people."""
        ignore_case = self.reader.files.ignore_case
        spelled = {text: spelling(text, bool(ignore_case)) for text in self.present}
        if ignore_case is not None or not categories:
            return spelled, ()
        several = similar_spellings(categories)
        by_spelling = {spelling(name, True): name for name in categories}
        joined: dict[str, list[str]] = {}
        for text, name in spelled.items():
            other = by_spelling.get(spelling(name, True), name)
            if name not in categories and other != name and spelling(name, True) not in several:
                spelled[text] = other
                joined.setdefault(other, []).append(name)
        return spelled, tuple(f"{name} is {', '.join(dict.fromkeys(joined[name]))} too" for name in sorted(joined))

    def _as_yes_no(self, *, required: bool) -> ColumnValues | None:
        values = yes_no_values(self.present)
        if values is None and not required:
            return None
        if values is None:  # a word that is neither costs its own rows alone
            found = {text: YES_NO.get(text.casefold(), parse_number(text).point) for text in self.present}
            values = {text: value for text, value in found.items() if value in (0, 1)}
        if len(values) < len(self.present):
            words = "yes and no, ja and nein, true and false, y and n, or t and f"
            raise self._bad(lambda text: text not in values, f"yes/no columns have two words: {words}")
        notes = (f"from {', '.join(self.present)}",) if len(self.present) > 2 else ()
        return ColumnValues("yes/no", values=self._join(values.__getitem__), notes=notes)

    def _as_numbers(self, known: Column | None) -> ColumnValues | None:
        if known is None and any(map(is_code_text, self.present)):
            return None  # 00123 and 123 are two names
        parsed = _parse_numbers(self.present)
        hours = {text: NumberText(x, x) for text in parsed if not math.isnan(x := to_hours(text))}
        if 2 * len(hours) > len(parsed):
            parsed |= hours
        failed = {text for text, each in parsed.items() if not each.is_number}
        if not self._is_mostly(failed) and known is None:
            return None
        units = {each.unit.casefold(): each.unit for each in parsed.values() if each.unit}
        found = (
            Counter(parsed[text].unit.casefold() for file in self.files for text in file.present)
            if units
            else Counter()
        )
        if known is not None and known.unit is not None:
            units[known.unit.casefold()] = known.unit
            found[known.unit.casefold()] = 1 + found.total()  # it goes first
        if len(units) > 1:
            if known is None and (
                len(self.present) <= MAX_CATEGORIES or any(len(u) < 2 and u.isalpha() for u in units)
            ):
                return None  # such as 1a, 2b
            usual = max(units, key=lambda unit: found[unit])
            raise self._bad(
                lambda text: parsed[text].unit.casefold() not in ("", usual),
                f"the column has numbers in {units[usual]} too", "convert them to one unit, or drop the column",
            )  # fmt: skip
        unit = next(iter(units.values()), None)
        if unit is not None and unit.casefold() in SCALES:
            is_usual = known is not None and known.unit is None  # that there is no unit
            bad = {
                text for text, each in parsed.items() if each.is_number and bool(each.unit) is is_usual and each.point
            }
            if bad:
                rule = f"the column has numbers {'without a unit' if is_usual else f'in {unit} too'}"
                raise self._bad(bad.__contains__, rule, "write all of them out, or drop the column")
        if failed:
            raise self._bad(failed.__contains__, "the column has numbers")
        decimals = [self._decimal(file, parsed, known) for file in self.files]
        values = [
            file.by_row(_choose(parsed[text], decimal) for text in file.present)
            for file, decimal in zip(self.files, decimals, strict=True)
        ]
        return ColumnValues(
            "number", values=np.concatenate(values), unit=unit, decimal=common_decimal(decimals),
            notes=(*self._number_notes(decimals, unit), *(["times as hours"] if hours else [])),
            doubts=_unit_doubts(parsed.values(), unit),
        )  # fmt: skip

    def _decimal(self, file: _FileCells, parsed: Mapping[str, NumberText], known: Column | None) -> str | None:
        """The decimal separator of one file's cells: what they prove, what the user says, what other columns prove."""
        found = [parsed[text] for text in file.present]
        proven = {each.decimal for each in found} - {""}
        if len(proven) == 1:
            return proven.pop()
        unclear = [text for text, each in zip(file.present, found, strict=True) if each.is_ambiguous]
        if not unclear:
            return "both" if proven else None
        stored = known.decimal if known is not None and known.decimal in DECIMALS else None
        decimal = "." if file.is_typed else self.reader.files.decimal or file.table.decimal or stored
        if decimal is None:
            point, comma, _ = parsed[unclear[0]]
            mark = "." if "." in unclear[0] else ","
            raise self._bad(
                set(unclear).__contains__, f"it can be {point:g} or {comma:g}",
                f"set decimal = {mark!r} or thousands = {mark!r} (data.decimal and data.thousands in a spec)", file,
            )  # fmt: skip
        return decimal

    def _number_notes(self, decimals: Sequence[str | None], unit: str | None) -> Iterable[str]:
        """What is unusual in the files' ways of writing numbers."""
        words: dict[str, list[str]] = {}
        for file, decimal in zip(self.files, decimals, strict=True):
            other = "," if decimal == "." else "."
            if decimal == "," and any("," in text for text in file.present):
                words.setdefault("decimal comma", []).append(file.table.short_name)
            if decimal in DECIMALS and not file.is_typed and any(other in text for text in file.present):
                words.setdefault(f"thousands separated by {other!r}", []).append(file.table.short_name)
        for word, names in words.items():
            yield word if len(names) == len(self.files) else f"{word} in {', '.join(names)}"
        if unit is not None:
            yield f"unit {unit}"

    def _as_dates(self, known: Column | None) -> ColumnValues | None:
        known_format = None if known is None else known.format
        found = [read_dates(file.present, known_format, file.table.texts) for file in self.files]
        failed = {
            text
            for file, dates in zip(self.files, found, strict=True)
            for text, day in zip(file.present, dates.days, strict=True)
            if math.isnan(day)
        }
        if known is None and not self._is_mostly(failed):
            return None
        formats = [each for dates in found for each in dates.formats]
        if failed:
            example = datetime(2026, 1, 31).strftime((formats or ["%Y-%m-%d"])[0])
            raise self._bad(failed.__contains__, f"the column has dates such as {example}")
        return ColumnValues(
            "date", values=np.concatenate([f.by_row(dates.days) for f, dates in zip(self.files, found, strict=True)]),
            format=join_formats(formats),
            notes=(f"written as {', '.join(sorted(set(formats)))}",) if formats else (),
            doubts=tuple(dict.fromkeys(doubt for dates in found for doubt in dates.doubts)),
        )  # fmt: skip

    def _is_mostly(self, failed: Iterable[str]) -> bool:
        """Whether nearly all rows are left without the texts that failed."""
        failed = set(failed)
        bad = sum(
            int(file.counts[~file.missing][[text in failed for text in file.present]].sum()) for file in self.files
        )
        return bad <= (1 - _MOSTLY) * self.rows

    def _join(self, function: Callable[[str], float]) -> np.ndarray:
        """The values of all rows, from a function of their texts."""
        return np.concatenate([file.by_row(map(function, file.present)) for file in self.files])

    def _bad(
        self, is_bad: Callable[[str], bool], rule: str, remedy: str | None = None, of: _FileCells | None = None
    ) -> BadCells:
        """The error about the rows whose texts are bad."""
        files = [f.by_row(is_bad(text) and of in (None, f) for text in f.present) for f in self.files]
        texts = [text for file in self.files for text in np.array([*file.texts, ""], object)[file.codes]]
        rows = np.flatnonzero(np.concatenate(files) == 1)
        return BadCells(self.reader, self.name, {int(row): texts[row] for row in rows}, rule, remedy)


def _has_compact_dates(file: _FileCells) -> bool:
    """Whether all whole numbers of a file are dates such as 20260131, and some are."""
    digits = [text for text in file.present if text.isdecimal()]
    return bool(digits) and all(map(is_compact_date, digits))


def _parse_numbers(texts: Sequence[str]) -> dict[str, NumberText]:
    """`parse_number` of each text, and 1 and 0 for true and false; plain numbers are read together, which is faster."""
    array = pa.array(texts, pa.string())
    is_plain = pc.match_substring_regex(array, r"^[+-]?[0-9]+([.,][0-9]+)?$")
    plain = array.filter(is_plain)
    thousands = pc.match_substring_regex(plain, r"^[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}$")
    values = pc.replace_substring(plain, ",", ".").cast(pa.float64())
    others = pc.if_else(thousands, pc.round(pc.multiply(values, 1000.0)), math.nan)  # NaN: it has no other reading
    others = pc.if_else(pc.match_substring_regex(plain, "[.,]"), others, values).to_pylist()
    found = {
        text: NumberText(other, value) if "," in text else NumberText(value, other)
        for text, value, other in zip(plain.to_pylist(), values.to_pylist(), others, strict=True)
    }
    for text in array.filter(pc.invert(is_plain)).to_pylist():
        found[text] = _TRUE_FALSE.get(text.casefold()) or parse_number(text)
    return found


def _unit_doubts(numbers: Iterable[NumberText], unit: str | None) -> tuple[str, ...]:
    """A sentence if the numbers without the unit may have another one: they are far from the others."""
    with_unit = [_choose(each, None) for each in numbers if each.unit]
    bare = [_choose(each, None) for each in numbers if not each.unit]
    if not with_unit or not bare:
        return ()
    if unit == "%" and max(map(abs, bare)) <= 1 < max(map(abs, with_unit)):
        return (
            f"has cells with % beside shares without it, such as {bare[-1]:g}, and reads both as percent: write them "
            "alike",
        )
    (low, high), (first, last) = ((min(part), max(part)) for part in (with_unit, bare))
    if min(len(with_unit), len(bare)) < _FEW or max(first - high, low - last) <= max(high - low, last - first) / 2:
        return ()
    return (
        f"has {low:g} to {high:g} in {unit} and {first:g} to {last:g} without a unit, and reads all as {unit}: if "
        "these have another one, convert them",
    )


def _choose(number: NumberText, decimal: str | None) -> float:
    """The reading of a text: the only one, else that of its file."""
    if math.isnan(number.point):
        return number.comma
    return number.comma if decimal == "," and not math.isnan(number.comma) else number.point
