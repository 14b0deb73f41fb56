"""Scores, client fairness and client data fairness from a table of sums per client and group."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.evaluation.scores import ACCURACY, SCORES, Score, main_score, scores_of


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """A score and its fairness for one set of models, over the clients that have test data.

    Accuracy is in percent and its spread in points; MAE and RMSE are in the unit of the target.
    """

    score: str = "accuracy"  # the name of the score
    mean: float  # of the score over clients
    client_fairness: float  # population std over clients: 0 is perfectly fair
    client_data_fairness: tuple[float, float]  # mean and std over clients of the std over a client's groups
    worst: float  # mean of the worst tenth of the clients (at least one)
    best: float  # mean of the best tenth
    worst_client: float
    clients: int  # with test data
    other: "Metrics | None" = None  # of a second score: the RMSE beside the MAE

    @property
    def accuracy(self) -> float:
        """Mean accuracy over clients, in percent."""
        return self.value("accuracy")

    @property
    def mae(self) -> float:
        """Mean over clients of the mean absolute error, in the unit of the target."""
        return self.value("mae")

    @property
    def rmse(self) -> float:
        """Mean over clients of the root mean squared error, in the unit of the target."""
        return self.value("rmse")

    def value(self, score: str) -> float:
        """The mean of a score over clients."""
        if score == self.score:
            return self.mean
        if self.other is None or score != self.other.score:
            known = self.score if self.other is None else f"{self.score} and {self.other.score}"
            raise InputError(f"there is no {score} here, but {known}")
        return self.other.mean

    def by_name(self) -> dict[str, float]:
        """Every metric under its name in tables and files."""
        mean, std = self.client_data_fairness
        found = {
            self.score: self.mean,
            "client_fairness": self.client_fairness,
            "client_data_fairness_mean": mean,
            "client_data_fairness_std": std,
            "worst": self.worst,
            "best": self.best,
            self._extreme: self.worst_client,
        }
        return found if self.other is None else found | with_prefix(self.other.score, self.other.by_name())

    @property
    def _extreme(self) -> str:
        return "minimum" if SCORES[self.score].higher_is_better else "maximum"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        found = {
            self.score: self.mean,
            "client_fairness": self.client_fairness,
            "client_data_fairness": self.client_data_fairness,
            "worst": self.worst,
            "best": self.best,
            self._extreme: self.worst_client,
            "clients": self.clients,
        }
        return found if self.other is None else found | {"other": self.other.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From JSON values."""
        found = dict(values)
        score = main_score(found)
        found["mean"] = found.pop(score.name)
        found["worst_client"] = found.pop("minimum" if score.higher_is_better else "maximum")
        if "other" in found:
            found["other"] = cls.from_json(found["other"])
        return cls(score=score.name, **found | {"client_data_fairness": tuple(found["client_data_fairness"])})


def with_prefix(score: str, values: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a second score, each under a name that begins with the score's."""
    return {key if key == score else f"{score}_{key}": value for key, value in values.items()}


class GroupCounts(NamedTuple):
    """Sums of one method's evaluated models (see `scores`), and test samples, (clients, groups) of one grouping."""

    sums: Tensor
    total: Tensor


class Counts(NamedTuple):
    """Sums of one method's models by client and group (see `scores`): correct predictions, or errors."""

    shared: Tensor
    personal: Tensor | None  # None: no personal models; a client never selected is evaluated on the shared model
    never_selected: Tensor  # (clients,) bool
    groups: tuple[GroupCounts, ...] = ()  # of the other groupings, in the order of `group_names`


def client_scores(sums: Tensor, total: Tensor, score: Score | None = None) -> Tensor:
    """The score of every client that has test data, shape (clients with data,); None: the main score."""
    samples = total.sum(1)
    has_samples = samples > 0
    return (score or scores_of(sums)[0]).values(sums.sum(1)[has_samples], samples[has_samples])


def spread_in_clients(sums: Tensor, total: Tensor, score: Score | None = None) -> Tensor:
    """Population std of the score of classes, or of other groups, within every client, over those it has.

    Clients without test data are left out.
    """
    present = total > 0  # (N, K)
    values = (score or scores_of(sums)[0]).values(sums, total.clamp(min=1))
    count = present.sum(1).clamp(min=1).double()
    mean = (values * present).sum(1) / count
    variance = ((values - mean[:, None]).square() * present).sum(1) / count
    return variance.sqrt()[present.any(1)]


def measure(sums: Tensor, total: Tensor) -> Metrics:
    """All metrics from sums and samples, both by client and group; clients without test data are left out.

    >>> import torch
    >>> m = measure(torch.tensor([[9, 5], [10, 0]]), torch.tensor([[10, 10], [10, 0]]))
    >>> m.accuracy, m.client_fairness, m.client_data_fairness
    (85.0, 15.0, (10.0, 10.0))
    """
    if total.dim() != 2 or sums.shape[:2] != total.shape or sums.dim() != 2 + sums.is_floating_point():
        raise InputError(
            "counts must be two tables of one shape (clients, groups), "
            f"got {tuple(sums.shape)} and {tuple(total.shape)}"
        )
    if (sums < 0).any() or (scores_of(sums)[0] is ACCURACY and (sums > total).any()):
        raise InputError("a client has more correct predictions than samples in a class, or a negative count")
    if not total.any():
        raise InputError("no client has any test data to evaluate on")
    found: Metrics | None = None
    for score in reversed(scores_of(sums)):
        found = _measure(sums, total, score, found)
    assert found is not None
    return found


def _measure(sums: Tensor, total: Tensor, score: Score, other: Metrics | None) -> Metrics:
    values = client_scores(sums, total, score)
    spread = spread_in_clients(sums, total, score)
    ordered = values.sort(descending=not score.higher_is_better).values  # the worst first
    tenth = math.ceil(len(ordered) / 10)
    return Metrics(
        score=score.name,
        mean=values.mean().item(),
        client_fairness=values.std(correction=0).item(),
        client_data_fairness=(spread.mean().item(), spread.std(correction=0).item()),
        worst=ordered[:tenth].mean().item(),
        best=ordered[-tenth:].mean().item(),
        worst_client=ordered[0].item(),
        clients=len(ordered),
        other=other,
    )
