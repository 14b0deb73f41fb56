"""The errors that are the user's to mend."""


class InputError(ValueError):
    """Bad input from a person: one sentence with the thing, its value and the remedy.

    The command line prints it and exits with code 2.
    """


class Diverged(InputError):
    """A method whose model is no longer finite; what trains many of them goes on without it."""

    def __init__(self, sentence: str, *, method: str) -> None:
        super().__init__(sentence)
        self.method = method
