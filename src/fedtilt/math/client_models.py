"""The models of a round's clients, (C, P): checks, combinations, distances and the Gram matrix.

All passes go over column chunks, so the working set does not grow with the model.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.math import gram_solvers
from fedtilt.math.distances import Distance

_CHUNK_BYTES = 16 * 2**20
_FAR_RATIO = 1e4  # of squared distances; above it more than four of 16 digits cancel


def client_weights(models: Tensor, weights: Tensor | None) -> Tensor:
    """The clients' weights (C,) in float64, normalised to sum 1; models and weights are checked."""
    if not isinstance(models, Tensor):
        kind = type(models).__name__
        raise InputError(f"models must be a tensor (clients, parameters), got a {kind}; use torch.stack")
    if models.dim() != 2 or 0 in models.shape or not models.is_floating_point():
        raise InputError(
            f"models must be a floating-point tensor (clients, parameters), got {models.dtype} of shape "
            f"{tuple(models.shape)}"
        )
    for client in (~models.sum(1).isfinite()).nonzero()[:, 0].tolist():  # a sum may also overflow: check the values
        if not models[client].isfinite().all():
            raise InputError(f"the model of client {client} is not finite; exclude it before aggregating")
    count = len(models)
    if weights is None:
        return torch.full((count,), 1 / count, dtype=torch.float64, device=models.device)
    u = weights.to(models.device, torch.float64)
    if u.shape != (count,) or not u.isfinite().all() or (u < 0).any() or u.sum() <= 0:
        raise InputError(f"weights must be {count} numbers ≥ 0, not all 0, got {weights.tolist()}")
    return u / u.sum()


def check_start(start: Tensor | None, models: Tensor) -> None:
    """Refuse a start of another shape, or one that is not finite."""
    if start is not None and start.shape != models.shape[1:]:
        raise InputError(f"start must have shape {tuple(models.shape[1:])}, got {tuple(start.shape)}")
    if start is not None and not start.isfinite().all():
        raise InputError("start is not finite; pass the model that the clients received")


def check_share(value: float, name: str) -> None:
    """Refuse a share of bad clients that is not less than half."""
    if not 0 <= value < 0.5:
        raise InputError(f"{name} must be in [0, 0.5), got {value}")


def column_chunks(models: Tensor) -> Iterator[slice]:
    """Slices of columns, small enough that a float64 copy of them for all clients stays in the cache."""
    width = max(256, _CHUNK_BYTES // (8 * len(models)))
    for left in range(0, models.shape[1], width):
        yield slice(left, left + width)


def gram(models: Tensor) -> Tensor:
    """The Gram matrix (C, C) around one client, in float64, on the CPU.

    The differences to one client are taken first: in products of the models themselves, digits would cancel where
    clients agree. If that client is so far from the others that digits cancel again, the central one is used instead.
    """
    matrix = gram_around(models, 0)
    centre = better_centre(matrix)
    return matrix if centre is None else gram_around(models, centre)


def better_centre(matrix: Tensor) -> int | None:
    """The client to take differences to instead of the first, which is far from the others; None: the first is not."""
    sq_dist = gram_solvers.pairwise_sq_distances(matrix)
    centre = gram_solvers.central_point(sq_dist)
    return centre if sq_dist[0].median() > _FAR_RATIO * sq_dist[centre].median() else None


def gram_around(models: Tensor, centre: int) -> Tensor:
    """The Gram matrix (C, C) of the differences to one client, in float64, on the CPU."""
    gram = torch.zeros(len(models), len(models), dtype=torch.float64, device=models.device)
    half = (len(models) + 1) // 2
    buffer: Tensor | None = None
    for columns in column_chunks(models):
        chunk = models[:, columns]
        buffer = torch.empty_like(chunk, dtype=torch.float64) if buffer is None else buffer[:, : chunk.shape[1]]
        buffer.copy_(chunk)
        buffer -= buffer[centre].clone()
        gram[:half, :half].addmm_(buffer[:half], buffer[:half].T)
        gram[half:].addmm_(buffer[half:], buffer.T)
    gram[:half, half:] = gram[half:, :half].T
    return gram.cpu()


def combine(models: Tensor, p: Tensor) -> Tensor:
    """Σ_n p_n · w_n, from differences to the client of largest weight, so that a common offset costs no digits."""
    base = int(p.argmax())
    p = p.to(models.device, models.dtype)
    out = models.new_empty(models.shape[1])
    for columns in column_chunks(models):
        out[columns] = models[base, columns] + p @ (models[:, columns] - models[base, columns])
    return out


def distances_to(models: Tensor, metric: Distance, centre: Tensor) -> Tensor:
    """dist(w_n, w) for every client, in float64."""
    total = torch.zeros(len(models), dtype=torch.float64, device=models.device)
    for columns in column_chunks(models):
        difference = centre[columns].double() - models[:, columns].double()  # squares overflow half and float types
        total += metric.summand(difference).sum(1)
    return metric.finish(total)
