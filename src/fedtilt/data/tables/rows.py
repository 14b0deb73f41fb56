"""The rows of a table: class or number, client, and which are training and test data."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedtilt.data.naming import sort_names
from fedtilt.data.sampling import DEFAULT_TEST_SHARE, Split, check_test_share, draw_test_data, quarters
from fedtilt.data.tables.cells import SchemaMismatch
from fedtilt.data.tables.reader import TableReader
from fedtilt.data.tables.schema import Schema
from fedtilt.data.tables.text_values import to_number, yes_no_values
from fedtilt.data.tables.values import (
    class_numbers,
    classes_problem,
    common_classes,
    read_column,
    read_names,
    read_target,
)
from fedtilt.errors import InputError


class LabelledRows(NamedTuple):
    """The rows of a table: class or number, client, which are training data, and what further draws need."""

    labels: np.ndarray  # (n,) classes or, with regression, numbers
    class_names: tuple[str, ...]  # empty with regression
    client: np.ndarray | None
    client_names: tuple[str, ...] | None
    train: np.ndarray  # positions
    test: np.ndarray
    group: np.ndarray | None  # of the rows that stay on one side
    time: np.ndarray | None


def label_rows(
    reader: TableReader, schema: Schema, how: str, site: int | None, test_share: float | None, seed: int,
    drop_unlabelled: bool = False, leave_out: Sequence[str] = (),
) -> LabelledRows:  # fmt: skip
    """Read the columns that are no features of a site's rows, or of all, and split the rows.

    Rows without a label, with `drop_unlabelled`, and those of clients in `leave_out` are neither training nor test
    data; the numbers of the other clients do not change.
    """
    test_share = check_test_share(test_share, seed, given=schema.split_column is not None)
    if len(reader) < 2:
        raise InputError(f"table {reader.name} has 1 row below its header; it needs at least 2")
    if schema.target is None:
        raise InputError(f"table {reader.name} needs a target; name the column of the labels: target = …")
    class_names: tuple[str, ...] = ()
    if schema.is_regression:
        labels = read_target(reader, schema.target, gaps=drop_unlabelled).values
        assert labels is not None
        labelled = np.flatnonzero(np.isfinite(labels))
    else:
        labels, class_names = _read_labels(
            reader, schema.target, schema.classes, is_site=site is not None, gaps=drop_unlabelled
        )
        labelled = np.flatnonzero(labels >= 0)
    if site is not None:
        _check_one_client(reader, schema.client)
        client, client_names = None, None
    else:
        client, client_names = _read_clients(reader, schema.client)
    if leave_out:
        if client is None or client_names is None:
            raise InputError(f"leave_out = {list(leave_out)} needs a column of clients; name it: client = …")
        client, client_names = _with_names(client, client_names, leave_out)
        labelled = labelled[~np.isin(client[labelled], [client_names.index(name) for name in leave_out])]
    owner = np.full(len(labels), site or 0) if client is None else client
    group = time = None
    if schema.split_group is not None:
        codes, names = read_names(reader, schema.split_group)
        group = _ranks(names)[codes]  # the same order of groups in a site's table as in that of all
    if schema.time is not None:
        time = _times(reader, schema.time, labelled)
    if schema.split_column is not None:
        test = _by_column(reader, schema.split_column)[labelled]
        if site is None and (test.all() or not test.any()):
            side = "test" if test.all() else "train"
            raise InputError(
                f"split_column = {schema.split_column!r} has only {side!r} in {reader.name}; mark some rows train and "
                "some test"
            )
    else:
        ranks = labels if schema.is_regression else _ranks(class_names)[labels]
        strata = quarters(labels[labelled], owner[labelled]) if schema.is_regression else ranks[labelled]
        split = Split(how=how, group=group, time=time).of(labelled)
        test = draw_test_data(replace(split, strata=strata), owner[labelled], test_share, seed)
        if group is not None:
            _check_groups(reader, schema, group, labelled, test)
    return LabelledRows(labels, class_names, client, client_names, labelled[~test], labelled[test], group, time)


def _check_groups(
    reader: TableReader, schema: Schema, group: np.ndarray, rows: np.ndarray, test: np.ndarray
) -> None:  # fmt: skip
    """Raise InputError if a group has rows of several clients, some of them training and some test data."""
    if len(shared := np.intersect1d(group[rows[test]], group[rows[~test]])):
        row = reader.rows[int(rows[np.flatnonzero(group[rows] == shared[0])[0]])]
        raise InputError(
            f"split_group = {schema.split_group!r} has a value with rows of several clients in {reader.name}, such as "
            f"that of {row}; every client's rows are split by themselves, so give its rows one client"
        )


def _read_labels(
    reader: TableReader, target: str, known: tuple[str, ...] | None, *, is_site: bool, gaps: bool
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The class of each row, −1 without, and the classes: those that are known, else the labels that occur."""
    labels, names = read_names(reader, target, gaps=True)
    unlabelled = np.flatnonzero(labels < 0)
    if len(unlabelled) and not gaps:
        raise InputError(
            f"table {reader.name} has an empty cell in {reader.rows[int(unlabelled[0])]}, column {target!r}, which is "
            "the target; fill it, or leave such rows out: drop_unlabelled = true (data.drop_unlabelled in a spec)"
        )
    if not names:
        raise InputError(f"target = {target!r} has no label in {reader.name}; name another column")
    classes = common_classes(names) if known is None else known
    by_name = class_numbers(names, classes)
    for number, name in enumerate(names):
        if name not in by_name:
            row = reader.rows[int(np.flatnonzero(labels == number)[0])]
            raise SchemaMismatch(
                f"table {reader.name} has {name!r} in {row}, column {target!r}; the schema's classes are "
                f"{', '.join(classes)}",
                f"has the class {name!r}, which the schema lacks",
                "has a class, which the schema lacks",
            )
    if known is None and len(classes) < 2 and not is_site:
        raise InputError(f"target = {target!r} has one class, {names[0]!r}, in {reader.name}; it needs two or more")
    counts = np.bincount(labels[labels >= 0]).tolist()
    if known is None and (problem := classes_problem(names, counts)):
        raise InputError(f"target = {target!r} of {reader.name} {problem}")
    return np.array([*(by_name[name] for name in names), -1])[labels], classes


def _read_clients(reader: TableReader, client: str | None) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """The client of each row, and their names: from the column, else one per file; None: one file without a column."""
    if client is not None:
        return read_names(reader, client)
    tables = reader.tables
    if len(tables) == 1:
        return None, None
    names = tuple(table.client for table in tables)
    return np.repeat(np.arange(len(tables)), [len(table.rows) for table in tables]), names


def _with_names(
    client: np.ndarray, names: tuple[str, ...], others: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The client of each row among more names: a client whose rows are gone keeps its number."""
    every = sort_names({*names, *others}) if set(others) - set(names) else names
    return np.array([every.index(name) for name in names])[client], every


def _check_one_client(reader: TableReader, client: str | None) -> None:
    """Raise InputError if a site's table has the rows of several clients; it may lack the column of the clients."""
    if client is None or reader.read(client).null_count == len(reader):
        return
    _, names = read_names(reader, client)
    if len(names) > 1:
        raise InputError(
            f"table {reader.name} has rows of {names[0]!r} and {names[1]!r} in column {client!r}; a site has the rows "
            "of one client"
        )


_SIDES = {"train": False, "training": False, "test": True, "testing": True}


def _ranks(names: Sequence[str]) -> np.ndarray:
    """The rank of each name: numbers by value, no and yes, then texts; the ranks of some names are in the same order.

    >>> _ranks(["x", "10", "9"]).tolist()
    [2, 1, 0]
    """
    meanings = yes_no_values(names) or {}
    values = [meanings.get(name, to_number(name)) for name in names]
    keys = [
        (0, value, name) if math.isfinite(value) else (1, 0.0, name) for name, value in zip(names, values, strict=True)
    ]
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=keys.__getitem__)] = np.arange(len(names))
    return ranks


def describe_split(schema: Schema, how: str, share: float | None, seed: int) -> str:
    """The split in words."""
    share = DEFAULT_TEST_SHARE if share is None else share
    if schema.split_column is not None:
        return f"as column {schema.split_column!r} says"
    if how == "time":
        return f"the newest {100 * share:g} % of each client's rows by {schema.time!r} are test data"
    drawn = "drawn at random"
    if how == "proportional":
        drawn += f" with the {'quarters of the target' if schema.is_regression else 'classes'} in proportion"
    together = "" if schema.split_group is None else f", all rows of a {schema.split_group!r} on one side"
    return f"{100 * share:g} % of each client's rows are test data, {drawn}{together} (seed {seed})"


def _times(reader: TableReader, name: str, rows: np.ndarray) -> np.ndarray:
    """The time of every row; those that are used must have one."""
    cells = read_column(reader, name)
    if cells.kind not in ("date", "number") or cells.values is None:
        raise InputError(f"time = {name!r} is a {cells.kind} in {reader.name}; name a column of dates or numbers")
    missing = rows[np.isnan(cells.values[rows])]
    if len(missing):
        row = reader.rows[int(missing[0])]
        raise InputError(f"table {reader.name} has an empty cell in {row}, column {name!r}; fill it or drop the row")
    return cells.values


def _by_column(reader: TableReader, name: str) -> np.ndarray:
    codes, names = read_names(reader, name)
    for number, value in enumerate(names):
        if value.casefold() not in _SIDES:
            row = reader.rows[int(np.flatnonzero(codes == number)[0])]
            raise InputError(
                f"table {reader.name} has {value!r} in {row}, column {name!r}; a split column has train and test "
                "(rows for validation are drawn from train: clients.validation in a spec)"
            )
    return np.asarray(np.array([_SIDES[value.casefold()] for value in names])[codes])
