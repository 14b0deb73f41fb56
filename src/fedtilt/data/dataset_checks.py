"""Checks of a data set: that its tensors and names fit together."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.groups import CLASS, in_words
from fedtilt.data.inputs import Inputs, named_tensors
from fedtilt.data.sampling import SPLITS
from fedtilt.data.targets import IGNORED, TASKS, LabelTarget, Target, TokenTarget
from fedtilt.errors import InputError

if TYPE_CHECKING:
    from fedtilt.data.dataset import Dataset

SIDES = ("train", "test")
OPTIONAL = ("client", "group", "weight", "rows")
_DTYPES = (torch.uint8, torch.float32, torch.int64)


def check_tensors(data: "Dataset") -> None:
    """Raise InputError about what is no tensor on the CPU, such as a list, and about targets of another task."""
    for key in (f"{key}_{side}" for key in ("x", "y", *OPTIONAL) for side in SIDES):
        value = getattr(data, key)
        if value is None and key.startswith(OPTIONAL):
            continue
        if key.startswith("group") and not isinstance(value, dict):
            _fail(
                data, f"{key} of type {type(value).__name__}; give a dictionary of tensors by column, such as {key} = "
                "{'sex': …}",
            )  # fmt: skip
        is_named = key.startswith("x") and isinstance(value, dict)
        if is_named and not (value and all(isinstance(name, str) and name.isidentifier() for name in value)):
            _fail(data, f"{key} with the names {list(value)}; give one or more names of arguments, such as 'input_ids'")
        for name, tensor in named_tensors(value, key).items():
            _check_tensor(data, name, tensor)
    if data.task not in TASKS:
        _fail(data, f"task = {data.task!r}; choose {' or '.join(TASKS)}")
    if not isinstance(data.target, Target | None):
        _fail(data, f"target = {data.target!r}; give an ft.data.NumericTarget, TokenTarget or LabelTarget")
    if data.target is not None and data.target.task != data.task:
        _fail(data, f"a {type(data.target).__name__} and task = {data.task!r}; set task = {data.target.task!r}")
    _check_targets(data, "y_train", data.y_train)
    _check_targets(data, "y_test", data.y_test)


def check_contents(data: "Dataset") -> None:
    """Raise InputError about samples, labels, clients, groups and weights that do not match; the names are set."""
    if not len(data.y_train):
        _fail(data, "0 training samples; give it at least one")
    for side in SIDES:
        y = getattr(data, f"y_{side}")
        _check_samples(data, side, getattr(data, f"x_{side}"), len(y))
        if isinstance(data.target, TokenTarget):
            _check_tokens(data, side, y, data.target.vocabulary)
        elif isinstance(data.target, LabelTarget):
            _check_labels(data, side, y, len(data.target.labels))
        low, high = (0, -1) if data.target is not None else _range(y)
        if low < 0 or high >= data.classes:
            label = low if low < 0 else high
            _fail(data, f"the label {label} in y_{side}; labels go from 0 to {data.classes - 1}")
    _check_format(data)
    for key, names_key in (("client", "client_names"), ("rows", "row_names")):
        if _all_or_none(data, f"{key}_train", f"{key}_test", names_key):
            for side in SIDES:
                _check_codes(data, f"{key}_{side}", getattr(data, f"{key}_{side}"), side, names_key)
    if _all_or_none(data, "group_train", "group_test", "group_names"):
        _check_groups(data)
    if _all_or_none(data, "weight_train", "weight_test"):
        for side in SIDES:
            weight, size = getattr(data, f"weight_{side}"), len(getattr(data, f"y_{side}"))
            if weight.dtype != torch.float32 or weight.shape != (size,) or bool((weight < 0).any()):
                _fail(data, f"weight_{side} of {_format(weight)}; give {size} numbers ≥ 0")
    if data.noisy_train is not None:
        _check_noisy(data, data.noisy_train)
    _check_split(data)
    if data.schema is not None and (len(data.schema.inputs),) != data.input_shape:
        _fail(
            data, f"a schema of {len(data.schema.inputs)} inputs for samples of shape {data.input_shape}; give the "
            "schema they were read with",
        )  # fmt: skip


def _check_split(data: "Dataset") -> None:
    if data.split not in SPLITS:
        _fail(data, f"split = {data.split!r}; choose {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")
    for key, how in (("split_group_train", "random"), ("split_time_train", "time")):
        values = getattr(data, key)
        if values is not None and values.shape != (len(data.y_train),):
            _fail(data, f"{key} of {_format(values)}; give one number per training sample")
        if values is not None and data.split != how:
            _fail(data, f"{key}, which has no effect with split = {data.split!r}; set split = {how!r}, or leave it out")
    if data.split == "time" and data.split_time_train is None:
        _fail(data, "split = 'time' without split_time_train; give the time of each training sample")


def _check_noisy(data: "Dataset", noisy: Tensor) -> None:
    _check_tensor(data, "noisy_train", noisy)
    if data.target is not None:
        _fail(data, f"noisy_train, and {data.target.words}; labels of classes alone can be wrong")
    if noisy.dtype != torch.int64 or noisy.shape != data.y_train.shape:
        _fail(data, f"noisy_train of {_format(noisy)}; give one int64 label per training sample")
    low, high = _range(noisy)
    if low < 0 or high >= data.classes:
        _fail(data, f"the label {low if low < 0 else high} in noisy_train; labels go from 0 to {data.classes - 1}")


def as_names(data: "Dataset", key: str, values: object) -> tuple[str, ...]:
    """Names as text: results are written as JSON, which has no np.int64."""
    if not isinstance(values, Iterable):
        _fail(data, f"{key} = {values!r}; give a tuple of names")
    values = tuple(values)
    for value in values:
        if not isinstance(value, str | int | float | np.generic):
            _fail(data, f"{value!r} among its {key}; give text or plain numbers")
    return tuple(str(value) for value in values)


def as_group_names(data: "Dataset", values: object) -> dict[str, tuple[str, ...]]:
    """The names of groups as text, by column."""
    if not isinstance(values, Mapping):
        _fail(data, f"group_names = {values!r}; give the names by column, such as {{'sex': ('f', 'm')}}")
    return {str(column): as_names(data, f"group_names[{column!r}]", names) for column, names in values.items()}


def _fail(data: "Dataset", problem: str) -> NoReturn:
    raise InputError(f"data set {data.name!r} has {problem}")


def _check_tensor(data: "Dataset", key: str, value: object) -> None:
    if not isinstance(value, Tensor):
        kind = "numpy.ndarray" if isinstance(value, np.ndarray) else type(value).__name__
        function = "torch.tensor" if isinstance(value, list | tuple) else "torch.from_numpy"
        _fail(data, f"{key} of type {kind}; make it a tensor with {function}")
    if value.device.type != "cpu":
        _fail(data, f"{key} on {value.device}; give {key}.cpu(); a run moves it")


_SEVERAL = {  # dtype and meaning of targets (N, several) by task
    "language": (torch.int64, "int64 tokens (N, T), one for each position of the model's output"),
    "multilabel": (torch.float32, "float32 zeros and ones (N, labels)"),
}


def _check_targets(data: "Dataset", key: str, y: Tensor) -> None:
    if data.task in _SEVERAL:
        dtype, needed = _SEVERAL[data.task]
        if y.dim() != 2 or y.dtype != dtype or not y.shape[1]:
            _fail(data, f"{key} of {_format(y)}; task = {data.task!r} takes {needed}")
        return
    is_regression = data.task == "regression"
    if y.dim() == 2 and y.shape[1] > 1:
        one_hot = "" if is_regression else f"; {key}.argmax(1) of one-hot labels, or task = 'multilabel'"
        several = f"several targets per sample are not supported: make a data set for each{one_hot}"
        _fail(data, f"{key} of {_format(y)}; {several}")
    if y.dim() != 1 or y.dtype != (torch.float32 if is_regression else torch.int64):
        needed = "float32 number" if is_regression else "int64 label"
        hint = (
            ""
            if is_regression or not y.is_floating_point()
            else f", {key}.long() of whole numbers, or set task = 'regression'"
        )
        _fail(data, f"{key} of {_format(y)}; give one {needed} per sample{hint}")
    if is_regression and not _is_finite(y):
        _fail(data, f"NaN or infinite values in {key}; replace them")


def _check_tokens(data: "Dataset", side: str, y: Tensor, vocabulary: int) -> None:
    is_token = y != IGNORED
    bad = y[is_token & ((y < 0) | (y >= vocabulary))]
    if len(bad):
        _fail(data, f"the token {int(bad[0])} in y_{side}; tokens go from 0 to {vocabulary - 1}, and {IGNORED} is none")
    empty = (~is_token.any(1)).nonzero()
    if len(empty):
        _fail(data, f"no token to predict in sample {int(empty[0])} of y_{side}; leave the sample out")


def _check_labels(data: "Dataset", side: str, y: Tensor, labels: int) -> None:
    if y.shape[1] != labels:
        _fail(data, f"y_{side} of {_format(y)} for {labels} labels; give one column per label")
    bad = y[(y != 0) & (y != 1)]
    if len(bad):
        _fail(data, f"{float(bad[0]):g} in y_{side}; a label is 0 or 1")


def _check_samples(data: "Dataset", side: str, x: Inputs, size: int) -> None:
    for key, tensor in named_tensors(x, f"x_{side}").items():
        if tensor.dtype not in _DTYPES or not tensor.dim():
            _fail(
                data, f"{key} of {_format(tensor)}; convert it to uint8 (images), float32 or int64 (tokens), one "
                "sample per row",
            )  # fmt: skip
        if len(tensor) != size:
            _fail(data, f"{len(tensor)} samples in {key} but {size} labels; give one label each")
        if tensor.dtype == torch.float32 and not _is_finite(tensor):
            _fail(data, f"NaN or infinite values in {key}; replace them")


def _check_format(data: "Dataset") -> None:
    """Raise InputError if training and test samples differ in shape or dtype, and about images that are none."""
    train, test = data.x_train, data.x_test
    if _sample_format(train) != _sample_format(test):
        _fail(data, f"x_train of {_format(train)} but x_test of {_format(test)}; give both the same shape and dtype")
    if data.image and not (_is_images(train) and _is_images(test)):
        _fail(
            data, f"image = True and x_train of {_format(train)}; images have shape (N, channels, height, width) and "
            "are uint8, or float32 between 0 and 1",
        )  # fmt: skip
    if not data.image and any(t.dtype == torch.uint8 for t in named_tensors(train, "x_train").values()):
        _fail(data, f"image = False and x_train of {_format(train)}; make it float32")


def _all_or_none(data: "Dataset", *keys: str) -> bool:
    """Whether the data set has all of these; raise InputError if it has only some."""
    given = [key for key in keys if getattr(data, key) is not None]
    if given and len(given) < len(keys):
        _fail(data, f"only some of {', '.join(keys[:-1])} and {keys[-1]}; give all or none")
    return bool(given)


def _check_codes(
    data: "Dataset", key: str, codes: Tensor, side: str, names_key: str, count: int | None = None
) -> None:  # fmt: skip
    """Raise InputError if these are not numbers of names, one per sample; `count` names, else those of the data set."""
    size, count = len(getattr(data, f"y_{side}")), len(getattr(data, names_key)) if count is None else count
    if codes.dtype != torch.int64 or codes.shape != (size,):
        _fail(data, f"{key} of {_format(codes)}; give {size} int64 numbers")
    low, high = _range(codes)
    if low < 0 or high >= count:
        _fail(data, f"{key} up to {high} and down to {low}; with {count} {names_key} they go from 0 to {count - 1}")


def _check_groups(data: "Dataset") -> None:
    names = data.group_names or {}
    columns = {key: list(getattr(data, key)) for key in ("group_train", "group_test", "group_names")}
    if not names or any({*found} != {*names} for found in columns.values()):
        *first, last = (f"{found} in {key}" for key, found in columns.items())
        _fail(data, f"groups by {', '.join(first)} and {last}; give each the same columns")
    label_group = CLASS if data.target is None else data.target.group
    if label_group in names:
        meaning = "labels" if data.target is None else in_words(label_group)
        _fail(data, f"a column of groups {label_group!r}, which is the name of the {meaning}; rename it")
    for column, values in names.items():
        for side in SIDES:
            codes = getattr(data, f"group_{side}")[column]
            _check_codes(data, f"group_{side}[{column!r}]", codes, side, "names", len(values))


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
