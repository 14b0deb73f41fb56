"""`fedtilt report`: one HTML page about one or more runs."""

from pathlib import Path
from typing import Annotated

import typer

from fedtilt.cli.console import Console, print_lines
from fedtilt.files import write_bytes


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="One or more run folders, finished or not.")],
    out: Annotated[Path | None, typer.Option("--out", help="The file to write (default: RUN/report.html).")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Also write the tables as Markdown.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Also write the tables as CSV.")] = False,
) -> None:
    """Write one HTML page about runs: table, curves, clients, classes, settings. Nothing is trained."""
    from fedtilt import report as pages
    from fedtilt.report.published import published_for

    path = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    published = [published_for(run) for run in runs]
    written = [pages.write(runs, path, published=published)]
    for enabled, suffix, text in ((markdown, ".md", pages.markdown), (csv, ".csv", pages.csv)):
        if enabled:
            written.append(path.with_suffix(suffix))
            write_bytes(written[-1], text(runs, published=published).encode())
    print_lines(Console(), *(f"report: {file}" for file in written))
