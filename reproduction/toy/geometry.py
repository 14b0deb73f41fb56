"""The accuracy of a straight decision boundary between Gaussian classes, in closed form."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from fedtilt.data.published.toy import SETUPS, Group

_phi = NormalDist().cdf


def setting_name(tau: float, lam: float) -> str:
    """The name of a setting in results and tables."""
    return f"tau {tau:g}, lam {lam:g}"


def decision_boundary(model: Tensor) -> tuple[Tensor, Tensor]:
    """The boundary of a two-class logistic regression (6,): class 2 where normal · x + offset > 0.

    >>> decision_boundary(torch.tensor([0.0, 0.0, 1.0, -1.0, 0.0, 0.5]))
    (tensor([ 1., -1.], dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """
    weight, bias = model[:4].double().reshape(2, 2), model[4:].double()
    return weight[1] - weight[0], bias[1] - bias[0]


def expected_accuracy(normal: Tensor, offset: float, groups: Sequence[Group]) -> list[float]:
    """The share of each Gaussian class on its side of the boundary: Phi(distance / deviation).

    >>> expected_accuracy(torch.tensor([1.0, 0.0]), -1.0, (Group((0.0, 0.0), 1.0), Group((2.0, 5.0), 0.5)))
    [0.8413..., 0.9772...]
    """
    shares = []
    for k, group in enumerate(groups):
        side = 1.0 if k else -1.0
        height = side * (float(normal @ torch.tensor(group.centre, dtype=normal.dtype)) + offset)
        shares.append(_phi(height / (group.deviation * float(normal.norm()))))
    return shares


def best_worst_class(groups: Sequence[Group]) -> float:
    """The best that a straight line can do for the worse of two round Gaussian classes: Phi(d / (s_1 + s_2))."""
    first, second = groups
    return _phi(math.dist(first.centre, second.centre) / (first.deviation + second.deviation))


def client_accuracy(class_accuracy: Sequence[float], name: str) -> float:
    """A client's accuracy from that of its classes, weighted by their numbers of test samples."""
    counts = SETUPS[name].test
    return sum(a * n for a, n in zip(class_accuracy, counts, strict=True)) / sum(counts)


def worst_class(clients: Sequence[Mapping[str, Any]]) -> float:
    """The lowest expected accuracy of a class, over both clients."""
    return min(share for client in clients for share in client["expected"])
