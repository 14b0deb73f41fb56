"""Accuracy, client fairness and client data fairness from a table of counts, in percentage points."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedtilt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Accuracy and fairness of one set of models, over the clients that have test data."""

    accuracy: float  # mean over clients
    client_fairness: float  # population std over clients: 0 is perfectly fair
    client_data_fairness: tuple[float, float]  # mean and std over clients of the std of per-class accuracy
    worst: float  # mean of the worst tenth of the clients (at least one)
    best: float  # mean of the best tenth
    minimum: float
    clients: int  # with test data

    def by_name(self) -> dict[str, float]:
        """Every metric under its name in tables and files."""
        mean, std = self.client_data_fairness
        return {
            "accuracy": self.accuracy,
            "client_fairness": self.client_fairness,
            "client_data_fairness_mean": mean,
            "client_data_fairness_std": std,
            "worst": self.worst,
            "best": self.best,
            "minimum": self.minimum,
        }


class GroupCounts(NamedTuple):
    """Correct predictions of one method's evaluated models, and test samples, (clients, groups) of one grouping."""

    correct: Tensor
    total: Tensor


class Counts(NamedTuple):
    """Correct predictions of one method's models, each (clients, classes)."""

    shared: Tensor
    personal: Tensor | None  # None: no personal models; a client never selected is evaluated on the shared model
    never_selected: Tensor  # (clients,) bool
    groups: tuple[GroupCounts, ...] = ()  # of the columns of `Federation.groups`, in their order


def client_accuracy(correct: Tensor, total: Tensor) -> Tensor:
    """Accuracy in percent of every client that has test data, shape (clients with data,)."""
    samples = total.sum(1)
    has_samples = samples > 0
    return 100 * correct.sum(1)[has_samples].double() / samples[has_samples].double()


def accuracy_by_group(correct: Tensor, total: Tensor) -> Tensor:
    """Accuracy in percent, of the shape of the counts; NaN where there are no samples."""
    return 100 * correct.double() / total.double()


def class_spread(correct: Tensor, total: Tensor) -> Tensor:
    """Population std of the accuracy of classes, or of other groups, within every client, over those it has.

    Clients without test data are left out.
    """
    present = total > 0  # (N, K)
    accuracy = 100 * correct.double() / total.clamp(min=1).double()
    count = present.sum(1).clamp(min=1).double()
    mean = (accuracy * present).sum(1) / count
    variance = ((accuracy - mean[:, None]).square() * present).sum(1) / count
    return variance.sqrt()[present.any(1)]


def measure(correct: Tensor, total: Tensor) -> Metrics:
    """All metrics from `correct` and `total`, both (clients, classes) counts; clients without test data are left out.

    >>> import torch
    >>> m = measure(torch.tensor([[9, 5], [10, 0]]), torch.tensor([[10, 10], [10, 0]]))
    >>> m.accuracy, m.client_fairness, m.client_data_fairness
    (85.0, 15.0, (10.0, 10.0))
    """
    if correct.dim() != 2 or correct.shape != total.shape:
        raise InputError(
            "counts must be two tables of one shape (clients, classes), "
            f"got {tuple(correct.shape)} and {tuple(total.shape)}"
        )
    if (correct < 0).any() or (correct > total).any():
        raise InputError("a client has more correct predictions than samples in a class, or a negative count")
    accuracy = client_accuracy(correct, total)
    if not len(accuracy):
        raise InputError("no client has any test data to evaluate on")
    spread = class_spread(correct, total)
    ordered = accuracy.sort().values
    tenth = math.ceil(len(ordered) / 10)
    return Metrics(
        accuracy=accuracy.mean().item(),
        client_fairness=accuracy.std(correction=0).item(),
        client_data_fairness=(spread.mean().item(), spread.std(correction=0).item()),
        worst=ordered[:tenth].mean().item(),
        best=ordered[-tenth:].mean().item(),
        minimum=ordered[0].item(),
        clients=len(ordered),
    )
