"""Groups of samples: columns such as sex or ward, over which a loss is tilted and a model is evaluated."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.data.targets import ALL, RANGE
from fedtilt.errors import InputError

CLASS = "class"  # the name of the groups that are the classes


def in_words(group: str) -> str:
    """What the groups of a grouping are, in the plural.

    >>> in_words("class"), in_words("sex")
    ('classes', 'groups by sex')
    """
    return {CLASS: "classes", RANGE: "ranges of the target", ALL: "samples"}.get(group, f"groups by {group}")


class GroupColumn(NamedTuple):
    """The groups of one column."""

    names: tuple[str, ...]  # of the groups
    train: Tensor  # (N,) the group of each training sample, int64
    test: Tensor  # of each test sample


def group_columns(
    names: Mapping[str, tuple[str, ...]], train: Mapping[str, Tensor], test: Mapping[str, Tensor]
) -> dict[str, GroupColumn]:
    """The columns of groups by name; of several columns also their combination, which is the last.

    >>> sex, age = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])
    >>> codes = {"sex": sex, "age": age}
    >>> group_columns({"sex": ("f", "m"), "age": ("old", "young")}, codes, codes)["sex & age"].names
    ('f & young', 'm & old', 'm & young')
    """
    columns = {name: GroupColumn(values, train[name], test[name]) for name, values in names.items()}
    return columns | {name: _combine(columns) for name in combined_names(columns) if name not in columns}


def combined_names(columns: Iterable[str]) -> list[str]:
    """The names of columns of groups; of several also that of their combination, the last.

    >>> combined_names(["sex", "age"])
    ['sex', 'age', 'sex & age']
    """
    names = list(columns)
    return names if len(names) < 2 else [*names, " & ".join(names)]


def _combine(columns: Mapping[str, GroupColumn]) -> GroupColumn:
    """The combinations of several columns' groups that occur."""
    found, group = combinations([torch.cat([column.train, column.test]) for column in columns.values()])
    names = [" & ".join(c.names[k] for c, k in zip(columns.values(), row, strict=True)) for row in found.tolist()]
    first = next(iter(columns.values()))
    return GroupColumn(tuple(names), *group.split([len(first.train), len(first.test)]))


def combinations(codes: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The combinations (m, columns) of numbers ≥ 0 (n,) that occur, in order, and which of them each sample has (n,).

    It is `torch.unique` over rows, which is a hundred times slower.

    >>> found, group = combinations([torch.tensor([1, 0, 1]), torch.tensor([5, 7, 5])])
    >>> found.tolist(), group.tolist()
    ([[0, 7], [1, 5]], [1, 0, 1])
    """
    group = torch.zeros_like(codes[0])
    for column in codes:
        group = (group * (column.amax() + 1) + column if len(column) else column).unique(return_inverse=True)[1]
    rows = torch.stack(list(codes), 1)
    found = rows.new_empty(int(group.max()) + 1 if len(group) else 0, len(codes))
    found[group] = rows
    return found, group


def check_two_values(columns: Mapping[str, GroupColumn], dataset: str) -> None:
    """Raise InputError if a column of groups has one value: there is nothing to tilt over or to compare."""
    for name, column in columns.items():
        found = torch.cat([column.train, column.test]).unique().tolist()
        if len(found) == 1 and name not in (RANGE, ALL):
            raise InputError(
                f"group = {name!r} has one value, {column.names[found[0]]!r}, in {dataset}; choose a column with two "
                "or more, or leave it out"
            )
