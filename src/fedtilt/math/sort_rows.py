"""Sort every column of the clients' models, (C, columns): what the trimmed mean spends its time on."""

import ctypes
import functools
import os
from pathlib import Path

import torch
from torch import Tensor

from fedtilt.compiler import LibraryUnavailable, compile_library

_LANES = 16  # the most in sort_rows.c


def sort_rows(block: Tensor, cut: int = 0) -> Tensor:
    """The values of every column in ascending order without the first and last `cut`, (C − 2 · cut, columns).

    With a C compiler, float32 on a CPU is sorted several columns at a time, some thirty times as fast as by
    `Tensor.sort`; the values are the same.

    >>> sort_rows(torch.tensor([[3, 1], [2, 5], [1, 4]])).tolist()
    [[1, 1], [2, 4], [3, 5]]
    """
    fits = block.device.type == "cpu" and block.dtype == torch.float32 and block.stride(1) == 1
    library = _load_library() if fits and os.environ.get("FEDTILT_NATIVE") != "0" else None
    if library is None:
        return block.sort(dim=0).values[cut : len(block) - cut]
    out = block.new_empty(len(block) - 2 * cut, block.shape[1])
    pairs, buffer = _comparators(len(block)), torch.empty(len(block), _LANES)
    library.fedtilt_sort_rows(
        len(block), block.shape[1], block.data_ptr(), block.stride(0), out.data_ptr(), out.stride(0), cut,
        pairs.data_ptr(), len(pairs), buffer.data_ptr(),
    )  # fmt: skip
    return out


@functools.cache
def _load_library() -> ctypes.CDLL | None:
    try:
        library = compile_library(Path(__file__).with_suffix(".c")).library
    except LibraryUnavailable:
        return None
    long, pointer = ctypes.c_long, ctypes.c_void_p
    library.fedtilt_sort_rows.argtypes = [long, long, pointer, long, pointer, long, long, pointer, long, pointer]
    library.fedtilt_sort_rows.restype = None
    return library


@functools.cache
def _comparators(count: int) -> Tensor:
    """The pairs of rows that are put in order one after the other, (pairs, 2).

    Batcher's merge exchange: Knuth, The Art of Computer Programming, volume 3, Algorithm 5.2.2 M.
    """
    pairs = []
    top = 1 << max(0, (count - 1).bit_length() - 1)
    p = top if count > 1 else 0
    while p:
        q, r, distance = top, 0, p
        while True:
            pairs += [(i, i + distance) for i in range(count - distance) if i & p == r]
            if q == p:
                break
            distance, q, r = q - p, q // 2, p
        p //= 2
    return torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2)
