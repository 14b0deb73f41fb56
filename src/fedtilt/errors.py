"""Errors and warnings about what the user can fix."""

from collections.abc import Sequence


class InputError(ValueError):
    """Bad input: one sentence that names the thing, its value and the remedy.

    The command line prints it and exits with code 2.
    """


class InputWarning(UserWarning):
    """What a careful colleague would say about data or a model: one sentence with what was found and what to do."""


class Diverged(InputError):
    """Methods whose models are no longer finite; a search over many methods can continue without them."""

    def __init__(self, message: str, *, methods: Sequence[str]) -> None:
        super().__init__(message)
        self.methods = tuple(methods)
