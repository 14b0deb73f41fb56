"""One entry of the catalogue: a data set's files, where they are published and where they are on this machine."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedtilt.data.dataset import Dataset


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


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One data set of the catalogue, and how to read it.

    Args:
        name: the name for `load`
        description: what the samples are, in a few words
        reader: `reader(entry, data_folder, seed)` returns the data set; the seed matters for generated data only
        train: the number of training samples
        test: the number of test samples
        classes: the number of classes
        class_names: the classes' names; empty: their numbers
        files: the files to download; empty for a data set that is built in
        contents: the uncompressed files
        folders: the folders, relative to the data folder, that may contain either
    """

    name: str
    description: str
    reader: Callable[["Entry", Path, int], Dataset]
    train: int
    test: int
    classes: int
    class_names: tuple[str, ...] = ()
    files: tuple[PublishedFile, ...] = ()
    contents: tuple[Content, ...] = ()
    folders: tuple[str, ...] = ()


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
