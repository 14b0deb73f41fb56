"""Work on the columns of a table, a few at a time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

_MOST_THREADS = 4
_MOST_NUMBERS = 1 << 22  # that a thread has in memory, unless one column is longer

Result = TypeVar("Result")


def map_columns(function: Callable[..., Result], *columns: Iterable[Any]) -> list[Result]:
    """`list(map(function, *columns))` on as many threads as Arrow uses, at most 4.

    numpy and Arrow release Python's lock while they compute.
    """
    with ThreadPoolExecutor(min(_MOST_THREADS, pa.cpu_count())) as pool:
        return list(pool.map(function, *columns))


def columns_at_once(most: int, rows: int) -> int:
    """How many columns a thread works on at once: up to `most`, and of a large table one.

    >>> columns_at_once(14, rows=150_000), columns_at_once(14, rows=10_000_000)
    (14, 1)
    """
    return max(1, min(most, _MOST_NUMBERS // rows))
