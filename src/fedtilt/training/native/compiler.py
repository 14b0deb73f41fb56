"""A C file of this package as a library, compiled on first use by the compiler of the machine for its own processor.

Libraries are kept in the user's cache under a name that holds all they depend on: the flags, the source with all it
includes, and every macro of the compiler for this processor. A home that several machines share holds one for each.
"""

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
)
_PATIENCE = 300  # seconds for one run of the compiler; it needs a few


class Unavailable(Exception):
    """Why there is no library: half a sentence, to be put behind 'because'."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A loaded library, and what it was made by: another one may give other last bits."""

    library: ctypes.CDLL
    made_by: str


def compile_library(source: Path) -> Compiled:
    """The library of this source, from the cache or compiled now."""
    if sys.platform not in ("linux", "darwin"):
        raise Unavailable(f"there is no support for compilers on {sys.platform}")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise Unavailable("no C compiler (cc, gcc, clang) is on the PATH")
    content = _output([compiler, *_FLAGS, "-E", "-P", "-dD", str(source)])
    key = hashlib.sha256(" ".join(_FLAGS).encode() + content).hexdigest()[:16]
    path = _folder() / f"{source.stem}-{key}.so"
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # not there yet, or damaged
        _build(compiler, source, path)
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise Unavailable(f"the compiled library cannot be loaded ({error})") from None
    version = re.search(rb'__VERSION__ "(.*)"', content)
    return Compiled(library=library, made_by=f"{version[1].decode() if version else Path(compiler).name}, {key}")


def _folder() -> Path:
    """The user's own folder for libraries: what others may write to must not be loaded."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "fedtilt" / "native"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.stat()
    except (OSError, RuntimeError) as error:
        raise Unavailable(f"there is no folder for compiled libraries ({error})") from None
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise Unavailable(f"{folder} belongs to someone else or can be written by others")
    return folder


def _build(compiler: str, source: Path, path: Path) -> None:
    """Compile under another name, then rename: nobody ever loads half a library."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as folder:
            partial = Path(folder) / path.name
            _output([compiler, *_FLAGS, "-o", str(partial), str(source), "-lm"])
            partial.replace(path)
    except OSError as error:
        raise Unavailable(f"{path} could not be made ({error.strerror})") from None


def _output(command: list[str]) -> bytes:
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE).stdout
    except subprocess.CalledProcessError as error:
        said = (error.stderr.decode(errors="replace").strip().splitlines() or ["no word"])[0]
        raise Unavailable(f"{command[0]} failed ({said})") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} could not run ({error})") from None
