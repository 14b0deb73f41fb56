"""The data sets that can be loaded by name. A new one is a file with its entry and reader, and a line here."""

import os
from dataclasses import replace
from pathlib import Path

from fedtilt.data.dataset import Dataset
from fedtilt.data.published.annotations import with_annotations
from fedtilt.data.published.cifar import CIFAR10, CIFAR100
from fedtilt.data.published.digits import DIGITS
from fedtilt.data.published.entry import Entry, data_folder, find_archive, find_file
from fedtilt.data.published.federations import FEDERATIONS
from fedtilt.data.published.mnist import FASHION_MNIST, MNIST
from fedtilt.data.published.toy import TOYS
from fedtilt.data.sampling import check_split
from fedtilt.errors import InputError

CATALOG: dict[str, Entry] = {
    entry.name: entry for entry in (DIGITS, MNIST, FASHION_MNIST, CIFAR10, CIFAR100, *TOYS, *FEDERATIONS)
}


def names() -> tuple[str, ...]:
    """The names that `load` takes.

    >>> names()[:5]
    ('digits', 'mnist', 'fashion-mnist', 'cifar10', 'cifar100')
    """
    return tuple(CATALOG)


def entry(name: str) -> Entry:
    """The entry of that name."""
    if name not in CATALOG:
        raise InputError(f"unknown data set {name!r}; choose one of {', '.join(CATALOG)}")
    return CATALOG[name]


def load(
    name: str, folder: str | os.PathLike[str] | None = None, *, seed: int = 0, labels: str | None = None,
    split: str | None = None,
) -> Dataset:  # fmt: skip
    """Read a data set of the catalogue.

    Args:
        name: one of `names()`; `digits` and the toys need no files, real-world federations need the extra `federations`
        folder: the data folder; default: FEDTILT_DATA, else ~/.cache/fedtilt
        seed: the seed that generates a toy, or draws the test rows of a real-world federation; the others ignore it
        labels: of CIFAR-10 and CIFAR-100: the labels of CIFAR-N's annotators that training samples get, such as
            "worse_label" or "noisy_label"; the true ones are known to `Federation.outlier_mask`; default: the true ones
        split: how validation data, and the test rows of a real-world federation, are drawn: "random" or with the
            classes in proportion ("proportional"); default: at random

    >>> load("toy-1").input_shape
    (2,)
    """
    known = entry(name)
    how = check_split(split)
    if known.sites is not None:
        data = known.reader(known, data_folder(folder), seed, how)
    else:
        data = replace(known.reader(known, data_folder(folder), seed), split=how)
    return data if labels is None else with_annotations(known, data, data_folder(folder), labels)


def find_folder(name: str, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder with all files of a data set, or None; no file is opened."""
    known, root = entry(name), data_folder(folder)
    paths = [find_file(known, content.name, root) for content in known.contents]
    if known.contents and all(paths):
        return paths[0].parent if paths[0] else None
    archive = find_archive(known, root)
    return archive.parent if archive else None
