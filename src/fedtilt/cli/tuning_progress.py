"""The progress of a search: a bar on a terminal, a line per stage elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedtilt.cli.console import Console
from fedtilt.cli.progress import handle_interrupt
from fedtilt.runs.tuning.search import Progress as Step


class TuningCallbacks(NamedTuple):
    """The functions that a search calls."""

    on_progress: Callable[[Step], None]
    notice: Callable[[str], None]


@contextmanager
def show_tuning_progress(console: Console, *, quiet: bool, verbose: bool) -> Iterator[TuningCallbacks]:
    """Show the progress of a search on a console (standard error); Ctrl-C stops it after a round.

    Args:
        console: where to print
        quiet: print only notices
        verbose: print a line for every round
    """

    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    with ExitStack() as stack:
        stop_requested = stack.enter_context(handle_interrupt(console))
        show = _printed(line, verbose)
        if quiet:
            show = _ignore
        elif console.is_terminal and not verbose:
            show = stack.enter_context(_bar(console))

        def on_progress(step: Step) -> None:
            show(step)
            if stop_requested():
                raise KeyboardInterrupt

        yield TuningCallbacks(on_progress, lambda text: line(f"note: {text}"))


def _ignore(step: Step) -> None:
    """No-op."""


def _describe(step: Step) -> str:
    together = "1 setting" if step.settings == 1 else f"{step.settings} settings together"
    return f"stage {step.stage} of {step.stages}, {together}, to round {step.until}"


def _printed(line: Callable[[str], None], verbose: bool) -> Callable[[Step], None]:
    last = 0

    def show(step: Step) -> None:
        nonlocal last
        if verbose:
            line(f"{_describe(step)}: round {step.round}")
        elif step.stage != last:
            last = step.stage
            line(_describe(step))

    return show


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[Step], None]]:
    columns = (BarColumn(bar_width=None), TimeElapsedColumn(), TextColumn("[dim]left"), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=console, expand=True, transient=True) as bar:
        task = bar.add_task("search", total=1.0)
        yield lambda step: bar.update(task, completed=step.done, description=_describe(step))
