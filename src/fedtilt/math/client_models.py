"""The models of a round's clients, (C, P): checks, combinations, distances and the Gram matrix.

All passes go over blocks of columns, and within a block over chunks, so the working set does not grow with the model.
The grid of the blocks depends on C and P alone, and sums follow it: blocks that are computed elsewhere, such as on the
nodes of a cluster, give bit-identical results.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtilt.devices import upload
from fedtilt.errors import InputError
from fedtilt.math import gram_solvers

BLOCK_BYTES = 512 * 2**20  # of a block, all clients together
_CHUNK_BYTES = 16 * 2**20
_CUDA_CHUNK_BYTES = 512 * 2**20  # no cache to stay in, and a few large operations in place of many
_FAR_RATIO = 1e4  # of squared distances; above it more than four of 16 digits cancel


class BlockedModels(ABC):
    """Models (C, P), finite and in float32, whose blocks are in other processes, or computed when they are used.

    Rules of `map_blocks` work on them.
    """

    shape: tuple[int, int]
    device: torch.device  # of the results

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, client: int) -> Tensor:
        """The model of one client, (P,)."""

    @abstractmethod
    def map_blocks(
        self, function: Callable[..., Tensor], arguments: Sequence[Any], by_column: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """See the function `map_blocks`."""


ClientModels = Tensor | BlockedModels


def column_blocks(clients: int, parameters: int) -> list[slice]:
    """The fixed grid of blocks, each a whole number of chunks."""
    chunk = _chunk_width(clients)
    width = chunk * max(1, BLOCK_BYTES // (4 * clients * chunk))
    return [slice(left, min(left + width, parameters)) for left in range(0, parameters, width)]


def map_blocks(
    models: ClientModels, function: Callable[..., Tensor], *arguments: Any, by_column: Sequence[Tensor] = ()
) -> Iterator[Tensor]:
    """function(block (C, columns), *the same columns of `by_column`, *arguments) of every block, in order.

    Args:
        models: the clients' models, (C, P)
        function: of a module, so that other processes find it by its name
        *arguments: the same for every block
        by_column: vectors (P,)
    """
    if isinstance(models, BlockedModels):
        yield from models.map_blocks(function, arguments, by_column)
        return
    for columns in column_blocks(*models.shape):
        yield function(models[:, columns], *(vector[columns] for vector in by_column), *arguments)


def _sum(parts: Iterator[Tensor]) -> Tensor:
    total = next(parts)
    for part in parts:
        total += part
    return total


def client_weights(models: ClientModels, weights: Tensor | None) -> Tensor:
    """The clients' weights (C,) in float64, normalised to sum 1; models and weights are checked."""
    if not isinstance(models, BlockedModels):
        _check_models(models)
    count = len(models)
    if weights is None:
        return torch.full((count,), 1 / count, dtype=torch.float64, device=models.device)
    u = weights.double()
    if u.shape != (count,) or not u.isfinite().all() or (u < 0).any() or u.sum() <= 0:
        raise InputError(f"weights must be {count} numbers ≥ 0, not all 0, got {weights.tolist()}")
    return upload(u / u.sum(), models.device)


_skips_finite_check: ContextVar[bool] = ContextVar("_skips_finite_check", default=False)


@contextlib.contextmanager
def without_finite_check() -> Iterator[None]:
    """Take models and starts as they are: the caller looks at all of them, and another look would wait for a GPU."""
    token = _skips_finite_check.set(True)
    try:
        yield
    finally:
        _skips_finite_check.reset(token)


def _check_models(models: Tensor) -> None:
    if not isinstance(models, Tensor):
        kind = type(models).__name__
        raise InputError(f"models must be a tensor (clients, parameters), got a {kind}; use torch.stack")
    if models.dim() != 2 or 0 in models.shape or not models.is_floating_point():
        raise InputError(
            f"models must be a floating-point tensor (clients, parameters), got {models.dtype} of shape "
            f"{tuple(models.shape)}"
        )
    if _skips_finite_check.get():
        return
    for client, is_finite in enumerate(models.sum(1).isfinite().tolist()):
        if not is_finite and not models[client].isfinite().all():  # a sum may also overflow
            raise InputError(f"the model of client {client} is not finite; exclude it before aggregating")


def check_start(start: Tensor | None, models: ClientModels) -> None:
    """Raise InputError if the start has another shape, or is not finite."""
    if start is not None and start.shape != models.shape[1:]:
        raise InputError(f"start must have shape {tuple(models.shape[1:])}, got {tuple(start.shape)}")
    if start is not None and not _skips_finite_check.get() and not start.isfinite().all():
        raise InputError("start is not finite; pass the model that the clients received")


def check_share(value: float, name: str) -> None:
    """Raise InputError unless the share of bad clients is less than half."""
    if not 0 <= value < 0.5:
        raise InputError(f"{name} must be in [0, 0.5), got {value}")


def _chunk_width(clients: int, chunk_bytes: int | None = None) -> int:
    return max(256, (chunk_bytes or _CHUNK_BYTES) // (8 * clients))


def column_chunks(models: Tensor, chunk_bytes: int | None = None) -> Iterator[slice]:
    """Slices of columns, small enough that a float64 copy of them for all clients stays in the cache."""
    if models.is_cuda and chunk_bytes is None:
        chunk_bytes = _CUDA_CHUNK_BYTES
    width = _chunk_width(len(models), chunk_bytes)
    for left in range(0, models.shape[1], width):
        yield slice(left, left + width)


def gram(models: ClientModels) -> Tensor:
    """The Gram matrix (C, C) around one client, in float64, on the CPU.

    The differences to one client are taken first: in products of the models themselves, digits would cancel where
    clients agree. If that client is so far from the others that digits cancel again, the central one is used instead.
    """
    matrix = _sum(map_blocks(models, _gram_around, 0))
    sq_dist = gram_solvers.pairwise_sq_distances(matrix)
    centre = gram_solvers.central_point(sq_dist)
    if sq_dist[0].median() > _FAR_RATIO * sq_dist[centre].median():
        matrix = _sum(map_blocks(models, _gram_around, centre))
    return matrix


def _gram_around(block: Tensor, centre: int) -> Tensor:
    """The Gram matrix (C, C) of the differences to one client, in float64, on the CPU."""
    gram = torch.zeros(len(block), len(block), dtype=torch.float64, device=block.device)
    half = (len(block) + 1) // 2
    buffer: Tensor | None = None
    for columns in column_chunks(block):
        chunk = block[:, columns]
        buffer = torch.empty_like(chunk, dtype=torch.float64) if buffer is None else buffer[:, : chunk.shape[1]]
        buffer.copy_(chunk)
        buffer -= buffer[centre].clone()
        gram[:half, :half].addmm_(buffer[:half], buffer[:half].T)
        gram[half:].addmm_(buffer[half:], buffer.T)
    gram[:half, half:] = gram[half:, :half].T
    return gram.cpu()


def combine(models: ClientModels, p: Tensor) -> Tensor:
    """Σ_n p_n · w_n, from differences to the client of largest weight, so that a common offset costs no digits."""
    return torch.cat(list(map_blocks(models, _combine, p)))


def _combine(block: Tensor, p: Tensor) -> Tensor:
    base = block.index_select(0, p.argmax()[None].to(block.device))[0]  # its number stays on the device
    p = p.to(block.device, block.dtype)
    out = block.new_empty(block.shape[1])
    for columns in column_chunks(block):
        out[columns] = base[columns] + p @ (block[:, columns] - base[columns])
    return out


class Distance(NamedTuple):
    """A distance in parts, so that it can be summed over column chunks: finish(Σ_i summand(w_i − w_n,i)).

    Its gradient by w is factor(distance) · direction(w − w_n).
    """

    summand: Callable[..., Tensor]  # with `out`
    finish: Callable[[Tensor], Tensor]
    direction: Callable[[Tensor], Tensor]
    factor: Callable[[Tensor], Tensor]


DISTANCES = {
    "squared_l2": Distance(torch.square, lambda s: s, lambda diff: diff, lambda d: torch.full_like(d, 2.0)),
    # at a client's model 0 is a subgradient of the norm, and diff is 0 there: any finite factor is right
    "l2": Distance(torch.square, torch.sqrt, lambda diff: diff, lambda d: 1 / torch.where(d > 0, d, 1.0)),
    "l1": Distance(torch.abs, lambda s: s, torch.sign, torch.ones_like),
}


def get_distance(distance: str) -> Distance:
    """The distance of this name; an unknown name raises an error that lists the known ones."""
    if distance not in DISTANCES:
        raise InputError(f"unknown distance {distance!r}; choose one of {', '.join(DISTANCES)}")
    return DISTANCES[distance]


def distances_to(models: ClientModels, metric: Distance, centre: Tensor) -> Tensor:
    """dist(w_n, w) for every client, in float64."""
    return metric.finish(_sum(map_blocks(models, _summands, metric.summand, by_column=[centre])))


def _summands(block: Tensor, centre: Tensor, summand: Callable[..., Tensor]) -> Tensor:
    total = torch.zeros(len(block), dtype=torch.float64, device=block.device)
    buffer = torch.empty(0)
    for columns in column_chunks(block):
        chunk = block[:, columns]
        if buffer.shape != chunk.shape:  # one for all chunks but the last: new memory takes as long as the work
            buffer = torch.empty_like(chunk, dtype=torch.float64)  # squares overflow half and float types
        torch.sub(centre[columns].double(), chunk, out=buffer)
        total += summand(buffer, out=buffer).sum(1)
    return total
