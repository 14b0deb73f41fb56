"""Steps before a robust rule, (C, P) → (C or fewer, P): clipping, nearest-neighbour mixing, bucketing.

The two that mix models are means with weights (M, C). A value of every client, such as its loss, is mixed with the same
weights, so that it belongs to the mixed model: `mix`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.math import gram_solvers
from fedtilt.math.client_models import check_share, check_start, client_weights, column_chunks, gram
from fedtilt.math.robust import bad_count, clip_factors, median

_MIXED_BYTES = 2**20  # of a chunk; with larger ones, most of the time goes into new memory


def clipping(models: Tensor, start: Tensor | None = None, radius: float | None = None) -> Tensor:
    """Every update w_n − start clipped to the length `radius`, by default the median length."""
    client_weights(models, None)
    check_start(start, models)
    origin = median(models) if start is None else start
    scale = clip_factors(models, origin, radius).to(models.dtype)[:, None]
    out = torch.empty_like(models)
    for columns in column_chunks(models):
        torch.sub(models[:, columns], origin[columns], out=out[:, columns])
        out[:, columns].mul_(scale).add_(origin[columns])
    return out


def nearest_neighbor_mixing(models: Tensor, bad_share: float = 0.1) -> Tensor:
    """Every model becomes the mean of the C − f models nearest to it, itself included.

    NNM: Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity", AISTATS 2023, arXiv
    2302.01772.

    >>> nearest_neighbor_mixing(torch.tensor([[0.0], [1.0], [2.0], [9.0]]), 0.25)[:, 0].tolist()
    [1.0, 1.0, 1.0, 4.0]
    """
    return mix(models, neighbor_weights(models, bad_share))


def neighbor_weights(models: Tensor, bad_share: float = 0.1) -> Tensor:
    """The weights (C, C) with which `nearest_neighbor_mixing` mixes clients."""
    count = len(client_weights(models, None))
    check_share(bad_share, "bad_share")
    kept = count - bad_count(bad_share, count)
    sq_dist = gram_solvers.pairwise_sq_distances(gram(models)).fill_diagonal_(-1.0)  # a model is its own nearest
    nearest = sq_dist.argsort(dim=1, stable=True)[:, :kept]
    return torch.zeros(count, count, dtype=torch.float64).scatter_(1, nearest, 1 / kept)


def bucketing(models: Tensor, size: int = 2, order: Sequence[int] | None = None) -> Tensor:
    """The means of `size` models each, taken in a random order; the last one taken may have fewer.

    Buckets are in the order of their first clients, so that buckets of one are the models themselves.

    Karimireddy, He, Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", ICLR 2022, arXiv
    2006.09365.

    Args:
        models: the clients' parameters, (C, P)
        size: models in a bucket
        order: a permutation of the clients, drawn by the caller; by default their own order

    >>> bucketing(torch.tensor([[0.0], [1.0], [2.0]]), 2, [2, 0, 1])[:, 0].tolist()
    [1.0, 1.0]
    """
    return mix(models, bucket_weights(len(client_weights(models, None)), size, order))


def bucket_weights(count: int, size: int = 2, order: Sequence[int] | None = None) -> Tensor:
    """The weights (B, C) with which `bucketing` mixes clients."""
    if size < 1:
        raise InputError(f"size must be ≥ 1, got {size}")
    clients = list(range(count)) if order is None else list(order)
    if sorted(clients) != list(range(count)):
        raise InputError(f"order must be a permutation of {count} clients, got {clients}")
    buckets = sorted(sorted(clients[i : i + size]) for i in range(0, count, size))
    weights = torch.zeros(len(buckets), count, dtype=torch.float64)
    for row, bucket in zip(weights, buckets, strict=True):
        row[bucket] = 1 / len(bucket)
    return weights


def mix(values: Tensor, weights: Tensor) -> Tensor:
    """Rows Σ_n weights_in · values_n of values (C,) or (C, P) of clients, in float64: a weight of 0 costs no digits."""
    weights = weights.to(values.device)
    if values.ndim == 1:
        return (weights @ values.double()).to(values.dtype)
    out = values.new_empty(len(weights), values.shape[1])
    for columns in column_chunks(values, _MIXED_BYTES):
        out[:, columns] = (weights @ values[:, columns].double()).to(values.dtype)
    return out
