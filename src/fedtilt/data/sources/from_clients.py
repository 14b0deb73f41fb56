"""One data set of data that comes client by client."""

import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from fedtilt.data.dataset import Dataset
from fedtilt.data.sources.huggingface import (
    is_huggingface,
    is_huggingface_dict,
    read_huggingface,
    split_warnings,
    splits,
    without_streaming,
)
from fedtilt.data.sources.samples import ClientSamples, LabelledSamples, from_arrays, make_dataset
from fedtilt.data.sources.torch_dataset import is_torch, read_torch
from fedtilt.data.tables.schema import Schema
from fedtilt.data.tables.table import table
from fedtilt.data.targets import check_task
from fedtilt.errors import InputError


def read_clients(
    data: Mapping[str, Any] | Iterable[Any], names: Iterable[object] | None, *, name: str,
    class_names: Sequence[str] | None, task: str | None, test_share: float | None, split: str | None, seed: int,
    **columns: Any,
) -> Dataset:  # fmt: skip
    """One data set of every client's data; see `Federation.from_clients`."""
    values = {client: without_streaming(value) for client, value in _name_clients(data, names).items()}
    if task is not None:
        check_task(task)
    if any(map(_is_table, values.values())):
        return _read_tables(values, name, class_names, test_share, seed, columns | {"task": task, "split": split})
    _check_tasks(values, task)
    parts = {client: _train_and_test(value, f"client {client!r}") for client, value in values.items()}
    all_parts = [part for pair in parts.values() for part in pair if part is not None]
    allowed = {"target", "inputs"} if any(map(is_huggingface, all_parts)) else set()
    allowed |= {"target"} if any(map(_is_torch, all_parts)) else set()
    unused = next((key for key in columns if key not in allowed), None)
    if unused is not None:
        raise InputError(f"{unused} = {columns[unused]!r} does not apply to this data; leave it out")
    clients = [
        ClientSamples(
            name=client,
            train=_read(train, f"client {client!r}", class_names, task, columns),
            test=None
            if test is None
            else _read(test, f"the test data of client {client!r}", class_names, task, columns),
        )
        for client, (train, test) in parts.items()
    ]
    dataset = make_dataset(clients, name, class_names=class_names, test_share=test_share, split=split, seed=seed)
    warnings = [
        f"client {client!r}: {text}"
        for client, value in values.items()
        for text in (value.warnings if isinstance(value, Dataset) else split_warnings(value))
    ]
    schema = _common_schema(values)
    if schema is not None and schema.is_regression:  # the scale that the data sets were read with
        dataset = replace(dataset, target=schema.numbers, classes=0, class_names=())
    return replace(dataset, schema=schema, warnings=warnings)


def _read_tables(
    values: Mapping[str, Any], name: str, class_names: Sequence[str] | None, test_share: float | None, seed: int,
    columns: Mapping[str, Any],
) -> Dataset:  # fmt: skip
    """One table of all clients' data frames or files; pairs (train, test) get a split column."""
    known = set(inspect.signature(table).parameters) - {"source", "client"}
    for key, value in [("class_names", class_names), *columns.items()]:
        if key not in known and value is not None:
            raise InputError(f"{key} = {value!r} does not apply to clients with tables; choose from {sorted(known)}")
    other = next((client for client, value in values.items() if not _is_table(value)), None)
    if other is not None:
        raise InputError(f"client {other!r} has no table, but other clients have; give all the same kind of data")
    settings = {key: value for key, value in columns.items() if value is not None}
    settings |= {} if test_share is None else {"test_share": test_share}
    pairs = [client for client, value in values.items() if _is_pair(value)]
    if pairs:
        single = next((client for client in values if client not in pairs), None)
        if single is not None:
            raise InputError(f"client {single!r} has no test data, but client {pairs[0]!r} has; give it to all or none")
        if test_share is not None or "split_column" in columns:
            raise InputError(f"client {pairs[0]!r} has its own test data; leave test_share and split_column out")
        settings["split_column"] = "split"
        values = {client: _join_frames(f"client {client!r}", *value) for client, value in values.items()}
    return replace(table(values, seed=seed, **settings), name=name)


def _join_frames(origin: str, train: Any, test: Any) -> Any:
    """One data frame with a column `split`."""
    if _is_array(test):
        raise InputError(f"{origin} has a DataFrame and labels; add the labels to it as a column, and name it: target")
    if not (_is_frame(train) and _is_frame(test)):
        raise InputError(f"{origin} has a pair with a file; read both as DataFrames")
    if "split" in train or set(train) != set(test):
        different = sorted(set(map(str, train)) ^ set(map(str, test))) or ["split"]
        raise InputError(f"{origin} has {different[0]!r} in one of train and test; rename or add it")
    return sys.modules["pandas"].concat([train.assign(split="train"), test[list(train)].assign(split="test")])


def _name_clients(data: object, names: Iterable[object] | None) -> dict[str, Any]:
    """Every client's data by its name; the names of a list are given, or its numbers."""
    if isinstance(data, Mapping) and not is_huggingface_dict(data):
        if names is not None:
            raise InputError("names and a dictionary both name the clients; leave names out")
        values, texts = list(data.values()), [str(key) for key in data]
    else:
        if not isinstance(data, list | tuple | Iterator):
            example = ", such as [data.load_partition(i) for i in range(10)]" if hasattr(data, "load_partition") else ""
            raise InputError(
                f"data is a {type(data).__name__}; give a list with the data of each client, or a dictionary by client "
                f"name{example}"
            )
        values = list(data)
        texts = [str(number) for number in range(len(values))] if names is None else [str(name) for name in names]
    if not values:
        raise InputError("data has 0 clients; give at least one")
    if len(texts) != len(values):
        raise InputError(f"names has {len(texts)} names for {len(values)} clients; give one each")
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise InputError(f"two clients have the name {twice!r}; give each its own")
    return dict(zip(texts, values, strict=True))


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _is_frame(value: object) -> bool:
    """Whether this is a pandas DataFrame, or another one with Arrow's interface."""
    if "pandas" in sys.modules and isinstance(value, sys.modules["pandas"].DataFrame):
        return True
    return hasattr(value, "__arrow_c_stream__") and not is_huggingface(value)


def _is_table(value: object) -> bool:
    """Whether a client's data is a data frame or a file, or a pair of them."""
    parts = value if _is_pair(value) else (value,)
    return any(_is_frame(part) or isinstance(part, str | os.PathLike) for part in parts)  # type: ignore[attr-defined]


def _is_array(value: object) -> bool:
    is_series = "pandas" in sys.modules and isinstance(value, sys.modules["pandas"].Series)
    return isinstance(value, Tensor | np.ndarray | list) or is_series


def _is_samples(value: Any) -> bool:
    """Whether a pair is (x, y) rather than (train, test)."""
    return _is_pair(value) and (_is_array(value[0]) or isinstance(value[0], Mapping)) and _is_array(value[1])


def _is_torch(value: Any) -> bool:
    known = isinstance(value, LabelledSamples) or _is_array(value) or _is_frame(value) or is_huggingface(value)
    return is_torch(value) and not known


def _train_and_test(value: Any, origin: str) -> tuple[Any, Any]:
    """A client's training data and, if it has any of its own, its test data, still to be read."""
    if isinstance(value, Dataset):
        return _split_dataset(value, origin)
    if is_huggingface_dict(value):
        return splits(value, origin)
    return value if _is_pair(value) and not _is_samples(value) else (value, None)


def _split_dataset(data: Dataset, origin: str) -> tuple[LabelledSamples, LabelledSamples | None]:
    if data.client_names is not None:
        raise InputError(
            f"{origin} is a data set with clients of its own, such as {data.client_names[0]!r}; use Federation.build"
        )
    if data.noisy_train is not None:
        raise InputError(
            f"{origin} has noisy_train beside the true labels; give it as y_train, or use Federation.build"
        )

    def samples(side: str, name: str) -> LabelledSamples:
        x, y, codes, weight, rows = (getattr(data, f"{key}_{side}") for key in ("x", "y", "group", "weight", "rows"))
        return LabelledSamples(
            origin=name,
            x=x,
            y=_pick(data.class_names, y) if data.target is None else y,
            task=data.task,
            class_names=data.class_names if data.target is None else None,
            image=data.image,
            row_names=None if data.row_names is None else _pick(data.row_names, rows),
            groups={column: _pick(names, codes[column]) for column, names in (data.group_names or {}).items()},
            weights=weight,
        )

    return samples("train", origin), samples("test", f"the test data of {origin}") if len(data.y_test) else None


def _pick(names: Sequence[str], positions: Tensor) -> list[str]:
    return [names[position] for position in positions.tolist()]


def _check_tasks(values: Mapping[str, Any], task: str | None) -> None:
    """Raise InputError if a task differs from that of a client's `Dataset`."""
    for client, value in values.items():
        if task is not None and isinstance(value, Dataset) and value.task != task:
            raise InputError(
                f"task = {task!r} differs from that of client {client!r}, a data set with task = {value.task!r}; leave "
                "it out, or give all clients the same"
            )


def _read(
    value: Any, origin: str, class_names: Sequence[str] | None, task: str | None, columns: Mapping[str, Any]
) -> LabelledSamples:
    """The samples of one client, from whatever it gave."""
    if isinstance(value, LabelledSamples):
        return value
    task = task or "classification"
    if _is_samples(value):
        x, y = value
        return from_arrays(x, y, origin, class_names, task)
    if is_huggingface(value):
        return read_huggingface(value, origin, class_names=class_names, task=task, **columns)
    if _is_torch(value):
        return read_torch(value, origin, columns.get("target"), class_names, task)
    raise InputError(
        f"{origin} is a {type(value).__name__}; give a ft.data.Dataset, arrays (x, y), a DataFrame, a PyTorch dataset "
        "or DataLoader, a Hugging Face dataset, or a pair (train, test) of these"
    )


def _common_schema(clients: Mapping[str, Any]) -> Schema | None:
    """The schema of all clients' data sets, which must have been read alike."""
    schemas = {name: value.schema if isinstance(value, Dataset) else None for name, value in clients.items()}
    (first, expected), *others = schemas.items()
    for name, found in others:
        if found != expected:
            raise InputError(
                f"client {name!r} has another schema than client {first!r}, such as other means and deviations; give "
                "the DataFrames instead, which get one schema"
            )
    return expected
