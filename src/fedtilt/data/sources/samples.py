"""Samples and their targets, from arrays, tensors and lists."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.inputs import Inputs, named_tensors, take
from fedtilt.data.row_names import SampleRows
from fedtilt.errors import InputError

_CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Some samples with their targets, and what error messages call them."""

    origin: str  # such as "client 'north'"
    x: Inputs
    y: Sequence[str] | Tensor  # the name of each sample's class or, with regression, its number, float32
    class_names: tuple[str, ...] | None = None  # all classes in order, if the source declares them
    image: bool = False
    row_names: Sequence[str] | None = None  # where each sample comes from; left out: its number
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by column, the name of each sample's group
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray) -> "Samples":
        """The samples of these rows."""

        def pick(values: Sequence[str]) -> list[str]:
            return [values[row] for row in rows]

        return replace(
            self,
            x=take(self.x, torch.from_numpy(rows)),
            y=self.y[rows] if isinstance(self.y, Tensor) else pick(self.y),
            row_names=[self.rows.row_name(row) for row in rows],
            groups={column: pick(names) for column, names in self.groups.items()},
            weights=None if self.weights is None else self.weights[rows],
        )

    @property
    def rows(self) -> SampleRows:
        """Where each sample comes from, such as `sample 3 of client 'north'`."""
        return SampleRows(self.origin, len(self), self.row_names)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientSamples:
    """A client's training samples and, if it has any of its own, its test samples."""

    name: str
    train: Samples
    test: Samples | None = None


def from_arrays(
    x: object, y: object, origin: str, class_names: Sequence[str] | None = None, task: str = "classification"
) -> Samples:
    """Samples from arrays, tensors or lists; `x` may be a dictionary of them.

    uint8 arrays of three or four dimensions are images, other integers tokens (int64), and the rest is float32.
    """
    inputs: Inputs
    if isinstance(x, Mapping):
        inputs = {str(key): _to_tensor(value, f"{origin} has x[{key!r}]", tokens=True) for key, value in x.items()}
    else:
        inputs = _to_tensor(x, f"{origin} has x")
    image = isinstance(inputs, Tensor) and inputs.dtype == torch.uint8
    is_regression = task == "regression"
    targets = _numbers(y, origin) if is_regression else _label_names(y, origin, class_names)
    for key, tensor in named_tensors(inputs, "x").items():
        if len(tensor) != len(targets):
            raise InputError(
                f"{origin} has {len(tensor)} samples in {key} but {len(targets)} labels; give one label each"
            )
    names = None if class_names is None or is_regression else tuple(map(str, class_names))
    return Samples(origin=origin, x=inputs, y=targets, class_names=names, image=image)


def _to_tensor(value: object, where: str, tokens: bool = False) -> Tensor:
    """A tensor that a data set takes; `tokens`: all integers are tokens, uint8 and bool as well."""
    if isinstance(value, Tensor):
        array: Any = value.detach().cpu()
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:  # lists of unequal length
            raise InputError(f"{where} with samples of different sizes ({error}); pad or resize them") from None
        if array.dtype.kind not in "biuf":
            raise InputError(f"{where} of dtype {array.dtype}; give numbers: encode text as tokens first")
        array = torch.from_numpy(np.ascontiguousarray(array))
    if array.is_complex() or not array.dim():
        raise InputError(f"{where} of shape {tuple(array.shape)} and dtype {array.dtype}; give one sample per row")
    if array.dtype == torch.uint8 and not tokens:
        return _to_images(array) if array.dim() in (3, 4) else array.float()
    if array.is_floating_point() or (array.dtype == torch.bool and not tokens):
        converted = array.float()
        if array.dtype == torch.float64 and bool((converted.isinf() & ~array.isinf()).any()):
            raise InputError(f"{where} with numbers beyond float32, such as {float(array.abs().max()):g}; rescale it")
        return converted
    return array.long()


def _to_images(x: Tensor) -> Tensor:
    """(N, channels, height, width) from images without channels, or with the channels last where that is clear."""
    if x.dim() == 3:
        return x[:, None]
    if x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS:
        return x.permute(0, 3, 1, 2).contiguous()
    return x


def _label_names(y: object, origin: str, class_names: Sequence[str] | None) -> list[str]:
    """The class name of each label: numbers are indices into `class_names`, if there are any."""
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.ndim != 1:
        raise InputError(
            f"{origin} has labels of shape {array.shape}; give one per sample: y.argmax(1) of one-hot labels, or a "
            "data set for each of several labels"
        )
    if array.dtype.kind == "f" and not (np.isfinite(array).all() and (array == np.floor(array)).all()):
        bad = next(value for value in array.tolist() if not (np.isfinite(value) and value == int(value)))
        raise InputError(
            f"{origin} has the label {bad}, which is no class; give whole numbers or text, or set task = 'regression' "
            "to predict numbers"
        )
    if array.dtype.kind == "O" and any(value is None or value != value for value in array):  # None, NaN
        raise InputError(f"{origin} has a sample without a label; leave it out")
    if array.dtype.kind not in "iuf":
        return [str(value) for value in array]
    numbers = array.astype(np.int64).tolist()
    if class_names is None:
        return list(map(str, numbers))
    wrong = next((value for value in numbers if not 0 <= value < len(class_names)), None)
    if wrong is not None:
        raise InputError(f"{origin} has the label {wrong}; with {len(class_names)} classes they go from 0 up")
    return [str(class_names[value]) for value in numbers]


def _numbers(y: object, origin: str) -> Tensor:
    """The targets of a regression, float32."""
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise InputError(
            f"{origin} has targets of shape {array.shape} and dtype {array.dtype}; regression needs one number per "
            "sample; make a data set for each of several targets"
        )
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        sample = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise InputError(f"{origin} has the target {array[sample]} in sample {sample}; give finite float32 numbers")
    return torch.from_numpy(numbers)
