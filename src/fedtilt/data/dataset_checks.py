"""Checks of what a data set is made of: each refuses tensors or names that do not fit together."""

from collections.abc import Iterable, Mapping, Sized

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.inputs import Inputs, named_tensors
from fedtilt.data.targets import TASKS
from fedtilt.errors import InputError

_DTYPES = (torch.uint8, torch.float32, torch.int64)


def check_tensors(dataset: str, key: str, value: object, *, is_optional: bool) -> None:
    """Refuse everything that is not a tensor on the CPU, or a dictionary of them, such as arrays and lists."""
    if value is None and is_optional:
        return
    tensors: Mapping[str, object] = {key: value}
    if key.startswith("group"):
        if not isinstance(value, dict):
            raise InputError(
                f"data set {dataset!r} has {key} of type {type(value).__name__}; give a dictionary of tensors by "
                f"column, such as {key} = {{'sex': …}}"
            )
        tensors = named_tensors(value, key)
    elif key.startswith("x") and isinstance(value, dict):
        if not value or not all(isinstance(name, str) and name.isidentifier() for name in value):
            raise InputError(
                f"data set {dataset!r} has {key} with the names {list(value)}; give one or more names of the model's "
                "arguments, such as 'input_ids'"
            )
        tensors = named_tensors(value, key)
    for name, tensor in tensors.items():
        _check_tensor(dataset, name, tensor)


def _check_tensor(dataset: str, key: str, value: object) -> None:
    if isinstance(value, Tensor):
        if value.device.type != "cpu":
            raise InputError(f"data set {dataset!r} has {key} on {value.device}; give {key}.cpu(); a run moves it")
        return
    kind = "numpy.ndarray" if isinstance(value, np.ndarray) else type(value).__name__
    function = "torch.tensor" if isinstance(value, list | tuple) else "torch.from_numpy"
    raise InputError(f"data set {dataset!r} has {key} of type {kind}; make it a tensor with {function}")


def as_names(dataset: str, key: str, values: object) -> tuple[str, ...]:
    """Names as text: results are written as JSON, which has no np.int64."""
    if not isinstance(values, Iterable):
        raise InputError(f"data set {dataset!r} has {key} = {values!r}; give a tuple of names")
    values = tuple(values)
    for value in values:
        if not isinstance(value, str | int | float | np.generic):
            raise InputError(f"data set {dataset!r} has {value!r} among its {key}; give text or plain numbers")
    return tuple(str(value) for value in values)


def as_group_names(dataset: str, values: object) -> dict[str, tuple[str, ...]]:
    """The names of groups as text, by column."""
    if not isinstance(values, Mapping):
        raise InputError(
            f"data set {dataset!r} has group_names = {values!r}; give the names by column, such as "
            "{'sex': ('f', 'm')}"
        )
    return {str(column): as_names(dataset, f"group_names[{column!r}]", names) for column, names in values.items()}


def check_targets(dataset: str, key: str, y: Tensor, task: str) -> None:
    """Refuse an unknown task, and targets that are of another one."""
    if task not in TASKS:
        raise InputError(f"data set {dataset!r} has task = {task!r}; choose {' or '.join(TASKS)}")
    is_regression = task == "regression"
    if y.dim() == 2 and y.shape[1] > 1:
        raise InputError(
            f"data set {dataset!r} has {key} of {_format(y)}; several targets per sample are not supported: make a "
            "data set for each"
        )
    if y.dim() != 1 or y.dtype != (torch.float32 if is_regression else torch.int64):
        needed = "float32 number" if is_regression else "int64 label"
        hint = "" if is_regression or not y.is_floating_point() else ", or set task = 'regression'"
        raise InputError(f"data set {dataset!r} has {key} of {_format(y)}; give one {needed} per sample{hint}")
    if is_regression and not _is_finite(y):
        raise InputError(f"data set {dataset!r} has NaN or infinite values in {key}; replace them")


def check_samples(dataset: str, side: str, x: Inputs, y: Tensor) -> None:
    """Refuse samples and targets of one side that do not match."""
    tensors = named_tensors(x, f"x_{side}")
    for key, tensor in tensors.items():
        if tensor.dtype not in _DTYPES or not tensor.dim():
            raise InputError(
                f"data set {dataset!r} has {key} of {_format(tensor)}; convert it to uint8 (images), float32 or int64 "
                "(tokens), one sample per row"
            )
    for key, tensor in tensors.items():
        if len(tensor) != len(y):
            raise InputError(
                f"data set {dataset!r} has {len(tensor)} samples in {key} but {len(y)} labels; give one label each"
            )
    for key, tensor in tensors.items():
        if tensor.dtype == torch.float32 and not _is_finite(tensor):
            raise InputError(f"data set {dataset!r} has NaN or infinite values in {key}; replace them")


def check_labels(dataset: str, side: str, y: Tensor, classes: int) -> None:
    """Refuse labels that are no classes."""
    low, high = _range(y)
    if low < 0 or high >= classes:
        label = low if low < 0 else high
        raise InputError(f"data set {dataset!r} has the label {label} in y_{side}; labels go from 0 to {classes - 1}")


def check_same_format(dataset: str, x_train: Inputs, x_test: Inputs, *, image: bool) -> None:
    """Refuse training and test samples of different shapes or dtypes, and images that are none."""
    if _sample_format(x_train) != _sample_format(x_test):
        raise InputError(
            f"data set {dataset!r} has x_train of {_format(x_train)} but x_test of {_format(x_test)}; give both the "
            "same shape and dtype"
        )
    if image and not (_is_images(x_train) and _is_images(x_test)):
        raise InputError(
            f"data set {dataset!r} has image = True and x_train of {_format(x_train)}; images have shape (N, channels, "
            "height, width) and are uint8, or float32 between 0 and 1"
        )
    if not image and any(t.dtype == torch.uint8 for t in named_tensors(x_train, "x_train").values()):
        raise InputError(f"data set {dataset!r} has image = False and x_train of {_format(x_train)}; make it float32")


def check_numbers(
    dataset: str, codes: Mapping[str, tuple[Tensor | None, int]], names_key: str, names: Sized | None
) -> None:
    """Refuse numbers of clients or rows that do not match the samples or the names.

    Args:
        dataset: the name of the data set
        codes: by name, such as client_train, the numbers, and how many there must be
        names_key: what the names are, such as client_names
        names: the names
    """
    parts = [*(numbers for numbers, _ in codes.values()), names]
    if all(part is None for part in parts):
        return
    if names is None or any(part is None for part in parts):
        raise InputError(f"data set {dataset!r} has only some of {', '.join(codes)} and {names_key}; give all or none")
    for key, (numbers, size) in codes.items():
        assert numbers is not None
        check_codes(dataset, key, numbers, size, len(names), names_key)


def check_codes(dataset: str, key: str, numbers: Tensor, size: int, count: int, names_key: str) -> None:
    """Refuse numbers that are not `size` positions among `count` names."""
    if numbers.dtype != torch.int64 or numbers.shape != (size,):
        raise InputError(f"data set {dataset!r} has {key} of {_format(numbers)}; give {size} int64 numbers")
    low, high = _range(numbers)
    if low < 0 or high >= count:
        raise InputError(
            f"data set {dataset!r} has {key} up to {high} and down to {low}; with {count} {names_key} they go from 0 "
            f"to {count - 1}"
        )


def check_weights(dataset: str, sides: Mapping[str, tuple[Tensor | None, int]]) -> None:
    """Refuse weights that are no numbers ≥ 0, one per sample; by "train" and "test", the weights and their number."""
    if len({weight is None for weight, _ in sides.values()}) > 1:
        raise InputError(f"data set {dataset!r} has only one of weight_train and weight_test; give both or none")
    for side, (weight, size) in sides.items():
        if weight is not None and (
            weight.dtype != torch.float32 or weight.shape != (size,) or bool((weight < 0).any())
        ):
            raise InputError(f"data set {dataset!r} has weight_{side} of {_format(weight)}; give {size} numbers ≥ 0")


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


def _is_finite(x: Tensor) -> bool:
    """Whether all values are finite; if their sum is, they are, and a sum needs no memory."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(x.detach().numpy().sum())) or bool(torch.isfinite(x).all())


def _range(numbers: Tensor) -> tuple[int, int]:
    """The smallest and the largest number; (0, -1) of none. torch would wait for its threads, which may be busy."""
    values = numbers.detach().numpy()
    return (int(values.min()), int(values.max())) if len(values) else (0, -1)
