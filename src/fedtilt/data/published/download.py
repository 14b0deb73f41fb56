"""Download published files: resumed, checked by md5, and under their final name only when complete."""

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

from fedtilt.data.published import catalog
from fedtilt.data.published.entry import PublishedFile, data_folder, find_archive, find_file
from fedtilt.errors import InputError

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]

Progress = Callable[[str, int, int], None]  # file, bytes downloaded, bytes in total
_CHUNK = 1 << 16


class MirrorError(Exception):
    """A download from one mirror failed; the next mirror may work."""


@dataclass(frozen=True)
class FileStatus:
    """The state of one file: 'ok', 'missing' or 'damaged'."""

    path: Path
    state: str
    note: str = ""


def download(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
    files: Sequence[PublishedFile] | None = None,
    timeout: float = 30.0,
) -> list[Path]:
    """Download a data set's files into the data folder and return their paths.

    Args:
        name: a data set of the catalogue
        folder: the data folder; default: FEDTILT_DATA, else ~/.cache/fedtilt
        force: download intact files again
        progress: called with a file's name, the bytes downloaded and the bytes in total
        files: what to download instead of the published files, such as from your own mirror
        timeout: seconds to wait for a server
    """
    root = data_folder(folder)
    published = catalog.entry(name).files if files is None else files
    return [_get_file(file, root / file.path, force, progress, timeout) for file in published]


def verify(name: str, folder: str | os.PathLike[str] | None = None) -> list[FileStatus]:
    """Compare the md5 sums of a data set's files with the published ones; empty for a built-in data set."""
    entry, root = catalog.entry(name), data_folder(folder)
    archive = find_archive(entry, root)
    found = [(content, find_file(entry, content.name, root)) for content in entry.contents]
    if archive is not None or (len(entry.files) == 1 and not any(path for _, path in found)):
        file = entry.files[0]
        return [_status(archive or root / file.path, archive is not None, file.size, file.md5, decompress=False)]
    return [
        _status(
            path or root / entry.folders[0] / f"{content.name}.gz", path is not None, content.size, content.md5,
            decompress=True,
        )
        for content, path in found
    ]  # fmt: skip


def _status(path: Path, exists: bool, size: int, md5: str, *, decompress: bool) -> FileStatus:
    if not exists:
        return FileStatus(path, "missing")
    try:
        actual = _md5(path, size, decompress=decompress and path.suffix == ".gz")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return FileStatus(path, "damaged", str(error))
    except OSError as error:
        return FileStatus(path, "damaged", f"cannot be read: {error.strerror}")
    if actual is None:
        return FileStatus(path, "damaged", f"its content has more than {size} bytes")
    return FileStatus(path, "ok") if actual == md5 else FileStatus(path, "damaged", f"md5 {actual}, not {md5}")


def _md5(path: Path, size: int, *, decompress: bool = False) -> str | None:
    """The md5 sum of a file's content; None if it has more bytes than this, and then it is not read to its end."""
    with gzip.open(path) if decompress else path.open("rb") as file:
        digest = hashlib.md5(usedforsecurity=False)
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            if file.tell() > size:
                return None
    return digest.hexdigest()


def _get_file(file: PublishedFile, path: Path, force: bool, progress: Progress | None, timeout: float) -> Path:
    report = progress or (lambda name, done, total: None)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_folder(path.parent) as folder:
            if not force and path.is_file() and _md5(path, file.size) == file.md5:
                report(path.name, file.size, file.size)
                return path
            if force:
                part.unlink(missing_ok=True)
            _download(file, path, part, report, timeout)
            os.replace(part, path)
            if folder is not None:
                os.fsync(folder)  # makes the rename durable
    except OSError as error:
        raise InputError(
            f"{part} cannot be written: {error.strerror or error}; choose another folder with --data-dir"
        ) from error
    return path


@contextmanager
def _lock_folder(folder: Path) -> Iterator[int | None]:
    """Wait until no other process downloads into the folder: two writers would corrupt each other's .part file."""
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


def _download(file: PublishedFile, path: Path, part: Path, report: Progress, timeout: float) -> None:
    """Write the right content to `part`, from the first mirror that has it."""
    failures = []
    for url in file.urls:
        resumed = part.exists() and part.stat().st_size > 0
        # the bytes before a resume may be wrong: if it fails, try once more from the start
        for _ in range(2 if resumed else 1):
            try:
                _download_from(url, part, file.size, report, timeout)
                _check_md5(part, file)
                return
            except MirrorError as failure:
                failures.append(f"{url}: {failure}")
                if part.exists():
                    break
    raise InputError(
        f"{path.name} could not be downloaded ({'; '.join(failures) or 'no mirror is known'}); try again later, "
        f"or put the file into {path.parent} by hand"
    )


def _check_md5(part: Path, file: PublishedFile) -> None:
    actual = _md5(part, file.size)
    if actual != file.md5:
        part.unlink()
        raise MirrorError(f"wrong content, md5 {actual} instead of {file.md5}, removed")


def _download_from(url: str, part: Path, size: int, report: Progress, timeout: float) -> None:
    """Download `url` to `part`; resume an earlier attempt if the server supports it."""
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
        if done and not _resumes(response, done):
            done = 0  # the server sends the whole file again
        with open(part, "ab" if done else "wb", opener=_open_no_link) as out:
            while chunk := _read_chunk(response):
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


def _open_no_link(path: str, flags: int) -> int:
    """Open a file, but not through a symbolic link of its name, which would overwrite another file."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _resumes(response: http.client.HTTPResponse, done: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {done}-")


def _read_chunk(response: http.client.HTTPResponse) -> bytes:
    """The next bytes; empty if the connection breaks, so that the bytes before it stay for a resume."""
    try:
        return response.read(_CHUNK)
    except (OSError, http.client.HTTPException):
        return b""


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error)
