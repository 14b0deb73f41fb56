"""Tables and figures from run folders: one HTML page that opens offline, Markdown, CSV; nothing is trained.

The parts: `read` (folder → values), `compare` (methods side by side), `words`, `figures`, `tables`, `page`.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from fedtilt.errors import InputError
from fedtilt.files import write_bytes
from fedtilt.report.page import build_page
from fedtilt.report.run_reader import Run, read_run
from fedtilt.report.tables import Published, as_csv, as_markdown

__all__ = ["Published", "csv", "markdown", "read_run", "write"]

Folders = Sequence[str | PathLike[str]]
Beside = Published | Sequence[Published | None] | None


def write(folders: Folders, out: str | PathLike[str], *, published: Beside = None) -> Path:
    """Write the page about some run folders and return its path.

    `published` is what a paper reports, method → metric (as in results.json) → value: one for all, or one per folder.
    """
    runs = _read(folders)
    path = Path(out)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file to write, such as {path / 'report.html'}")
    write_bytes(path, build_page(runs, _beside(published, len(runs))).encode())
    return path


def markdown(folders: Folders, *, published: Beside = None) -> str:
    """The findings and tables as Markdown."""
    runs = _read(folders)
    return as_markdown(runs, _beside(published, len(runs)))


def csv(folders: Folders, *, published: Beside = None) -> str:
    """The tables as CSV, unrounded: one row per run, method and kind of model."""
    runs = _read(folders)
    return as_csv(runs, _beside(published, len(runs)))


def _read(folders: Folders) -> list[Run]:
    if isinstance(folders, str | PathLike) or not folders:
        raise InputError(f"a report takes a list of one or more run folders, got {folders!r}")
    return [read_run(Path(folder)) for folder in folders]


def _beside(published: Beside, runs: int) -> list[Published]:
    if published is None or isinstance(published, Mapping):
        return [published or {}] * runs
    if len(published) != runs:
        raise InputError(
            f"published numbers are given for {len(published)} runs of {runs}; use None where there are none"
        )
    return [known or {} for known in published]
