"""The data sets that can be loaded by name. A new one is an entry here with its reader."""

import os
from pathlib import Path

from fedtilt.data.dataset import Dataset
from fedtilt.data.published.digits import read_digits
from fedtilt.data.published.entry import Content, Entry, PublishedFile, data_folder, find_archive, find_file
from fedtilt.data.published.images import CIFAR_RECORD, read_cifar10, read_idx
from fedtilt.data.published.toy import read_toy
from fedtilt.errors import InputError

# name, size and md5 of the published .gz file, md5 of the uncompressed file
_MNIST = (
    ("train-images-idx3-ubyte", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    ("train-labels-idx1-ubyte", 28881, "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    ("t10k-images-idx3-ubyte", 1648877, "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    ("t10k-labels-idx1-ubyte", 4542, "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
)
_FASHION = (
    ("train-images-idx3-ubyte", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    ("train-labels-idx1-ubyte", 29515, "25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
    ("t10k-images-idx3-ubyte", 4422102, "bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
    ("t10k-labels-idx1-ubyte", 5148, "bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
)
_CIFAR10 = (
    ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
    ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
    ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
    ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
    ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
    ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
)


def _idx_entry(
    name: str, description: str, rows: tuple[tuple[str, int, str, str], ...], mirrors: tuple[str, ...],
    other_folder: str, class_names: tuple[str, ...] = (),
) -> Entry:  # fmt: skip
    """60,000 training and 10,000 test images of 28 × 28 in MNIST's file format."""
    sizes = [
        header + count * bytes_each for count in (60_000, 10_000) for header, bytes_each in ((16, 28 * 28), (8, 1))
    ]
    return Entry(
        name=name,
        description=f"{description}, 28 × 28",
        reader=read_idx,
        train=60_000,
        test=10_000,
        classes=10,
        class_names=class_names,
        files=tuple(
            PublishedFile(path=f"{name}/{file}.gz", size=size, md5=md5, urls=tuple(f"{m}/{file}.gz" for m in mirrors))
            for file, size, md5, _ in rows
        ),
        contents=tuple(Content(file, size, md5) for (file, _, _, md5), size in zip(rows, sizes, strict=True)),
        folders=(name, other_folder),
    )


CATALOG: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="digits", description="handwritten digits, 8 × 8", reader=read_digits, train=1198, test=599, classes=10
        ),
        _idx_entry(
            "mnist",
            "handwritten digits",
            _MNIST,
            ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
            "MNIST/raw",
        ),
        _idx_entry(
            "fashion-mnist",
            "clothing",
            _FASHION,
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
            "FashionMNIST/raw",
            ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
        ),
        Entry(
            name="cifar10",
            description="colour photos, 32 × 32",
            reader=read_cifar10,
            train=50_000,
            test=10_000,
            classes=10,
            class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
            files=(
                PublishedFile(
                    path="cifar10/cifar-10-binary.tar.gz",
                    size=170052171,
                    md5="c32a1d4ab5d03f1284b67883e8d87530",
                    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                ),
            ),
            contents=tuple(
                Content(f"cifar-10-batches-bin/{name}.bin", 10_000 * CIFAR_RECORD, md5) for name, md5 in _CIFAR10
            ),
            folders=("cifar10", "."),
        ),
        Entry(name="toy-1", description="toy: two Gaussian classes", reader=read_toy, train=400, test=80, classes=2),
        Entry(name="toy-2", description="toy: classes 3 to 1", reader=read_toy, train=400, test=80, classes=2),
        Entry(name="toy-3", description="toy: 3 to 1 with outliers", reader=read_toy, train=400, test=80, classes=2),
    )
}


def names() -> tuple[str, ...]:
    """The names that `load` takes.

    >>> names()
    ('digits', 'mnist', 'fashion-mnist', 'cifar10', 'toy-1', 'toy-2', 'toy-3')
    """
    return tuple(CATALOG)


def entry(name: str) -> Entry:
    """The entry of that name."""
    if name not in CATALOG:
        raise InputError(f"unknown data set {name!r}; choose one of {', '.join(CATALOG)}")
    return CATALOG[name]


def load(name: str, folder: str | os.PathLike[str] | None = None, *, seed: int = 0) -> Dataset:
    """Read a data set of the catalogue.

    Args:
        name: one of `names()`; `digits` and the toys need no files
        folder: the data folder; left out: FEDTILT_DATA, else ~/.cache/fedtilt
        seed: the seed that generates a toy; the other data sets ignore it

    >>> load("toy-1").input_shape
    (2,)
    """
    known = entry(name)
    return known.reader(known, data_folder(folder), seed)


def find_folder(name: str, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder with all files of a data set, or None; no file is opened."""
    known, root = entry(name), data_folder(folder)
    paths = [find_file(known, content.name, root) for content in known.contents]
    if known.contents and all(paths):
        return paths[0].parent if paths[0] else None
    archive = find_archive(known, root)
    return archive.parent if archive else None
