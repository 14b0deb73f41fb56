"""Files that only their owner can read, whatever the umask of the process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def private_files() -> Iterator[None]:
    """Create files as 0600 and folders as 0700 for the length of a `with` block."""
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
