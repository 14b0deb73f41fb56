"""Groups of samples: columns such as sex or ward, over which a loss is tilted and a model is evaluated."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedtilt.data.targets import RANGE
from fedtilt.errors import InputError

if TYPE_CHECKING:
    from fedtilt.data.dataset import Dataset

CLASS = "class"  # the name of the groups that are the classes


def in_words(group: str) -> str:
    """What the groups of a grouping are, in the plural.

    >>> in_words("class"), in_words("sex")
    ('classes', 'groups by sex')
    """
    return {CLASS: "classes", RANGE: "ranges of the target"}.get(group, f"groups by {group}")


class GroupColumn(NamedTuple):
    """The groups of one column."""

    names: tuple[str, ...]  # of the groups
    train: Tensor  # (N,) the group of each training sample, int64
    test: Tensor  # of each test sample


def group_columns(data: "Dataset") -> dict[str, GroupColumn]:
    """The columns of groups by name; of several columns also their combination, which is the last.

    With numbers as targets, the ranges of the target are the first.

    >>> from fedtilt.data.dataset import Dataset
    >>> x, y, sex, age = torch.zeros(3, 1), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])
    >>> data = Dataset(
    ...     name="mine", x_train=x, y_train=y, x_test=x, y_test=y, classes=2,
    ...     group_train={"sex": sex, "age": age}, group_test={"sex": sex, "age": age},
    ...     group_names={"sex": ("f", "m"), "age": ("old", "young")},
    ... )
    >>> group_columns(data)["sex & age"].names
    ('f & young', 'm & old', 'm & young')
    """
    ranges = {}
    if data.target is not None:
        ranges[RANGE] = GroupColumn(data.class_names, data.labels("train"), data.labels("test"))
    if data.group_names is None or data.group_train is None or data.group_test is None:
        return ranges
    columns = {
        name: GroupColumn(names, data.group_train[name], data.group_test[name])
        for name, names in data.group_names.items()
    }
    return ranges | columns | {name: _combine(columns) for name in combined_names(columns) if name not in columns}


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
    """The combinations of several columns' numbers that occur, in order, and which of them each sample has.

    It is `torch.unique` over rows, which is a hundred times slower.

    Args:
        codes: whole numbers ≥ 0, (n,) each

    Returns:
        (combinations, columns), and (n,)

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


def check_two_values(data: "Dataset") -> None:
    """Refuse a column of groups with one value: there is nothing to tilt over or to compare."""
    for name, column in group_columns(data).items():
        found = torch.cat([column.train, column.test]).unique().tolist()
        if len(found) == 1 and name != RANGE:
            raise InputError(
                f"group = {name!r} has one value, {column.names[found[0]]!r}, in {data.name}; groups need two or more"
            )


def check_groups(data: "Dataset") -> None:
    """Refuse groups of a data set that do not match its samples or their names."""
    parts = data.group_train, data.group_test, data.group_names
    if all(part is None for part in parts):
        return
    if data.group_train is None or data.group_test is None or data.group_names is None:
        raise InputError(
            f"data set {data.name!r} has only some of group_train, group_test and group_names; give all or none"
        )
    if not data.group_names or {*data.group_train} != {*data.group_names} or {*data.group_test} != {*data.group_names}:
        columns = [list(part) for part in (data.group_train, data.group_test, data.group_names)]
        raise InputError(
            f"data set {data.name!r} has groups by {columns[0]} in group_train, {columns[1]} in group_test and "
            f"{columns[2]} in group_names; give each the same columns"
        )
    taken = CLASS if data.target is None else RANGE
    if taken in data.group_names:
        meaning = "labels" if data.target is None else "ranges of the target"
        raise InputError(
            f"data set {data.name!r} has a column of groups {taken!r}, which is the name of the {meaning}; rename it"
        )
    for column, names in data.group_names.items():
        for side, codes, y in (("train", data.group_train, data.y_train), ("test", data.group_test, data.y_test)):
            numbers = codes[column]
            if numbers.dtype != torch.int64 or numbers.shape != y.shape:
                raise InputError(
                    f"data set {data.name!r} has group_{side}[{column!r}] of shape {tuple(numbers.shape)} and dtype "
                    f"{str(numbers.dtype)[6:]}; give {len(y)} int64 numbers"
                )
            if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(names)):
                raise InputError(
                    f"data set {data.name!r} has group_{side}[{column!r}] up to {int(numbers.max())} and down to "
                    f"{int(numbers.min())}; with {len(names)} names they go from 0 to {len(names) - 1}"
                )
