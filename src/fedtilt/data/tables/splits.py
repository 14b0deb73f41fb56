"""Which rows of a table are test data: pure functions of the rows, their order and a seed."""

import math
from collections.abc import Sequence

import numpy as np

from fedtilt import seeds
from fedtilt.data.sampling import DEFAULT_TEST_SHARE, holdout_size, positions_by_number, stratified_mask
from fedtilt.data.tables.cells import read_cells, read_names
from fedtilt.data.tables.columns import Columns
from fedtilt.data.tables.schema import Schema
from fedtilt.data.tables.text_cells import to_number
from fedtilt.errors import InputError

_SIDES = {"train": False, "training": False, "test": True, "testing": True}


def draw_test_rows(
    columns: Columns, schema: Schema, labels: np.ndarray, class_names: Sequence[str], client: np.ndarray,
    share: float, seed: int,
) -> np.ndarray:  # fmt: skip
    """A mask of the test rows: from the split column, else drawn client by client.

    A client's test rows depend on its own rows alone, so that a site draws what the simulator draws for its client.

    Args:
        columns: the table
        schema: its split, split_group and split_time columns
        labels: the class of each row
        class_names: the names of the classes
        client: the client of each row
        share: the share of each client's rows that is test data
        seed: the seed of the draw
    """
    if schema.split is not None:
        return _by_column(columns, schema.split)
    labels = _ranks(class_names)[labels]
    group = None
    if schema.split_group is not None:
        codes, names = read_names(columns, schema.split_group)
        group = _ranks(names)[codes]
    time = None if schema.split_time is None else _times(columns, schema.split_time)
    test = np.zeros(len(labels), bool)
    for number, rows in enumerate(positions_by_number(client, int(client.max()) + 1)):
        if not len(rows):
            continue
        if time is not None:
            test[rows] = by_time(time[rows], holdout_size(len(rows), share))
            continue
        rng = seeds.generator(seeds.key(seed, "table/test", client=number))
        count = holdout_size(len(rows), share)
        if group is None:
            test[rows] = stratified_mask(labels[rows], count, rng)
        else:
            test[rows] = by_group(group[rows], labels[rows], count, rng)
    if group is not None and len(np.intersect1d(group[test], group[~test])):
        shared = np.intersect1d(group[test], group[~test])[0]
        row = columns.rows[int(np.flatnonzero(group == shared)[0])]
        raise InputError(
            f"split_group = {schema.split_group!r} has a value with rows of several clients in {columns.name}, such as "
            f"that of {row}; every client's rows are split by themselves, so give its rows one client"
        )
    return test


def _ranks(names: Sequence[str]) -> np.ndarray:
    """The rank of each name: numbers by value, then texts; the ranks of some of the names are in the same order.

    >>> _ranks(["x", "10", "9"]).tolist()
    [2, 1, 0]
    """
    values = [to_number(name) for name in names]
    keys = [
        (0, value, name) if math.isfinite(value) else (1, 0.0, name) for name, value in zip(names, values, strict=True)
    ]
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=keys.__getitem__)] = np.arange(len(names))
    return ranks


def describe_split(schema: Schema, share: float | None, seed: int) -> str:
    """The split in words."""
    share = DEFAULT_TEST_SHARE if share is None else share
    if schema.split is not None:
        return f"as column {schema.split!r} says"
    if schema.split_time is not None:
        return f"the newest {100 * share:g} % of each client's rows by {schema.split_time!r} are test data"
    together = "" if schema.split_group is None else f", all rows of a {schema.split_group!r} on one side"
    strata = "target" if schema.is_regression else "class"
    return f"{100 * share:g} % of each client's rows are test data, stratified by {strata}{together} (seed {seed})"


def by_group(group: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """A mask of about `count` rows, with the classes about in proportion and every group on one side.

    Groups are visited in random order; one goes to the test side if that brings its class counts closer to the goal.

    >>> group, labels = np.array([0, 0, 1, 1, 2, 2, 3, 3]), np.array([0, 0, 1, 1, 0, 0, 1, 1])
    >>> by_group(group, labels, 4, np.random.default_rng(0)).sum()
    np.int64(4)
    """
    _, labels = np.unique(labels, return_inverse=True)
    _, group = np.unique(group, return_inverse=True)
    counts = np.zeros((group.max() + 1, labels.max() + 1))
    np.add.at(counts, (group, labels), 1)
    goal = counts.sum(0) * (count / len(labels))
    chosen, reached = np.zeros(len(counts), bool), np.zeros_like(goal)
    for number in rng.permutation(len(counts)):
        after = reached + counts[number]
        closer = np.square(after - goal).sum() < np.square(reached - goal).sum()
        if closer and chosen.sum() < len(counts) - 1:
            chosen[number], reached = True, after
    if count and not chosen.any() and len(counts) > 1:
        chosen[int(counts.sum(1).argmin())] = True  # every group is larger than the goal
    return np.asarray(chosen[group])


def by_time(time: np.ndarray, count: int) -> np.ndarray:
    """A mask of the newest rows: at least `count`, because rows of one time stay together; never all.

    >>> by_time(np.array([3.0, 1.0, 2.0, 2.0]), 2).tolist()
    [True, False, True, True]
    """
    if not count:
        return np.zeros(len(time), bool)
    test = time >= np.sort(time)[len(time) - count]
    return test if not test.all() else time > time.min()


def _times(columns: Columns, name: str) -> np.ndarray:
    cells = read_cells(columns, name)
    if cells.kind not in ("date", "number") or cells.values is None:
        raise InputError(
            f"split_time = {name!r} is a {cells.kind} in {columns.name}; name a column of dates or numbers"
        )
    missing = np.flatnonzero(np.isnan(cells.values))
    if len(missing):
        row = columns.rows[int(missing[0])]
        raise InputError(f"table {columns.name} has an empty cell in {row}, column {name!r}; fill it or drop the row")
    return cells.values


def _by_column(columns: Columns, name: str) -> np.ndarray:
    codes, names = read_names(columns, name)
    for number, value in enumerate(names):
        if value.casefold() not in _SIDES:
            row = columns.rows[int(np.flatnonzero(codes == number)[0])]
            raise InputError(
                f"table {columns.name} has {value!r} in {row}, column {name!r}; a split column has train and test "
                "(rows for validation are drawn from train: clients.validation in a spec)"
            )
    return np.asarray(np.array([_SIDES[value.casefold()] for value in names])[codes])
