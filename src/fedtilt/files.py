"""Atomic file writes: temporary name, fsync, rename. A file is complete or absent."""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load, save
from torch import Tensor

from fedtilt.errors import InputError


def write_bytes(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file atomically: temporary name, fsync, rename, fsync of the folder."""
    partial = path.with_name(path.name + ".part")
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if sync:
                sync_folder(path.parent.parent)
        with partial.open("wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}; free some space or choose another folder") from error
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that the names in it survive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, content: Any, *, sync: bool = True) -> None:
    """Write indented JSON; NaN is refused."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode(), sync=sync)


def read_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file is an `InputError`."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is missing or damaged ({error})") from error


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, *, sync: bool = True
) -> str:
    """Write a safetensors file and return its sha256."""
    on_cpu = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    content = save(on_cpu, None if metadata is None else dict(metadata))
    write_bytes(path, content, sync=sync)
    return hashlib.sha256(content).hexdigest()


def read_tensors(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """Read a safetensors file and check it against a hash, if there is one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(f"{path} was changed after it was written: its hash differs")
    try:
        return load(content)
    except safetensors.SafetensorError as error:
        raise InputError(f"{path} is damaged ({error})") from error


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or 'there is no such file'})") from error
    except safetensors.SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file ({error}); use a file that fedtilt export wrote") from error


def first_difference(a: Any, b: Any, key: str = "") -> tuple[str, Any, Any] | None:
    """The dotted key and both values where two JSON values first differ; None if they are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in [*a, *(n for n in b if n not in a)]:
            difference = first_difference(a.get(name), b.get(name), f"{key}.{name}" if key else name)
            if difference:
                return difference
        return None
    return None if a == b else (key, a, b)
