"""The order of names, such as those of classes and clients."""

import math
from collections.abc import Iterable


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
