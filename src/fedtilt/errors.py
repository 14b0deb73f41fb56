"""The one error that is the user's to mend."""


class InputError(ValueError):
    """Bad input from a person: one sentence with the thing, its value and the remedy.

    The command line prints it and exits with code 2.
    """
