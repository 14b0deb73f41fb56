"""The progress of a search: a bar on a terminal, a line per stage elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedtilt.cli.console import Console
from fedtilt.cli.progress import handle_interrupt
from fedtilt.runs.callback import Callback, SearchProgress


@contextmanager
def show_tuning_progress(console: Console, *, quiet: bool, verbose: bool) -> Iterator[Callback]:
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

        yield _Display(show, line, stop_requested)


class _Display(Callback):
    def __init__(
        self, show: Callable[[SearchProgress], None], line: Callable[[str], None], stop_requested: Callable[[], bool]
    ) -> None:
        self._show, self._line, self._stop_requested = show, line, stop_requested

    def on_search(self, progress: SearchProgress) -> None:
        self._show(progress)
        if self._stop_requested():
            raise KeyboardInterrupt

    def on_notice(self, text: str) -> None:
        self._line(f"note: {text}")


def _ignore(step: SearchProgress) -> None:
    """No-op."""


def _describe(step: SearchProgress) -> str:
    together = "1 setting" if step.settings == 1 else f"{step.settings} settings together"
    return f"stage {step.stage} of {step.stages}, {together}, to round {step.until}"


def _printed(line: Callable[[str], None], verbose: bool) -> Callable[[SearchProgress], None]:
    last = 0

    def show(step: SearchProgress) -> None:
        nonlocal last
        if verbose:
            line(f"{_describe(step)}: round {step.round}")
        elif step.stage != last:
            last = step.stage
            line(_describe(step))

    return show


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[SearchProgress], None]]:
    columns = (BarColumn(bar_width=None), TimeElapsedColumn(), TextColumn("[dim]left"), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=console, expand=True, transient=True) as bar:
        task = bar.add_task("search", total=1.0)
        yield lambda step: bar.update(task, completed=step.done, description=_describe(step))
