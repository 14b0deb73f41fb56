"""A person's own table: numeric features, a label column and, if they like, a client column."""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtilt import checks, seeds
from fedtilt.data.columns import Columns, Source, matrix, number, read
from fedtilt.data.dataset import Dataset
from fedtilt.data.features import Features, features_of
from fedtilt.data.strata import held_out, stratified
from fedtilt.errors import InputError

_MANY, _ROWS = 20, 10  # more classes than so many need so many rows each, on average


def table(
    path: Source, *, target: str, client: str | None = None, drop: Sequence[str] = (), test_share: float = 0.25,
    seed: int = 0,
) -> Dataset:  # fmt: skip
    """A CSV, TSV or Parquet file or a pandas DataFrame as a data set.

    Every column but `target`, `client` and those to `drop` is a feature: numbers or True and False, without gaps.
    Labels and clients may be text. `test_share` of each client's rows (of all rows without a client column) is test
    data, with the classes in proportion; features are standardised with the training rows' mean and deviation, which
    `features` keeps, and one that is constant there becomes 0; `rows` does the same to new rows.
    """
    test_share, seed = checks.number(test_share, "test_share"), checks.whole(seed, "seed")
    if not 0 < test_share < 1:
        raise InputError(f"test_share = {test_share} must lie between 0 and 1, both excluded; 0.25 is usual")
    columns = read(path)
    if len(columns.rows) < 2:
        raise InputError(f"table {columns.name} has 1 row below its header; it needs at least 2")
    names = _feature_names(columns, target, client, drop)
    y, class_names = _numbered(columns, target)
    _check_classes(columns, target, y, class_names)
    group, client_names = _numbered(columns, client) if client else (np.zeros_like(y), ("0",))
    x = matrix(columns, names, ", or leave these columns out: drop = {wrong} (data.drop in a spec)")
    test = _test_rows(y, group, test_share, seed)
    features = Features.of(names, x[~test])
    x_all, y_all, client_all = features.standardised(x), torch.from_numpy(y), torch.from_numpy(group)
    train_rows, test_rows = torch.from_numpy(~test), torch.from_numpy(test)
    return Dataset(
        name=Path(columns.name).stem,
        x_train=x_all[train_rows],
        y_train=y_all[train_rows],
        x_test=x_all[test_rows],
        y_test=y_all[test_rows],
        classes=len(class_names),
        class_names=class_names,
        client_train=client_all[train_rows] if client else None,
        client_test=client_all[test_rows] if client else None,
        client_names=client_names if client else None,
        features=features,
    )


def rows(path: Source, *, like: Dataset | str | os.PathLike[str]) -> Tensor:
    """New rows of a table as a model takes them: the columns it was trained on, standardised as they were then.

    `like` is the data set of `table`, or a file of `fedtilt export`. Columns are found by name; others are left aside.
    """
    if not isinstance(like, Dataset | str | os.PathLike):
        raise InputError(f"like is a {type(like).__name__}; give a data set, or the path of an exported model")
    if isinstance(like, Dataset) and like.features is None:
        raise InputError(f"data set {like.name!r} does not say what its features are; give one of ft.data.table")
    features = like.features if isinstance(like, Dataset) else features_of(like)
    assert features is not None
    columns = read(path)
    missing = [name for name in features.names if name not in columns.cells]
    if missing:
        raise InputError(
            f"table {columns.name} has no column {', '.join(map(repr, missing))}, which the model was trained on; "
            f"its columns are {', '.join(columns.cells)}"
        )
    return features.standardised(matrix(columns, features.names))


def _test_rows(y: np.ndarray, group: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A mask of the test rows, drawn client by client."""
    test = np.zeros(len(y), bool)
    order = np.argsort(group, kind="stable")
    for who, own in enumerate(np.split(order, np.cumsum(np.bincount(group))[:-1])):
        rng = seeds.generator(seeds.key(seed, "table/test", client=who))
        test[own] = stratified(y[own], held_out(len(own), share), rng)
    return test


def _feature_names(columns: Columns, target: str, client: str | None, drop: Sequence[str]) -> tuple[str, ...]:
    """The columns that are left when labels, clients and what is dropped are taken away."""
    if isinstance(drop, str):
        raise InputError(f"drop = {drop!r} is text; give a list of columns, such as drop = [{drop!r}]")
    known = ", ".join(columns.cells)
    for key, name in [("target", target), ("client", client), *(("drop", name) for name in drop)]:
        if name is not None and name not in columns.cells:
            raise InputError(f"{key} = {name!r} is not a column of {columns.name}; its columns are {known}")
        if key == "drop" and name in (target, client):
            raise InputError(
                f"drop holds {name!r}, which is the {'target' if name == target else 'client'}; leave it out"
            )
    if target == client:
        raise InputError(f"target and client are both {target!r}; they must be two columns of {columns.name}")
    names = tuple(name for name in columns.cells if name not in (target, client, *drop))
    if not names:
        raise InputError(f"table {columns.name} has no feature column beside {known}; add one")
    return names


def _check_classes(columns: Columns, target: str, y: np.ndarray, names: Sequence[str]) -> None:
    """Refuse a target that does not look like classes: one alone, measurements, or as many as there are rows."""
    if len(names) < 2:
        raise InputError(f"target = {target!r} has one class, {names[0]!r}, in {columns.name}; it needs two or more")
    values = [number(name) for name in names]
    broken = [name for name, value in zip(names, values, strict=True) if not value.is_integer()]
    if broken and all(map(math.isfinite, values)):
        raise InputError(
            f"target = {target!r} has numbers such as {broken[0]} in {columns.name}, where classes belong; group them "
            "into a few, named by text or whole numbers"
        )
    once = int((np.bincount(y) == 1).sum())
    if 2 * once > len(names) or (len(names) > _MANY and len(y) < _ROWS * len(names)):
        raise InputError(
            f"target = {target!r} has {len(names)} classes in {len(y)} rows of {columns.name}, {once} of them in one "
            "row; name a column of classes, or group them into fewer"
        )


def _numbered(columns: Columns, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column of names as numbers 0, 1, … in the names' order."""
    text = [str(value).strip() for value in columns.cells[name]]
    if "" in text:
        row = columns.rows[text.index("")]
        raise InputError(
            f"table {columns.name} has an empty cell in row {row}, column {name!r}; fill it or drop the row"
        )
    ordered = _ordered(set(text))
    number = {value: k for k, value in enumerate(ordered)}
    return np.array([number[value] for value in text], np.int64), ordered


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Names by value if all are finite numbers, else as text: 'nan' has no place among numbers.

    >>> _ordered(["10", "9"]), _ordered(["10", "9", "nan"])
    (('9', '10'), ('10', '9', 'nan'))
    """
    value = {name: number(name) for name in names}
    if all(map(math.isfinite, value.values())):
        return tuple(sorted(value, key=lambda name: (value[name], name)))
    return tuple(sorted(value))
