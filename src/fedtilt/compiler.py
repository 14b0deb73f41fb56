"""Compile a C file of this package on first use, with the machine's compiler, for its processor.

Libraries are cached in the user's home. A library's name has a hash of everything it depends on: the flags, the source
and its includes, and the compiler's macros for this processor. So machines that share a home do not share libraries. It
also has a hash of the library itself, which is checked before it is loaded: a damaged one is compiled again.
"""

import atexit
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

from fedtilt.errors import InputError

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
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "torch", "TRITON_CACHE_DIR": "triton"}
_OTHERS_WRITE = 0o022
_TIMEOUT_SECONDS = 300  # of one run of the compiler, which takes a few seconds


class LibraryUnavailable(Exception):
    """The reason there is no library, as a clause to follow 'because'."""


@dataclass(frozen=True, kw_only=True)
class CompiledLibrary:
    """A loaded library, and the id of its build: another build may round differently."""

    library: ctypes.CDLL
    build_id: str


def compile_library(source: Path) -> CompiledLibrary:
    """Load the library of this source from the cache; compile it first if it is not there."""
    if sys.platform not in ("linux", "darwin"):
        raise LibraryUnavailable(f"compiling is not supported on {sys.platform}")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise LibraryUnavailable("no C compiler (cc, gcc, clang) is on the PATH")
    content = _run([compiler, *_FLAGS, "-E", "-P", "-dD", str(source)])
    key = hashlib.sha256(" ".join(_FLAGS).encode() + content).hexdigest()[:16]
    folder, name = private_cache_folder("native"), f"{source.stem}-{key}"
    path = _undamaged(folder, name) or _compile(compiler, source, folder, name)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryUnavailable(f"the compiled library cannot be loaded ({error})") from None
    version = re.search(rb'__VERSION__ "(.*)"', content)
    compiler_name = version[1].decode() if version else Path(compiler).name
    return CompiledLibrary(library=library, build_id=f"{compiler_name}, {key}")


def private_cache_folder(name: str) -> Path:
    """A folder for compiled code. It must belong to the user alone: others could place code there."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "fedtilt" / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.stat()
    except (OSError, RuntimeError) as error:
        raise LibraryUnavailable(f"the folder for compiled libraries cannot be created ({error})") from None
    if status.st_uid != os.getuid() or status.st_mode & _OTHERS_WRITE:
        raise LibraryUnavailable(f"{folder} belongs to another user or is writable by others")
    return folder


def use_private_caches() -> None:
    """Let torch and Triton keep what they compile in folders of the user, or of this process if others can write those.

    Both run what they find there. Torch's default is a folder in /tmp with a name that every user can guess, and make
    first. A folder that the user has chosen must not be one that others can write.
    """
    for variable, name in _CACHES.items():
        if chosen := os.environ.get(variable):
            if Path(chosen).exists() and Path(chosen).stat().st_mode & _OTHERS_WRITE:
                raise InputError(
                    f"{variable} = {chosen} is a folder that others can write, and what is compiled there is run; "
                    f"chmod go-w {chosen}, or unset {variable}"
                )
            continue
        try:
            folder = str(private_cache_folder(name))
        except LibraryUnavailable:
            folder = tempfile.mkdtemp(prefix=f"fedtilt-{name}-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[variable] = folder


def _undamaged(folder: Path, name: str) -> Path | None:
    """The cached library of this name whose content is what was compiled; damaged ones are removed."""
    try:
        for path in folder.glob(f"{name}-*.so"):
            if path.name == _file_name(name, path.read_bytes()):
                return path
            path.unlink(missing_ok=True)
    except OSError:  # compiled again
        pass
    return None


def _file_name(name: str, content: bytes) -> str:
    return f"{name}-{hashlib.sha256(content).hexdigest()[:32]}.so"


def _compile(compiler: str, source: Path, folder: Path, name: str) -> Path:
    """Compile to a temporary name, then rename what is on the disk, so that no process loads a partial library."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as temporary:
            partial = Path(temporary) / f"{name}.so"
            _run([compiler, *_FLAGS, "-o", str(partial), str(source), "-lm"])
            path = folder / _file_name(name, partial.read_bytes())
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            return partial.replace(path)
    except OSError as error:
        raise LibraryUnavailable(f"a library could not be written to {folder} ({error.strerror})") from None


def _run(command: list[str]) -> bytes:
    """The output of a command."""
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_SECONDS).stdout
    except subprocess.CalledProcessError as error:
        first_line = (error.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[0]
        raise LibraryUnavailable(f"{command[0]} failed ({first_line})") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LibraryUnavailable(f"{command[0]} could not run ({error})") from None
