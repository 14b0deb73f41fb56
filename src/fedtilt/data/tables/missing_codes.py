"""Codes for missing cells that nobody has declared: numbers such as −999, and words such as unknown."""

import re

import numpy as np

UNKNOWN_WORDS = (
    "unknown",
    "unbekannt",
    "not known",
    "nicht bekannt",
    "k.a.",
    "k. a.",
    "keine angabe",
    "inconnu",
    "missing",
)
_CODE = re.compile(r"-9+(\.9+)?|9{3,}(\.9+)?")
_MOST_CODES = 4  # of one column
_MIN_ROWS = 3  # with a code
_MIN_OTHERS = 5  # rows with another number


def is_code(value: float) -> bool:
    """Whether a number is written as a code for missing cells: −9, −99, …, 999, 9999, …, 999.9.

    >>> is_code(-999), is_code(9999.0), is_code(99), is_code(-98)
    (True, True, False, False)
    """
    return _CODE.fullmatch(f"{value:.12g}") is not None


def find_codes(values: np.ndarray) -> tuple[float, ...]:
    """The numbers that certainly stand for missing cells: codes in several rows, far from all other numbers.

    Far is further from them than they are from each other; a code of −99 or less is also far from numbers of which none
    is negative.

    >>> find_codes(np.array([-999.0] * 3 + [1.2, 3.4, 5.0, 7.7, 9.1] + [9999.0] * 3))
    (-999.0, 9999.0)

    Args:
        values: sorted, without NaN
    """
    low, high = 0, len(values)
    codes: dict[float, int] = {}  # and their rows
    while low < high and len(codes) < _MOST_CODES and is_code(code := float(values[low])):
        codes[code] = int(np.searchsorted(values, code, "right")) - low
        low += codes[code]
    while low < high and len(codes) < _MOST_CODES and is_code(code := float(values[high - 1])):
        codes[code] = high - int(np.searchsorted(values, code, "left"))
        high -= codes[code]
    if not codes or high - low < _MIN_OTHERS or values[low] == values[high - 1]:
        return ()
    least, most = float(values[low]), float(values[high - 1])

    def is_far(code: float) -> bool:
        return max(least - code, code - most) > most - least or (code <= -99 and least >= 0)

    return tuple(sorted(code for code, rows in codes.items() if rows >= _MIN_ROWS and is_far(code)))
