"""CIFAR-10 and CIFAR-100, binary version: from their .bin files, or the archive, which is never unpacked to disk."""

import gzip
import tarfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.dataset import Dataset
from fedtilt.data.published.entry import (
    Annotations,
    Content,
    Entry,
    PublishedFile,
    check_labels,
    damaged,
    find_archive,
    find_file,
    image_dataset,
    read_content,
    require_file,
    unreadable,
)

_CIFAR10_FILES = (
    ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
    ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
    ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
    ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
    ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
    ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
)
_PIXELS = 3 * 32 * 32  # the red, green and blue planes, after the labels
_MAX_OTHERS = 10 << 20  # bytes of an archive that are not the samples


def read_cifar(
    entry: Entry, folder: Path, seed: int, *, labels: int = 1, records: int | None = None
) -> Dataset:  # fmt: skip
    """From .bin (or .bin.gz) files, else from the tar.gz.

    Args:
        entry: CIFAR-10 or CIFAR-100
        folder: the data folder
        seed: has no effect
        labels: the labels of a sample, of which the last is its class; CIFAR-100 has the superclass before it
        records: the samples of a file; default: as published
    """
    sizes = {
        content.name: content.size if records is None else records * (labels + _PIXELS) for content in entry.contents
    }
    paths = {file: find_file(entry, file, folder) for file in sizes}
    archive = find_archive(entry, folder)
    if all(paths.values()) or archive is None:
        sources = {file: require_file(entry, file, folder) for file in sizes}
        blobs = {
            file: read_content(path, content, entry.name)
            for (file, path), content in zip(sources.items(), entry.contents, strict=True)
        }
    else:
        sources = dict.fromkeys(sizes, archive)
        blobs = _read_tar(archive, sizes, entry.name)
    batches = [_parse_cifar(sources[file], file, blobs[file], size, labels, entry) for file, size in sizes.items()]
    x_train, y_train = (torch.cat(parts) for parts in zip(*batches[:-1], strict=True))
    return image_dataset(entry, x_train, y_train, *batches[-1])


def _parse_cifar(path: Path, file: str, blob: bytes, size: int, labels: int, entry: Entry) -> tuple[Tensor, Tensor]:
    if len(blob) != size:
        raise damaged(path, f"{Path(file).name} has {len(blob)} bytes instead of {size}", entry.name)
    rows = torch.from_numpy(np.frombuffer(blob, np.uint8).reshape(-1, labels + _PIXELS).copy())
    y = rows[:, labels - 1]
    check_labels(path, y, entry)
    return rows[:, labels:].reshape(-1, 3, 32, 32), y


def _read_tar(path: Path, sizes: Mapping[str, int], name: str) -> dict[str, bytes]:
    """Read these members of a tar.gz, by exact name, in one pass; the other members are never opened."""
    blobs: dict[str, bytes] = {}
    limit = sum(sizes.values()) + _MAX_OTHERS
    too_large = damaged(path, f"its content has more than {limit} bytes", name)
    try:
        with gzip.open(path) as decompressed, tarfile.open(fileobj=decompressed, mode="r|") as tar:
            for member in tar:
                if member.offset_data + member.size > limit:
                    raise too_large
                if member.name not in sizes or member.name in blobs:
                    continue
                size = sizes[member.name]
                content = tar.extractfile(member) if member.isfile() and member.size == size else None
                if content is None:
                    raise damaged(path, f"{member.name} has {member.size} bytes instead of {size}", name)
                blobs[member.name] = content.read()
            while decompressed.read(1 << 20):  # gzip checks its checksum only at the very end
                if decompressed.tell() > limit:
                    raise too_large
    except EOFError as error:
        raise damaged(path, "the archive ends early", name) from error
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"it is not a valid tar.gz archive ({error})", name) from error
    except OSError as error:
        raise unreadable(path, error) from error
    missing = [file for file in sizes if file not in blobs]
    if missing:
        raise damaged(path, f"{missing[0]} is not in it", name)
    return blobs


CIFAR10 = Entry(
    name="cifar10",
    description="colour photos, 32 × 32",
    reader=read_cifar,
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
        Content(f"cifar-10-batches-bin/{name}.bin", 10_000 * (1 + _PIXELS), md5) for name, md5 in _CIFAR10_FILES
    ),
    folders=("cifar10", "."),
    annotations=Annotations(
        "CIFAR-10_human.pt", ("aggre_label", "worse_label", "random_label1", "random_label2", "random_label3")
    ),
)

CIFAR100 = Entry(
    name="cifar100",
    description="colour photos of 100 classes, 32 × 32",
    reader=partial(read_cifar, labels=2),
    train=50_000,
    test=10_000,
    classes=100,
    files=(
        PublishedFile(
            path="cifar100/cifar-100-binary.tar.gz",
            size=168513733,
            md5="03b5dce01913d631647c71ecec9e9cb8",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
        ),
    ),
    contents=(
        Content("cifar-100-binary/train.bin", 50_000 * (2 + _PIXELS), "6172c7755cfe09b2fe270c85cebc1b15"),
        Content("cifar-100-binary/test.bin", 10_000 * (2 + _PIXELS), "4499cfba6c016c1be1438163640a0898"),
    ),
    folders=("cifar100", "."),
    annotations=Annotations("CIFAR-100_human.pt", ("noisy_label",)),
)
