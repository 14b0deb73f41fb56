"""The rows of a table: class or number, client, and which are training and test data."""

from typing import NamedTuple

import numpy as np

from fedtilt.data.sampling import QUARTERS, check_test_share, quarters
from fedtilt.data.tables.cells import classes_problem, read_names, read_numbers
from fedtilt.data.tables.columns import Columns
from fedtilt.data.tables.schema import Schema
from fedtilt.data.tables.splits import draw_test_rows
from fedtilt.errors import InputError


class LabelledRows(NamedTuple):
    """The rows of a table: class or number, client, and which are training data."""

    labels: np.ndarray  # (n,) classes or, with regression, numbers
    class_names: tuple[str, ...]  # empty with regression
    client: np.ndarray | None
    client_names: tuple[str, ...] | None
    train: np.ndarray  # positions
    test: np.ndarray


def label_rows(columns: Columns, schema: Schema, site: int | None, test_share: float | None, seed: int) -> LabelledRows:
    """Read the columns that are no features, and split the rows.

    Args:
        columns: the table
        schema: its target, client and split columns, and the classes if they are known
        site: the number of the site whose rows these are; None: the table has the rows of all clients
        test_share: the share of each client's rows that is test data; None: 0.25
        seed: the seed that draws the test data
    """
    test_share = check_test_share(test_share, seed, given=schema.split is not None)
    if len(columns) < 2:
        raise InputError(f"table {columns.name} has 1 row below its header; it needs at least 2")
    if schema.target is None:
        raise InputError(f"table {columns.name} needs a target; name the column of the labels: target = …")
    class_names: tuple[str, ...] = ()
    if schema.is_regression:
        labels = _read_target(columns, schema.target)
    else:
        labels, class_names = _read_labels(columns, schema.target, schema.classes, is_site=site is not None)
    if site is not None:
        _check_one_client(columns, schema.client)
        client, client_names = None, None
    else:
        client, client_names = _read_clients(columns, schema.client)
    owner = np.full(len(labels), site or 0) if client is None else client
    strata, names = (quarters(labels, owner), QUARTERS) if schema.is_regression else (labels, class_names)
    test = draw_test_rows(columns, schema, strata, names, owner, test_share, seed)
    if site is None and schema.split is not None and (test.all() or not test.any()):
        side = "test" if test.all() else "train"
        raise InputError(
            f"split = {schema.split!r} has only {side!r} in {columns.name}; mark some rows train and some test"
        )
    return LabelledRows(labels, class_names, client, client_names, np.flatnonzero(~test), np.flatnonzero(test))


def _read_target(columns: Columns, target: str) -> np.ndarray:
    values = read_numbers(columns, target).values
    assert values is not None
    return values


def _read_labels(
    columns: Columns, target: str, known: tuple[str, ...] | None, *, is_site: bool
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The class of each row, and the classes: those that are known, else the labels that occur."""
    labels, names = read_names(columns, target)
    if known is not None:
        for number, name in enumerate(names):
            if name not in known:
                row = columns.rows[int(np.flatnonzero(labels == number)[0])]
                raise InputError(
                    f"table {columns.name} has {name!r} in {row}, column {target!r}; the schema's classes are "
                    f"{', '.join(known)}"
                )
        return np.array([known.index(name) for name in names])[labels], known
    if len(names) < 2 and not is_site:
        raise InputError(f"target = {target!r} has one class, {names[0]!r}, in {columns.name}; it needs two or more")
    if problem := classes_problem(names, np.bincount(labels).tolist()):
        raise InputError(f"target = {target!r} of {columns.name} {problem}")
    return labels, names


def _read_clients(columns: Columns, client: str | None) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """The client of each row, and their names: from the column, else one per file; None: one file without a column."""
    if client is not None:
        return read_names(columns, client)
    parts = columns.parts
    if len(parts) == 1:
        return None, None
    names = tuple(part.client for part in parts)
    return np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts]), names


def _check_one_client(columns: Columns, client: str | None) -> None:
    """Refuse a site's table with the rows of several clients; it need not have the column of the clients."""
    if client is None or columns.read(client).null_count == len(columns):
        return
    _, names = read_names(columns, client)
    if len(names) > 1:
        raise InputError(
            f"table {columns.name} has rows of {names[0]!r} and {names[1]!r} in column {client!r}; a site has the rows "
            "of one client"
        )
