"""The user's own images, from folders or a manifest."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedtilt import checks
from fedtilt.data.dataset import Dataset
from fedtilt.data.image_folders.cache import MODES, decode_images, natural_mode, pillow
from fedtilt.data.image_folders.listing import list_images
from fedtilt.data.naming import sort_names
from fedtilt.data.published.entry import data_folder
from fedtilt.data.sampling import check_test_share, draw_test_data
from fedtilt.errors import InputError
from fedtilt.files import local_path


def images(
    source: str | os.PathLike[str],
    *,
    size: int | Sequence[int] | None = None,
    channels: int | None = None,
    test_share: float | None = None,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Read images from folders or a manifest as a data set.

    A folder has a folder for each class, CLASS/…, or for each client and class, CLIENT/CLASS/…; either may be inside
    folders train and test. A manifest is a CSV file with the columns path and label and, optionally, client and split
    (train or test); its paths are relative to it. Images are decoded once, into a file that all processes share; a
    changed image is decoded again.

    Args:
        source: the folder, or the manifest
        size: height and width to resize all images to, or one number for both; left out: they all have the same
        channels: 1 (grey), 3 (colour) or 4 (with transparency) to convert to; left out: they all have the same
        test_share: the share of each client's images that is test data, with the classes in proportion, if the source
            has no test images; left out: 0.25
        seed: the seed that draws the test data
        cache: the folder of decoded images; left out: `images` in the data folder (FEDTILT_DATA, else
            ~/.cache/fedtilt); it may be deleted at any time
    """
    target_size = None if size is None else _check_size(size)
    if channels is not None and checks.whole(channels, "channels") not in MODES:
        raise InputError(f"channels = {channels} is not possible; choose 1 (grey), 3 (colour) or 4 (with transparency)")
    files = list_images(source)
    class_names = sort_names({file.label for file in files})
    client_names = sort_names({file.client for file in files if file.client is not None})
    class_number, client_number = ({name: k for k, name in enumerate(names)} for names in (class_names, client_names))
    y = np.array([class_number[file.label] for file in files], np.int64)
    client = np.array([client_number[file.client] if file.client is not None else 0 for file in files], np.int64)
    given = files[0].split is not None
    share = check_test_share(test_share, seed, given=given)
    test = np.array([file.split == "test" for file in files]) if given else draw_test_data(y, client, share, seed)
    order = np.argsort(test, kind="stable")  # training images first: both splits are views of the file
    folder = data_folder() / "images" if cache is None else Path(cache).expanduser()
    x = decode_images([files[i].path for i in order], target_size, channels, folder)
    count = int((~test).sum())
    labels, owner, rows = (torch.from_numpy(values[order]) for values in (y, client, np.arange(len(files))))
    root = local_path(source, "images").absolute()
    base = root if root.is_dir() else root.parent
    return Dataset(
        name=root.stem,
        x_train=x[:count],
        y_train=labels[:count],
        x_test=x[count:],
        y_test=labels[count:],
        classes=len(class_names),
        class_names=class_names,
        image=True,
        client_train=owner[:count] if client_names else None,
        client_test=owner[count:] if client_names else None,
        client_names=client_names or None,
        rows_train=rows[:count],
        rows_test=rows[count:],
        row_names=[os.path.relpath(file.path, base) for file in files],
    )


class ImageDescription(NamedTuple):
    """What a folder or a manifest has, in a few lines, and whether all images have one size and number of channels."""

    lines: list[str]
    uniform: bool


def describe_images(source: str | os.PathLike[str]) -> ImageDescription:
    """Describe the images of a folder or a manifest; they are opened but not decoded."""
    files = list_images(source)
    clients = {file.client for file in files if file.client is not None}
    splits = Counter(file.split for file in files)
    lines = [
        f"{len(files):,} images, {len({file.label for file in files})} classes, "
        + (f"{len(clients):,} clients" if clients else "no clients of their own"),
        f"split: {splits['train']:,} training, {splits['test']:,} test"
        if splits["test"]
        else "split: none; a share is test data (test_share)",
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
