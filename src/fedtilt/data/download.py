"""Fetch published files: resumed where they stopped, checked by md5, and never half under their final name."""

import gzip
import hashlib
import http.client
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedtilt.data import catalog
from fedtilt.data.catalog import Published
from fedtilt.errors import InputError

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]

Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all
_CHUNK = 1 << 16


class MirrorError(Exception):
    """One mirror did not deliver; the next one may."""


@dataclass(frozen=True)
class FileStatus:
    """How one file of a data set is: state is 'ok', 'missing' or 'damaged'."""

    path: Path
    state: str
    note: str = ""


def get(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
    files: Sequence[Published] | None = None,
    timeout: float = 30.0,
) -> list[Path]:
    """Download a data set's files into the data folder and return their paths; intact ones stay unless `force`.

    `files` replaces the published files, for a mirror of one's own.
    """
    home = catalog.data_folder(folder)
    published = catalog.entry(name).files if files is None else files
    return [_get_file(file, home / file.path, force, progress, timeout) for file in published]


def check(name: str, folder: str | os.PathLike[str] | None = None) -> list[FileStatus]:
    """Read a data set's files and compare their md5; nothing for a built-in data set."""
    entry, home = catalog.entry(name), catalog.data_folder(folder)
    packed = catalog.archive(entry, home)
    found = [(file, md5, catalog.find(entry, file, home)) for file, md5 in entry.contents]
    if packed is not None or (len(entry.files) == 1 and not any(path for _, _, path in found)):
        file = entry.files[0]
        return [_status(packed or home / file.path, packed is not None, file.md5, unpack=False)]
    return [
        _status(path or home / entry.places[0] / f"{file}.gz", path is not None, md5, unpack=True)
        for file, md5, path in found
    ]


def _status(path: Path, here: bool, md5: str, *, unpack: bool) -> FileStatus:
    if not here:
        return FileStatus(path, "missing")
    try:
        actual = _md5(path, unpack=unpack and path.suffix == ".gz")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return FileStatus(path, "damaged", str(error))
    except OSError as error:
        return FileStatus(path, "damaged", f"cannot be read: {error.strerror}")
    return FileStatus(path, "ok") if actual == md5 else FileStatus(path, "damaged", f"md5 {actual}, not {md5}")


def _md5(path: Path, *, unpack: bool = False) -> str:
    with gzip.open(path) if unpack else path.open("rb") as file:
        digest = hashlib.md5(usedforsecurity=False)
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _get_file(file: Published, path: Path, force: bool, progress: Progress | None, timeout: float) -> Path:
    report = progress or (lambda name, done, total: None)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent) as folder:
            if not force and path.is_file() and _md5(path) == file.md5:
                report(path.name, file.size, file.size)
                return path
            if force:
                part.unlink(missing_ok=True)
            _from_mirrors(file, path, part, report, timeout)
            os.replace(part, path)
            if folder is not None:
                os.fsync(folder)  # makes the rename itself durable
    except OSError as error:
        raise InputError(
            f"{part} cannot be written: {error.strerror or error}; choose another folder with --data-dir"
        ) from error
    return path


@contextmanager
def _alone_in(folder: Path) -> Iterator[int | None]:
    """Wait until no other process downloads into the folder: two writers would spoil each other's .part file."""
    if fcntl is None:
        yield None
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot lock
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _from_mirrors(file: Published, path: Path, part: Path, report: Progress, timeout: float) -> None:
    """Fill `part` with the right content from the first mirror that has it."""
    failures = []
    for url in file.urls:
        resumed = part.exists() and part.stat().st_size > 0
        # a wrong beginning spoils a good rest: a failed resume is tried once more from the start
        for _ in range(2 if resumed else 1):
            try:
                _fetch(url, part, file.size, report, timeout)
                _verify(part, file.md5)
                return
            except MirrorError as failure:
                failures.append(f"{url}: {failure}")
                if part.exists():
                    break
    raise InputError(
        f"{path.name} could not be downloaded ({'; '.join(failures) or 'no mirror is known'}); try again later, "
        f"or put the file into {path.parent} by hand"
    )


def _verify(part: Path, md5: str) -> None:
    actual = _md5(part)
    if actual != md5:
        part.unlink()
        raise MirrorError(f"wrong content, md5 {actual} instead of {md5}, removed")


def _fetch(url: str, part: Path, size: int, report: Progress, timeout: float) -> None:
    """Download `url` to `part`, going on where an earlier attempt stopped if the server can."""
    done = part.stat().st_size if part.exists() else 0
    if done > size:
        part.unlink()
        done = 0
    if done == size:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise MirrorError(_reason(error)) from error
    with response:
        if done and not _continues(response, done):
            done = 0  # the server sends the whole file again
        with part.open("ab" if done else "wb") as out:
            while chunk := _chunk(response):
                out.write(chunk)
                done += len(chunk)
                report(part.name.removesuffix(".part"), done, size)
                if done > size:
                    break
            out.flush()
            os.fsync(out.fileno())
    if done > size:
        part.unlink()
        raise MirrorError(f"more than the expected {size} bytes")
    if done < size:
        raise MirrorError(f"the connection closed after {done} of {size} bytes")


def _continues(response: http.client.HTTPResponse, done: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {done}-")


def _chunk(response: http.client.HTTPResponse) -> bytes:
    """The next bytes; nothing when the connection breaks, so that what came is kept for a resume."""
    try:
        return response.read(_CHUNK)
    except (OSError, http.client.HTTPException):
        return b""


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error)
