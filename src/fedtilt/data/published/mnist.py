"""MNIST and Fashion-MNIST: images of 28 × 28 in idx files."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.dataset import Dataset
from fedtilt.data.published.entry import (
    Content,
    Entry,
    PublishedFile,
    check_labels,
    damaged,
    image_dataset,
    read_content,
    require_file,
)

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


def read_idx(entry: Entry, folder: Path, seed: int) -> Dataset:
    """Four idx files, gzipped or not."""
    paths = [require_file(entry, content.name, folder) for content in entry.contents]
    x_train, y_train, x_test, y_test = (
        _parse_idx(path, read_content(path, content, entry.name), dims, entry.name)
        for path, content, dims in zip(paths, entry.contents, (3, 1, 3, 1), strict=True)
    )
    for images, labels, path in ((x_train, y_train, paths[1]), (x_test, y_test, paths[3])):
        if len(images) != len(labels):
            raise damaged(path, f"it has {len(labels)} labels for {len(images)} images", entry.name)
        check_labels(path, labels, entry)
    return image_dataset(entry, x_train[:, None], y_train, x_test[:, None], y_test)


def _parse_idx(path: Path, blob: bytes, dims: int, name: str) -> Tensor:
    """Parse an idx file of unsigned bytes: 0, 0, 8, number of dimensions, the big-endian sizes, the values."""
    start = 4 + 4 * dims
    if blob[:4] != bytes([0, 0, 8, dims]):
        raise damaged(path, f"its magic number is 0x{blob[:4].hex()} instead of 0x0000080{dims}", name)
    if len(blob) < start:
        raise damaged(path, f"it ends in its header, after {len(blob)} bytes", name)
    shape = tuple(np.frombuffer(blob, ">u4", dims, 4).tolist())
    if len(blob) != start + math.prod(shape):
        raise damaged(path, f"it has {len(blob)} bytes, but its header says {start + math.prod(shape)}", name)
    if dims == 3 and shape[1:] != (28, 28):
        raise damaged(path, f"its images are {shape[1]} × {shape[2]} instead of 28 × 28", name)
    return torch.from_numpy(np.frombuffer(blob, np.uint8, offset=start).reshape(shape).copy())


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


MNIST = _idx_entry(
    "mnist",
    "handwritten digits",
    _MNIST,
    ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
    "MNIST/raw",
)
FASHION_MNIST = _idx_entry(
    "fashion-mnist",
    "clothing",
    _FASHION,
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
    "FashionMNIST/raw",
    ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
)
