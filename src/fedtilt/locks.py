"""Locks: only one run writes into a folder, and only one thread changes what is global in a process."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from fedtilt.errors import InputError

try:
    import fcntl
except ImportError:  # Windows has no flock: two processes in one folder are not detected there
    fcntl = None  # type: ignore[assignment]

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # a link of this name would create a file elsewhere
_in_use: dict[tuple[int, Path], object] = {}  # by (process, lock file): a record lock never excludes its own process


@contextlib.contextmanager
def one_thread_at_a_time() -> Iterator[None]:
    """Lock what is global in torch for the length of a `with` block: its generators, settings and functions."""
    with _torch_lock:
        yield


_torch_lock = threading.RLock()


def _reset_torch_lock() -> None:
    global _torch_lock  # a forked process does not inherit the thread that may hold the lock
    _torch_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_torch_lock)


@contextlib.contextmanager
def locked(folder: Path, *, busy: str | None = None) -> Iterator[None]:
    """Lock a folder for the length of a `with` block; `busy` is the error if another process has locked it."""
    path = folder.resolve() / ".lock"
    key, token = (os.getpid(), path), object()
    if _in_use.setdefault(key, token) is not token:
        raise InputError(busy or f"{folder} is in use by a run of this process; wait for it, or choose another folder")
    try:
        with _record_lock(path, busy):
            yield
    finally:
        del _in_use[key]


@contextlib.contextmanager
def _record_lock(path: Path, busy: str | None) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o644)
    except OSError as error:
        raise InputError(f"cannot write into {path.parent}: {error.strerror}; choose another folder") from error
    try:
        if fcntl is not None:
            try:
                # a record lock: forked workers do not inherit it, so it ends with this process
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                raise InputError(
                    busy or f"{path.parent} is in use by another process; wait for it, or choose another folder"
                ) from None
            except OSError as error:  # ENOLCK, ENOTSUP: some network file systems cannot lock
                raise InputError(
                    f"cannot lock {path.parent}: {error.strerror}, and two processes that write there would damage it; "
                    "choose a folder on another file system"
                ) from error
        yield
    finally:
        os.close(handle)
