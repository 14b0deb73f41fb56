"""Hugging Face datasets, which `flwr-datasets` partitions are as well.

Whoever has such an object has imported the library, so this module looks it up; only `to_huggingface` imports it.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtilt.data.dataset import Dataset
from fedtilt.data.inputs import named_tensors
from fedtilt.data.sources.samples import ClientSamples, LabelledSamples, from_arrays, make_dataset
from fedtilt.data.sources.torch_dataset import LABEL_NAMES, read_torch
from fedtilt.data.targets import check_task
from fedtilt.errors import InputError
from fedtilt.imports import import_extra

if TYPE_CHECKING:
    from fedtilt.data.federation import Federation

_VALIDATION = ("validation", "valid", "val", "dev")  # names of the split


def is_huggingface(data: object) -> bool:
    """Whether this is a `datasets.Dataset`."""
    return "datasets" in sys.modules and isinstance(data, sys.modules["datasets"].Dataset)


def is_huggingface_dict(data: object) -> bool:
    """Whether this is a `datasets.DatasetDict`."""
    return "datasets" in sys.modules and isinstance(data, sys.modules["datasets"].DatasetDict)


def without_streaming(data: Any) -> Any:
    """The rows of a streaming dataset, or of a dictionary of them, in memory; other data as it is."""
    library = sys.modules.get("datasets")
    if library is not None and isinstance(data, library.IterableDatasetDict):
        return library.DatasetDict({name: without_streaming(part) for name, part in data.items()})
    if library is None or not isinstance(data, library.IterableDataset):
        return data
    return library.Dataset.from_list(list(data), features=data.features)


def from_huggingface(
    data: Any,
    *,
    target: str | None = None,
    inputs: Sequence[str] = (),
    client: str | None = None,
    name: str = "huggingface",
    class_names: Sequence[str] | None = None,
    task: str = "classification",
    test_share: float | None = None,
    split: str | None = None,
    seed: int = 0,
) -> Dataset:
    """Read a Hugging Face dataset of images, tokens or arrays as a data set.

    One input column becomes the model's input; several become a dictionary, passed to the model by name. For columns of
    plain numbers and categories, use `ft.data.table(data.to_pandas(), target=…)`.

    Args:
        data: a `datasets.Dataset`, or a `datasets.DatasetDict` with the splits train and, optionally, validation and
            test; without test, validation is the test data, otherwise a part of the training data
        target: the column of the labels; default: the only ClassLabel column, 'label' or 'labels'
        inputs: the columns of the model's inputs; default: all others
        client: the column that names the client of each row; default: the data has no clients of its own
        name: the name of the data set
        class_names: all classes in order; default: those of the ClassLabel column, else the labels that occur
        task: "classification"; "regression" if the labels are numbers to predict, "language" if a row has a token for
            each position, "multilabel" if it has 0 or 1 for each label
        test_share: the share of the samples that is test data; default: 0.25
        split: how test and validation data are drawn, "random" or with the classes in proportion ("proportional");
            default: at random
        seed: the seed that draws the test data
    """
    check_task(task)
    data = without_streaming(data)
    train, test = splits(data, "data")
    dropped = () if client is None else (client,)
    samples = [
        None
        if part is None
        else read_huggingface(part, origin, target, inputs, dropped, class_names=class_names, task=task)
        for part, origin in ((train, "the training data"), (test, "the test data"))
    ]
    assert samples[0] is not None
    clients = [ClientSamples(name="0", train=samples[0], test=samples[1])]
    if client is not None:
        clients = _by_client(clients[0], train, test, client)
    made = make_dataset(
        clients,
        name,
        class_names=class_names,
        test_share=test_share,
        split=split,
        seed=seed,
        keep_clients=client is not None,
    )
    notes = split_warnings(data)
    return replace(made, warnings=notes) if notes else made


def to_huggingface(federation: "Federation") -> dict[str, Any]:
    """The data of every client as a `datasets.DatasetDict`; see `Federation.to_datasets`."""
    library, data = import_extra("datasets", "to_datasets()", "huggingface"), federation.dataset
    if federation.outliers.kind != "none":
        raise InputError(
            f"outliers of kind {federation.outliers.kind!r} are drawn in training and are no data; build the "
            "federation without outliers to write its data"
        )
    if data.noisy_train is not None:
        raise InputError(f"{data.name!r} has noisy_train beside the true labels; write a data set with one of them")
    if data.image and next(iter(named_tensors(data.x_train, "x").values())).is_floating_point():
        raise InputError(f"the images of {data.name!r} are float32, which would be read back as arrays; give uint8")
    sides = {"train": ("train", federation.train_index), "test": ("test", federation.test_index)}
    if any(len(rows) for rows in federation.validation_index):
        sides["validation"] = "train", federation.validation_index
    found: dict[str, Any] = {name: library.DatasetDict() for name in federation.client_names}
    for split, (side, indices) in sides.items():
        features = library.Dataset.from_dict(_columns(data, side, slice(0, 1))).features
        if data.task == "classification":
            features["label"] = library.ClassLabel(names=list(data.class_names))
        for name, rows in zip(federation.client_names, indices, strict=True):
            found[name][split] = library.Dataset.from_dict(_columns(data, side, rows), features=features)
    return found


def _columns(data: Dataset, side: str, rows: Any) -> dict[str, Any]:
    """Rows of a data set as columns; images as those of Pillow."""
    found: dict[str, Any] = {}
    for key, column in named_tensors(getattr(data, f"x_{side}"), "image" if data.image else "x").items():
        values = column[rows].cpu().numpy()
        found[key] = [_picture(pixels) for pixels in values] if data.image else values
    found["label"] = getattr(data, f"y_{side}")[rows].cpu().numpy()
    if (weights := getattr(data, f"weight_{side}")) is not None:
        found["weight"] = weights[rows].cpu().numpy()
    for column, numbers in (getattr(data, f"group_{side}") or {}).items():
        assert data.group_names is not None
        found[column] = [data.group_names[column][number] for number in numbers[rows].tolist()]
    return found


def _picture(pixels: np.ndarray) -> Any:
    if len(pixels) not in (1, 3):
        raise InputError(f"images have {len(pixels)} channels; 1 and 3 can be written")
    image = import_extra("PIL.Image", "to_datasets()", "images")
    return image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def splits(data: Any, origin: str) -> tuple[Any, Any]:
    """The training data and, if there is any, the test data."""
    if is_huggingface(data):
        return data, None
    if not is_huggingface_dict(data):
        raise InputError(
            f"{origin} is a {type(data).__name__}; give a datasets.Dataset, or a datasets.DatasetDict with train and "
            "test"
        )
    validation = [name for name in data if name in _VALIDATION]
    if "train" not in data or set(data) - {"train", "test", *validation} or len(validation) > 1:
        raise InputError(
            f"{origin} has the splits {', '.join(data)}; give a datasets.DatasetDict with train and, optionally, "
            "validation and test"
        )
    if validation and "test" in data:  # validation data is drawn from all training data
        return sys.modules["datasets"].concatenate_datasets([data["train"], data[validation[0]]]), data["test"]
    return data["train"], data[validation[0]] if validation else data.get("test")


def split_warnings(data: Any) -> list[str]:
    """What becomes of a validation split."""
    validation = next((name for name in data if name in _VALIDATION), None) if is_huggingface_dict(data) else None
    if validation is None:
        return []
    use = "training data, of which Federation.build(validation=…) reserves a share" if "test" in data else "test data"
    return [f"the split {validation!r} ({len(data[validation]):,} samples) is used as {use}"]


def read_huggingface(
    data: Any, origin: str, target: str | None = None, inputs: Sequence[str] = (), drop: Sequence[str] = (), *,
    class_names: Sequence[str] | None, task: str,
) -> LabelledSamples:  # fmt: skip
    """All rows of a `datasets.Dataset`; `drop` has the columns that are neither input nor label."""
    if not len(data):
        raise InputError(f"{origin} has 0 rows; give at least one")
    if isinstance(inputs, str):
        raise InputError(f"inputs = {inputs!r} is text; give a list of columns, such as inputs = [{inputs!r}]")
    for column in (*inputs, *drop, *([target] if target is not None else [])):
        if column not in data.features:
            raise InputError(f"{origin} has no column {column!r}; its columns are {', '.join(data.features)}")
    target = _find_target(data, origin) if target is None else target
    columns = list(inputs) or [column for column in data.features if column not in (target, *drop)]
    kinds = {column: _kind(data.features[column]) for column in columns}
    unused = [column for column, kind in kinds.items() if kind in ("text", "number")]
    if unused or not kinds:
        usable = [column for column in columns if column not in unused]
        remedy = (
            f"choose the inputs, as in inputs = {usable}"
            if usable
            else "tokenise text, or read numbers and categories with ft.data.table(data.to_pandas(), target=…)"
        )
        raise InputError(f"{origin} has {_list(unused, kinds)} beside the label {target!r}; {remedy}")
    names = data.features[target].names if hasattr(data.features[target], "names") else None
    names = names if class_names is None else class_names
    selected = data.select_columns([*columns, target])
    if selected.format["type"] == "custom":  # a transform of the user's
        return read_torch(selected, origin, target, names, task)
    if "image" in kinds.values():
        return read_torch(selected.with_format(None), origin, target, names, task)
    arrays = selected.with_format("numpy")[:]
    for column in columns:
        if arrays[column].dtype == object:
            raise InputError(
                f"{origin} has rows of different lengths in column {column!r}; pad them, such as "
                "tokenizer(…, padding='max_length', truncation=True)"
            )
        feature = data.features[column]  # as Array2D((28, 28), "uint8"), whose numbers the library returns as int64
        if type(feature).__name__.startswith("Array") and feature.dtype in ("uint8", "uint16"):
            arrays[column] = arrays[column].astype(feature.dtype)
    x = arrays[columns[0]] if len(columns) == 1 else {column: arrays[column] for column in columns}
    return from_arrays(x, arrays[target], origin, names, task)


def _find_target(data: Any, origin: str) -> str:
    candidates = [name for name, feature in data.features.items() if hasattr(feature, "names")]
    candidates = candidates if len(candidates) == 1 else [name for name in LABEL_NAMES if name in data.features]
    if len(candidates) != 1:
        raise InputError(
            f"{origin} has the columns {', '.join(data.features)}; name the one of the labels, such as target = 'label'"
        )
    return candidates[0]


def _kind(feature: Any) -> str:
    """'image', 'text', 'number' (one per row) or 'array'."""
    if type(feature).__name__ == "Image":
        return "image"
    dtype = getattr(feature, "dtype", None)
    if type(feature).__name__ in ("Value", "ClassLabel"):
        return "text" if dtype in ("string", "large_string") else "number"
    return "array"


def _list(columns: Sequence[str], kinds: Mapping[str, str]) -> str:
    return ", ".join(f"the column {column!r} ({kinds[column]})" for column in columns) or "no column"


def _by_client(samples: ClientSamples, train: Any, test: Any, column: str) -> list[ClientSamples]:
    """One client for each value of a column, in the order of the training rows."""
    owner = np.array([str(value) for value in train[column]])
    test_owner = None if test is None else np.array([str(value) for value in test[column]])
    names = dict.fromkeys([*owner, *([] if test_owner is None else test_owner)])
    return [
        ClientSamples(
            name=str(name),
            train=samples.train.take(np.flatnonzero(owner == name)),
            test=None
            if samples.test is None or test_owner is None
            else samples.test.take(np.flatnonzero(test_owner == name)),
        )
        for name in names
    ]
