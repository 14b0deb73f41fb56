"""Keyed random numbers: every draw is a pure function of (seed, round, client, purpose).

A key is a 64-bit hash of those four. A stream is the SplitMix64 finaliser applied to `key + i * golden`, in torch
integer arithmetic, so the integers are the same on every device, in any order of work and for any set of methods.
Nothing reads or advances a global generator; code that uses one runs inside `seeded_global_rng`.
"""

import contextlib
import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedtilt.devices import upload
from fedtilt.locks import one_thread_at_a_time

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def key(seed: int, purpose: str, *, round: int = 0, client: int = 0) -> int:
    """The 64-bit key of one stream of random numbers.

    >>> key(0, "order", round=3, client=7) == key(0, "order", round=3, client=7)
    True
    >>> key(0, "order", round=3, client=7) == key(0, "order", round=7, client=3)
    False
    """
    text = f"{int(seed)}/{int(round)}/{int(client)}/{purpose}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def to_signed(value: int) -> int:
    """The same 64 bits as a signed integer, which torch's wrapping arithmetic needs."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >= 1 << 63 else value


Bits = TypeVar("Bits", int, Tensor)  # 64, signed


def _shift_right(bits: Bits, by: int) -> Bits:
    """A logical right shift (torch's is arithmetic)."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


Key = int | Tensor  # of a stream or, by row of the result, of several


def as_tensor(keys: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Keys as one tensor, int64."""
    return upload(torch.tensor([to_signed(key) for key in keys], dtype=torch.int64), device)


def bits(key: Key, shape: Sequence[int], device: torch.device | str = "cpu", rows: Tensor | None = None) -> Tensor:
    """Random 64-bit integers, as int64; their values do not depend on the device.

    With keys of several streams, each is that of a row of the result. Row i is row rows[i] of its stream, by default i.
    """
    width = math.prod(shape[1:])
    if rows is None:
        counters = torch.arange(1, shape[0] * width + 1, dtype=torch.int64, device=device)
    else:
        counters = rows[:, None] * width + torch.arange(1, width + 1, dtype=torch.int64, device=device)
    stream = key.reshape(-1, *[1] * (len(shape) - 1)) if isinstance(key, Tensor) else to_signed(key)
    return mix(counters.reshape(*shape) * to_signed(_GOLDEN) + stream)


def mix(z: Bits) -> Bits:
    """The finaliser of SplitMix64: integers that look random, from any that differ."""
    z = _wrap(z)
    z = _wrap((z ^ _shift_right(z, 30)) * to_signed(_MIX_1))
    z = _wrap((z ^ _shift_right(z, 27)) * to_signed(_MIX_2))
    return z ^ _shift_right(z, 31)


def _wrap(z: Bits) -> Bits:
    return to_signed(z) if isinstance(z, int) else z  # torch's arithmetic wraps


def uniform(key: Key, shape: Sequence[int], device: torch.device | str = "cpu", rows: Tensor | None = None) -> Tensor:
    """Uniform float32 numbers in [0, 1): multiples of 2^-24, exact on every device."""
    return _shift_right(bits(key, shape, device, rows), 40).float() * 2.0**-24


def normal(key: Key, shape: Sequence[int], device: torch.device | str = "cpu", rows: Tensor | None = None) -> Tensor:
    """Standard normal float32 numbers, by inversion: one integer each, so that every device uses the same integers."""
    return normal_of(bits(key, shape, device, rows))


def normal_of(bits: Tensor) -> Tensor:
    """A standard normal float32 number from every random 64-bit integer."""
    probability = (_shift_right(bits, 11).double() + 0.5) * 2.0**-53
    return torch.special.ndtri(probability.clamp(max=1 - 2.0**-53)).float()  # the last of 2^53 would round to 1


def integers(
    key: Key, shape: Sequence[int], high: int | Tensor, device: torch.device | str = "cpu", rows: Tensor | None = None
) -> Tensor:
    """Integers in [0, high), as int64 (the bias of the modulus is below high / 2^63)."""
    return _shift_right(bits(key, shape, device, rows), 1) % high


def permutations(key: int, count: int, size: int, device: torch.device | str = "cpu") -> Tensor:
    """`count` independent permutations of range(size), shape (count, size).

    >>> permutations(key(0, "order"), 2, 5).sort(dim=1).values.tolist()
    [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    """
    return bits(key, (count, size), device).argsort(dim=1, stable=True)


def permutations_of_each(
    keys: Sequence[int], count: int, sizes: Sequence[int], device: torch.device | str = "cpu"
) -> Tensor:
    """`permutations` of several keys and sizes beside each other, shape (count, Σ sizes).

    >>> both = permutations_of_each([3, 5], 2, [4, 2])
    >>> torch.equal(both, torch.cat([permutations(3, 2, 4), permutations(5, 2, 2)], 1))
    True
    """
    if len(keys) == 1:
        return permutations(keys[0], count, sizes[0], device)
    owner, position = owners_and_positions(sizes, device)
    rows = torch.arange(count, device=device)[:, None] * upload(torch.tensor(sizes), device)[owner] + position
    values = mix((rows + 1) * to_signed(_GOLDEN) + as_tensor(keys, device)[owner])
    order = values.argsort(dim=1, stable=True)
    order = order.gather(1, owner[order].argsort(dim=1, stable=True))  # by owner, and of each by its values
    return position[order]


def owners_and_positions(sizes: Sequence[int], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Of things that lie one owner after the other, `sizes[i]` of owner i: their owner, and their number with it.

    >>> owners_and_positions([3, 2])
    (tensor([0, 0, 0, 1, 1]), tensor([0, 1, 2, 0, 1]))
    """
    counts = np.asarray(sizes, dtype=np.int64)
    owner = np.repeat(np.arange(len(counts)), counts)
    position = np.arange(len(owner)) - (counts.cumsum() - counts)[owner]
    both = upload(torch.from_numpy(np.stack([owner, position])), device)
    return both[0], both[1]


def choose(key: int, size: int, count: int) -> list[int]:
    """`count` distinct members of range(size), in ascending order.

    >>> choose(key(0, "selection"), 10, 3) == sorted(set(choose(key(0, "selection"), 10, 3)))
    True
    """
    return list(_chosen(key, size, count))


@functools.lru_cache(maxsize=4)  # the clients of a round are asked for twice: see `InProcessExecutor`
def _chosen(key: int, size: int, count: int) -> tuple[int, ...]:
    return tuple(sorted(permutations(key, 1, size)[0, :count].tolist()))


def generator(key: int) -> np.random.Generator:
    """A numpy generator for draws that need more than integers (a partition, a toy data set)."""
    return np.random.Generator(np.random.Philox(key=key))


@contextlib.contextmanager
def seeded_global_rng(key: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators inside (initial weights, dropout) and restore their state afterwards.

    >>> with seeded_global_rng(7):
    ...     first = torch.rand(2)
    >>> with seeded_global_rng(7):
    ...     assert torch.equal(torch.rand(2), first)
    """
    gpus = [device] if device is not None and device.type == "cuda" else []
    with one_thread_at_a_time(), torch.random.fork_rng(devices=gpus):
        for generator in [torch.default_generator, *(torch.cuda.default_generators[gpu.index] for gpu in gpus)]:
            generator.manual_seed(key)
        yield
