"""Samples and their targets, from arrays, tensors and lists, and one data set of several clients' samples."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.dataset import Dataset, split_dataset
from fedtilt.data.inputs import Inputs, concatenate, named_tensors, take
from fedtilt.data.naming import RowNames, SampleRows, sort_names
from fedtilt.data.sampling import Split, check_split, check_test_share, draw_test_data, quarters
from fedtilt.data.targets import IGNORED, TARGETS, LabelTarget
from fedtilt.errors import InputError

_CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledSamples:
    """Some samples with their targets, and what error messages call them."""

    origin: str  # such as "client 'north'"
    x: Inputs
    y: Sequence[str] | Tensor  # the name of each sample's class; of other tasks, its target
    task: str = "classification"
    class_names: tuple[str, ...] | None = None  # all classes in order, if the source declares them
    image: bool = False
    row_names: Sequence[str] | None = None  # where each sample comes from; default: its number
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by column, the name of each sample's group
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray) -> "LabelledSamples":
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
    train: LabelledSamples
    test: LabelledSamples | None = None


def from_arrays(
    x: object, y: object, origin: str, class_names: Sequence[str] | None = None, task: str = "classification"
) -> LabelledSamples:
    """Samples from arrays, tensors or lists; see `to_inputs` for `x`."""
    inputs = to_inputs(x, origin)
    image = isinstance(inputs, Tensor) and inputs.dtype == torch.uint8
    has_classes = task == "classification"
    targets = _label_names(y, origin, class_names) if has_classes else _READ_TARGETS[task](y, origin)
    for key, tensor in named_tensors(inputs, "x").items():
        if len(tensor) != len(targets):
            raise InputError(
                f"{origin} has {len(tensor)} samples in {key} but {len(targets)} labels; give one label each"
            )
    names = tuple(map(str, class_names)) if class_names is not None and has_classes else None
    return LabelledSamples(origin=origin, x=inputs, y=targets, task=task, class_names=names, image=image)


def to_inputs(x: object, origin: str) -> Inputs:
    """Inputs from an array, a tensor or a list, or from a dictionary of them.

    uint8 arrays of three or four dimensions are images, other integers tokens (int64), and the rest is float32.
    """
    if isinstance(x, Mapping):
        return {str(key): _to_tensor(value, f"{origin} has x[{key!r}]", tokens=True) for key, value in x.items()}
    return _to_tensor(x, f"{origin} has x")


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
        array = torch.from_numpy(np.require(array, requirements=["C", "W"]))  # pandas gives read-only views
    if array.is_complex() or not array.dim():
        raise InputError(f"{where} of shape {tuple(array.shape)} and dtype {array.dtype}; give one sample per row")
    if array.dtype == torch.uint16 and array.dim() > 2:
        raise InputError(f"{where} of 16-bit images; give them with 8 bits: (x // 257).astype('uint8')")
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
        remedy = "y.argmax(1) of one-hot labels, or a data set for each of several labels"
        remedy = "y[:, 0]" if array.ndim == 2 and array.shape[1] == 1 else remedy
        raise InputError(f"{origin} has labels of shape {array.shape}; give one per sample: {remedy}")
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


def _rows(y: object, origin: str, dtype: torch.dtype, kinds: str, needed: str) -> Tensor:
    """Targets with a row for every sample, (n, T) or (n, labels); they are padded to one length."""
    try:
        array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    except ValueError as error:  # lists of unequal length
        raise InputError(f"{origin} has targets of different sizes ({error}); pad them with {IGNORED}") from None
    if array.ndim != 2 or array.dtype.kind not in kinds:
        raise InputError(
            f"{origin} has targets of shape {array.shape} and dtype {array.dtype}; {needed}, in two dimensions"
        )
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(dtype)  # pandas gives read-only views


_READ_TARGETS: dict[str, Callable[[object, str], Tensor]] = {  # by task
    "regression": _numbers,
    "language": partial(
        _rows, dtype=torch.int64, kinds="iu", needed="language needs whole numbers, a token for each position"
    ),
    "multilabel": partial(_rows, dtype=torch.float32, kinds="biuf", needed="multilabel needs 0 or 1 for each label"),
}


def make_dataset(
    clients: Sequence[ClientSamples],
    name: str,
    *,
    class_names: Sequence[str] | None = None,
    test_share: float | None = None,
    split: str | None = None,
    seed: int = 0,
    keep_clients: bool = True,
) -> Dataset:
    """One data set of all clients' samples; a client without test samples gives a share of its training samples.

    Without `keep_clients`, the data set has no clients of its own. The other arguments are those of `from_torch`.
    """
    owned = [(i, client.train) for i, client in enumerate(clients)]
    owned += [(i, client.test) for i, client in enumerate(clients) if client.test is not None]
    parts = [part for _, part in owned]
    _check_format(parts)
    task = parts[0].task
    classes, y = _merge_targets(parts, class_names)
    owner = torch.repeat_interleave(torch.tensor([i for i, _ in owned]), torch.tensor([len(part) for part in parts]))
    groups = {column: [part.groups[column] for part in parts] for column in parts[0].groups}  # the same in all parts
    weights = [part.weights for part in parts if part.weights is not None]
    group_names = {column: sort_names({n for part in values for n in part}) for column, values in groups.items()}
    columns: dict[str, Inputs | None] = {
        "x": concatenate([part.x for part in parts]),
        "y": y,
        "client": owner if keep_clients else None,
        "group": {column: _to_numbers(groups[column], names) for column, names in group_names.items()} or None,
        "weight": torch.cat(weights) if weights else None,
        "rows": torch.arange(len(y)),
    }
    share = check_test_share(test_share, seed, given=len(parts) == 2 * len(clients))
    count = sum(len(client.train) for client in clients)
    without_test = np.array([client.test is None for client in clients])
    labels, client = y[:count].numpy(), owner[:count].numpy()
    strata = labels if classes else quarters(labels, client) if labels.ndim == 1 else np.zeros(len(labels), np.int64)
    how = check_split(split)
    drawn = draw_test_data(Split(how=how, strata=strata), client, share, seed) & without_test[client]
    sides: dict[str, Tensor | slice] = {"train": slice(0, count), "test": slice(count, None)}
    if drawn.any():
        sides = {
            "train": torch.from_numpy(np.flatnonzero(~drawn)),
            "test": torch.cat([torch.from_numpy(np.flatnonzero(drawn)), torch.arange(count, len(y))]),
        }
    return split_dataset(
        columns,
        sides,
        name=name,
        classes=len(classes),
        class_names=classes,
        task=task,
        target=LabelTarget(labels=tuple(class_names)) if task == "multilabel" and class_names is not None else None,
        image=parts[0].image,
        client_names=tuple(client.name for client in clients) if keep_clients else None,
        group_names=group_names or None,
        row_names=RowNames([part.rows for part in parts]),
        split=how,
        test_drawn=bool(without_test.all()),
    )


def _targets_in_words(part: LabelledSamples) -> str:
    shape = part.y.shape[1:] if isinstance(part.y, Tensor) else ()
    words = TARGETS[part.task].words if part.task in TARGETS else "classes"
    return f"{words} of shape {tuple(shape)}" if shape else words


def _to_numbers(parts: Iterable[Sequence[str]], names: Sequence[str]) -> Tensor:
    """The position of each name, for all parts."""
    number = {name: k for k, name in enumerate(names)}
    return torch.tensor([number[name] for part in parts for name in part], dtype=torch.int64)


def _check_format(parts: Sequence[LabelledSamples]) -> None:
    """Raise InputError if samples differ in shape, dtype or kind from those of the first client."""

    def format_of(part: LabelledSamples) -> str:
        tensors = named_tensors(part.x, "x").items()
        text = ", ".join(f"{key} of shape {tuple(t.shape[1:])} and {str(t.dtype)[6:]}" for key, t in sorted(tensors))
        columns = " and ".join(sorted(part.groups))
        extras = [
            ("images", part.image),
            (_targets_in_words(part), part.task != "classification"),
            (f"groups by {columns}", bool(columns)),
            ("weights", part.weights is not None),
        ]
        return ", ".join([text, *(f"with {extra}" if extra != "images" else "as images" for extra, on in extras if on)])

    first = parts[0]
    for part in parts[1:]:
        if format_of(part) != format_of(first):
            raise InputError(
                f"{part.origin} has {format_of(part)}, but {first.origin} has {format_of(first)}; give all the same"
            )


def _merge_targets(
    parts: Sequence[LabelledSamples], class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], Tensor]:
    """All classes in order, and the class of each sample; of other tasks no class, and the targets."""
    numbers = [part.y for part in parts if isinstance(part.y, Tensor)]
    if numbers:  # and then all are, see `_check_format`
        if class_names is not None and parts[0].task != "multilabel":
            task = parts[0].task
            raise InputError(f"class_names = {list(class_names)} has no effect with task = {task!r}; leave it out")
        return (), torch.cat(numbers)
    labels = [part.y for part in parts if not isinstance(part.y, Tensor)]
    classes = _merge_classes(parts, labels, class_names)
    return classes, _to_numbers(labels, classes)


def _merge_classes(
    parts: Sequence[LabelledSamples], labels: Sequence[Sequence[str]], class_names: Sequence[str] | None
) -> tuple[str, ...]:
    """All classes in order; samples that declare their classes must declare the same ones, in any order."""
    declared = [part for part in parts if part.class_names is not None]
    if class_names is not None:
        classes = tuple(map(str, class_names))
        source = "class_names"
    elif declared:
        classes, source = declared[0].class_names or (), declared[0].origin
    else:
        return sort_names({label for names in labels for label in names})
    if len(set(classes)) != len(classes):
        raise InputError(f"class_names has {next(c for c in classes if classes.count(c) > 1)!r} twice; name each once")
    for part, names in zip(parts, labels, strict=True):
        missing = set(classes) - set(part.class_names) if part.class_names is not None else set()
        unknown = sorted({*names, *(part.class_names or ())} - set(classes))
        if unknown or missing:
            different = f"the class {unknown[0]!r}" if unknown else f"no class {min(missing)!r}"
            raise InputError(
                f"{part.origin} has {different}, but the classes of {source} are {', '.join(classes)}; give all the "
                "same classes, in any order"
            )
    return classes
