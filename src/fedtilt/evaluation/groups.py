"""The groups that metrics are computed for: classes or ranges of the target, and groups that the data names.

Sums are taken in cells, the combinations of class and groups that occur, because those of every grouping follow from
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from fedtilt.data import Federation
from fedtilt.data.groups import CLASS, combinations
from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import GroupCounts, spread_in_clients, with_prefix
from fedtilt.evaluation.scores import SCORES, Score, main_score, scores_of


class Grouping(NamedTuple):
    """One way to group the samples of a split."""

    name: str  # "class", or the column
    names: tuple[str, ...]  # of the groups
    codes: Tensor  # (samples,) the group of each sample, int64, in the order of `Federation.evaluation`


def group_names(federation: Federation) -> dict[str, tuple[str, ...]]:
    """The names of the groups by grouping: first what `tau` tilts over, then the others, classes or ranges included."""
    columns = {name: column.names for name, column in federation.groups.items()}
    main = federation.group
    return {main: ()} | {federation.label_group: federation.class_names} | columns


def groupings(federation: Federation, split: str = "test") -> dict[str, Grouping]:
    """The classes or ranges, then every column of groups, by name; of several columns also their combination, the last.

    >>> from fedtilt.data import Federation, load
    >>> grouping = groupings(Federation.build(load("toy-2")))["class"]
    >>> grouping.names, grouping.codes.bincount().tolist()
    (('1', '2'), [60, 20])
    """
    found = {}
    if federation.target is None:
        found[CLASS] = Grouping(CLASS, federation.class_names, federation.evaluation(split)[1])
    for name, codes in federation.evaluation_groups(split).items():
        found[name] = Grouping(name, federation.groups[name].names, codes)
    return found


class Cells:
    """The combinations of class and groups that occur in a split.

    Args:
        by: the groupings by name
    """

    def __init__(self, by: Mapping[str, Grouping]) -> None:
        self._sizes = {name: len(grouping.names) for name, grouping in by.items()}
        if len(by) == 1:  # a cell is a group
            ((name, only),) = by.items()
            self.codes, self.count = only.codes, self._sizes[name]
            self._group = {name: torch.arange(self.count)}
            return
        found, self.codes = combinations([grouping.codes for grouping in by.values()])
        self.count = len(found)
        self._group = dict(zip(by, found.unbind(1), strict=True))  # the group of each cell

    def sum(self, counts: Tensor, grouping: str) -> Tensor:
        """The sums (clients, groups, …) of a grouping, from those of the cells (clients, cells, …)."""
        sums = counts.new_zeros(len(counts), self._sizes[grouping], *counts.shape[2:])
        return sums.index_add_(1, self._group[grouping], counts)


@dataclass(frozen=True, kw_only=True)
class GroupMetrics:
    """A score and its fairness for the groups of one grouping; units are those of `Metrics`."""

    score: str = "accuracy"  # the name of the score
    values: Mapping[str, float]  # of every group that has test samples, over the samples of all clients
    spread: float  # population std of these: 0 is perfectly fair
    client_spread: tuple[float, float]  # mean and std over clients of the std over a client's groups
    client_worst: float  # mean over clients of the score of a client's worst group
    other: "GroupMetrics | None" = None  # of a second score: the RMSE beside the MAE

    @property
    def accuracy(self) -> Mapping[str, float]:
        """The accuracy of every group, in percent."""
        if self.score != "accuracy":
            raise InputError(f"there is no accuracy here, but {self.score}; use values")
        return self.values

    @property
    def worst(self) -> tuple[str, float]:
        """The group with the worst score, and its score."""
        choose = min if SCORES[self.score].higher_is_better else max
        return choose(self.values.items(), key=lambda item: item[1])

    def by_name(self) -> dict[str, float]:
        """The figures that have a name in files, without the scores of the groups."""
        mean, std = self.client_spread
        found = {
            "spread": self.spread,
            "worst": self.worst[1],
            "client_spread_mean": mean,
            "client_spread_std": std,
            "client_worst": self.client_worst,
        }
        return found if self.other is None else found | with_prefix(self.other.score, self.other.by_name())

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        found: dict[str, Any] = {
            self.score: dict(self.values),
            "spread": self.spread,
            "client_spread": self.client_spread,
            "client_worst": self.client_worst,
        }
        return found if self.other is None else found | {"other": self.other.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From JSON values."""
        found = dict(values)
        score = main_score(found).name
        if "other" in found:
            found["other"] = cls.from_json(found["other"])
        client_spread = tuple(found.pop("client_spread"))
        return cls(score=score, values=found.pop(score), client_spread=client_spread, **found)


def measure_groups(counts: GroupCounts, names: tuple[str, ...]) -> GroupMetrics:
    """The metrics of one grouping.

    >>> counts = GroupCounts(torch.tensor([[9, 5], [10, 0]]), torch.tensor([[10, 10], [10, 0]]))
    >>> found = measure_groups(counts, ("f", "m"))
    >>> found.accuracy, found.worst, found.spread, found.client_spread, found.client_worst
    ({'f': 95.0, 'm': 50.0}, ('m', 50.0), 22.5, (10.0, 10.0), 75.0)
    """
    found: GroupMetrics | None = None
    for score in reversed(scores_of(counts.sums)):
        found = _measure_groups(counts, names, score, found)
    assert found is not None
    return found


def _measure_groups(
    counts: GroupCounts, names: tuple[str, ...], score: Score, other: GroupMetrics | None
) -> GroupMetrics:
    sums, total = counts
    pooled = score.values(sums.sum(0), total.sum(0))
    present = total.sum(0) > 0
    spread = spread_in_clients(sums, total, score)
    worst = score.worst(score.values(sums, total), 1)[total.sum(1) > 0]
    return GroupMetrics(
        score=score.name,
        values={name: value for name, value, kept in zip(names, pooled.tolist(), present, strict=True) if kept},
        spread=pooled[present].std(correction=0).item(),
        client_spread=(spread.mean().item(), spread.std(correction=0).item()),
        client_worst=worst.mean().item(),
        other=other,
    )
