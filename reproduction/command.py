"""`python -m reproduction`: run the experiments and check the claims."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table as RichTable

from fedtilt import cli
from fedtilt.cli.console import Console, echo, escape
from fedtilt.cli.options import AsJson, Quiet
from fedtilt.cli.progress import ProgressDisplay
from fedtilt.devices import pick_device
from fedtilt.errors import InputError
from fedtilt.files import write_bytes
from reproduction import NAMES, Options, ReproductionResult
from reproduction import reproduce as run_experiments
from reproduction.chapter import Chapter, Table, format_cell, is_numeric
from reproduction.page.build import QUICK_RUN, build_page
from reproduction.page.html import as_html
from reproduction.page.markdown import LEADERBOARD, front_page, site_pages, with_leaderboard
from reproduction.page.svg import write_svgs
from reproduction.results import RESULTS, ResultsFolder
from reproduction.runner import CaseStatus, case_statuses, damaged_results, experiment_names

app = typer.Typer(add_completion=False, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})


def main() -> None:
    """Run the command line; bad input is one line and exit code 2."""
    cli.main(app, "python -m reproduction")


@app.command(no_args_is_help=True, epilog="Start with: python -m reproduction toy --quick")
def reproduce(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help=f"{', '.join(NAMES)}, all; or page: only rebuild the page.")
    ],
    seeds: Annotated[int | None, typer.Option(help="How many seeds, for error bars.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds, one seed, small grids: a trial run.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    cluster: Annotated[
        str | None,
        typer.Option(metavar="auto|HOST:PORT", help="Run the cases in parallel on a Ray cluster."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The results folder (default: runs/reproduction[-quick]; page: that of this clone).",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Folder of the data sets (else FEDTILT_DATA).")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="WORD", help="Only cases whose name contains it, such as mnist-seed-0."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Run the cases in this many processes.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="With --workers, stop after this time; finished cases stay.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the cases and their status; run nothing.")] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option("--checkpoint-seconds", min=0, help="Write checkpoints of cases that take longer.")
    ] = 600.0,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="With page: write README.md, its figures, and chapters there."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments and check its claims; finished cases are not run again.

    Cases whose data set is missing are skipped. After Ctrl-C, the same command continues. index.html in the results
    folder shows all results.
    """
    if what == "page":
        _write_page(out or RESULTS, to)
        return
    folder = out or Path("runs/reproduction-quick" if quick else "runs/reproduction")
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    silent = quiet or as_json
    if to is not None:
        raise InputError("--to needs page: python -m reproduction page --to DIR")
    pick_device(device)  # an unknown device is an error before anything runs
    options = Options(
        seeds=seeds,
        quick=quick,
        device=device,
        data_dir=None if data_dir is None else str(data_dir),
        checkpoint_seconds=checkpoint_seconds,
        notice=lambda text: progress.print(f"note: {text}", markup=False),
    )
    if listed:
        _list(case_statuses(experiment_names(what), ResultsFolder(folder), options, only or ()), as_json=as_json)
        return
    display = ProgressDisplay(progress, quiet=silent)

    def show_case(status: CaseStatus) -> None:
        display.start()
        display.set_title(f"{status.experiment.name}: {status.case.what}")

    try:
        result = run_experiments(
            what, folder, options=options, only=only or (), cluster=cluster, on_tasks=display.show_tasks,
            workers=workers, minutes=minutes,
            on_start=lambda statuses: None if silent else _print_overview(progress, statuses), on_case=show_case,
            on_progress=lambda done, total, latest: display.update(done, total, f"{done}/{total}", latest),
        )  # fmt: skip
    except KeyboardInterrupt:
        progress.print(f"interrupted; run the same command to continue (results in {folder})", markup=False)
        raise typer.Exit(130) from None
    finally:
        display.stop()
    if not silent:
        for chapter in result.chapters.values():
            _print_chapter(Console(), chapter)
        if quick:
            _print(f"\n{QUICK_RUN}\n")
    for data, labels in result.missing.items():
        skipped = labels[0] if len(labels) == 1 else f"{len(labels)} cases"
        progress.print(
            f"note: data set {data!r} is missing, {skipped} skipped; "
            f"run fedtilt data download {data}, then this command",
            markup=False,
        )
    page = _write_html(folder)
    if as_json:
        echo(json.dumps(_as_json(result) | {"folder": str(folder), "page": str(page)}, indent=2))
    else:
        _print(f"results: {folder}\npage:    {page}")
    if not result.measured and not result.reused:
        raise typer.Exit(2)


def _print_overview(console: Console, statuses: Sequence[CaseStatus]) -> None:
    """What is to run and what is done, and the grids, which are fixed before training."""
    for name, group in groupby(statuses, key=lambda status: status.experiment.name):
        of_experiment = list(group)
        done = sum(status.done for status in of_experiment)
        missing = sum(status.missing_data and not status.done for status in of_experiment)
        counts = [f"{len(of_experiment) - done - missing} to run"]
        counts += [f"{done} done"] * bool(done) + [f"{missing} without data"] * bool(missing)
        cases = "1 case" if len(of_experiment) == 1 else f"{len(of_experiment)} cases"
        title = escape(of_experiment[0].experiment.title)
        console.print(f"[bold]{name}[/]: {title}, {cases} ({', '.join(counts)})")
        data_of_grid: dict[str, list[str]] = {}
        for status in of_experiment:
            if status.case.grid:
                data_of_grid.setdefault(status.case.grid, []).append(str(status.case.needs))
        for grid, data in data_of_grid.items():
            console.print(f"  {', '.join(dict.fromkeys(data))}: {grid}", markup=False)
    console.print()


def _print(text: str) -> None:
    Console().print(text, highlight=False, soft_wrap=True, markup=False)


def _list(statuses: Sequence[CaseStatus], *, as_json: bool) -> None:
    """Print the cases and their status."""
    lines = {status.label: _describe(status) for status in statuses}
    if as_json:
        echo(json.dumps(lines, indent=2))
        return
    width = max(map(len, lines))
    for label, text in lines.items():
        _print(f"{label:{width}}  {text}")


def _describe(status: CaseStatus) -> str:
    if status.done:
        return "done"
    missing = f", data set {status.case.needs} missing" if status.missing_data else ""
    return (f"to run again: {status.stale}" if status.stale else "to run") + missing


def _write_page(folder: Path, to: Path | None) -> None:
    """Write the page from stored results: HTML into their folder, or Markdown with SVG figures into another."""
    if not folder.is_dir():
        raise InputError(
            f"{folder} has no results; run python -m reproduction WHAT first, or choose another folder with --out"
        )
    for problem in damaged_results(ResultsFolder(folder)):
        raise InputError(problem)
    if to is None:
        _print(f"page: {_write_html(folder)}")
        return
    page = build_page(ResultsFolder(folder))
    text, figures = front_page(page)
    drawn = write_svgs(figures, to / "figures")
    write_bytes(to / "README.md", text.encode())
    board = to.parent / LEADERBOARD
    if board.exists() and page.has("federations"):
        write_bytes(board, with_leaderboard(board.read_text("utf-8"), page).encode())
    for name, chapter in site_pages(page).items():
        write_bytes(to / "chapters" / f"{name}.md", chapter.encode())
    _print(f"page: {to / 'README.md'} ({len(figures)} figures, {len(drawn)} of them redrawn), {to / 'chapters'}")


def _write_html(folder: Path) -> Path:
    path = folder / "index.html"
    write_bytes(path, as_html(build_page(ResultsFolder(folder)), plots=True).encode())
    return path


# -- results -----------------------------------------------------------------------------------------------------------

_COLORS = {"holds": "green", "holds partly": "yellow", "does not hold": "red", "one seed": "dim", "not measured": "dim"}


def _print_chapter(console: Console, chapter: Chapter) -> None:
    console.print(f"\n[bold]{escape(chapter.title)}[/]")
    for part in chapter.parts:
        if isinstance(part, Table) and not part.folded:
            full = _rich_table(part)
            fits = console.measure(full).maximum <= console.width
            console.print(full if fits else _rich_table(part, brief=True))
    for verdict in chapter.verdicts:
        console.print(f"[{_COLORS[verdict.holds]}]{verdict.holds}[/]: {escape(verdict.claim)}", highlight=False)


def _rich_table(table: Table, *, brief: bool = False) -> RichTable:
    """A table for the terminal; `brief` shows only the first line of every cell, which is our number."""
    out = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, title=escape(_plain(table.caption)), title_justify="left")
    for i, column in enumerate(table.columns):
        cells = [format_cell(row[i]) for row in table.rows]
        words = [word for cell in [column, *cells] for word in _plain(cell).split()]
        out.add_column(
            "\n".join(escape(line) for line in textwrap.wrap(column, 12)),
            justify="right" if is_numeric(cells) else "left",
            min_width=min(24, max(map(len, words))),
        )
    for row in table.rows:
        texts = [_plain(format_cell(cell)) for cell in row]
        out.add_row(*(escape(text.splitlines()[0] if brief and text else text) for text in texts))
    return out


def _plain(markdown: str) -> str:
    """Text without the Markdown that table cells use."""
    return markdown.replace("**", "").replace("`", "").replace("<br>", "\n")


def _as_json(result: ReproductionResult) -> dict[str, Any]:
    chapters = {
        name: {
            "title": chapter.title,
            "tables": [asdict(part) for part in chapter.parts if isinstance(part, Table)],
            "verdicts": [asdict(verdict) for verdict in chapter.verdicts],
        }
        for name, chapter in result.chapters.items()
    }
    run = {"measured": result.measured, "reused": result.reused, "missing": result.missing}
    return run | {"chapters": chapters}
