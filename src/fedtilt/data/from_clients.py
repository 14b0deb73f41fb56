"""One data set of data that comes client by client."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from fedtilt.data.dataset import Dataset
from fedtilt.data.huggingface import is_huggingface, is_huggingface_dict, read_huggingface, splits
from fedtilt.data.inputs import Inputs
from fedtilt.data.samples import ClientSamples, Samples, from_arrays, make_dataset
from fedtilt.data.schema import Schema
from fedtilt.data.torch_dataset import is_map_style, read_torch
from fedtilt.errors import InputError


def read_clients(
    data: Mapping[str, Any] | Sequence[Any],
    names: Iterable[object] | None = None,
    *,
    name: str = "clients",
    class_names: Sequence[str] | None = None,
    test_share: float | None = None,
    seed: int = 0,
    **columns: Any,
) -> Dataset:
    """One data set of every client's data; see `Federation.from_clients`."""
    values = _name_clients(data, names)
    parts = {client: _train_and_test(value, f"client {client!r}") for client, value in values.items()}
    all_parts = [part for pair in parts.values() for part in pair if part is not None]
    allowed = {"target", "inputs"} if any(map(is_huggingface, all_parts)) else set()
    allowed |= {"target"} if any(map(_is_torch, all_parts)) else set()
    unused = next((key for key in columns if key not in allowed), None)
    if unused is not None:
        raise InputError(f"{unused} = {columns[unused]!r} does not apply to this data; leave it out")
    clients = []
    for client, (train, test) in parts.items():
        origin = f"client {client!r}"
        clients.append(
            ClientSamples(
                name=client,
                train=_read(train, origin, class_names, columns),
                test=None if test is None else _read(test, f"the test data of {origin}", class_names, columns),
            )
        )
    dataset = make_dataset(clients, name, class_names=class_names, test_share=test_share, seed=seed)
    return replace(dataset, schema=_common_schema(values))


def _name_clients(data: object, names: Iterable[object] | None) -> dict[str, Any]:
    """Every client's data by its name; the names of a list are given, or its numbers."""
    if isinstance(data, Mapping) and not is_huggingface_dict(data):
        if names is not None:
            raise InputError("names and a dictionary both name the clients; leave names out")
        values, texts = list(data.values()), [str(key) for key in data]
    else:
        if not isinstance(data, list | tuple):
            raise InputError(
                f"data is a {type(data).__name__}; give a list with the data of each client, or a dictionary by client "
                f"name{_partition_remedy(data)}"
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


def _partition_remedy(data: object) -> str:
    """How to get the partitions of flwr-datasets' objects."""
    if not hasattr(data, "load_partition"):
        return ""
    return ", such as [data.load_partition(i) for i in range(10)]"


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _is_frame(value: object) -> bool:
    return "pandas" in sys.modules and isinstance(value, sys.modules["pandas"].DataFrame)


def _is_array(value: object) -> bool:
    is_series = "pandas" in sys.modules and isinstance(value, sys.modules["pandas"].Series)
    return isinstance(value, Tensor | np.ndarray | list) or is_series


def _is_samples(value: Any) -> bool:
    """Whether a pair is (x, y) rather than (train, test)."""
    return _is_pair(value) and (_is_array(value[0]) or isinstance(value[0], Mapping)) and _is_array(value[1])


def _is_torch(value: Any) -> bool:
    known = isinstance(value, Samples) or _is_array(value) or _is_frame(value) or is_huggingface(value)
    return is_map_style(value) and not known


def _train_and_test(value: Any, origin: str) -> tuple[Any, Any]:
    """A client's training data and, if it has any of its own, its test data, still to be read."""
    if isinstance(value, Dataset):
        return _split_dataset(value, origin)
    if is_huggingface_dict(value):
        return splits(value, origin)
    return value if _is_pair(value) and not _is_samples(value) else (value, None)


def _split_dataset(data: Dataset, origin: str) -> tuple[Samples, Samples | None]:
    if data.client_names is not None:
        raise InputError(
            f"{origin} is a data set with clients of its own, such as {data.client_names[0]!r}; use Federation.build"
        )

    def samples(x: Inputs, y: Tensor, name: str) -> Samples:
        labels = [data.class_names[k] for k in y.tolist()]
        return Samples(origin=name, x=x, labels=labels, class_names=data.class_names, image=data.image)

    test = samples(data.x_test, data.y_test, f"the test data of {origin}") if len(data.y_test) else None
    return samples(data.x_train, data.y_train, origin), test


def _read(value: Any, origin: str, class_names: Sequence[str] | None, columns: Mapping[str, Any]) -> Samples:
    """The samples of one client, from whatever it gave."""
    if isinstance(value, Samples):
        return value
    if _is_samples(value):
        x, y = value
        return from_arrays(x, y, origin, class_names)
    if is_huggingface(value):
        return read_huggingface(value, origin, class_names=class_names, **columns)
    if _is_torch(value):
        return read_torch(value, origin, columns.get("target"), class_names)
    raise InputError(
        f"{origin} is a {type(value).__name__}; give a ft.data.Dataset, arrays (x, y), a DataFrame, a map-style "
        "PyTorch dataset, a Hugging Face dataset, or a pair (train, test) of these"
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
