"""Work on the columns of a table, a few at a time."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

_MOST_THREADS = 4
_MOST_NUMBERS = 1 << 22  # that a thread has in memory, unless one column is longer

Result = TypeVar("Result")


def map_columns(function: Callable[..., Result], *columns: Iterable[Any]) -> list[Result]:
    """`list(map(function, *columns))` on as many threads as Arrow uses, at most 4.

    numpy and Arrow release Python's lock while they compute.
    """
    with ThreadPoolExecutor(_threads()) as pool:
        return list(pool.map(function, *columns))


def in_background(function: Callable[[Any], Result], columns: Iterable[Any]) -> list[Future[Result]]:
    """The results of `map(function, columns)`, which are computed while the caller goes on."""
    pool = ThreadPoolExecutor(max(1, _threads() - 1))  # one core is the caller's
    futures = [pool.submit(function, column) for column in columns]
    pool.shutdown(wait=False)
    return futures


def _threads() -> int:
    return min(_MOST_THREADS, pa.cpu_count())


def columns_at_once(most: int, rows: int) -> int:
    """How many columns a thread works on at once: up to `most`, and of a large table one.

    >>> columns_at_once(14, rows=150_000), columns_at_once(14, rows=10_000_000)
    (14, 1)
    """
    return max(1, min(most, _MOST_NUMBERS // rows))
