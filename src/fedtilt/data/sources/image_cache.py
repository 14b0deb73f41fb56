"""Images decoded once into a file that processes map into memory, so that all workers share its pages."""

import hashlib
import json
import os
import uuid
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtilt.errors import InputError, InputWarning
from fedtilt.files import O_BINARY, reading, sync_folder, writing
from fedtilt.imports import import_extra

MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's names
_FORMAT = 2  # of the files; part of their names


def pillow() -> Any:
    """Pillow's Image module, imported late."""
    return import_extra("PIL.Image", "reading images", "images")


def decode_images(paths: Sequence[Path], size: tuple[int, int] | None, channels: int | None, folder: Path) -> Tensor:
    """The pixels, uint8 (N, channels, height, width), mapped from a file of `folder` that is written if it is missing.

    The file's name is a hash of every image's path, size and time of change, and of the settings; then a hash of the
    file itself, which is checked: from a damaged file the images are decoded again. Without `size` (height, width) or
    `channels`, all images must have the same.
    """
    key = _key(paths, size, channels)
    file = _undamaged(folder, key) or _write(folder, key, paths, size, channels)
    with reading(file):
        pixels = np.load(file, mmap_mode="c", allow_pickle=False)  # changes stay in memory; torch wants it writable
    return torch.from_numpy(pixels)


def _undamaged(folder: Path, key: str) -> Path | None:
    """The file of this key whose content is what was written; damaged ones are deleted."""
    for file in sorted(folder.glob(f"{key}-*.npy")):
        with reading(file):
            if file.name == _file_name(key, file):
                return file
        warnings.warn(InputWarning(f"{file} was damaged: the images are decoded again"), stacklevel=2)
        with writing(file):
            file.unlink(missing_ok=True)
    return None


def _file_name(key: str, content: Path) -> str:
    with content.open("rb") as file:
        return f"{key}-{hashlib.file_digest(file, 'sha256').hexdigest()[:32]}.npy"


def _key(paths: Sequence[Path], size: tuple[int, int] | None, channels: int | None) -> str:
    listing = []
    for path in paths:
        status = path.stat()
        listing.append([str(path.absolute()), status.st_size, status.st_mtime_ns])
    version = [_FORMAT, pillow().__version__]  # another decoder may give other pixels
    content = json.dumps([version, size, channels, listing])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _write(
    folder: Path, key: str, paths: Sequence[Path], size: tuple[int, int] | None, channels: int | None
) -> Path:  # fmt: skip
    """Decode all images into a temporary file, and rename it at the end."""
    first = decode_image(paths[0], size, channels)
    shape = (len(paths), *first.shape)
    name = folder / f"{key}.{uuid.uuid4().hex}.part"  # two processes may decode at the same time
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_BINARY, 0o666)
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror}; choose another folder: cache") from error
    try:
        pixels = np.lib.format.open_memmap(name, mode="w+", dtype=np.uint8, shape=shape)
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and a crash in mapped memory
            os.posix_fallocate(handle, 0, os.fstat(handle).st_size)

        def fill(i: int) -> None:
            image = decode_image(paths[i], size, channels)
            if image.shape != first.shape:
                raise _shape_error(paths[i], image, paths[0], first)
            pixels[i] = image

        pool = ThreadPoolExecutor()  # Pillow decodes without Python's lock
        try:
            for _ in pool.map(fill, range(len(paths))):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
        pixels.flush()
        os.fsync(handle)
        file = folder / _file_name(key, name)
        os.replace(name, file)
    except OSError as error:
        raise InputError(f"cannot write {name}: {error.strerror or error}; free some space, or choose cache") from error
    finally:
        os.close(handle)
        name.unlink(missing_ok=True)
    sync_folder(folder)
    return file


def decode_image(path: Path, size: tuple[int, int] | None, channels: int | None) -> np.ndarray:
    """One image as (channels, height, width)."""
    Image = pillow()
    from PIL import ImageOps

    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(eight_bits(path, image))
            picture = upright.convert(MODES[channels] if channels else natural_mode(path, upright))
            if size is not None and picture.size != (size[1], size[0]):
                picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    except InputError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise InputError(f"image {path} cannot be read ({error}); replace it or leave it out") from error
    pixels = np.asarray(picture)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def eight_bits(name: object, image: Any) -> Any:
    """A grey image of 16 bits per pixel with 8, 65,535 as 255; others as they are."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    pixels = np.asarray(image)
    if image.mode == "F" or pixels.min() < 0 or pixels.max() > 65_535:
        raise InputError(f"image {name} has more than 16 bits per pixel (mode {image.mode}); save it with 8 or 16")
    if pixels.max() < 4096:
        text = (
            "some 16-bit images have values below 4,096 alone, nearly black as 8-bit ones; stretch them to 65,535 first"
        )
        warnings.warn(InputWarning(text), stacklevel=2)
    return pillow().fromarray((pixels // 257).astype(np.uint8))


def natural_mode(path: Path, image: Any) -> str:
    """Pillow's mode that keeps all channels of an image."""
    if image.mode in ("1", "L", "I") or image.mode.startswith("I;16"):
        return "L"
    return "RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB"


def _shape_error(path: Path, image: np.ndarray, first_path: Path, first: np.ndarray) -> InputError:
    if len(image) != len(first):
        return InputError(
            f"image {path} has {len(image)} channels, but {first_path} has {len(first)}; convert all with channels = 1 "
            "(grey) or 3 (colour)"
        )
    return InputError(
        f"image {path} has {image.shape[1]} × {image.shape[2]} pixels, but {first_path} has {first.shape[1]} × "
        f"{first.shape[2]}; resize all with size, such as size = 32"
    )
