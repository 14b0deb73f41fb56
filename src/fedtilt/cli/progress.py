"""The progress of a run, a search, a deployment or an experiment: a bar on a terminal, lines elsewhere."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedtilt.cli.console import Console, escape
from fedtilt.cli.tables import leading_methods, progress_table
from fedtilt.cluster.tasks import TaskProgress, describe_tasks
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.runs.callback import Callback, RunStart, SearchProgress
from fedtilt.simulation import Round

TASKS_SECONDS = 10.0  # between two lines on the tasks of a cluster
_LINES = 10  # of a piece of work, if not verbose


class ProgressDisplay:
    """A bar that changes in place on a terminal, about ten lines elsewhere; only notices if quiet.

    If verbose, it prints a line at every update, on a terminal too.
    """

    def __init__(self, console: Console, *, quiet: bool = False, verbose: bool = False) -> None:
        self._console, self._quiet, self._verbose = console, quiet, verbose
        self._live: Live | None = None
        self._title, self._tasks_time = "", 0.0
        self._first: tuple[float, float] | None = None  # what was done at the first update, and when
        self._last = 0.0  # what was done at the last update

    def start(self, bar_title: str = "training") -> None:
        """Start a new piece of work."""
        self.stop()
        self._first, self._last, self._title = None, 0.0, ""
        if self._console.is_terminal and not self._quiet:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"), BarColumn(bar_width=None),
                TextColumn("{task.fields[count]}"), TimeElapsedColumn(), TextColumn("[dim]left"),
                TimeRemainingColumn(), TextColumn("[dim]{task.fields[latest]}"), console=self._console, expand=True,
            )  # fmt: skip
            self._task = self._bar.add_task(bar_title, total=None, count="", latest="")
            self._live = Live(self._bar, console=self._console, refresh_per_second=8, transient=True)
            self._live.start()

    def set_title(self, title: str) -> None:
        """Change the title of the bar, or print a line with the new one."""
        if self._live is not None:
            self._bar.update(self._task, description=escape(title))
        elif title != self._title:
            self.print(title)
        self._title = title

    def update(
        self, done: float, total: float, count: str, latest: str = "", *, below: RenderableType | None = None
    ) -> None:
        """Show what is done.

        Args:
            done: the amount of work that is done
            total: the whole amount
            count: the same in words, such as "round 3/50"
            latest: the latest result, in a few words
            below: what a terminal shows below the bar, in place of the latest result
        """
        now = time.monotonic()
        if self._first is None:  # what comes before it is no part of a round: workers start, and steps are compiled
            self._first = done, now
        first, since = self._first
        if self._live is not None:
            latest_of_bar = "" if below is not None else escape(latest)
            self._bar.update(self._task, completed=done, total=total, count=count, latest=latest_of_bar)
            if below is not None:
                self._live.update(Group(self._bar, below))
        is_due = int(_LINES * done / total) > int(_LINES * self._last / total)
        self._last = done
        if self._verbose or (is_due and self._live is None):
            is_known = first < done < total
            left = f", {(now - since) / (done - first) * (total - done):.0f} s left" if is_known else ""
            self.print(f"{count}{f': {latest}' if latest else ''}{left}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start before the block, and stop after it."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Remove the bar."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def print(self, text: str) -> None:
        """Print a line, above the bar if there is one, unless quiet."""
        if not self._quiet:
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def notice(self, text: str) -> None:
        """Print a message for the user, even if quiet: a file is damaged, or the machine is another one."""
        self._console.print(f"note: {text}", highlight=False, soft_wrap=True, markup=False)

    def show_tasks(self, running: Mapping[str, TaskProgress], done: int, total: int) -> None:
        """Print what runs where on a cluster, every ten seconds and at the end."""
        if time.monotonic() - self._tasks_time >= TASKS_SECONDS or done == total:
            self._tasks_time = time.monotonic()
            self.print(describe_tasks(running, done, total))


@contextmanager
def show_progress(console: Console, *, seeds: int = 1, quiet: bool, verbose: bool) -> Iterator[Callback]:
    """Show the progress of a run or a search on a console (standard error); Ctrl-C stops it after a round."""
    display = ProgressDisplay(console, quiet=quiet, verbose=verbose)
    with handle_interrupt(console) as stop_requested:
        yield _RunProgress(display, seeds, verbose, stop_requested)


class _RunProgress(Callback):
    """Shows the rounds of a run, and the stages of a search."""

    def __init__(self, display: ProgressDisplay, seeds: int, verbose: bool, stop_requested: Callable[[], bool]) -> None:
        self._display, self._seeds, self._verbose, self._stop_requested = display, seeds, verbose, stop_requested
        self._rounds, self._backend = 0, ""

    def on_start(self, run: RunStart) -> None:
        self._rounds = run.rounds
        self._display.start()
        if self._seeds > 1:
            self._display.set_title(f"seed {run.seed}")

    def on_round(self, round: Round, metrics: Mapping[str, RoundMetrics] | None) -> None:
        backend = f"backend: {round.backend.describe()}"
        if self._verbose and backend != self._backend:
            self._backend = backend
            self._display.print(backend)
        shown = leading_methods(metrics or {}, 6)
        results = [f"{n} {s.evaluated.mean:.1f} (±{s.evaluated.client_fairness:.1f})" for n, s in shown.items()]
        latest = "  ".join([f"{round.seconds:.2f} s", *results])
        count = f"round {round.number}/{self._rounds}"
        self._display.update(
            round.number, self._rounds, count, latest, below=progress_table(metrics) if metrics else None
        )
        self._stop_if_requested()

    def on_search(self, progress: SearchProgress) -> None:
        together = "1 setting" if progress.settings == 1 else f"{progress.settings} settings together"
        self._display.set_title(f"stage {progress.stage} of {progress.stages}, {together}, to round {progress.until}")
        self._display.update(progress.done, 1.0, f"round {progress.round}/{progress.until}")
        self._stop_if_requested()

    def on_notice(self, text: str) -> None:
        self._display.notice(text)

    def on_tasks(self, running: Mapping[str, TaskProgress], done: int, total: int) -> None:
        self._display.show_tasks(running, done, total)

    def on_end(self, error: BaseException | None) -> None:
        self._display.stop()

    def _stop_if_requested(self) -> None:
        if self._stop_requested():
            raise KeyboardInterrupt


@contextmanager
def handle_interrupt(console: Console) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; the first press lets the round finish, the second stops at once."""
    presses = 0

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt
        console.print("stopping after this round; Ctrl-C again stops at once", highlight=False)

    # leave another handler in place, such as one that ignores the signal
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: presses > 0
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
