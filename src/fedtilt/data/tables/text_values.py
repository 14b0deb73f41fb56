"""Cells as people write them: numbers, dates, yes and no, and what stands for a missing cell."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple

import numpy as np

DECIMALS = (".", ",")
_MARKS = "'\u2019 \u00a0\u202f"  # between thousands, whatever the decimal separator is
_PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_GROUPED = rf"[1-9]\d{{0,2}}([,{_MARKS}])\d{{3}}(?:\1\d{{3}})*(?:\.\d*)?"
_NUMBER = re.compile(rf"[+-]?(?:{_GROUPED}|{_PLAIN})")
_SWAP = str.maketrans({".": ",", ",": "."})
_CLEAN = str.maketrans(dict.fromkeys(f",{_MARKS}", ""))
_CURRENCY = re.compile(rf"([+-]?)([€$£¥]|EUR|USD|GBP|CHF)\s*([+-]?[\d.,{_MARKS}]*\d)")
SCALES = ("k", "tsd", "tsd.", "thousand", "mio", "mio.", "mln", "million", "mrd", "mrd.", "bn", "billion")
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_CODE_TEXT = re.compile(r"0\d{2,}|[+-]?\d{16,}")
_UNIT = re.compile(rf"([+-]?[\d.,{_MARKS}]*\d)\s*((?:[^\W\d_]|[%‰°€$£])\S{{0,11}})")


class NumberText(NamedTuple):
    """A text as a number: what it is if a point is the decimal separator, and if a comma is; NaN: it is none."""

    point: float
    comma: float
    unit: str = ""

    @property
    def is_number(self) -> bool:
        """Whether the text can be a number."""
        return not (math.isnan(self.point) and math.isnan(self.comma))

    @property
    def decimal(self) -> str:
        """The decimal separator that this text proves; empty: it can be read both ways."""
        if math.isnan(self.point) == math.isnan(self.comma):
            return ""
        return "," if math.isnan(self.point) else "."

    @property
    def is_ambiguous(self) -> bool:
        """Whether the two readings are different numbers."""
        return self.point != self.comma and not math.isnan(self.point) and not math.isnan(self.comma)


def parse_number(text: str) -> NumberText:
    """Both readings of a text, and its unit.

    >>> parse_number("15.300"), parse_number("1.234,5").comma, parse_number("12,5 mg/dl").unit
    (NumberText(point=15.3, comma=15300.0, unit=''), 1234.5, 'mg/dl')
    >>> parse_number("0.300").decimal, parse_number("1.234.567").decimal, parse_number("950").decimal
    ('.', ',', '')
    """
    text = text.replace("\u2212", "-").replace("\u2013", "-")
    found = NumberText(_value(text), _value(text.translate(_SWAP)))
    if not found.is_number and (parts := _UNIT.fullmatch(text)):
        return NumberText(_value(parts[1]), _value(parts[1].translate(_SWAP)), parts[2])
    if not found.is_number and (parts := _CURRENCY.fullmatch(text)):
        number = parts[1] + parts[3]
        return NumberText(_value(number), _value(number.translate(_SWAP)), parts[2])
    return found


def to_hours(text: str) -> float:
    """A time of day as hours; NaN if it is none.

    >>> to_hours("8:30"), to_hours("23:15:36"), to_hours("24:10")
    (8.5, 23.26, nan)
    """
    parts = _TIME.fullmatch(text)
    return math.nan if parts is None else int(parts[1]) + int(parts[2]) / 60 + int(parts[3] or 0) / 3600


def written_cells(cells: Sequence[object]) -> list[str | None]:
    """Cells of several types as text, in which a fraction that is a number says nothing about the marks in text.

    >>> written_cells([2.234, "1.200,5", None, 950.0]), written_cells([2.5, "n/a"])
    (['2234e-3', '1.200,5', None, '950'], ['2.5', 'n/a'])
    """
    has_numbers = any(isinstance(cell, str) and parse_number(cell.strip()).is_number for cell in cells)
    return [None if cell is None else _written(cell, has_numbers) for cell in cells]


def _written(cell: object, beside_numbers: bool) -> str:
    if not isinstance(cell, float) or not math.isfinite(cell):
        return str(cell)
    if cell.is_integer():
        return str(int(cell))
    if beside_numbers:
        sign, digits, exponent = Decimal(repr(float(cell))).as_tuple()
        return f"{'-' * sign}{''.join(map(str, digits))}e{exponent}"
    text = str(float(cell))
    return f"{text}0" if parse_number(text).is_ambiguous else text


def is_code_text(text: str) -> bool:
    """Whether digits are a name: with zeros in front, or more of them than a float64 has.

    >>> is_code_text("00123"), is_code_text("07"), is_code_text("0.5"), is_code_text("1234567890123456")
    (True, False, False, True)
    """
    return _CODE_TEXT.fullmatch(text) is not None


def _value(text: str) -> float:
    """A number with a decimal point, and commas, blanks or apostrophes between thousands; NaN if it is not one."""
    return float(text.translate(_CLEAN)) if _NUMBER.fullmatch(text) else math.nan


def proven_decimals(texts: Iterable[str]) -> set[str]:
    """The decimal separators that a column's texts prove.

    >>> proven_decimals(["950", "1.200"]), proven_decimals(["950", "12.5"])
    (set(), {'.'})
    """
    return {parse_number(text).decimal for text in texts} - {""}


def common_decimal(decimals: Iterable[str | None]) -> str | None:
    """The decimal separator of several files: "both" if they differ; None: none has one.

    >>> common_decimal([".", None]), common_decimal([".", ","]), common_decimal([None])
    ('.', 'both', None)
    """
    found = {decimal for decimal in decimals if decimal}
    return "both" if len(found) > 1 else next(iter(found), None)


def to_number(text: str) -> float:
    """A text as a number; NaN if it is not one.

    >>> to_number("2.5"), to_number("True"), to_number("often"), to_number("1_000")
    (2.5, 1.0, nan, nan)
    """
    try:
        return float(text) if "_" not in text else math.nan
    except ValueError:
        return {"true": 1.0, "false": 0.0}.get(text.strip().casefold(), math.nan)


DAY = 86_400  # seconds
BETWEEN = "|"  # formats of a column whose dates are written in several ways
ISO_DATE = "%Y-%m-%d"  # with or without a time
COMPACT_DATE = "%Y%m%d"
_TURN = 30  # of years with two digits, these and later ones are of the 20th century, as in spreadsheets
_ISO = (ISO_DATE, "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_MONTH_FIRST = {  # mark → formats
    "/": tuple(day + time for day in ("%m/%d/%Y", "%m/%d/%y") for time in _TIMES),
    "-": tuple("%m-%d-%Y" + time for time in _TIMES),
}
_DAY_FIRST = {
    "/": tuple(day + time for day in ("%d/%m/%Y", "%d/%m/%y") for time in _TIMES),
    "-": tuple("%d-%m-%Y" + time for time in _TIMES),
}
_FORMATS = (
    *_ISO, "%Y/%m/%d", "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S", "%Y.%m.%d",
    "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%y", *_MONTH_FIRST["/"], *_DAY_FIRST["/"],
    *_DAY_FIRST["-"], *_MONTH_FIRST["-"], "%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    COMPACT_DATE,
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLENNIUM = 10_957  # 1 January 2000, in days since 1970


class DateTexts(NamedTuple):
    """The texts of one file's column as dates."""

    days: np.ndarray  # since 1970; NaN: it is no date
    formats: tuple[str, ...]  # those in use, without ISO's
    doubts: tuple[str, ...]  # what may be wrong with them, with the remedy


def read_dates(
    texts: Sequence[str], known: str | None = None, others: Callable[[], Iterable[str]] = tuple
) -> DateTexts:
    """Each text in the first format that reads it; of month/day and day/month, in the one that reads more texts.

    Formats are those `known` and ISO's; default: the usual ones. Where the texts do not tell month and day, `others` of
    the same file may.

    >>> read_dates(["2026-01-31", "31.1.2026", "soon"]).days.tolist()
    [20484.0, 20484.0, nan]
    >>> read_dates(["03/04/2026"]).formats, read_dates(["03/04/2026"], others=lambda: ["31/1/2026"]).formats
    (('%m/%d/%Y',), ('%d/%m/%Y',))
    """
    formats, doubts = list(_FORMATS) if known is None else [*dict.fromkeys((*known.split(BETWEEN), *_ISO))], []
    for mark, month_first in _MONTH_FIRST.items():
        day_first = _DAY_FIRST[mark]
        if (lead := _days_in_front(texts, mark)) is None:  # no text is written so
            formats = [each for each in formats if each not in (*month_first, *day_first)]
            continue
        lead = lead or _days_in_front(others(), mark) or 0
        is_day = lead > 0 or (lead == 0 and mark == "-")  # month-day-year is rare
        if not ({*month_first}.isdisjoint(formats) or {*day_first}.isdisjoint(formats)):
            formats = [each for each in formats if each not in (month_first if is_day else day_first)]
        if not lead:
            first = next((each for each in formats if each in (*month_first, *day_first)), None)
            doubts.append(
                f"has dates that can be month/day or day/month; they are read as {first}: set format in the schema"
            )
    days, used = np.full(len(texts), math.nan), []
    for each in formats:
        unread = np.flatnonzero(np.isnan(days))
        if not len(unread):
            break
        days[unread] = [to_days(texts[k], each) for k in unread.tolist()]
        found = days[unread[~np.isnan(days[unread])]]
        if len(found):
            used.append(each)
        if len(found) and "%y" in each and found.min() < _MILLENNIUM <= found.max():
            doubts.append(
                "has years of two digits, which are read as 1930 to 2029; write four digits if some are others"
            )
    return DateTexts(days, tuple(each for each in used if each not in _ISO), tuple(doubts))


def join_formats(formats: Sequence[str]) -> str | None:
    """Several formats as one text, in the order in which they are tried; None: ISO's alone.

    >>> join_formats(["%d/%m/%Y", "%d.%m.%Y", "%d.%m.%Y"])
    '%d.%m.%Y|%d/%m/%Y'
    """
    order = {each: k for k, each in enumerate(_FORMATS)}
    return BETWEEN.join(sorted(set(formats), key=lambda each: (order.get(each, -1), each))) or None


def _days_in_front(texts: Iterable[str], mark: str) -> int | None:
    """How many more texts have the day in front than the month, such as 31/1/2026; None: no text is such a date."""
    found = [parts for text in texts if (parts := re.match(rf"(\d\d?){mark}(\d\d?){mark}\d\d", text))]
    return sum((int(parts[1]) > 12) - (int(parts[2]) > 12) for parts in found) if found else None


def to_days(text: str, date_format: str) -> float:
    """Days since 1970 of a date; NaN if it is not written so.

    >>> to_days("2.1.1970", "%d.%m.%Y"), to_days("1970-01-02T12:00:00.0Z", "%Y-%m-%d"), to_days("1.1.30", "%d.%m.%y")
    (1.0, 1.5, -14610.0)
    """
    try:
        found = _parse_date(text, date_format)
    except ValueError:
        return math.nan
    if "%y" in date_format and found.year >= 2000 + _TURN:
        found = found.replace(year=found.year - 100)
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH).total_seconds() / DAY


def is_compact_date(text: str) -> bool:
    """Whether digits are a date without separators.

    >>> is_compact_date("20260131"), is_compact_date("20261301"), is_compact_date("31012026")
    (True, False, False)
    """
    return text[:2] in ("18", "19", "20", "21", "29", "99") and not math.isnan(to_days(text, COMPACT_DATE))


def _parse_date(text: str, date_format: str) -> datetime:
    if date_format == ISO_DATE and text[4:5] == "-" and len(text) > 10:
        return datetime.fromisoformat(text)
    if date_format == COMPACT_DATE and (len(text) != 8 or not text.isdecimal()):
        raise ValueError  # strptime takes 2026131 too
    return datetime.strptime(text, date_format)


_YES, _NO = ("yes", "y", "ja", "j", "oui", "true", "t", "wahr"), ("no", "n", "nein", "non", "false", "f", "falsch")
_DIGITS = {"0", "1"}
YES_NO = dict.fromkeys((*_YES, "1"), 1.0) | dict.fromkeys((*_NO, "0"), 0.0)
_ONE_LANGUAGE = ({"yes", "no", "y", "n"}, {"ja", "nein", "j", "n"}, {"true", "false", "t", "f"})


def yes_no_values(texts: Iterable[str]) -> dict[str, float] | None:
    """1 for each text that is a yes, 0 for a no; None if they are not the words of a yes/no column.

    Words of several languages can be mixed; a letter counts beside another word of its language, and n and y alone; 1
    and 0 count beside a yes and a no.

    >>> yes_no_values(["Ja", "NO", "n"]), yes_no_values(["t", "n"]), yes_no_values(["f"])
    ({'Ja': 1.0, 'NO': 0.0, 'n': 0.0}, None, None)
    >>> yes_no_values(["yes", "No", "1"]), yes_no_values(["yes", "1"]), yes_no_values(["0", "1"])
    ({'yes': 1.0, 'No': 0.0, '1': 1.0}, None, None)
    """
    words: dict[str, str] = {}
    for text in texts:
        words[text] = text.casefold()
        if words[text] not in YES_NO:
            return None
    distinct = {*words.values()} - _DIGITS
    if _DIGITS & {*words} and len({YES_NO[word] for word in distinct}) < 2:
        return None
    letters = {word for word in distinct if len(word) == 1} if len(distinct) > 1 else distinct - {"y", "n"}
    alone = [x for x in letters if not any(x in family and len(family & distinct) > 1 for family in _ONE_LANGUAGE)]
    return None if any(len(word) == 1 for word in alone) else {text: YES_NO[word] for text, word in words.items()}


MISSING_WORDS = ("", "-", "--", ".", "?", "#n/a", "#na", "-nan", "<na>", "n/a", "na", "nan", "none", "null")
UNKNOWN_WORDS = (
    "unknown", "unbekannt", "not known", "nicht bekannt", "k.a.", "k. a.", "keine angabe", "inconnu", "missing",
    "n.a.", "n. a.", "not measured", "not done", "nicht gemessen", "nicht erhoben", "\u2013", "\u2014",
    "00.00.0000", "0000-00-00", "0000-00-00 00:00:00", "00000000",
    "#div/0!", "#null!", "#num!", "#ref!", "#name?", "#value!", "#nv", "#bezug!", "#wert!", "#zahl!",
)  # fmt: skip
_CODE = re.compile(r"-9+(\.9+)?|9{3,}(\.9+)?")
MAX_CODES = 4  # of one column
_MIN_ROWS = 3  # with a code
_MIN_OTHERS = 5  # rows with another number


_DATE_CODES = frozenset(
    to_days(day, ISO_DATE)
    for day in ("0001-01-01", "1753-01-01", "1800-01-01", "1899-12-30", "1899-12-31", "1900-01-01", "2099-12-31",
                "2299-12-31", "2999-12-31", "9999-01-01", "9999-12-31")
)  # fmt: skip


def is_code(value: float, kind: str = "number") -> bool:
    """Whether a number is written as a code for missing cells: −9, −99, …, 999, 9999, …, 999.9.

    Of dates, in days since 1970, whether it is one that stands for none, such as 31 December 9999.

    >>> is_code(-999), is_code(9999.0), is_code(99), is_code(-98), is_code(to_days("9999-12-31", "%Y-%m-%d"), "date")
    (True, True, False, False, True)
    """
    if kind == "date":
        return math.floor(value) in _DATE_CODES
    return _CODE.fullmatch(f"{value:.12g}") is not None


def format_value(value: float, kind: str | None) -> str:
    """A number, or a date in days since 1970, for people.

    >>> format_value(-999.0, "number"), format_value(2932896.0, "date")
    ('-999', '9999-12-31')
    """
    return str(np.datetime64(math.floor(value), "D")) if kind == "date" else f"{value:.10g}"


def find_codes(values: np.ndarray, kind: str = "number") -> tuple[float, ...]:
    """The sorted numbers that certainly stand for missing cells: codes in several rows, far from all others.

    Far is further from them than they are from each other; a code of −99 or less is also far from numbers of which none
    is negative, and that of a date is far if all others are on one side.

    >>> find_codes(np.array([-999.0] * 3 + [1.2, 3.4, 5.0, 7.7, 9.1] + [9999.0] * 3))
    (-999.0, 9999.0)
    """
    low, high = 0, len(values)
    codes: dict[float, int] = {}  # and their rows
    while low < high and len(codes) < MAX_CODES and is_code(code := float(values[low]), kind):
        codes[code] = int(np.searchsorted(values, code, "right")) - low
        low += codes[code]
    while low < high and len(codes) < MAX_CODES and is_code(code := float(values[high - 1]), kind):
        codes[code] = high - int(np.searchsorted(values, code, "left"))
        high -= codes[code]
    if not codes or high - low < _MIN_OTHERS or values[low] == values[high - 1]:
        return ()
    least, most = float(values[low]), float(values[high - 1])

    def is_far(code: float) -> bool:
        return kind == "date" or max(least - code, code - most) > most - least or (code <= -99 and least >= 0)

    return tuple(sorted(code for code, rows in codes.items() if rows >= _MIN_ROWS and is_far(code)))
