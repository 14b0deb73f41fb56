"""Names of classes and clients: their order, and the number of a client."""

import math
from collections.abc import Iterable, Sequence

from fedtilt.checks import whole
from fedtilt.errors import InputError


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort by value if all names are finite numbers, else as text: 'nan' cannot be ordered.

    >>> sort_names(["10", "9"]), sort_names(["10", "9", "nan"])
    (('9', '10'), ('10', '9', 'nan'))
    """
    texts = sorted(names)
    try:
        value = {name: float(name) for name in texts}
    except ValueError:
        return tuple(texts)
    if not all(map(math.isfinite, value.values())):
        return tuple(texts)
    return tuple(sorted(texts, key=lambda name: value[name]))


def client_number(client: int | str, names: Sequence[str]) -> int:
    """The number of a client, from its number or its name."""
    if not names:
        raise InputError(f"client {client} does not exist; there are no clients")
    number = names.index(client) if client in names else client
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if isinstance(number, str):
        raise InputError(f"client {client} does not exist; the clients are {names[0]} to {names[-1]}")
    number = whole(number, "a client's number")
    if not 0 <= number < len(names):
        raise InputError(f"client {client} does not exist; the clients are {names[0]} to {names[-1]}")
    return number
