"""Errors and warnings about what the user can fix."""

import re
from collections.abc import Sequence

# what moves the cursor, changes the direction of writing, starts a line, or cannot be encoded
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text in one line, with control characters as escapes, so that a name cannot control a terminal.

    >>> print(printable("north\nward \x1b[31m"))
    north\nward \x1b[31m
    """
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    """An escape of Python; from DEL on one of JSON and TOML too, whose own escapes have the characters below."""
    return repr(match[0])[1:-1] if match[0] < "\x7f" else f"\\u{ord(match[0]):04x}"


class InputError(ValueError):
    """Bad input: one sentence that names the thing, its value and the remedy.

    The command line prints it and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class NoEffect(InputError):
    """A setting without effect beside the others."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key  # its name


class InputWarning(UserWarning):
    """What a careful colleague would say about data or a model: one sentence with what was found and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Diverged(InputError):
    """Methods whose models are no longer finite; a search over many methods can continue without them."""

    def __init__(self, message: str, *, methods: Sequence[str]) -> None:
        super().__init__(message)
        self.methods = tuple(methods)
