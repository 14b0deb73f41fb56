"""Distances from every client model to one model: (C, P), (P,) → (C,)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.errors import InputError


def squared_l2(models: Tensor, centre: Tensor) -> Tensor:
    """||w_n − w||² for every client.

    >>> squared_l2(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.zeros(2)).tolist()
    [0.0, 25.0]
    """
    return _distance(DISTANCES["squared_l2"], models, centre)


def l2(models: Tensor, centre: Tensor) -> Tensor:
    """||w_n − w|| for every client."""
    return _distance(DISTANCES["l2"], models, centre)


def l1(models: Tensor, centre: Tensor) -> Tensor:
    """||w_n − w||_1 for every client."""
    return _distance(DISTANCES["l1"], models, centre)


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


def _distance(distance: Distance, models: Tensor, centre: Tensor) -> Tensor:
    if models.dim() != 2 or centre.shape != models.shape[1:]:
        raise InputError(
            f"a distance takes models (C, P) and a centre (P,), got {tuple(models.shape)} and {tuple(centre.shape)}"
        )
    return distance.finish(distance.summand(centre - models).sum(-1))
