"""Readers of the published image files: idx (MNIST, Fashion-MNIST) and CIFAR-10's binary version."""

import gzip
import math
import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.catalog import Entry, archive, find
from fedtilt.data.dataset import Dataset
from fedtilt.errors import InputError

_CIFAR_RECORD = 1 + 3 * 32 * 32  # one label, then the red, green and blue planes


def read_idx_pair(entry: Entry, folder: Path) -> Dataset:
    """MNIST and its relatives: four idx files, gzipped or not."""
    paths = [_existing(entry, file, folder) for file, _ in entry.contents]
    x_train, y_train, x_test, y_test = (
        _idx(path, _content(path, entry.name), dims, entry.name) for path, dims in zip(paths, (3, 1, 3, 1), strict=True)
    )
    for images, labels, path in ((x_train, y_train, paths[1]), (x_test, y_test, paths[3])):
        if len(images) != len(labels):
            raise damaged(path, f"it has {len(labels)} labels for {len(images)} images", entry.name)
        _check_labels(path, labels, entry)
    return _images(entry, x_train[:, None], y_train, x_test[:, None], y_test)


def read_cifar10(entry: Entry, folder: Path, *, records: int = 10_000) -> Dataset:
    """CIFAR-10 from a folder of .bin (or .bin.gz) files, else from the tar.gz, which is never unpacked to disk."""
    files = [file for file, _ in entry.contents]
    paths = {file: find(entry, file, folder) for file in files}
    packed = archive(entry, folder)
    if all(paths.values()) or packed is None:
        sources = {file: _existing(entry, file, folder) for file in files}
        blobs = {file: _content(path, entry.name) for file, path in sources.items()}
    else:
        sources = dict.fromkeys(files, packed)
        blobs = _tar_members(packed, files, records * _CIFAR_RECORD, entry.name)
    batches = [_cifar_batch(sources[file], file, blobs[file], records, entry) for file in files]
    x_train, y_train = (torch.cat(parts) for parts in zip(*batches[:-1], strict=True))
    return _images(entry, x_train, y_train, *batches[-1])


def _images(entry: Entry, x_train: Tensor, y_train: Tensor, x_test: Tensor, y_test: Tensor) -> Dataset:
    return Dataset(
        name=entry.name,
        x_train=x_train,
        y_train=y_train.long(),
        x_test=x_test,
        y_test=y_test.long(),
        classes=entry.classes,
        class_names=entry.class_names,
        image=True,
    )


def damaged(path: Path, what: str, name: str) -> InputError:
    """The error for a file whose content is wrong."""
    return InputError(f"{path} is damaged: {what}; fetch it again with `fedtilt data get {name} --force`")


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read: {error.strerror or error}; check its permissions")


def _existing(entry: Entry, file: str, folder: Path) -> Path:
    path = find(entry, file, folder)
    if path is None:
        looked = folder if "." in entry.places else folder / entry.places[0]
        raise InputError(
            f"data set {entry.name!r} is not here: no {file} in {looked}; "
            f"run `fedtilt data get {entry.name}`, or set FEDTILT_DATA to the folder that holds it"
        )
    return path


def _content(path: Path, name: str) -> bytes:
    """The bytes of a file, unpacked if they are gzipped."""
    try:
        blob = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    return unzipped(path, blob, name) if path.suffix == ".gz" else blob


def unzipped(path: Path, blob: bytes, name: str) -> bytes:
    """The content of a gzipped blob, or an error that says what is wrong with it."""
    try:
        return gzip.decompress(blob)
    except EOFError as error:
        raise damaged(path, f"the gzip stream ends early, after {len(blob)} bytes", name) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"the gzip stream is not valid ({error})", name) from error


def _idx(path: Path, blob: bytes, dims: int, name: str) -> Tensor:
    """An idx file of unsigned bytes: 0, 0, 8, number of dimensions, the big-endian sizes, the values."""
    start = 4 + 4 * dims
    if blob[:4] != bytes([0, 0, 8, dims]):
        raise damaged(path, f"its magic number is 0x{blob[:4].hex()} instead of 0x0000080{dims}", name)
    if len(blob) < start:
        raise damaged(path, f"it ends in its header, after {len(blob)} bytes", name)
    shape = tuple(np.frombuffer(blob, ">u4", dims, 4).tolist())
    if len(blob) != start + math.prod(shape):
        raise damaged(path, f"it has {len(blob)} bytes, but its header announces {start + math.prod(shape)}", name)
    if dims == 3 and shape[1:] != (28, 28):
        raise damaged(path, f"its images are {shape[1]} × {shape[2]} instead of 28 × 28", name)
    return torch.from_numpy(np.frombuffer(blob, np.uint8, offset=start).reshape(shape).copy())


def _cifar_batch(path: Path, file: str, blob: bytes, records: int, entry: Entry) -> tuple[Tensor, Tensor]:
    if len(blob) != records * _CIFAR_RECORD:
        expected = records * _CIFAR_RECORD
        raise damaged(path, f"{Path(file).name} has {len(blob)} bytes instead of {expected}", entry.name)
    rows = torch.from_numpy(np.frombuffer(blob, np.uint8).reshape(records, _CIFAR_RECORD).copy())
    _check_labels(path, rows[:, 0], entry)
    return rows[:, 1:].reshape(records, 3, 32, 32), rows[:, 0]


def _check_labels(path: Path, labels: Tensor, entry: Entry) -> None:
    if len(labels) and int(labels.max()) >= entry.classes:
        raise damaged(path, f"it has the label {int(labels.max())}, beyond {entry.classes - 1}", entry.name)


def _tar_members(path: Path, files: list[str], size: int, name: str) -> dict[str, bytes]:
    """The wanted members of a tar.gz by exact name, in one pass; whatever else is in it is not looked at."""
    blobs: dict[str, bytes] = {}
    try:
        with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as tar:
            for member in tar:
                if member.name not in files or member.name in blobs:
                    continue
                content = tar.extractfile(member) if member.isfile() and member.size == size else None
                if content is None:
                    raise damaged(path, f"{member.name} has {member.size} bytes instead of {size}", name)
                blobs[member.name] = content.read()
            while unpacked.read(1 << 20):  # gzip compares its checksum only at the very end
                pass
    except EOFError as error:
        raise damaged(path, "the archive ends early", name) from error
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"it is not a valid tar.gz archive ({error})", name) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    missing = [file for file in files if file not in blobs]
    if missing:
        raise damaged(path, f"{missing[0]} is not in it", name)
    return blobs
