"""Which images a folder or a manifest has: their paths, labels, clients and splits."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtilt.errors import InputError
from fedtilt.files import local_path, reading

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_SPLITS = ("train", "test")
_COLUMNS = ("path", "label", "client", "split")  # of a manifest
_LAYOUTS = "CLASS/…, CLIENT/CLASS/…, or the same inside train and test"


@dataclass(frozen=True, kw_only=True)
class ImageFile:
    """One image, with its class and, where they are known, its client and split."""

    path: Path
    label: str
    client: str | None = None
    split: str | None = None


def list_images(source: str | os.PathLike[str]) -> list[ImageFile]:
    """The images of a folder or of a manifest, ordered by path."""
    path = local_path(source, "images")
    if path.is_dir():
        files = _list_folder(path)
    elif path.suffix.lower() == ".csv":
        files = _read_manifest(path)
    else:
        problem = "does not exist" if not path.exists() else "is no folder"
        raise InputError(f"images {path} {problem}; give a folder of images, or a CSV file with path and label")
    if all(file.split != "test" for file in files):  # without test images, the split is still to be drawn
        files = [ImageFile(path=file.path, label=file.label, client=file.client) for file in files]
    if not any(file.split in (None, "train") for file in files):
        raise InputError(f"images {path} has no training images, only test; add some")
    return sorted(files, key=lambda file: file.path)


def _list_folder(root: Path) -> list[ImageFile]:
    paths = [path.relative_to(root).parts for path in _walk(root, root)]
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


def _walk(root: Path, folder: Path) -> list[Path]:
    """All files below a folder except hidden ones; a file that is no image is refused."""
    found: list[Path] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}; check its permissions") from error
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if len(path.relative_to(root).parts) > 3:  # a link to a folder above would never end
                raise InputError(f"images {root} has folders below {path.parent}; the folders are {_LAYOUTS}")
            found += _walk(root, path)
        elif path.suffix.lower() not in SUFFIXES:
            raise InputError(f"{path} is no image ({', '.join(SUFFIXES)}); move it out of the folder")
        else:
            found.append(path)
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
