"""Work on the columns of a table, a few at a time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

_MOST = 4  # each thread has a column in memory

Result = TypeVar("Result")


def map_columns(function: Callable[..., Result], *columns: Iterable[Any]) -> list[Result]:
    """`list(map(function, *columns))` on as many threads as Arrow uses, at most 4.

    numpy and Arrow release Python's lock while they compute.
    """
    with ThreadPoolExecutor(min(_MOST, pa.cpu_count())) as pool:
        return list(pool.map(function, *columns))
