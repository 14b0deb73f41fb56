"""Numbers as people pass them, be they Python's, NumPy's or a tensor's: made plain, or refused in one sentence."""

import math
from numbers import Integral, Real

from fedtilt.errors import InputError


def number(value: object, what: str) -> float:
    """Any real number or ±inf as a float; a bool, NaN or anything else is refused.

    >>> number(3, "q")
    3.0
    >>> number("3", "q")
    Traceback (most recent call last):
    fedtilt.errors.InputError: q must be a number, got '3'
    """
    plain = _plain(value)
    if isinstance(plain, Real) and not isinstance(plain, bool):
        try:
            found = float(plain)
        except OverflowError:  # an int beyond the largest float
            found = math.nan
        if not math.isnan(found):
            return found
    raise InputError(f"{what} must be a number, got {_shown(value)}")


def whole(value: object, what: str, least: int | None = None) -> int:
    """Any integer, of at least `least`, as an int; a bool, a float or anything else is refused.

    >>> whole(3, "rounds", 1)
    3
    >>> whole(0, "rounds", 1)
    Traceback (most recent call last):
    fedtilt.errors.InputError: rounds must be a whole number ≥ 1, got 0
    """
    plain = _plain(value)
    if isinstance(plain, Integral) and not isinstance(plain, bool) and (least is None or int(plain) >= least):
        return int(plain)
    raise InputError(f"{what} must be a whole number{'' if least is None else f' ≥ {least}'}, got {_shown(value)}")


def plain_name(value: object) -> bool:
    """Whether this can name a method or a run, and so a file: no slashes, no leading dot, nothing around it.

    >>> plain_name("fedtilt tau=1"), plain_name(".hidden"), plain_name("a/b")
    (True, False, False)
    """
    if not isinstance(value, str) or not value or value != value.strip() or value.startswith("."):
        return False
    return not any(c in value for c in "/\\\0\n")


def _shown(value: object) -> str:
    """A value in one line, or its type where it would not fit."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"something of type {type(value).__name__}"


def _plain(value: object) -> object:
    """What a NumPy scalar, or an array or tensor of no dimensions, holds; everything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
