"""Files that are complete or absent, and whose damage is found.

A write is atomic: temporary name, fsync, rename. JSON objects and safetensors files have a digest of their content
under the key "digest", TOML files and pages in their last line, which is a comment; reading checks it. A file without a
digest, written by hand or by another program, is read as it is.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import safetensors

from fedtilt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor  # PyTorch takes seconds to import, and most commands on files need none of it

O_BINARY = getattr(os, "O_BINARY", 0)  # Windows would change the ends of lines
_PREFIX = "sha256:"
_NO_DIGEST = _PREFIX + 64 * "0"  # in place of the digest, while the digest is computed
_TOML_COMMENT, _HTML_COMMENT = "# {}", "<!-- {} -->"


def file_name(text: str) -> str:
    """A text as the name of a file, with underscores for what systems do not allow in one.

    >>> file_name("Zürich/Süd: 3")
    'Zürich_Süd_3'
    """
    return re.sub(r"[^\w.-]+", "_", text).strip(".") or "_"


def local_path(source: str | os.PathLike[str], what: str) -> Path:
    """The path of a file or folder; a URL raises, and `what` names it, such as "table"."""
    path = os.fspath(source)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path):  # a Path has one of two slashes
        raise InputError(f"{what} {path} is a URL; download it first, and give the path of the file or folder")
    return Path(path).expanduser()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` while this file is written or deleted into an `InputError`."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"cannot write {path}: {why}; free some space or choose another folder") from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an `OSError` while this file is read into an `InputError`."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"{path} cannot be read ({why}); restore it from a copy") from error


@contextlib.contextmanager
def interpreting(path: Path) -> Iterator[None]:
    """Turn errors about values that this file or folder should not have into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise InputError(f"{path} is damaged ({error!r:.200}); restore it from a copy") from error


@contextlib.contextmanager
def atomic_file(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which has its name only when the `with` block ends without an error."""
    partial = path.with_name(path.name + ".part")
    with writing(path):
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if sync:
                sync_folder(path.parent.parent)
        partial.unlink(missing_ok=True)
        try:
            # a new file: never one that a symbolic link of this name points to
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY, 0o666), "wb") as file:
                yield file
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        if sync:
            sync_folder(path.parent)


def write_bytes(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file atomically."""
    with atomic_file(path, sync=sync) as file:
        file.write(content)


def read_bytes(path: Path) -> bytes:
    """Read a file; one that cannot be read is an `InputError`."""
    with reading(path):
        return path.read_bytes()


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that the names in it survive a crash; Windows cannot open folders, and writes them itself."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, content: Any, *, indent: int | None = 2, sync: bool = True) -> None:
    """Write JSON, an object with its digest; NaN raises."""
    content = with_digest(content) if isinstance(content, dict) else content
    write_bytes(path, (json.dumps(content, indent=indent, allow_nan=False) + "\n").encode(), sync=sync)


def read_json(path: Path) -> Any:
    """Read JSON without its digest; a missing or damaged file is an `InputError`."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is missing or damaged ({error}); restore it from a copy") from error
    try:
        return check_digest(content) if isinstance(content, dict) else content
    except ValueError as error:
        raise InputError(
            f"{path} was damaged or changed after it was written: {error}; restore it from a copy, or delete its "
            "digest to use it as it is"
        ) from None


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its digest as the last key."""
    return {**content, "digest": _json_digest(content)}


def check_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object without its digest, if it has one; a digest that differs is a `ValueError`.

    >>> check_digest(with_digest({"round": 3})), check_digest({"round": 3})
    ({'round': 3}, {'round': 3})
    """
    digests = _digests_in(content)
    rest = {key: value for key, value in content.items() if key not in digests}
    if digests not in ({}, {"digest": _json_digest(rest)}):
        raise ValueError("its digest differs")
    return rest


def _digests_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with the digest; also found where its key or its value is damaged, so that no damage hides it."""
    return {
        key: value
        for key, value in content.items()
        if key == "digest" or (isinstance(value, str) and value.startswith(_PREFIX))
    }


def _json_digest(content: Mapping[str, Any]) -> str:
    return _PREFIX + hashlib.sha256(json.dumps(content).encode()).hexdigest()


def write_toml(path: Path, text: str) -> None:
    """Write a TOML text, and its digest as a comment in the last line."""
    _write_commented(path, text, _TOML_COMMENT)


def read_toml(path: Path) -> str:
    """Read a TOML text without its digest; a missing or damaged file is an `InputError`."""
    return _read_commented(path, _TOML_COMMENT)


def write_html(path: Path, text: str) -> None:
    """Write a page, and its digest as a comment in the last line."""
    _write_commented(path, text if text.endswith("\n") else f"{text}\n", _HTML_COMMENT)


def read_html(path: Path) -> str:
    """Read a page without its digest; a missing or damaged file is an `InputError`."""
    return _read_commented(path, _HTML_COMMENT)


def _write_commented(path: Path, text: str, comment: str) -> None:
    write_bytes(path, _with_comment(text, comment).encode())


def _with_comment(text: str, comment: str) -> str:
    return f"{text}{comment.format(_PREFIX + hashlib.sha256(text.encode()).hexdigest())}\n"


def _read_commented(path: Path, comment: str) -> str:
    with reading(path):
        content = path.read_bytes()
    try:
        text = content.decode()
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); restore it from a copy") from error
    before, newline, last = text.removesuffix("\n").rpartition("\n")
    before += newline
    if _PREFIX not in last and len(last) != len(comment.format(_NO_DIGEST)):
        return text
    if text != _with_comment(before, comment):
        raise InputError(
            f"{path} was damaged or changed after it was written: its digest differs; restore it from a copy, or "
            "delete its last line to use it as it is"
        )
    return before


def write_tensors(
    path: Path, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str] | None = None, *, sync: bool = True
) -> str:
    """Write a safetensors file with its digest in the metadata; returns the hexadecimal digits of the digest."""
    content = tensors_to_bytes(tensors, {**(metadata or {}), "digest": _NO_DIGEST})
    sha256 = hashlib.sha256(content).hexdigest()
    start = content.index(_NO_DIGEST.encode())
    with atomic_file(path, sync=sync) as file:
        file.write(content[:start])
        file.write((_PREFIX + sha256).encode())
        file.write(memoryview(content)[start + len(_NO_DIGEST) :])
    return sha256


def tensors_to_bytes(tensors: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors in the format of safetensors, without a digest."""
    from safetensors.torch import save

    written, seen = {}, set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr() if tensor.numel() else None
        written[name] = tensor.clone() if storage in seen else tensor  # safetensors takes no two with the same memory
        seen |= {storage} - {None}
    content: bytes = save(written, metadata)
    return content


def read_tensors(path: Path, sha256: str | None = None) -> dict[str, "Tensor"]:
    """Read a safetensors file and check its digest; with `sha256`, it must be this one."""
    from safetensors.torch import load

    content, found, _ = _read_safetensors(path)
    if sha256 is not None and found != f"{_PREFIX}{sha256}":  # it may be of any type: it was read from a file
        raise InputError(f"{path} is damaged, or another file: its digest differs; restore it from a copy")
    try:
        return load(content)
    except safetensors.SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}); restore it from a copy") from error


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file without the digest, which is checked."""
    return _read_safetensors(path)[2]


def _read_safetensors(path: Path) -> tuple[bytes, str | None, dict[str, str]]:
    """The content of a safetensors file, its digest and its other metadata."""
    with reading(path):
        content = path.read_bytes()
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        metadata = dict(header.get("__metadata__") or {})
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not a safetensors file, or damaged ({error}); restore it from a copy") from error
    digests = _digests_in(metadata)
    if not digests:
        return content, None, metadata
    found = digests.get("digest")
    if len(digests) > 1 or not isinstance(found, str) or found != _tensors_digest(content, found):
        raise InputError(
            f"{path} was damaged or changed after it was written: its digest differs; restore it from a copy"
        )
    del metadata["digest"]
    return content, found, metadata


def _tensors_digest(content: bytes, found: str) -> str:
    """The digest of a safetensors file: of its bytes, with the digest in its header replaced by zeros."""
    start = content.find(found.encode())
    digest = hashlib.sha256(content[: max(start, 0)])
    digest.update(_NO_DIGEST.encode())
    digest.update(memoryview(content)[start + len(_NO_DIGEST) :])
    return _PREFIX + digest.hexdigest()


def first_difference(a: Any, b: Any, key: str = "") -> tuple[str, Any, Any] | None:
    """The dotted key and both values where two JSON values first differ; None if they are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in [*a, *(n for n in b if n not in a)]:
            difference = first_difference(a.get(name), b.get(name), f"{key}.{name}" if key else name)
            if difference:
                return difference
        return None
    return None if a == b else (key, a, b)


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Create files as 0600 and folders as 0700 for the length of a `with` block, whatever the umask of the process."""
    umask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(umask)


def private_folder(path: Path) -> Path:
    """A folder that only its owner can read, made if it is missing."""
    with private_files():
        path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path
