"""Names of classes and clients: their order, and the number of a client."""

import math
from collections.abc import Iterable, Sequence

from fedtilt.checks import whole
from fedtilt.errors import InputError

_MAX_NAMES = 10  # in a message


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
        raise InputError(f"client {client} does not exist; {_known_clients(names)}")
    number = whole(number, "a client's number")
    if not 0 <= number < len(names):
        raise InputError(f"client {client} does not exist; {_known_clients(names)}")
    return number


def _known_clients(names: Sequence[str]) -> str:
    """The clients that exist: a range of numbers, or names.

    >>> _known_clients(["0", "1", "2"]), _known_clients(["Zürich Süd", "south"])
    ('the clients are 0 to 2', 'the clients are Zürich Süd, south')
    """
    if list(names) == [str(number) for number in range(len(names))]:
        return f"the clients are 0 to {len(names) - 1}"
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"the clients are {', '.join(names[:_MAX_NAMES])}{more}"
