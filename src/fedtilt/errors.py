"""The errors that are the user's to mend."""

from collections.abc import Sequence


class InputError(ValueError):
    """Bad input from a person: one sentence with the thing, its value and the remedy.

    The command line prints it and exits with code 2.
    """


class Diverged(InputError):
    """Methods whose models are no longer finite; what trains many of them goes on without these."""

    def __init__(self, sentence: str, *, methods: Sequence[str]) -> None:
        super().__init__(sentence)
        self.methods = tuple(methods)
