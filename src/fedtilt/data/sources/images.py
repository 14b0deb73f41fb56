"""The user's own images, from folders or a manifest."""

import csv
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedtilt import checks
from fedtilt.data.dataset import Dataset, split_dataset
from fedtilt.data.naming import sort_names
from fedtilt.data.published.entry import data_folder
from fedtilt.data.sampling import Split, check_split, check_test_share, draw_test_data
from fedtilt.data.sources.image_cache import MODES, decode_images, natural_mode, pillow
from fedtilt.errors import InputError
from fedtilt.files import local_path, reading

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_SPLITS = ("train", "test")
_OF_FILE_MANAGERS = ("thumbs.db", "ehthumbs.db", "desktop.ini")
_COLUMNS = ("path", "label", "client", "split")  # of a manifest
_TINY_LABELS = Path("val", "val_annotations.txt")  # of Tiny-ImageNet
_LAYOUTS = "CLASS/…, CLIENT/CLASS/…, or the same inside train and test"


def images(
    source: str | os.PathLike[str],
    *,
    size: int | Sequence[int] | None = None,
    channels: int | None = None,
    test_share: float | None = None,
    split: str | None = None,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Read images from folders or a manifest as a data set.

    A folder has a folder for each class, CLASS/…, or for each client and class, CLIENT/CLASS/…; either may be inside
    folders train and test. A manifest is a CSV file with the columns path and label and, optionally, client and split
    (train or test); its paths are relative to it. The folder of Tiny-ImageNet is read as published. Images are decoded
    once, into a file that all processes share; a changed image is decoded again.

    Args:
        source: the folder, or the manifest
        size: height and width to resize all images to, or one number for both; default: they all have the same
        channels: 1 (grey), 3 (colour) or 4 (with transparency) to convert to; default: they all have the same
        test_share: the share of each client's images that is test data, if the source has no test images; default: 0.25
        split: how test and validation data are drawn, "random" or with the classes in proportion ("proportional");
            default: at random
        seed: the seed that draws the test data
        cache: the folder of decoded images; default: `images` in the data folder (FEDTILT_DATA, else
            ~/.cache/fedtilt); it may be deleted at any time
    """
    target_size = None if size is None else _check_size(size)
    if channels is not None and checks.whole(channels, "channels") not in MODES:
        raise InputError(f"channels = {channels} is not possible; choose 1 (grey), 3 (colour) or 4 (with transparency)")
    files, strays = list_images(source)
    class_names = sort_names({file.label for file in files})
    client_names = sort_names({file.client for file in files if file.client is not None})
    class_number, client_number = ({name: k for k, name in enumerate(names)} for names in (class_names, client_names))
    y = np.array([class_number[file.label] for file in files], np.int64)
    client = np.array([client_number[file.client] if file.client is not None else 0 for file in files], np.int64)
    given = files[0].split is not None
    share = check_test_share(test_share, seed, given=given)
    how = check_split(split)
    drawn = Split(how=how, strata=y)
    test = np.array([file.split == "test" for file in files]) if given else draw_test_data(drawn, client, share, seed)
    order = np.argsort(test, kind="stable")  # training images first: both splits are views of the file
    folder = data_folder() / "images" if cache is None else Path(cache).expanduser()
    x = decode_images([files[i].path for i in order], target_size, channels, folder)
    count = int((~test).sum())
    labels, owner, rows = (torch.from_numpy(values[order]) for values in (y, client, np.arange(len(files))))
    root = local_path(source, "images").absolute()
    base = root if root.is_dir() else root.parent
    return split_dataset(
        {"x": x, "y": labels, "client": owner if client_names else None, "rows": rows},
        {"train": slice(0, count), "test": slice(count, None)},
        name=root.stem,
        classes=len(class_names),
        class_names=class_names,
        image=True,
        client_names=client_names or None,
        row_names=[os.path.relpath(file.path, base) for file in files],
        warnings=_stray_warnings(strays),
        split=how,
        test_drawn=not given,
    )


class ImageDescription(NamedTuple):
    """What a folder or a manifest has, in a few lines, and whether all images have one size and number of channels."""

    lines: list[str]
    uniform: bool


def describe_images(source: str | os.PathLike[str]) -> ImageDescription:
    """Describe the images of a folder or a manifest; they are opened but not decoded."""
    files, strays = list_images(source)
    clients = {file.client for file in files if file.client is not None}
    splits = Counter(file.split for file in files)
    lines = [
        f"{len(files):,} images, {len({file.label for file in files})} classes, "
        + (f"{len(clients):,} clients" if clients else "no clients of their own"),
        f"split: {splits['train']:,} training, {splits['test']:,} test"
        if splits["test"]
        else "split: none; a share is test data (test_share)",
        *_stray_warnings(strays),
    ]
    found: dict[str, Counter[str]] = {"size": Counter(), "channels": Counter()}
    example: dict[tuple[str, str], Path] = {}
    for file in files:
        try:
            with pillow().open(file.path) as image:
                values = {"size": f"{image.height} × {image.width}"}
                values["channels"] = {"L": "1", "RGB": "3", "RGBA": "4"}[natural_mode(file.path, image)]
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(f"image {file.path} cannot be read ({error}); replace it or leave it out") from error
        for key, value in values.items():
            found[key][value] += 1
            example.setdefault((key, value), file.path)
    for key, counts in found.items():
        if len(counts) == 1:
            lines.append(f"{key}: {next(iter(counts))}")
            continue
        common = [
            f"{value} ({count:,} of them, such as {example[key, value]})" for value, count in counts.most_common(4)
        ]
        more = f", and {len(counts) - 4} more" if len(counts) > 4 else ""
        lines.append(f"{key}: {', '.join(common)}{more}; choose one with {key} (data.image_{key} in a spec)")
    return ImageDescription(lines, all(len(counts) == 1 for counts in found.values()))


def _check_size(size: int | Sequence[int]) -> tuple[int, int]:
    values = list(size) if isinstance(size, Sequence) and not isinstance(size, str) else [size, size]
    if len(values) != 2:
        raise InputError(f"size = {size!r} has {len(values)} numbers; give height and width, or one number for both")
    height, width = (checks.whole(value, "size", 1) for value in values)
    return height, width


@dataclass(frozen=True, kw_only=True)
class ImageFile:
    """One image, with its class and, where they are known, its client and split."""

    path: Path
    label: str
    client: str | None = None
    split: str | None = None


def list_images(source: str | os.PathLike[str]) -> tuple[list[ImageFile], list[Path]]:
    """The images of a folder or of a manifest, ordered by path, and the files of the folder that are none."""
    path, strays = local_path(source, "images"), list[Path]()
    if (path / _TINY_LABELS).is_file():
        files = _list_tiny_imagenet(path)
    elif path.is_dir():
        files = _list_folder(path, strays)
    elif path.suffix.lower() == ".csv":
        files = _read_manifest(path)
    else:
        problem = "does not exist" if not path.exists() else "is no folder"
        raise InputError(f"images {path} {problem}; give a folder of images, or a CSV file with path and label")
    if all(file.split != "test" for file in files):  # without test images, the split is still to be drawn
        files = [ImageFile(path=file.path, label=file.label, client=file.client) for file in files]
    if not any(file.split in (None, "train") for file in files):
        raise InputError(f"images {path} has no training images, only test; add some")
    return sorted(files, key=lambda file: file.path), strays


def _stray_warnings(strays: Sequence[Path]) -> list[str]:
    if not strays:
        return []
    return [f"{len(strays):,} files are no images ({', '.join(SUFFIXES)}) and are skipped, such as {strays[0]}"]


def _list_folder(root: Path, strays: list[Path]) -> list[ImageFile]:
    paths = [path.relative_to(root).parts for path in _walk(root, root, strays)]
    if not paths:
        raise InputError(f"images {root} has no images ({', '.join(SUFFIXES)}); put them into a folder for each class")
    tops = {parts[0].lower() for parts in paths}
    split = bool(tops & set(_SPLITS))
    if split and tops - set(_SPLITS):
        extra = next(parts[0] for parts in paths if parts[0].lower() not in _SPLITS)
        raise InputError(
            f"images {root} has {extra!r} beside {sorted(tops & set(_SPLITS))[0]!r}; a folder with splits has train "
            "and test alone (validation data is a share of train: clients.validation)"
        )
    first = paths[0]
    for parts in paths:
        if len(parts) != len(first) or not 2 <= len(parts) - split <= 3:
            raise InputError(
                f"images {root} has {'/'.join(parts)}"
                + (f" but also {'/'.join(first)}" if len(parts) != len(first) else "")
                + f"; the folders are {_LAYOUTS}"
            )
    return [
        ImageFile(
            path=root.joinpath(*parts),
            label=parts[-2],
            client=parts[-3] if len(parts) - split == 3 else None,
            split=parts[0].lower() if split else None,
        )
        for parts in paths
    ]


def _list_tiny_imagenet(root: Path) -> list[ImageFile]:
    """Tiny-ImageNet as published: train/CLASS/images/…, and val/images/… with a list of their classes as test data.

    Its own folder test has no labels.
    """
    train = [
        ImageFile(path=path, label=path.parts[-3], client=None, split="train")
        for path in sorted((root / "train").glob("*/images/*")) if path.suffix.lower() in SUFFIXES
    ]  # fmt: skip
    with reading(root / _TINY_LABELS):
        rows = [line.split("\t") for line in (root / _TINY_LABELS).read_text("utf-8").splitlines() if line]
    known, test = {file.label for file in train}, []
    for number, row in enumerate(rows, start=1):
        path = root / "val" / "images" / row[0]
        if len(row) < 2 or row[1] not in known or not path.is_file():
            raise InputError(
                f"{root / _TINY_LABELS}, line {number} has no image of val/images and class of train; unpack it again"
            )
        test.append(ImageFile(path=path, label=row[1], client=None, split="test"))
    return train + test


def _walk(root: Path, folder: Path, strays: list[Path]) -> list[Path]:
    """All images below a folder; other files are added to `strays`, but hidden ones and those of file managers."""
    found: list[Path] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}; check its permissions") from error
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith(".") or entry.name.lower() in _OF_FILE_MANAGERS:
            continue
        if entry.is_dir():
            if len(path.relative_to(root).parts) > 3:  # a link to a folder above would never end
                raise InputError(f"images {root} has folders below {path.parent}; the folders are {_LAYOUTS}")
            found += _walk(root, path, strays)
        else:
            (found if path.suffix.lower() in SUFFIXES else strays).append(path)
    return found


def is_manifest(source: str | os.PathLike[str]) -> bool:
    """Whether this is a CSV file with the columns of a manifest and no others."""
    path = Path(source).expanduser()
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with reading(path), path.open(encoding="utf-8-sig", errors="replace") as file:
        header = [name.strip() for name in file.readline().split(",")]
    return {"path", "label"} <= set(header) <= set(_COLUMNS)


def _read_manifest(path: Path) -> list[ImageFile]:
    """A CSV file with the columns path and label and, optionally, client and split; paths are relative to it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except OSError as error:
        raise InputError(f"manifest {path} cannot be read: {error.strerror}; check the path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"manifest {path} is not a readable text table ({error}); save it as UTF-8 CSV") from error
    _check_header(path, header)
    if not rows:
        raise InputError(f"manifest {path} has 0 rows below its header; add some")
    files: list[ImageFile] = []
    line_of: dict[Path, int] = {}
    for line, cells in rows:
        if len(cells) != len(header) or "" in cells:
            raise InputError(f"manifest {path} needs {', '.join(header)} in row {line}, got {','.join(cells)!r}")
        values = dict(zip(header, cells, strict=True))
        image = path.parent / values.pop("path")
        if image in line_of:
            raise InputError(f"manifest {path} has {image} in rows {line_of[image]} and {line}; list it once")
        if not image.is_file():
            raise InputError(f"manifest {path} names {image} in row {line}, which does not exist; correct the path")
        if "split" in values and values["split"].lower() not in _SPLITS:
            raise InputError(f"manifest {path} has split = {values['split']!r} in row {line}; write train or test")
        line_of[image] = line
        split = values["split"].lower() if "split" in values else None
        files.append(ImageFile(path=image, label=values["label"], client=values.get("client"), split=split))
    return files


def _check_header(path: Path, header: Sequence[str]) -> None:
    for name in ("path", "label"):
        if name not in header:
            raise InputError(f"manifest {path} has no column {name!r}; its columns are {', '.join(header) or 'none'}")
    wrong = next((name for name in header if name not in _COLUMNS or header.count(name) > 1), None)
    if wrong is not None:
        raise InputError(f"manifest {path} has the column {wrong!r}; the columns are {', '.join(_COLUMNS)}, once each")
