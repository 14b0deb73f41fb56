"""A data set in memory: training and test samples, their targets and, optionally, their clients."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from fedtilt import checks
from fedtilt.data.groups import check_groups
from fedtilt.data.inputs import Inputs, Shape, named_tensors, sample_shape, to_device
from fedtilt.data.tables.schema import Schema
from fedtilt.data.targets import TASKS, NumericTarget
from fedtilt.errors import InputError

_OPTIONAL = ("client", "group", "weight", "rows")
_TENSORS = (
    "x_train",
    "y_train",
    "x_test",
    "y_test",
    *(f"{key}_{side}" for key in _OPTIONAL for side in ("train", "test")),
)
_DTYPES = (torch.uint8, torch.float32, torch.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and test samples with their targets: classes or, with task = "regression", numbers.

    Args:
        name: the name of the data set
        x_train: training samples: images, uint8 in 0..255 or float32 in [0, 1], shape (N, channels, height, width);
            anything else as float32, or as int64 if a model looks it up (tokens); a dictionary of such tensors is
            passed to the model by name, as in model(input_ids=…, attention_mask=…)
        y_train: training labels, int64 in [0, classes), or training targets, float32
        x_test: test samples, of the shapes and dtypes of the training samples
        y_test: test labels or targets
        classes: the number of classes; with regression left out: the number of ranges of the target
        class_names: a name for each class; left out: their numbers; with regression the names of the ranges
        task: "classification" or "regression"
        target: with regression, the scale and the ranges of the targets; left out: those of `y_train`
        image: whether the samples are images; these are scaled to [-1, 1] for the model
        client_train: the number of each training sample's client, int64; left out: a partition makes the clients
        client_test: the number of each test sample's client
        client_names: a name for each client
        group_train: by column, such as "sex", the number of each training sample's group, int64; left out: the data
            has no groups besides its classes
        group_test: by column, the number of each test sample's group
        group_names: by column, a name for each group
        weight_train: the weight of each training sample in the loss, float32: 2 counts as two samples; left out: all
            count the same
        weight_test: the weight of each test sample; metrics count every sample once
        schema: of a table: what its columns are, and how they become the model's input
        rows_train: the position of each training sample in its source, int64, such as the row of a table
        rows_test: the position of each test sample
        row_names: the name of each position, such as `row 17` of a table
        warnings: sentences about the source that the user should read

    >>> x, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    >>> Dataset(name="mine", x_train=x, y_train=y, x_test=x, y_test=y, classes=2)
    Dataset('mine': 3 training and 3 test samples of shape (2,), 2 classes)
    """

    name: str
    x_train: Inputs
    y_train: Tensor
    x_test: Inputs
    y_test: Tensor
    classes: int = 0
    class_names: tuple[str, ...] = ()
    task: str = "classification"
    target: NumericTarget | None = None
    image: bool = False
    client_train: Tensor | None = None
    client_test: Tensor | None = None
    client_names: tuple[str, ...] | None = None
    group_train: dict[str, Tensor] | None = None
    group_test: dict[str, Tensor] | None = None
    group_names: Mapping[str, tuple[str, ...]] | None = None
    weight_train: Tensor | None = None
    weight_test: Tensor | None = None
    schema: Schema | None = None
    rows_train: Tensor | None = None
    rows_test: Tensor | None = None
    row_names: Sequence[str] | None = None
    warnings: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check_tensors(self)
        _check_task(self)
        if self.task == "regression":
            _set_ranges(self)
        classes = checks.whole(self.classes, f"classes of data set {self.name!r}", 1)
        object.__setattr__(self, "classes", classes)
        for key in ("class_names", "client_names"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, _as_names(self.name, key, getattr(self, key)))
        if self.group_names is not None:
            object.__setattr__(self, "group_names", _as_group_names(self.name, self.group_names))
        if not self.class_names:
            object.__setattr__(self, "class_names", tuple(str(k) for k in range(classes)))
        if len(self.class_names) != self.classes:
            raise InputError(
                f"data set {self.name!r} has {len(self.class_names)} class_names for classes = {self.classes}; "
                "give one name per class"
            )
        for side, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            _check_samples(self.name, side, x, y)
            if self.target is None:
                _check_labels(self.name, side, y, self.classes)
        if not len(self.y_train):
            raise InputError(f"data set {self.name!r} has 0 training samples; give it at least one")
        if _sample_format(self.x_train) != _sample_format(self.x_test):
            raise InputError(
                f"data set {self.name!r} has x_train of {_format(self.x_train)} but x_test of {_format(self.x_test)}; "
                "give both the same shape and dtype"
            )
        if self.image and not (_is_images(self.x_train) and _is_images(self.x_test)):
            raise InputError(
                f"data set {self.name!r} has image = True and x_train of {_format(self.x_train)}; images have shape "
                "(N, channels, height, width) and are uint8, or float32 between 0 and 1"
            )
        if not self.image and any(t.dtype == torch.uint8 for t in named_tensors(self.x_train, "x_train").values()):
            raise InputError(
                f"data set {self.name!r} has image = False and x_train of {_format(self.x_train)}; make it float32"
            )
        for key, names_key in (("client", "client_names"), ("rows", "row_names")):
            _check_numbers(self, key, names_key)
        check_groups(self)
        _check_weights(self)
        if self.schema is not None and (len(self.schema.inputs),) != self.input_shape:
            raise InputError(
                f"data set {self.name!r} has a schema of {len(self.schema.inputs)} inputs for samples of shape "
                f"{self.input_shape}; give the schema they were read with"
            )

    def to(self, device: torch.device) -> "Dataset":
        """The same data on another device."""
        moved = copy.copy(self)  # copied, so that it is not checked again
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _TENSORS and value is not None:
                object.__setattr__(moved, field.name, to_device(value, device))
        return moved

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self.y_train)} training and {len(self.y_test)} test samples of shape "
            f"{self.input_shape}, {f'{self.classes} classes' if self.target is None else 'numbers as targets'})"
        )

    @property
    def outputs(self) -> int:
        """The number of a model's outputs: one per class, or one number."""
        return self.classes if self.target is None else 1

    def labels(self, side: str) -> Tensor:
        """The class of each "train" or "test" sample or, with regression, the range of its target, int64."""
        y = self.y_train if side == "train" else self.y_test
        return y if self.target is None else self.target.ranges(y)

    @property
    def input_shape(self) -> Shape:
        """The shape of one sample; of a dictionary, the shape of each of its tensors."""
        return sample_shape(self.x_train)


def _format(x: Inputs) -> str:
    if isinstance(x, dict):
        return "; ".join(f"{key!r} of {_format(tensor)}" for key, tensor in x.items())
    return f"shape {tuple(x.shape)} and dtype {str(x.dtype).removeprefix('torch.')}"


def _sample_format(x: Inputs) -> list[tuple[object, ...]]:
    """The name, shape and dtype of every tensor, for one sample."""
    return sorted((name, tuple(t.shape[1:]), str(t.dtype)) for name, t in named_tensors(x, "x").items())


def _is_images(x: Inputs) -> bool:
    if isinstance(x, dict) or x.dim() != 4 or x.dtype not in (torch.uint8, torch.float32):
        return False
    return x.dtype == torch.uint8 or not len(x) or bool(x.min() >= 0 and x.max() <= 1)


def _check_tensors(data: Dataset) -> None:
    """Refuse everything that is not a tensor on the CPU, such as arrays and lists."""
    for key, value in _values(data).items():
        if isinstance(value, Tensor) and value.device.type != "cpu":
            raise InputError(f"data set {data.name!r} has {key} on {value.device}; give {key}.cpu(); a run moves it")
        if isinstance(value, Tensor):
            continue
        kind = "numpy.ndarray" if isinstance(value, np.ndarray) else type(value).__name__
        function = "torch.tensor" if isinstance(value, list | tuple) else "torch.from_numpy"
        raise InputError(f"data set {data.name!r} has {key} of type {kind}; make it a tensor with {function}")


def _values(data: Dataset) -> dict[str, object]:
    """What should be tensors, by name; the tensors of a dictionary one by one."""
    values: dict[str, object] = {}
    for key in _TENSORS:
        value = getattr(data, key)
        if key.startswith("group") and value is not None:
            if not isinstance(value, dict):
                raise InputError(
                    f"data set {data.name!r} has {key} of type {type(value).__name__}; give a dictionary of tensors by "
                    f"column, such as {key} = {{'sex': …}}"
                )
            values |= named_tensors(value, key)
        elif key.startswith("x") and isinstance(value, dict):
            if not value or not all(isinstance(name, str) and name.isidentifier() for name in value):
                raise InputError(
                    f"data set {data.name!r} has {key} with the names {list(value)}; give one or more names of the "
                    "model's arguments, such as 'input_ids'"
                )
            values |= named_tensors(value, key)
        elif value is not None or not key.startswith(_OPTIONAL):
            values[key] = value
    return values


def _as_names(name: str, key: str, values: object) -> tuple[str, ...]:
    """Names as text: results are written as JSON, which has no np.int64."""
    if not isinstance(values, Iterable):
        raise InputError(f"data set {name!r} has {key} = {values!r}; give a tuple of names")
    values = tuple(values)
    for value in values:
        if not isinstance(value, str | int | float | np.generic):
            raise InputError(f"data set {name!r} has {value!r} among its {key}; give text or plain numbers")
    return tuple(str(value) for value in values)


def _as_group_names(name: str, values: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(values, Mapping):
        raise InputError(
            f"data set {name!r} has group_names = {values!r}; give the names by column, such as {{'sex': ('f', 'm')}}"
        )
    return {str(column): _as_names(name, f"group_names[{column!r}]", names) for column, names in values.items()}


def _check_task(data: Dataset) -> None:
    """Refuse an unknown task, and targets that are of another one."""
    if data.task not in TASKS:
        raise InputError(f"data set {data.name!r} has task = {data.task!r}; choose {' or '.join(TASKS)}")
    is_regression = data.task == "regression"
    if data.target is not None and not is_regression:
        raise InputError(f"data set {data.name!r} has a target scale and task = {data.task!r}; set task = 'regression'")
    for key, y in (("y_train", data.y_train), ("y_test", data.y_test)):
        if y.dim() == 2 and y.shape[1] > 1:
            raise InputError(
                f"data set {data.name!r} has {key} of {_format(y)}; several targets per sample are not supported: make "
                "a data set for each"
            )
        if y.dim() != 1 or y.dtype != (torch.float32 if is_regression else torch.int64):
            needed = "float32 number" if is_regression else "int64 label"
            hint = "" if is_regression or not y.is_floating_point() else ", or set task = 'regression'"
            raise InputError(f"data set {data.name!r} has {key} of {_format(y)}; give one {needed} per sample{hint}")
        if is_regression and not _is_finite(y):
            raise InputError(f"data set {data.name!r} has NaN or infinite values in {key}; replace them")


def _set_ranges(data: Dataset) -> None:
    """Set the target's scale, and the ranges in place of classes."""
    target = data.target or NumericTarget.of(data.y_train, data.name)
    names = target.names
    if data.classes not in (0, len(names)) or (data.class_names and tuple(data.class_names) != names):
        raise InputError(
            f"data set {data.name!r} has classes = {data.classes} and task = 'regression'; leave out classes and "
            "class_names"
        )
    for key, value in (("target", target), ("classes", len(names)), ("class_names", names)):
        object.__setattr__(data, key, value)


def _check_samples(name: str, split: str, x: Inputs, y: Tensor) -> None:
    """Refuse samples and targets of one split that do not match."""
    tensors = named_tensors(x, f"x_{split}")
    for key, tensor in tensors.items():
        if tensor.dtype not in _DTYPES or not tensor.dim():
            raise InputError(
                f"data set {name!r} has {key} of {_format(tensor)}; convert it to uint8 (images), float32 or int64 "
                "(tokens), one sample per row"
            )
    for key, tensor in tensors.items():
        if len(tensor) != len(y):
            raise InputError(
                f"data set {name!r} has {len(tensor)} samples in {key} but {len(y)} labels; give one label each"
            )
    for key, tensor in tensors.items():
        if tensor.dtype == torch.float32 and not _is_finite(tensor):
            raise InputError(f"data set {name!r} has NaN or infinite values in {key}; replace them")


def _check_labels(name: str, split: str, y: Tensor, classes: int) -> None:
    low, high = _range(y)
    if low < 0 or high >= classes:
        label = low if low < 0 else high
        raise InputError(f"data set {name!r} has the label {label} in y_{split}; labels go from 0 to {classes - 1}")


def _is_finite(x: Tensor) -> bool:
    """Whether all values are finite; if their sum is, they are, and a sum needs no memory."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(x.detach().numpy().sum())) or bool(torch.isfinite(x).all())


def _range(numbers: Tensor) -> tuple[int, int]:
    """The smallest and the largest number; (0, -1) of none. torch would wait for its threads, which may be busy."""
    values = numbers.detach().numpy()
    return (int(values.min()), int(values.max())) if len(values) else (0, -1)


def _check_numbers(data: Dataset, key: str, names_key: str) -> None:
    """Refuse numbers of clients or rows that do not match the samples or the names."""
    train, test, names = getattr(data, f"{key}_train"), getattr(data, f"{key}_test"), getattr(data, names_key)
    if train is None and test is None and names is None:
        return
    if train is None or test is None or names is None:
        raise InputError(
            f"data set {data.name!r} has only some of {key}_train, {key}_test and {names_key}; give all or none"
        )
    for split, numbers, y in [("train", train, data.y_train), ("test", test, data.y_test)]:
        if numbers.dtype != torch.int64 or numbers.shape != y.shape:
            raise InputError(
                f"data set {data.name!r} has {key}_{split} of {_format(numbers)}; give {len(y)} int64 numbers"
            )
        low, high = _range(numbers)
        if low < 0 or high >= len(names):
            raise InputError(
                f"data set {data.name!r} has {key}_{split} up to {high} and down to {low}; with {len(names)} "
                f"{names_key} they go from 0 to {len(names) - 1}"
            )


def _check_weights(data: Dataset) -> None:
    if (data.weight_train is None) != (data.weight_test is None):
        raise InputError(f"data set {data.name!r} has only one of weight_train and weight_test; give both or none")
    for split, weight, y in [("train", data.weight_train, data.y_train), ("test", data.weight_test, data.y_test)]:
        if weight is not None and (
            weight.dtype != torch.float32 or weight.shape != y.shape or bool((weight < 0).any())
        ):
            raise InputError(
                f"data set {data.name!r} has weight_{split} of {_format(weight)}; give {len(y)} numbers ≥ 0"
            )
