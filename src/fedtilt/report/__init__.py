"""Tables and figures from run folders, as one HTML page that opens offline, as Markdown or as CSV; without training.

The modules: `run_reader` reads a folder, `compare` compares its methods, `summary`, `verdict`, `notes`
and `figures` present the comparison, `page`, `tuning_page` and `html` write the HTML.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from fedtilt.errors import InputError
from fedtilt.files import write_html
from fedtilt.report.compare import Published
from fedtilt.report.page import build_page
from fedtilt.report.run_reader import Run, read_run
from fedtilt.report.summary import as_csv, as_markdown
from fedtilt.report.tuning_page import build_tuning_page, is_search

__all__ = ["Published", "csv", "markdown", "read_run", "write"]

Folders = Sequence[str | PathLike[str]]
PublishedPerRun = Sequence[Published] | None  # method → metric (as in results.json) → value, for each run


def write(folders: Folders, out: str | PathLike[str], *, published: PublishedPerRun = None) -> Path:
    """Write a page about run folders and return its path.

    Args:
        folders: One or more run folders, finished or not; or the folder of one search.
        out: The HTML file to write.
        published: Numbers from a paper for each run; empty where there are none.
    """
    path = Path(out)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file to write, such as {path / 'report.html'}")
    if not isinstance(folders, str | PathLike) and len(folders) == 1 and is_search(Path(folders[0])):
        write_html(path, build_tuning_page(Path(folders[0])))
        return path
    runs = _read_runs(folders)
    write_html(path, build_page(runs, published or [{}] * len(runs), path.parent))
    return path


def markdown(folders: Folders, *, published: PublishedPerRun = None) -> str:
    """The summary and the tables as Markdown."""
    runs = _read_runs(folders)
    return as_markdown(runs, published or [{}] * len(runs))


def csv(folders: Folders, *, published: PublishedPerRun = None) -> str:
    """The tables as CSV, unrounded: one row per run, method and kind of model."""
    runs = _read_runs(folders)
    return as_csv(runs, published or [{}] * len(runs))


def _read_runs(folders: Folders) -> list[Run]:
    if isinstance(folders, str | PathLike) or not folders:
        raise InputError(f"a report takes a list of one or more run folders, got {folders!r}")
    runs = [read_run(Path(folder)) for folder in folders]
    other = next((run for run in runs if run.score != runs[0].score), None)
    if other is not None:
        scores = f"{runs[0].folder} has the {runs[0].score.title} and {other.folder} the {other.score.title}"
        raise InputError(f"{scores}; write a report of each")
    return runs
