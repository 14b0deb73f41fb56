"""Sums, minima and maxima over groups of samples; every member gets its group's, so shapes do not depend on sizes."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_Reduce = Callable[[Tensor], Tensor]  # (…, n) → (…, n) or (…, 1)

# Up to this many samples, groups are a (n, n) mask: cheaper than sorting, and without a scatter, which on CUDA sums in
# another order every time.
_MAX_MASK_SAMPLES = {"cpu": 256, "cuda": 2048}


class Groups(NamedTuple):
    """Sum, minimum and maximum over the members of each group."""

    sum: _Reduce
    min: _Reduce
    max: _Reduce


ONE_GROUP = Groups(
    sum=lambda x: x.sum(-1, keepdim=True),
    min=lambda x: x.amin(-1, keepdim=True),
    max=lambda x: x.amax(-1, keepdim=True),
)


def _mask_reduction(same: Tensor) -> Groups:
    """Groups as a mask `same` (…, n, n); sums in a fixed order, no scatter."""

    def masked(x: Tensor, fill: float) -> Tensor:
        return torch.where(same, x.unsqueeze(-2), fill)

    return Groups(
        sum=lambda x: masked(x, 0.0).sum(-1),
        min=lambda x: masked(x, math.inf).amin(-1),
        max=lambda x: masked(x, -math.inf).amax(-1),
    )


def _scatter_reduction(group: Tensor) -> Groups:
    """Groups as numbers in [0, n) (…, n); linear in n."""

    def reduce(x: Tensor, operation: str, initial: float) -> Tensor:
        index = group.expand(x.shape)
        return torch.full_like(x, initial).scatter_reduce(-1, index, x, operation).gather(-1, index)

    return Groups(
        sum=lambda x: reduce(x, "sum", 0.0),
        min=lambda x: reduce(x, "amin", math.inf),
        max=lambda x: reduce(x, "amax", -math.inf),
    )


def nested_groups(labels: Sequence[Tensor], samples: int) -> list[Groups]:
    """The groups of every level, fine to coarse: samples share a group if this label and all coarser ones are equal."""
    levels = []
    same = group = None
    for label in reversed(labels):
        if samples <= _MAX_MASK_SAMPLES.get(label.device.type, 256):
            same_label = label.unsqueeze(-1) == label.unsqueeze(-2)
            same = same_label if same is None else same_label & same
            levels.append(_mask_reduction(same))
        else:
            rank = _dense_rank(label.long())
            group = rank if group is None else _dense_rank(group * samples + rank)
            levels.append(_scatter_reduction(group))
    return levels[::-1]


def _dense_rank(label: Tensor) -> Tensor:
    """Labels renumbered 0, 1, 2, … by a sort: shapes stay static, so it traces and batches."""
    ordered, order = label.sort(dim=-1)
    is_new = torch.zeros_like(ordered)
    is_new[..., 1:] = (ordered[..., 1:] != ordered[..., :-1]).long()
    return torch.empty_like(label).scatter(-1, order, is_new.cumsum(-1))
