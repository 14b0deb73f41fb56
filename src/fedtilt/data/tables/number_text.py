"""Numbers as people write them: decimal points and commas, thousands separators, a unit behind the number."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

DECIMALS = (".", ",")
_MARKS = "'\u2019 \u00a0\u202f"  # between thousands, whatever the decimal separator is
_PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_GROUPED = rf"[1-9]\d{{0,2}}([,{_MARKS}])\d{{3}}(?:\1\d{{3}})*(?:\.\d*)?"
_NUMBER = re.compile(rf"[+-]?(?:{_GROUPED}|{_PLAIN})")
_SWAP = str.maketrans({".": ",", ",": "."})
_CLEAN = str.maketrans(dict.fromkeys(f",{_MARKS}", ""))
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
    text = text.replace("\u2212", "-")
    found = NumberText(_value(text), _value(text.translate(_SWAP)))
    if not found.is_number and (parts := _UNIT.fullmatch(text)):
        return NumberText(_value(parts[1]), _value(parts[1].translate(_SWAP)), parts[2])
    return found


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
