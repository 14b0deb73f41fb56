"""One data set of several clients' samples."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.dataset import Dataset
from fedtilt.data.inputs import Inputs, concatenate, named_tensors, take
from fedtilt.data.naming import sort_names
from fedtilt.data.row_names import RowNames
from fedtilt.data.sampling import check_test_share, draw_test_data, quarters
from fedtilt.data.sources.samples import ClientSamples, Samples
from fedtilt.errors import InputError


def make_dataset(
    clients: Sequence[ClientSamples],
    name: str,
    *,
    class_names: Sequence[str] | None = None,
    test_share: float | None = None,
    seed: int = 0,
    keep_clients: bool = True,
) -> Dataset:
    """One data set of all clients' samples; a client without test samples gives a share of its training samples.

    Args:
        clients: the samples of each client
        name: the name of the data set
        class_names: all classes in order; left out: those declared by the samples, else the labels that occur
        test_share: the share of the samples that is test data, with the classes in proportion; left out: 0.25
        seed: the seed that draws the test data
        keep_clients: whether the data set has these clients, or none of its own
    """
    owned = [(i, client.train) for i, client in enumerate(clients)]
    owned += [(i, client.test) for i, client in enumerate(clients) if client.test is not None]
    parts = [part for _, part in owned]
    _check_format(parts)
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
    strata = labels if classes else quarters(labels, client)
    drawn = draw_test_data(strata, client, share, seed) & without_test[client]
    sides: dict[str, Tensor | slice] = {"train": slice(0, count), "test": slice(count, None)}
    if drawn.any():
        sides = {
            "train": torch.from_numpy(np.flatnonzero(~drawn)),
            "test": torch.cat([torch.from_numpy(np.flatnonzero(drawn)), torch.arange(count, len(y))]),
        }
    split: dict[str, Any] = {
        f"{key}_{side}": take(values, rows)
        for key, values in columns.items()
        if values is not None
        for side, rows in sides.items()
    }
    return Dataset(
        name=name,
        classes=len(classes),
        class_names=classes,
        task="classification" if classes else "regression",
        image=parts[0].image,
        client_names=tuple(client.name for client in clients) if keep_clients else None,
        group_names=group_names or None,
        row_names=RowNames([part.rows for part in parts]),
        **split,
    )


def _to_numbers(parts: Iterable[Sequence[str]], names: Sequence[str]) -> Tensor:
    """The position of each name, for all parts."""
    number = {name: k for k, name in enumerate(names)}
    return torch.tensor([number[name] for part in parts for name in part], dtype=torch.int64)


def _check_format(parts: Sequence[Samples]) -> None:
    """Refuse samples that differ in shape, dtype or kind from those of the first client."""

    def format_of(part: Samples) -> str:
        tensors = named_tensors(part.x, "x").items()
        text = ", ".join(f"{key} of shape {tuple(t.shape[1:])} and {str(t.dtype)[6:]}" for key, t in sorted(tensors))
        columns = " and ".join(sorted(part.groups))
        extras = [
            ("images", part.image),
            ("numbers as targets", isinstance(part.y, Tensor)),
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


def _merge_targets(parts: Sequence[Samples], class_names: Sequence[str] | None) -> tuple[tuple[str, ...], Tensor]:
    """All classes in order, and the class of each sample; with regression no class, and the numbers."""
    numbers = [part.y for part in parts if isinstance(part.y, Tensor)]
    if numbers:  # and then all are, see `_check_format`
        if class_names is not None:
            raise InputError(f"class_names = {list(class_names)} has no effect with task = 'regression'; leave it out")
        return (), torch.cat(numbers)
    labels = [part.y for part in parts if not isinstance(part.y, Tensor)]
    classes = _merge_classes(parts, labels, class_names)
    return classes, _to_numbers(labels, classes)


def _merge_classes(
    parts: Sequence[Samples], labels: Sequence[Sequence[str]], class_names: Sequence[str] | None
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
