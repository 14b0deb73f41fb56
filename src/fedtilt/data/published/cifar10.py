"""CIFAR-10's binary version: from its .bin files, or from the archive, which is never unpacked to disk."""

import gzip
import tarfile
import zlib
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
    find_archive,
    find_file,
    image_dataset,
    read_content,
    require_file,
    unreadable,
)

_FILES = (
    ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
    ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
    ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
    ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
    ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
    ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
)
_RECORD = 1 + 3 * 32 * 32  # one label, then the red, green and blue planes
_MAX_OTHERS = 10 << 20  # bytes of an archive that are not the samples


def read_cifar10(entry: Entry, folder: Path, seed: int, *, records: int = 10_000) -> Dataset:
    """From .bin (or .bin.gz) files, else from the tar.gz; `records` are the samples of a file."""
    files = [content.name for content in entry.contents]
    paths = {file: find_file(entry, file, folder) for file in files}
    archive = find_archive(entry, folder)
    if all(paths.values()) or archive is None:
        sources = {file: require_file(entry, file, folder) for file in files}
        blobs = {
            file: read_content(path, content, entry.name)
            for (file, path), content in zip(sources.items(), entry.contents, strict=True)
        }
    else:
        sources = dict.fromkeys(files, archive)
        blobs = _read_tar(archive, files, records * _RECORD, entry.name)
    batches = [_parse_cifar(sources[file], file, blobs[file], records, entry) for file in files]
    x_train, y_train = (torch.cat(parts) for parts in zip(*batches[:-1], strict=True))
    return image_dataset(entry, x_train, y_train, *batches[-1])


def _parse_cifar(path: Path, file: str, blob: bytes, records: int, entry: Entry) -> tuple[Tensor, Tensor]:
    if len(blob) != records * _RECORD:
        expected = records * _RECORD
        raise damaged(path, f"{Path(file).name} has {len(blob)} bytes instead of {expected}", entry.name)
    rows = torch.from_numpy(np.frombuffer(blob, np.uint8).reshape(records, _RECORD).copy())
    check_labels(path, rows[:, 0], entry)
    return rows[:, 1:].reshape(records, 3, 32, 32), rows[:, 0]


def _read_tar(path: Path, files: list[str], size: int, name: str) -> dict[str, bytes]:
    """Read these members of a tar.gz, by exact name, in one pass; the other members are never opened."""
    blobs: dict[str, bytes] = {}
    limit = len(files) * size + _MAX_OTHERS
    too_large = damaged(path, f"its content has more than {limit} bytes", name)
    try:
        with gzip.open(path) as decompressed, tarfile.open(fileobj=decompressed, mode="r|") as tar:
            for member in tar:
                if member.offset_data + member.size > limit:
                    raise too_large
                if member.name not in files or member.name in blobs:
                    continue
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
    missing = [file for file in files if file not in blobs]
    if missing:
        raise damaged(path, f"{missing[0]} is not in it", name)
    return blobs


CIFAR10 = Entry(
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
    contents=tuple(Content(f"cifar-10-batches-bin/{name}.bin", 10_000 * _RECORD, md5) for name, md5 in _FILES),
    folders=("cifar10", "."),
)
