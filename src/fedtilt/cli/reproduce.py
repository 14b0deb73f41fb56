"""`fedtilt reproduce`: the tables and figures of the paper, run case by case and told with a verdict on every claim."""

import importlib.util
import json
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from fedtilt.cli.run import AsJson, Quiet
from fedtilt.errors import InputError
from fedtilt.files import write_bytes
from fedtilt.reproduction import NAMES, Options, ReproductionResult
from fedtilt.reproduction import reproduce as run_experiments
from fedtilt.reproduction.chapter import Chapter, Table, numeric, shown
from fedtilt.reproduction.experiment import OnProgress
from fedtilt.reproduction.page.build import QUICK_LOOK, build_page
from fedtilt.reproduction.page.html import as_html
from fedtilt.reproduction.page.markdown import as_markdown
from fedtilt.reproduction.page.svg import write_pictures
from fedtilt.reproduction.results_folder import ResultsFolder
from fedtilt.reproduction.runner import CaseStatus, case_statuses, chosen, damaged
from fedtilt.rounds.settings import pick_device


def reproduce(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help=f"{', '.join(NAMES)}, all; or page: only write the page anew.")
    ],
    seeds: Annotated[int | None, typer.Option(help="How many seeds, for error bars.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds, one seed, a small grid: to see it work.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", help="The results folder; runs/reproduction[-quick] by default.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Where data sets lie (else FEDTILT_DATA).")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="WORD", help="Only cases with it in their names: mnist-seed-0."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the cases and their state, and run nothing.")] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option("--checkpoint-seconds", min=0, help="A case that takes longer can go on when interrupted.")
    ] = 600.0,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="With page: write README.md and its pictures there.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments and hold its claims against the numbers; what is finished is not run again.

    A data set that is not here is named, and the rest runs. After Ctrl-C, the same command goes on. The page about all
    that lies in the results folder is index.html in it.
    """
    folder = out or Path("runs/reproduction-quick" if quick else "runs/reproduction")
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    silent = quiet or as_json
    if what == "page":
        _page(folder, to)
        return
    if to is not None:
        raise InputError("--to goes with page: fedtilt reproduce page --to DIR")
    pick_device(device)  # refused before anything is planned
    if listed:
        options = Options(seeds=seeds, quick=quick, device=device, data_dir=None if data_dir is None else str(data_dir))
        _list(case_statuses(chosen(what), ResultsFolder(folder), options, only or ()), as_json=as_json)
        return
    try:
        with _watching(progress, quiet=silent) as watch:
            options = Options(
                seeds=seeds,
                quick=quick,
                device=device,
                data_dir=None if data_dir is None else str(data_dir),
                checkpoint_seconds=checkpoint_seconds,
                notice=lambda text: progress.print(f"note: {text}", markup=False),
            )
            outcome = run_experiments(
                what, folder, options=options, only=only or (),
                on_plan=lambda jobs: None if silent else _announce(progress, jobs),
                on_case=watch.on_case, on_progress=watch.on_progress,
            )  # fmt: skip
    except KeyboardInterrupt:
        progress.print(f"stopped; the same command goes on where it was (results in {folder})", markup=False)
        raise typer.Exit(130) from None
    if not silent:
        for chapter in outcome.chapters.values():
            _show(Console(), chapter)
        if quick:
            _say(f"\n{QUICK_LOOK}\n")
    for data, waiting in outcome.missing.items():
        progress.print(
            f"note: data set {data!r} is not here, and {_many(waiting)} for it; fedtilt data get {data}, then again",
            markup=False,
        )
    for problem in damaged(ResultsFolder(folder)):
        progress.print(f"note: {problem}", markup=False)
    page = _write_html(folder)
    if as_json:
        print(json.dumps(_plain(outcome) | {"folder": str(folder), "page": str(page)}, indent=2))
    else:
        _say(f"results: {folder}\npage:    {page}")
    if not outcome.measured and not outcome.kept:
        raise typer.Exit(2)


def _many(waiting: Sequence[str]) -> str:
    return f"{waiting[0]} waits" if len(waiting) == 1 else f"{len(waiting)} cases wait"


def _say(text: str) -> None:
    Console().print(text, highlight=False, soft_wrap=True, markup=False)


def _list(jobs: Sequence[CaseStatus], *, as_json: bool) -> None:
    """The cases and their state."""
    states = {f"{job.experiment.name}/{job.case.name}": _state(job) for job in jobs}
    if as_json:
        print(json.dumps(states, indent=2))
        return
    width = max(map(len, states))
    for name, state in states.items():
        _say(f"{name:{width}}  {state}")


def _state(job: CaseStatus) -> str:
    if job.done:
        return "done"
    waits = f", without data set {job.case.needs}" if job.missing else ""
    return (f"to run again: {job.changed}" if job.changed else "to run") + waits


def _page(folder: Path, to: Path | None) -> None:
    """Write the page from results alone: HTML beside them, or Markdown with pictures elsewhere."""
    if not folder.is_dir():
        raise InputError(f"{folder} holds no results; run fedtilt reproduce first, or name them with --out")
    for problem in damaged(ResultsFolder(folder)):
        raise InputError(problem)
    if to is None:
        _say(f"page: {_write_html(folder)}")
        return
    told = build_page(ResultsFolder(folder))
    drawn = write_pictures(told.figures, to / "figures")
    write_bytes(to / "README.md", as_markdown(told).encode())
    _say(f"page: {to / 'README.md'} ({len(told.figures)} pictures, {len(drawn)} of them drawn now)")


def _write_html(folder: Path) -> Path:
    plots = importlib.util.find_spec("plotly") is not None
    if not plots:
        note = 'note: the page has no figures; pip install "fedtilt[report]", then fedtilt reproduce page'
        Console(stderr=True).print(note, highlight=False, soft_wrap=True, markup=False)
    path = folder / "index.html"
    write_bytes(path, as_html(build_page(ResultsFolder(folder)), plots=plots).encode())
    return path


# -- while it runs -----------------------------------------------------------------------------------------------------


class _Watch(NamedTuple):
    on_case: Any
    on_progress: OnProgress


def _announce(console: Console, jobs: Sequence[CaseStatus]) -> None:
    """What will run, what lies there, and the grids, fixed before anything is trained."""
    for name in dict.fromkeys(job.experiment.name for job in jobs):
        own = [job for job in jobs if job.experiment.name == name]
        done = sum(job.done for job in own)
        missing = sum(job.missing and not job.done for job in own)
        parts = [f"{len(own) - done - missing} to run"]
        parts += [f"{done} done"] * bool(done) + [f"{missing} without data"] * bool(missing)
        cases = "1 case" if len(own) == 1 else f"{len(own)} cases"
        console.print(f"[bold]{name}[/]: {escape(own[0].experiment.title)}, {cases} ({', '.join(parts)})")
        grids: dict[str, list[str]] = {}
        for job in own:
            if job.case.grid:
                grids.setdefault(job.case.grid, []).append(str(job.case.needs))
        for grid, data in grids.items():
            console.print(f"  {', '.join(dict.fromkeys(data))}: {grid}", markup=False)
    console.print()


@contextmanager
def _watching(console: Console, *, quiet: bool) -> Iterator[_Watch]:
    """A bar on a terminal, a line now and then elsewhere."""
    if quiet:
        yield _Watch(lambda _: None, lambda *_: None)
    elif console.is_terminal:
        bar = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(), TextColumn("[dim]left"), TimeRemainingColumn(), TextColumn("[dim]{task.fields[seen]}"),
            console=console, transient=True,
        )  # fmt: skip
        with bar:
            task = bar.add_task("", total=1, seen="", visible=False)

            def on_case(job: CaseStatus) -> None:
                bar.reset(task, description=f"{job.experiment.name}/{job.case.name}", total=1, visible=True, seen="")

            def on_progress(done: int, total: int, seen: str) -> None:
                bar.update(task, completed=done, total=total)
                if seen:
                    bar.update(task, seen=escape(seen))

            yield _Watch(on_case, on_progress)
    else:
        yield _plainly(console)


def _plainly(console: Console) -> _Watch:
    begun = time.monotonic()

    def on_case(job: CaseStatus) -> None:
        nonlocal begun
        begun = time.monotonic()
        console.print(f"{job.experiment.name}: {job.case.what}", markup=False)

    def on_progress(done: int, total: int, seen: str) -> None:
        if done == total or done % max(1, total // 5) == 0:
            spent = time.monotonic() - begun
            console.print(f"  {done}/{total}, {spent:.1f} s{f', {seen}' if seen else ''}", markup=False)

    return _Watch(on_case, on_progress)


# -- at the end --------------------------------------------------------------------------------------------------------

_MARKS = {"holds": "green", "holds partly": "yellow", "does not hold": "red", "one seed": "dim", "not measured": "dim"}


def _show(console: Console, chapter: Chapter) -> None:
    console.print(f"\n[bold]{escape(chapter.title)}[/]")
    for part in chapter.parts:
        if isinstance(part, Table) and not part.folded:
            whole = _rows(part)
            console.print(whole if console.measure(whole).maximum <= console.width else _rows(part, brief=True))
    for verdict in chapter.verdicts:
        console.print(f"[{_MARKS[verdict.holds]}]{verdict.holds}[/]: {escape(verdict.claim)}", highlight=False)


def _rows(table: Table, *, brief: bool = False) -> RichTable:
    """A table for the terminal; `brief` keeps the first line of every cell, which is our own number."""
    out = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, title=escape(_bare(table.caption)), title_justify="left")
    for i, column in enumerate(table.columns):
        cells = [shown(row[i]) for row in table.rows]
        number = numeric(cells)
        words = [word for cell in [column, *cells] for word in _bare(cell).split()]
        out.add_column(
            "\n".join(escape(line) for line in textwrap.wrap(column, 12)),
            justify="right" if number else "left",
            min_width=min(24, max(map(len, words))),
        )
    for row in table.rows:
        lines = [_bare(shown(cell)) for cell in row]
        out.add_row(*(escape(line.splitlines()[0] if brief and line else line) for line in lines))
    return out


def _bare(markdown: str) -> str:
    return markdown.replace("**", "").replace("`", "").replace("<br>", "\n")


def _plain(outcome: ReproductionResult) -> dict[str, Any]:
    chapters = {
        name: {
            "title": chapter.title,
            "tables": [asdict(part) for part in chapter.parts if isinstance(part, Table)],
            "verdicts": [asdict(verdict) for verdict in chapter.verdicts],
        }
        for name, chapter in outcome.chapters.items()
    }
    run = {"measured": outcome.measured, "kept": outcome.kept, "missing": outcome.missing}
    return run | {"chapters": chapters}
