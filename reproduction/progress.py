"""The progress of a reproduction: what is to run, then a bar on a terminal, some lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedtilt.cli.console import Console, escape
from fedtilt.cli.progress import TASKS_SECONDS
from fedtilt.cluster.tasks import OnProgress as OnTasks
from fedtilt.cluster.tasks import TaskProgress, describe_tasks
from reproduction.experiment import OnProgress
from reproduction.runner import CaseStatus


class ReproductionCallbacks(NamedTuple):
    """The functions that a reproduction calls."""

    on_case: Callable[[CaseStatus], None]
    on_progress: OnProgress
    on_tasks: OnTasks  # on a cluster


def print_overview(console: Console, statuses: Sequence[CaseStatus]) -> None:
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


@contextmanager
def show_progress(console: Console, *, quiet: bool) -> Iterator[ReproductionCallbacks]:
    """A progress bar in a terminal, a few lines per case elsewhere."""
    if quiet:
        yield ReproductionCallbacks(lambda _: None, lambda *_: None, lambda *_: None)
    elif console.is_terminal:
        bar = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(), TextColumn("[dim]left"), TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[latest]}"), console=console, transient=True,
        )  # fmt: skip
        with bar:
            task = bar.add_task("", total=1, latest="", visible=False)

            def on_case(status: CaseStatus) -> None:
                bar.reset(task, description=status.label, total=1, visible=True, latest="")

            def on_progress(done: int, total: int, latest: str) -> None:
                bar.update(task, completed=done, total=total)
                if latest:
                    bar.update(task, latest=escape(latest))

            yield ReproductionCallbacks(on_case, on_progress, _print_tasks(console))
    else:
        yield _progress_lines(console)


def _progress_lines(console: Console) -> ReproductionCallbacks:
    start = time.monotonic()

    def on_case(status: CaseStatus) -> None:
        nonlocal start
        start = time.monotonic()
        console.print(f"{status.experiment.name}: {status.case.what}", markup=False)

    def on_progress(done: int, total: int, latest: str) -> None:
        if done == total or done % max(1, total // 5) == 0:
            seconds = time.monotonic() - start
            console.print(f"  {done}/{total}, {seconds:.1f} s{f', {latest}' if latest else ''}", markup=False)

    return ReproductionCallbacks(on_case, on_progress, _print_tasks(console))


def _print_tasks(console: Console) -> OnTasks:
    """A line every ten seconds on what runs where, and one at the end."""
    shown = 0.0

    def on_tasks(running: Mapping[str, TaskProgress], done: int, total: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= TASKS_SECONDS or done == total:
            shown = time.monotonic()
            console.print(describe_tasks(running, done, total), markup=False)

    return on_tasks
