"""Cells of samples: reductions over the members of each, seen from every member, so that no group is ever ragged."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]  # (…, n) → (…, n) or (…, 1)

# Up to this many samples cells are a (n, n) mask: cheaper than sorting, and without a scatter, which on CUDA sums in
# another order every time.
_PAIRWISE = {"cpu": 256, "cuda": 2048}


class GroupReduction(NamedTuple):
    """How to reduce over the members of each cell."""

    total: Reduce
    lowest: Reduce
    highest: Reduce


ONE_GROUP = GroupReduction(
    total=lambda x: x.sum(-1, keepdim=True),
    lowest=lambda x: x.amin(-1, keepdim=True),
    highest=lambda x: x.amax(-1, keepdim=True),
)


def _pairwise(same: Tensor) -> GroupReduction:
    """Cells given as a mask `same` (…, n, n); exact sums in a fixed order, no scatter."""

    def spread(x: Tensor, fill: float) -> Tensor:
        return torch.where(same, x.unsqueeze(-2), fill)

    return GroupReduction(
        total=lambda x: spread(x, 0.0).sum(-1),
        lowest=lambda x: spread(x, math.inf).amin(-1),
        highest=lambda x: spread(x, -math.inf).amax(-1),
    )


def _scattered(cell: Tensor) -> GroupReduction:
    """Cells given as numbers in [0, n) (…, n); linear in n."""

    def reduced(x: Tensor, how: str, start: float) -> Tensor:
        index = cell.expand(x.shape)
        return torch.full_like(x, start).scatter_reduce(-1, index, x, how).gather(-1, index)

    return GroupReduction(
        total=lambda x: reduced(x, "sum", 0.0),
        lowest=lambda x: reduced(x, "amin", math.inf),
        highest=lambda x: reduced(x, "amax", -math.inf),
    )


def nested_groups(groups: Sequence[Tensor], samples: int) -> list[GroupReduction]:
    """The cells of every level, fine to coarse: a cell is identified by its own label and all coarser ones."""
    levels = []
    same = cell = None
    for label in reversed(groups):
        if samples <= _PAIRWISE.get(label.device.type, 256):
            alike = label.unsqueeze(-1) == label.unsqueeze(-2)
            same = alike if same is None else alike & same
            levels.append(_pairwise(same))
        else:
            own = _ranked(label.long())
            cell = own if cell is None else _ranked(cell * samples + own)
            levels.append(_scattered(cell))
    return levels[::-1]


def _ranked(label: Tensor) -> Tensor:
    """Labels renumbered 0, 1, 2, … by a sort: shapes stay known, so it traces and batches."""
    ordered, order = label.sort(dim=-1)
    new = torch.zeros_like(ordered)
    new[..., 1:] = (ordered[..., 1:] != ordered[..., :-1]).long()
    return torch.empty_like(label).scatter(-1, order, new.cumsum(-1))
