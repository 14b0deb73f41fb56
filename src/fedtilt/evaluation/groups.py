"""The groups that metrics are computed for: the classes, and the groups that the data names, such as sex."""

from typing import NamedTuple

from torch import Tensor

from fedtilt.data import Federation
from fedtilt.data.groups import CLASS


class Grouping(NamedTuple):
    """One way to group the samples of a split."""

    name: str  # "class", or the column
    names: tuple[str, ...]  # of the groups
    codes: Tensor  # (samples,) the group of each sample, int64, in the order of `Federation.evaluation`


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
