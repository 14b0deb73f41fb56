"""Readers of the published image files: idx (MNIST, Fashion-MNIST) and CIFAR-10's binary version."""

import gzip
import math
import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.dataset import Dataset
from fedtilt.data.published.entry import Entry, find_archive, find_file
from fedtilt.errors import InputError

CIFAR_RECORD = 1 + 3 * 32 * 32  # one label, then the red, green and blue planes
_MAX_OTHERS = 10 << 20  # bytes of an archive that are not the samples


def read_idx(entry: Entry, folder: Path, seed: int) -> Dataset:
    """MNIST and Fashion-MNIST: four idx files, gzipped or not."""
    paths = [_require_file(entry, content.name, folder) for content in entry.contents]
    x_train, y_train, x_test, y_test = (
        _parse_idx(path, _read_bytes(path, content.size, entry.name), dims, entry.name)
        for path, content, dims in zip(paths, entry.contents, (3, 1, 3, 1), strict=True)
    )
    for images, labels, path in ((x_train, y_train, paths[1]), (x_test, y_test, paths[3])):
        if len(images) != len(labels):
            raise _damaged(path, f"it has {len(labels)} labels for {len(images)} images", entry.name)
        _check_labels(path, labels, entry)
    return _image_dataset(entry, x_train[:, None], y_train, x_test[:, None], y_test)


def read_cifar10(entry: Entry, folder: Path, seed: int, *, records: int = 10_000) -> Dataset:
    """CIFAR-10 from its .bin (or .bin.gz) files, else from the tar.gz, which is never unpacked to disk."""
    files = [content.name for content in entry.contents]
    paths = {file: find_file(entry, file, folder) for file in files}
    archive = find_archive(entry, folder)
    if all(paths.values()) or archive is None:
        sources = {file: _require_file(entry, file, folder) for file in files}
        blobs = {
            file: _read_bytes(path, size, entry.name)
            for (file, path), (_, size, _) in zip(sources.items(), entry.contents, strict=True)
        }
    else:
        sources = dict.fromkeys(files, archive)
        blobs = _read_tar(archive, files, records * CIFAR_RECORD, entry.name)
    batches = [_parse_cifar(sources[file], file, blobs[file], records, entry) for file in files]
    x_train, y_train = (torch.cat(parts) for parts in zip(*batches[:-1], strict=True))
    return _image_dataset(entry, x_train, y_train, *batches[-1])


def _image_dataset(entry: Entry, x_train: Tensor, y_train: Tensor, x_test: Tensor, y_test: Tensor) -> Dataset:
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


def _damaged(path: Path, problem: str, name: str) -> InputError:
    """The error about a file whose content is wrong."""
    return InputError(f"{path} is damaged: {problem}; download it again with `fedtilt data download {name} --force`")


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read: {error.strerror or error}; check its permissions")


def _require_file(entry: Entry, file: str, folder: Path) -> Path:
    path = find_file(entry, file, folder)
    if path is None:
        expected = folder if "." in entry.folders else folder / entry.folders[0]
        raise InputError(
            f"data set {entry.name!r} is not downloaded: {expected} has no {file}; "
            f"run `fedtilt data download {entry.name}`, or set FEDTILT_DATA to the folder that contains it"
        )
    return path


def _read_bytes(path: Path, limit: int, name: str) -> bytes:
    """The content of a file, decompressed if it is a .gz; one that is larger than published is not read further."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            blob = file.read(limit + 1)
    except EOFError as error:
        raise _damaged(path, f"the gzip stream ends early, after {path.stat().st_size} bytes", name) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, f"the gzip stream is not valid ({error})", name) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(blob) > limit:
        raise _damaged(path, f"its content has more than {limit} bytes", name)
    return blob


def _parse_idx(path: Path, blob: bytes, dims: int, name: str) -> Tensor:
    """Parse an idx file of unsigned bytes: 0, 0, 8, number of dimensions, the big-endian sizes, the values."""
    start = 4 + 4 * dims
    if blob[:4] != bytes([0, 0, 8, dims]):
        raise _damaged(path, f"its magic number is 0x{blob[:4].hex()} instead of 0x0000080{dims}", name)
    if len(blob) < start:
        raise _damaged(path, f"it ends in its header, after {len(blob)} bytes", name)
    shape = tuple(np.frombuffer(blob, ">u4", dims, 4).tolist())
    if len(blob) != start + math.prod(shape):
        raise _damaged(path, f"it has {len(blob)} bytes, but its header says {start + math.prod(shape)}", name)
    if dims == 3 and shape[1:] != (28, 28):
        raise _damaged(path, f"its images are {shape[1]} × {shape[2]} instead of 28 × 28", name)
    return torch.from_numpy(np.frombuffer(blob, np.uint8, offset=start).reshape(shape).copy())


def _parse_cifar(path: Path, file: str, blob: bytes, records: int, entry: Entry) -> tuple[Tensor, Tensor]:
    if len(blob) != records * CIFAR_RECORD:
        expected = records * CIFAR_RECORD
        raise _damaged(path, f"{Path(file).name} has {len(blob)} bytes instead of {expected}", entry.name)
    rows = torch.from_numpy(np.frombuffer(blob, np.uint8).reshape(records, CIFAR_RECORD).copy())
    _check_labels(path, rows[:, 0], entry)
    return rows[:, 1:].reshape(records, 3, 32, 32), rows[:, 0]


def _check_labels(path: Path, labels: Tensor, entry: Entry) -> None:
    if len(labels) and int(labels.max()) >= entry.classes:
        raise _damaged(path, f"it has the label {int(labels.max())}, beyond {entry.classes - 1}", entry.name)


def _read_tar(path: Path, files: list[str], size: int, name: str) -> dict[str, bytes]:
    """Read these members of a tar.gz, by exact name, in one pass; the other members are never opened."""
    blobs: dict[str, bytes] = {}
    limit = len(files) * size + _MAX_OTHERS
    too_large = _damaged(path, f"its content has more than {limit} bytes", name)
    try:
        with gzip.open(path) as decompressed, tarfile.open(fileobj=decompressed, mode="r|") as tar:
            for member in tar:
                if member.offset_data + member.size > limit:
                    raise too_large
                if member.name not in files or member.name in blobs:
                    continue
                content = tar.extractfile(member) if member.isfile() and member.size == size else None
                if content is None:
                    raise _damaged(path, f"{member.name} has {member.size} bytes instead of {size}", name)
                blobs[member.name] = content.read()
            while decompressed.read(1 << 20):  # gzip checks its checksum only at the very end
                if decompressed.tell() > limit:
                    raise too_large
    except EOFError as error:
        raise _damaged(path, "the archive ends early", name) from error
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, f"it is not a valid tar.gz archive ({error})", name) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    missing = [file for file in files if file not in blobs]
    if missing:
        raise _damaged(path, f"{missing[0]} is not in it", name)
    return blobs
