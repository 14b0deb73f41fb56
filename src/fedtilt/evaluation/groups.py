"""The groups that metrics are computed for: the classes, and the groups that the data names, such as sex.

Correct predictions are counted in cells, the combinations of class and groups that occur, because the counts of every
grouping are sums of these.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from fedtilt.data import Federation
from fedtilt.data.groups import CLASS, combinations
from fedtilt.evaluation.metrics import GroupCounts, accuracy_by_group, class_spread


class Grouping(NamedTuple):
    """One way to group the samples of a split."""

    name: str  # "class", or the column
    names: tuple[str, ...]  # of the groups
    codes: Tensor  # (samples,) the group of each sample, int64, in the order of `Federation.evaluation`


def group_names(federation: Federation) -> dict[str, tuple[str, ...]]:
    """The names of the groups that metrics are given for, by grouping; empty if the data names no groups."""
    columns = {name: column.names for name, column in federation.groups.items()}
    return {CLASS: federation.class_names} | columns if columns else {}


def groupings(federation: Federation, split: str = "test") -> dict[str, Grouping]:
    """The classes, then every column of groups, by name; of several columns also their combination, which is the last.

    >>> from fedtilt.data import Federation, load
    >>> grouping = groupings(Federation.build(load("toy-2")))["class"]
    >>> grouping.names, grouping.codes.bincount().tolist()
    (('1', '2'), [60, 20])
    """
    _, y, _ = federation.evaluation(split)
    found = {CLASS: Grouping(CLASS, federation.class_names, y)}
    for name, codes in federation.evaluation_groups(split).items():
        found[name] = Grouping(name, federation.groups[name].names, codes)
    return found


class Cells:
    """The combinations of class and groups that occur in a split.

    Args:
        by: the groupings, the classes first
    """

    def __init__(self, by: Mapping[str, Grouping]) -> None:
        self._sizes = {name: len(grouping.names) for name, grouping in by.items()}
        if len(by) == 1:  # a cell is a class
            self.codes, self.count = by[CLASS].codes, self._sizes[CLASS]
            self._group = {CLASS: torch.arange(self.count)}
            return
        found, self.codes = combinations([grouping.codes for grouping in by.values()])
        self.count = len(found)
        self._group = dict(zip(by, found.unbind(1), strict=True))  # the group of each cell

    def sum(self, counts: Tensor, grouping: str) -> Tensor:
        """The counts (clients, groups) of a grouping, from those of the cells (clients, cells)."""
        sums = counts.new_zeros(len(counts), self._sizes[grouping])
        return sums.index_add_(1, self._group[grouping], counts)


@dataclass(frozen=True, kw_only=True)
class GroupMetrics:
    """How accurate and how fair models are to the groups of one grouping, in percent and points."""

    accuracy: Mapping[str, float]  # of every group that has test samples, over the samples of all clients
    spread: float  # population std of these: 0 is perfectly fair
    client_spread: tuple[float, float]  # mean and std over clients of the std of the accuracy of a client's groups
    client_worst: float  # mean over clients of the accuracy of a client's worst group

    @property
    def worst(self) -> tuple[str, float]:
        """The group with the lowest accuracy, and its accuracy."""
        return min(self.accuracy.items(), key=lambda item: item[1])

    def by_name(self) -> dict[str, float]:
        """The figures that have a name in files, without the accuracies of the groups."""
        mean, std = self.client_spread
        return {
            "spread": self.spread,
            "worst": self.worst[1],
            "client_spread_mean": mean,
            "client_spread_std": std,
            "client_worst": self.client_worst,
        }

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From JSON values."""
        return cls(**{**values, "client_spread": tuple(values["client_spread"])})


def measure_groups(counts: GroupCounts, names: tuple[str, ...]) -> GroupMetrics:
    """The metrics of one grouping.

    >>> counts = GroupCounts(torch.tensor([[9, 5], [10, 0]]), torch.tensor([[10, 10], [10, 0]]))
    >>> found = measure_groups(counts, ("f", "m"))
    >>> found.accuracy, found.worst, found.spread, found.client_spread, found.client_worst
    ({'f': 95.0, 'm': 50.0}, ('m', 50.0), 22.5, (10.0, 10.0), 75.0)
    """
    correct, total = counts
    pooled = accuracy_by_group(correct.sum(0), total.sum(0))
    present = total.sum(0) > 0
    spread = class_spread(correct, total)
    has_samples = total.sum(1) > 0
    worst = accuracy_by_group(correct, total).nan_to_num(nan=torch.inf).amin(1)[has_samples]
    return GroupMetrics(
        accuracy={name: value for name, value, kept in zip(names, pooled.tolist(), present, strict=True) if kept},
        spread=pooled[present].std(correction=0).item(),
        client_spread=(spread.mean().item(), spread.std(correction=0).item()),
        client_worst=worst.mean().item(),
    )
