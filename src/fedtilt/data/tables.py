"""The user's own table: numeric features, a label column and, optionally, a client column."""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtilt import checks, seeds
from fedtilt.data.columns import Columns, Source, read_columns, to_matrix, to_number
from fedtilt.data.dataset import Dataset
from fedtilt.data.features import Features, read_features
from fedtilt.data.sampling import holdout_size, stratified_mask
from fedtilt.errors import InputError

_MANY_CLASSES, _ROWS_PER_CLASS = 20, 10  # beyond 20 classes, a class needs 10 rows on average


def table(
    source: Source, *, target: str, client: str | None = None, drop: Sequence[str] = (), test_share: float = 0.25,
    seed: int = 0,
) -> Dataset:  # fmt: skip
    """Read a table as a data set.

    Features are numbers or True and False, without missing values. They are standardised with the training rows' mean
    and standard deviation, which the data set stores as `features`; `rows` does the same to new rows.

    Args:
        source: a CSV, TSV or Parquet file or a pandas DataFrame
        target: the column of the labels, numbers or text
        client: the column that names the client of each row; left out: the data has no clients of its own
        drop: columns to leave out; all others are features
        test_share: the share of each client's rows that is test data, with the classes in proportion
        seed: the seed that draws the test data
    """
    test_share, seed = checks.number(test_share, "test_share"), checks.whole(seed, "seed")
    if not 0 < test_share < 1:
        raise InputError(f"test_share = {test_share} must be > 0 and < 1; 0.25 is usual")
    columns = read_columns(source)
    if len(columns.rows) < 2:
        raise InputError(f"table {columns.name} has 1 row below its header; it needs at least 2")
    names = _feature_names(columns, target, client, drop)
    y, class_names = _encode(columns, target)
    _check_classes(columns, target, y, class_names)
    group, client_names = _encode(columns, client) if client else (np.zeros_like(y), ("0",))
    x = to_matrix(columns, names, ", or leave these columns out: drop = {columns} (data.drop in a spec)")
    test = _test_rows(y, group, test_share, seed)
    features = Features.fit(names, x[~test])
    x_all, y_all, client_all = features.standardise(x), torch.from_numpy(y), torch.from_numpy(group)
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


def rows(source: Source, *, like: Dataset | str | os.PathLike[str]) -> Tensor:
    """New rows as a model's input: the columns it was trained on, standardised as in training.

    Args:
        source: a CSV, TSV or Parquet file or a pandas DataFrame; columns that are not features are ignored
        like: the data set that `table` returned, or the file of an exported model
    """
    if not isinstance(like, Dataset | str | os.PathLike):
        raise InputError(f"like is a {type(like).__name__}; give a data set, or the path of an exported model")
    if isinstance(like, Dataset) and like.features is None:
        raise InputError(f"data set {like.name!r} has no features; give a data set that ft.data.table returned")
    features = like.features if isinstance(like, Dataset) else read_features(like)
    assert features is not None
    columns = read_columns(source)
    missing = [name for name in features.names if name not in columns.cells]
    if missing:
        raise InputError(
            f"table {columns.name} has no column {', '.join(map(repr, missing))}, which the model was trained on; "
            f"its columns are {', '.join(columns.cells)}"
        )
    return features.standardise(to_matrix(columns, features.names))


def _test_rows(y: np.ndarray, group: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A mask of the test rows, drawn client by client."""
    test = np.zeros(len(y), bool)
    order = np.argsort(group, kind="stable")
    for client, rows in enumerate(np.split(order, np.cumsum(np.bincount(group))[:-1])):
        rng = seeds.generator(seeds.key(seed, "table/test", client=client))
        test[rows] = stratified_mask(y[rows], holdout_size(len(rows), share), rng)
    return test


def _feature_names(columns: Columns, target: str, client: str | None, drop: Sequence[str]) -> tuple[str, ...]:
    """All columns except the target, the client and those to drop."""
    if isinstance(drop, str):
        raise InputError(f"drop = {drop!r} is text; give a list of columns, such as drop = [{drop!r}]")
    known = ", ".join(columns.cells)
    for key, name in [("target", target), ("client", client), *(("drop", name) for name in drop)]:
        if name is not None and name not in columns.cells:
            raise InputError(f"{key} = {name!r} is not a column of {columns.name}; its columns are {known}")
        if key == "drop" and name in (target, client):
            raise InputError(
                f"drop contains {name!r}, which is the {'target' if name == target else 'client'}; leave it out"
            )
    if target == client:
        raise InputError(f"target and client are both {target!r}; they must be two columns of {columns.name}")
    names = tuple(name for name in columns.cells if name not in (target, client, *drop))
    if not names:
        raise InputError(f"table {columns.name} has no feature column, only {known}; add one")
    return names


def _check_classes(columns: Columns, target: str, y: np.ndarray, names: Sequence[str]) -> None:
    """Refuse a target that does not look like classes: one value, measurements, or nearly one class per row."""
    if len(names) < 2:
        raise InputError(f"target = {target!r} has one class, {names[0]!r}, in {columns.name}; it needs two or more")
    values = [to_number(name) for name in names]
    fractions = [name for name, value in zip(names, values, strict=True) if not value.is_integer()]
    if fractions and all(map(math.isfinite, values)):
        raise InputError(
            f"target = {target!r} has numbers such as {fractions[0]} in {columns.name}, which are not classes; group "
            "them into a few, named by text or whole numbers"
        )
    once = int((np.bincount(y) == 1).sum())
    if 2 * once > len(names) or (len(names) > _MANY_CLASSES and len(y) < _ROWS_PER_CLASS * len(names)):
        raise InputError(
            f"target = {target!r} has {len(names)} classes in {len(y)} rows of {columns.name}, {once} of them in one "
            "row; name a column of classes, or group them into fewer"
        )


def _encode(columns: Columns, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column of names as numbers 0, 1, …, and the sorted names."""
    text = [str(value).strip() for value in columns.cells[name]]
    if "" in text:
        row = columns.rows[text.index("")]
        raise InputError(
            f"table {columns.name} has an empty cell in row {row}, column {name!r}; fill it or drop the row"
        )
    names = sort_names(set(text))
    number = {value: k for k, value in enumerate(names)}
    return np.array([number[value] for value in text], np.int64), names


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort by value if all names are finite numbers, else as text: 'nan' cannot be ordered.

    >>> sort_names(["10", "9"]), sort_names(["10", "9", "nan"])
    (('9', '10'), ('10', '9', 'nan'))
    """
    value = {name: to_number(name) for name in names}
    if all(map(math.isfinite, value.values())):
        return tuple(sorted(value, key=lambda name: (value[name], name)))
    return tuple(sorted(value))
