"""The groups that metrics are computed for: classes or ranges of the target, and groups that the data names.

Sums are taken in cells, the combinations of class and groups that occur, because those of every grouping follow from
them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.data import Federation
from fedtilt.data.groups import CLASS, combinations


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


class CrossTable:
    """The combinations of class and groups that occur in a split, its cells, from its groupings by name."""

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
