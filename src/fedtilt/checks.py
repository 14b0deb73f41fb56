"""Check numbers, names and nested values; numbers from Python, NumPy or PyTorch become plain ones."""

import math
from numbers import Integral, Real

from fedtilt.errors import InputError, printable

_MAX_LEVELS = 50  # of lists in lists, and tables in tables
_MAX_NAME = 200  # bytes, so that a file can have the name


def number(value: object, what: str) -> float:
    """Any real number or ±inf as a float; a bool, NaN or anything else raises.

    >>> number(3, "q")
    3.0
    >>> number("3", "q")
    Traceback (most recent call last):
    fedtilt.errors.InputError: q must be a number, got '3'
    """
    scalar = to_python(value)
    if isinstance(scalar, Real) and not isinstance(scalar, bool):
        try:
            result = float(scalar)
        except OverflowError:  # an int beyond the largest float
            result = math.nan
        if not math.isnan(result):
            return result
    raise InputError(f"{what} must be a number, got {_format(value)}")


def probability(value: object, what: str, example: float) -> float:
    """A number between 0 and 1, both excluded.

    >>> probability(95, "confidence", 0.95)
    Traceback (most recent call last):
    fedtilt.errors.InputError: confidence = 95 is not between 0 and 1; choose 0.95, for example
    """
    found = number(value, what)
    if not 0 < found < 1:
        raise InputError(f"{what} = {found:g} is not between 0 and 1; choose {example:g}, for example")
    return found


def whole(value: object, what: str, least: int | None = None) -> int:
    """Any integer, of at least `least`, as an int; a bool, a float or anything else raises.

    >>> whole(3, "rounds", 1)
    3
    >>> whole(0, "rounds", 1)
    Traceback (most recent call last):
    fedtilt.errors.InputError: rounds must be a whole number ≥ 1, got 0
    """
    scalar = to_python(value)
    if isinstance(scalar, Integral) and not isinstance(scalar, bool) and (least is None or int(scalar) >= least):
        return int(scalar)
    raise InputError(f"{what} must be a whole number{'' if least is None else f' ≥ {least}'}, got {_format(value)}")


def is_plain_name(value: object) -> bool:
    """Whether this can name a method or a run, and so a file.

    It is short, without slashes, control characters, a leading dot, and spaces at either end.

    >>> is_plain_name("fedtilt tau=1"), is_plain_name(".hidden"), is_plain_name("a/b")
    (True, False, False)
    """
    if not isinstance(value, str) or not value or value != value.strip() or value.startswith("."):
        return False
    return value == printable(value) and not set(value) & set("/\\") and len(value.encode()) <= _MAX_NAME


def is_nested_too_deeply(value: object) -> bool:
    """Whether there are more levels of lists and tables than any file needs; deeper values exceed Python's stack.

    >>> is_nested_too_deeply([[1, {"a": []}]])
    False
    """
    level = [value]
    for _ in range(_MAX_LEVELS):
        lists = [part for part in level if isinstance(part, list)]
        tables = [part.values() for part in level if isinstance(part, dict)]
        level = [inner for part in (*lists, *tables) for inner in part]
    return bool(level)


def _format(value: object) -> str:
    """The value in one line, or its type if it is too long."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"something of type {type(value).__name__}"


def to_python(value: object) -> object:
    """The item of a NumPy scalar or of an array or tensor without dimensions; everything else unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
