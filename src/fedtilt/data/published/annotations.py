"""Labels of human annotators: CIFAR-N's files, dictionaries of NumPy arrays that torch.save has written.

CIFAR-10N and CIFAR-100N are from Wei et al., ICLR 2022, arXiv 2110.12088; FNBench (arXiv 2505.06684) trains with them.
"""

import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.dataset import Dataset
from fedtilt.data.published.entry import Entry, find_file, unreadable
from fedtilt.errors import InputError

_TRUE = "clean_label"


def with_annotations(entry: Entry, data: Dataset, folder: Path, labels: str) -> Dataset:
    """The data set with the labels of annotators, `noisy_train`; its own labels stay the true ones.

    Args:
        entry: its entry in the catalogue
        data: the data set
        folder: the data folder
        labels: which of the labels in the file
    """
    known = entry.annotations
    if known is None:
        raise InputError(f"labels = {labels!r} are of CIFAR-N, and {entry.name!r} has its own alone; leave labels out")
    if labels not in known.labels:
        raise InputError(f"labels = {labels!r} is unknown; {known.file} has {', '.join(known.labels)}")
    path = find_file(entry, known.file, folder)
    if path is None:
        raise InputError(
            f"labels = {labels!r} needs {known.file} of CIFAR-N (noisylabels.com) in {folder / entry.folders[0]}"
        )
    true, noisy = _read(path, (_TRUE, labels))
    if true.shape != data.y_train.shape or not torch.equal(true, data.y_train):
        raise InputError(
            f"{path} has other true labels than {entry.name!r}: it is of other images, or in another order; use the "
            "file for PyTorch, not that for TensorFlow"
        )
    return replace(data, name=f"{data.name} {labels}", noisy_train=noisy)


def _read(path: Path, keys: tuple[str, ...]) -> list[Tensor]:
    """Some of the arrays of whole numbers in a file, int64; nothing but arrays is ever built from it."""
    try:
        with torch.serialization.safe_globals(_ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other versions: what is found is checked
            content = torch.load(path, map_location="cpu", weights_only=True)
        found = [content[key] for key in keys]
        return [torch.as_tensor(v.values() if isinstance(v, _Array) else v).reshape(-1).long() for v in found]
    except OSError as error:
        raise unreadable(path, error) from error
    except (UnpicklingError, zipfile.BadZipFile, EOFError, RuntimeError, TypeError, ValueError, KeyError,
            AttributeError, IndexError, UnicodeError) as error:  # fmt: skip
        raise InputError(
            f"{path} has no arrays {' and '.join(keys)} that can be read; download it again from CIFAR-N"
        ) from error


class _Dtype:
    """What a file says of the type of an array: a plain integer."""

    def __init__(self, name: str, *_: object) -> None:
        self.name, self.order = name, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = "<" if state[1] == "|" else state[1]

    def numpy(self) -> np.dtype[Any]:
        if self.name not in ("i1", "i2", "i4", "i8", "u1", "u2", "u4") or self.order not in ("<", ">"):
            raise ValueError(f"an array of {self.order}{self.name}")
        return np.dtype(self.order + self.name)


class _Array:
    """What a file says of an array; NumPy's own way to restore one trusts the file."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, _, self.data = state

    def values(self) -> Any:
        array = np.frombuffer(self.data, self.dtype.numpy())
        if array.size != np.prod(self.shape):
            raise ValueError(f"{array.size} numbers for an array of shape {self.shape}")
        return array.astype(np.int64)


def _new_array(*_: object) -> _Array:
    return _Array()


# by the names that NumPy 1 and 2 write
_ALLOWED: list[Any] = [
    (_new_array, "numpy.core.multiarray._reconstruct"),
    (_new_array, "numpy._core.multiarray._reconstruct"),
    (_Array, "numpy.ndarray"),
    (_Dtype, "numpy.dtype"),
]
