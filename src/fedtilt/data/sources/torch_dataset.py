"""PyTorch datasets and loaders, read once into tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset, TensorDataset
from torch.utils.data.dataloader import default_collate

from fedtilt.data.dataset import Dataset
from fedtilt.data.sources.image_cache import eight_bits
from fedtilt.data.sources.samples import ClientSamples, LabelledSamples, from_arrays, make_dataset
from fedtilt.data.targets import check_task
from fedtilt.errors import InputError

LABEL_NAMES = ("label", "labels")  # what samples that are dictionaries usually call their label


def from_torch(
    train: Any,
    test: Any = None,
    *,
    name: str | None = None,
    target: str | None = None,
    class_names: Sequence[str] | None = None,
    task: str = "classification",
    test_share: float | None = None,
    split: str | None = None,
    seed: int = 0,
) -> Dataset:
    """Read a PyTorch dataset, such as torchvision's, or a DataLoader as a data set.

    Every sample is read once, so a random transform is drawn once; an iterable dataset must end, and batch size and
    shuffling of a loader do not matter. A sample is a pair (x, label) or a dictionary with a label; x is a tensor, an
    array, a PIL image or a dictionary. uint8 images are scaled to [-1, 1] for the model, floating-point numbers are
    used as they are.

    Args:
        train: the training samples: a dataset, a loader or a list of samples
        test: the test samples; default: a share of the training samples
        name: the name of the data set; default: that of the class of `train`
        target: the key of the label, if samples are dictionaries; default: 'label' or 'labels'
        class_names: all classes in order; default: `train.classes`, else the labels that occur
        task: "classification"; "regression" if the labels are numbers to predict, "language" if a sample has a token
            for each position, "multilabel" if it has 0 or 1 for each label
        test_share: the share of the samples that is test data; default: 0.25
        split: how test and validation data are drawn, "random" or with the classes in proportion ("proportional");
            default: at random
        seed: the seed that draws the test data

    >>> import torch
    >>> from_torch(TensorDataset(torch.zeros(8, 3), torch.arange(8) % 2))
    Dataset('TensorDataset': 6 training and 2 test samples of shape (3,), 2 classes)
    """
    check_task(task)
    samples = ClientSamples(
        name="0",
        train=read_torch(train, "the training data", target, class_names, task),
        test=None if test is None else read_torch(test, "the test data", target, class_names, task),
    )
    name = name or type(getattr(train, "dataset", train)).__name__
    return make_dataset(
        [samples], name, class_names=class_names, test_share=test_share, split=split, seed=seed, keep_clients=False
    )


def is_torch(data: object) -> bool:
    """Whether this is a loader, an iterable dataset, or has a length and samples by index, as a map-style one has."""
    if isinstance(data, DataLoader | IterableDataset):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str | Mapping | Sequence)


def _by_index(data: Any, origin: str) -> Any:
    """Samples by index: a map-style dataset, or the list of what a loader or an iterable dataset yields."""
    if isinstance(data, DataLoader):
        plain = isinstance(data.sampler, SequentialSampler) or (
            isinstance(data.sampler, RandomSampler) and not data.sampler.replacement
        )
        if plain and data.collate_fn is default_collate and not data.drop_last:
            return _by_index(data.dataset, origin)
        return [sample for batch in data for sample in _split_batch(batch, origin)]
    if isinstance(data, IterableDataset):
        return list(data)
    if not is_torch(data) and not isinstance(data, list):
        raise InputError(
            f"{origin} is a {type(data).__name__}, which has no length or index; give a dataset with __len__ and "
            "__getitem__, an IterableDataset or a DataLoader"
        )
    return data


def _split_batch(batch: Any, origin: str) -> list[Any]:
    """The samples of a loader's batch, which is a pair or a dictionary of tensors."""
    if isinstance(batch, Mapping):
        length = min(len(value) for value in batch.values())
        return [{key: value[i] for key, value in batch.items()} for i in range(length)]
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise InputError(f"{origin} has batches of type {type(batch).__name__}; give pairs (x, label), or dictionaries")
    x, y = batch
    if isinstance(x, Mapping):
        return [({key: value[i] for key, value in x.items()}, y[i]) for i in range(len(y))]
    return [(x[i], y[i]) for i in range(len(y))]


def read_torch(
    dataset: Any, origin: str, target: str | None, class_names: Sequence[str] | None, task: str
) -> LabelledSamples:
    """All samples of a dataset or loader, stacked."""
    names = _declared_classes(dataset) if class_names is None else class_names
    dataset = _by_index(dataset, origin)
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return from_arrays(*dataset.tensors, origin, names, task)
    if not len(dataset):
        raise InputError(f"{origin} has 0 samples; give at least one")
    columns: dict[str, Any] = {}
    labels: list[Any] = []
    for i in range(len(dataset)):
        where = f"sample {i} of {origin}"
        x, label = _split_sample(dataset[i], target, where, task in ("language", "multilabel"))
        values = {key: _to_array(value, where) for key, value in x.items()}
        if not i:
            columns = {key: np.empty((len(dataset), *value.shape), value.dtype) for key, value in values.items()}
        if list(values) != list(columns):
            raise InputError(f"{where} has {', '.join(values)}, but sample 0 has {', '.join(columns)}")
        for key, value in values.items():
            if (value.shape, value.dtype) != (columns[key].shape[1:], columns[key].dtype):
                raise InputError(
                    f"{where} has shape {value.shape} and dtype {value.dtype}, but sample 0 has "
                    f"{columns[key].shape[1:]} and {columns[key].dtype}; give all the same, resized or padded"
                )
            columns[key][i] = value
        labels.append(label)
    inputs = next(iter(columns.values())) if len(columns) == 1 else columns
    return from_arrays(inputs, labels, origin, names, task)


def _declared_classes(dataset: Any) -> Sequence[str] | None:
    """The class names of torchvision's datasets, whose labels are indices."""
    while isinstance(dataset, Subset | DataLoader):
        dataset = dataset.dataset
    classes = getattr(dataset, "classes", None)
    return classes if isinstance(classes, list | tuple) and all(isinstance(c, str) for c in classes) else None


def _split_sample(sample: Any, target: str | None, where: str, several: bool) -> tuple[Mapping[str, Any], Any]:
    """The inputs of one sample by name, and its label, or `several` of them."""
    x: Mapping[str, Any]
    if isinstance(sample, Mapping):
        keys = [target] if target is not None else [key for key in LABEL_NAMES if key in sample]
        if len(keys) != 1 or keys[0] not in sample or len(sample) < 2:
            raise InputError(
                f"{where} has {', '.join(map(str, sample))}; name the one with the label, such as target = 'label'"
            )
        x, label = {key: value for key, value in sample.items() if key != keys[0]}, sample[keys[0]]
    elif isinstance(sample, tuple | list) and len(sample) == 2:
        x, label = (sample[0] if isinstance(sample[0], Mapping) else {"x": sample[0]}), sample[1]
    else:
        raise InputError(f"{where} is a {type(sample).__name__}; give pairs (x, label), or dictionaries with a label")
    label = label.item() if isinstance(label, Tensor | np.ndarray) and label.ndim == 0 else label
    if isinstance(label, Tensor | np.ndarray | list | tuple):
        if several:
            return x, np.asarray(label)
        shape = tuple(np.shape(label))
        remedy = "label[0]" if shape == (1,) else "label.argmax() of a one-hot label"
        raise InputError(f"{where} has a label of shape {shape}; give one per sample: {remedy}")
    if not isinstance(label, str | int | float | np.generic):
        raise InputError(f"{where} has a label of type {type(label).__name__}; give one number or text per sample")
    return x, label


def _to_array(value: Any, where: str) -> np.ndarray:
    if hasattr(value, "getbands"):  # a PIL image
        value = eight_bits(where, value)
        value = value.convert("RGB") if value.mode == "P" else value.convert("L") if value.mode == "1" else value
        array = np.asarray(value)
        return array if array.ndim == 2 else array.transpose(2, 0, 1)
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where} has x of type {type(value).__name__}; give a tensor, an array or an image")
    return array
