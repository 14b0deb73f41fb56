"""Flip bits in caches, and cut them off: what is read from one is what was written, or a sentence names the file."""

import contextlib
import hashlib
import io
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path

from chaos.processes import missing
from chaos.report import Report
from fedtilt.errors import InputError

CASES = {"compiled libraries": 2000, "decoded images": 1000, "published files": 1000, "installed apps": 500}


def run(folder: Path, scale: float, jobs: int) -> Report:
    """Damage a file of each cache again and again; one process, because a case takes milliseconds."""
    report = Report("damaged caches")
    for name, cases in CASES.items():
        part = folder / name.replace(" ", "-")
        part.mkdir()
        if reason := _MISSING[name]():
            report.skipped.append(f"{name}: {reason}")
            continue
        file, read = _CACHES[name](part)
        _damage(name, file, read, max(1, round(cases * scale)), report)
    return report


def _damage(name: str, file: Path, read: Callable[[], object], cases: int, report: Report) -> None:
    content, expected = file.read_bytes(), read()
    rng = random.Random(0)
    for _ in range(cases):
        damaged = bytearray(content)
        at = rng.randrange(len(content))
        if rng.random() < 0.1:
            del damaged[at:]
        else:
            damaged[at] ^= 1 << rng.randrange(8)
        file.unlink(missing_ok=True)  # this process may have mapped it
        file.write_bytes(damaged)
        report.count("damages")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = read()
        except InputError as error:
            report.count("refused")
            if str(file) not in str(error):
                report.failures.append(f"{name}, byte {at}: the error does not name the file: {error}")
            continue
        if found != expected:
            report.failures.append(f"{name}, byte {at}: another content is used in silence")
        if not file.exists():
            file.write_bytes(content)


def _library(folder: Path) -> tuple[Path, Callable[[], object]]:
    """A library whose damaged copy must not be found: compiling it again takes a second."""
    from fedtilt import compiler

    content = random.Random(1).randbytes(20_000)
    file = folder / compiler._file_name("kernel", content)
    file.write_bytes(content)

    def read() -> object:
        found = compiler._undamaged(folder, "kernel")
        return content if found is None else found.read_bytes()  # None: compiled again

    return file, read


def _images(folder: Path) -> tuple[Path, Callable[[], object]]:
    import numpy as np
    from PIL import Image

    from fedtilt.data.sources.image_cache import decode_images

    paths = [folder / f"{n}.png" for n in range(4)]
    for n, path in enumerate(paths):
        Image.fromarray(np.full((8, 8), 40 * n, np.uint8)).save(path)
    cache = folder / "cache"

    def read() -> object:
        return decode_images(paths, None, None, cache).numpy().tobytes()

    read()
    (file,) = cache.iterdir()
    return file, read


def _published(folder: Path) -> tuple[Path, Callable[[], object]]:
    from fedtilt.data.published.entry import Content, damaged, read_content

    blob = random.Random(2).randbytes(20_000)
    file, content = (
        folder / "images",
        Content("images", len(blob), hashlib.md5(blob, usedforsecurity=False).hexdigest()),
    )
    file.write_bytes(blob)

    def read() -> object:
        found = read_content(file, content, "mnist")
        if len(found) < len(blob):  # as its reader does, which knows the number of images
            raise damaged(file, "it ends early", "mnist")
        return found

    return file, read


def _app(folder: Path) -> tuple[Path, Callable[[], object]]:
    from fedtilt.flower.deploy import guarded
    from fedtilt.flower.deploy.allowed_apps import bundle
    from fedtilt.flower.deploy.project import write_project

    os.environ["FLWR_HOME"] = str(folder / "flwr")
    write_project(folder / "app")
    content = bundle(folder / "app")

    def read() -> object:
        with contextlib.redirect_stdout(io.StringIO()):  # Flower prints that it has installed it
            path = guarded.install(content)
        return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}

    read()
    return next((folder / "flwr").rglob("task.py")), read


_CACHES: dict[str, Callable[[Path], tuple[Path, Callable[[], object]]]] = {
    "compiled libraries": _library,
    "decoded images": _images,
    "published files": _published,
    "installed apps": _app,
}
_MISSING: dict[str, Callable[[], str | None]] = {
    "compiled libraries": lambda: None,
    "decoded images": lambda: missing("PIL"),
    "published files": lambda: None,
    "installed apps": lambda: missing("flwr"),
}
