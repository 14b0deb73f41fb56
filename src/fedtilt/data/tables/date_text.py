"""Dates as people write them."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

DAY = 86_400  # seconds
BETWEEN = "|"  # formats of a column whose dates are written in several ways
_ISO = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")
_MONTH_FIRST, _DAY_FIRST = ("%m/%d/%Y", "%m/%d/%Y %H:%M"), ("%d/%m/%Y", "%d/%m/%Y %H:%M")
_FORMATS = (
    *_ISO, "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%y", *_MONTH_FIRST, *_DAY_FIRST,
    "%d-%m-%Y", "%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DateTexts(NamedTuple):
    """The texts of one file's column as dates."""

    days: np.ndarray  # since 1970; NaN: it is no date
    formats: tuple[str, ...]  # those in use, without ISO's
    is_ambiguous: bool  # whether every date can be month/day and day/month


def read_dates(texts: Sequence[str], known: str | None = None) -> DateTexts:
    """Each text in the first format that reads it; of month/day and day/month, in the one that reads more texts.

    Args:
        texts: different texts
        known: the formats to try beside ISO's; default: the usual ones

    >>> read_dates(["2026-01-31", "31.1.2026", "soon"]).days.tolist()
    [20484.0, 20484.0, nan]
    """
    formats = list(_FORMATS) if known is None else [*dict.fromkeys((*known.split(BETWEEN), *_ISO))]
    month_first, day_first = _count(texts, _MONTH_FIRST), _count(texts, _DAY_FIRST)
    if not {*_MONTH_FIRST}.isdisjoint(formats) and not {*_DAY_FIRST}.isdisjoint(formats):
        formats = [f for f in formats if f not in (_MONTH_FIRST if day_first > month_first else _DAY_FIRST)]
    days, used = np.full(len(texts), math.nan), []
    for each in formats:
        unread = np.flatnonzero(np.isnan(days))
        if not len(unread):
            break
        days[unread] = [to_days(texts[k], each) for k in unread.tolist()]
        if not np.isnan(days[unread]).all():
            used.append(each)
    ambiguous = bool(month_first) and month_first == day_first
    return DateTexts(days, tuple(each for each in used if each not in _ISO), ambiguous)


def join_formats(formats: Sequence[str]) -> str | None:
    """Several formats as one text, in the order in which they are tried; None: ISO's alone.

    >>> join_formats(["%d/%m/%Y", "%d.%m.%Y", "%d.%m.%Y"])
    '%d.%m.%Y|%d/%m/%Y'
    """
    order = {each: k for k, each in enumerate(_FORMATS)}
    return BETWEEN.join(sorted(set(formats), key=lambda each: (order.get(each, -1), each))) or None


def _count(texts: Sequence[str], formats: Sequence[str]) -> int:
    """How many texts have slashes and are dates in one of these formats."""
    return sum(any(not math.isnan(to_days(text, each)) for each in formats) for text in texts if "/" in text)


def to_days(text: str, date_format: str) -> float:
    """Days since 1970 of a date; NaN if it is not written so.

    >>> to_days("2.1.1970", "%d.%m.%Y")
    1.0
    """
    try:
        return (datetime.strptime(text, date_format).replace(tzinfo=UTC) - _EPOCH).total_seconds() / DAY
    except ValueError:
        return math.nan
