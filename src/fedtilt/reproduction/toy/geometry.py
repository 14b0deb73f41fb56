"""What a straight boundary between Gaussian classes is worth, in closed form."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtilt.data.toy import SETUPS, Group


def named(tau: float, lam: float) -> str:
    """A setting as the tables have it."""
    return f"tau {tau:g}, lam {lam:g}"


def line(model: Tensor) -> tuple[Tensor, Tensor]:
    """The boundary of a two-class logistic regression (6,): class 2 where normal · x + offset > 0.

    >>> line(torch.tensor([0.0, 0.0, 1.0, -1.0, 0.0, 0.5]))
    (tensor([ 1., -1.], dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """
    weight, bias = model[:4].double().reshape(2, 2), model[4:].double()
    return weight[1] - weight[0], bias[1] - bias[0]


def expected(normal: Tensor, offset: float, groups: Sequence[Group]) -> list[float]:
    """The share of each Gaussian class that lies on its side of the boundary: Phi(distance / deviation).

    >>> expected(torch.tensor([1.0, 0.0]), -1.0, (Group((0.0, 0.0), 1.0), Group((2.0, 5.0), 0.5)))
    [0.8413..., 0.9772...]
    """
    shares = []
    for k, group in enumerate(groups):
        side = 1.0 if k else -1.0
        height = side * (float(normal @ torch.tensor(group.centre, dtype=normal.dtype)) + offset)
        shares.append(_phi(height / (group.deviation * float(normal.norm()))))
    return shares


def best_worst(groups: Sequence[Group]) -> float:
    """What a straight line can reach at best on the worse class of two round Gaussians: Phi(d / (s_1 + s_2))."""
    first, second = groups
    return _phi(math.dist(first.centre, second.centre) / (first.deviation + second.deviation))


def _phi(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def sampled(tested: Sequence[float], name: str) -> float:
    """A client's accuracy on its test sample from that of its classes."""
    counts = SETUPS[name].test
    return sum(a * n for a, n in zip(tested, counts, strict=True)) / sum(counts)


def worst_class(clients: Sequence[Mapping[str, Any]]) -> float:
    """The expected accuracy of the class that is served worst, over both clients."""
    return min(share for client in clients for share in client["expected"])
