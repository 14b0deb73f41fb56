"""The run folder of a command: a new one, how to resume it, and its report."""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from fedtilt.cli.console import Console


def new_folder(name: str) -> Path:
    """A folder in runs/ that does not exist yet."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


@contextmanager
def resumable(folder: Path, console: Console) -> Iterator[None]:
    """After Ctrl-C, print how to resume what the folder has."""
    try:
        yield
    except KeyboardInterrupt:
        started = (folder / "spec.toml").exists()
        remedy = f"resume with: fedtilt resume {shlex.quote(str(folder))}" if started else "nothing was trained"
        _print(console, f"stopped; {remedy}")
        raise typer.Exit(130) from None


def write_report(folder: Path) -> str:
    """Write the report of a run and return its path."""
    from fedtilt.report import write
    from fedtilt.report.published import published_for

    return str(write([folder], folder / "report.html", published=published_for(folder)))


def print_folder(console: Console, folder: Path, report: str | None) -> None:
    """Print where a run is, and its report; None: only the folder."""
    _print(console, f"run folder: {folder}")
    if report is not None:
        _print(console, f"report:     {report}")


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
