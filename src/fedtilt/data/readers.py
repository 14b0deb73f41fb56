"""Load a data set by name."""

import os

import numpy as np
import torch

from fedtilt import checks, seeds
from fedtilt.data import catalog
from fedtilt.data.dataset import Dataset
from fedtilt.data.images import read_cifar10, read_idx_pair
from fedtilt.data.strata import stratified
from fedtilt.data.toy import SETUPS, toy


def load(name: str, folder: str | os.PathLike[str] | None = None, *, seed: int = 0) -> Dataset:
    """The data set of that name, read from `folder` (else FEDTILT_DATA, else ~/.cache/fedtilt).

    `digits` and the toys need no files; `seed` draws the toys and changes nothing else.

    >>> load("toy-1").input_shape
    (2,)
    """
    entry = catalog.entry(name)
    if name == "digits":
        return _digits(entry)
    if name in SETUPS:
        return toy(name, checks.whole(seed, "seed"))
    home = catalog.data_folder(folder)
    return read_cifar10(entry, home) if name == "cifar10" else read_idx_pair(entry, home)


def _digits(entry: catalog.Entry) -> Dataset:
    """scikit-learn's digits; one third of every class is test data, the same for everyone."""
    from sklearn.datasets import load_digits  # late: importing scikit-learn takes a second

    bunch = load_digits()
    x = torch.from_numpy((bunch.images / 16).astype(np.float32))[:, None]  # (1797, 1, 8, 8)
    y = bunch.target.astype(np.int64)
    test = torch.from_numpy(stratified(y, entry.test, seeds.generator(seeds.key(0, "digits/test"))))
    labels = torch.from_numpy(y)
    return Dataset(
        name=entry.name,
        x_train=x[~test],
        y_train=labels[~test],
        x_test=x[test],
        y_test=labels[test],
        classes=entry.classes,
        image=True,
    )
