"""The progress of a run: a live display on a terminal, some lines elsewhere."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedtilt.cli.console import Console
from fedtilt.cli.tables import best_methods, progress_table
from fedtilt.cluster.tasks import TaskProgress, describe_tasks
from fedtilt.evaluation.summary import Summary
from fedtilt.runs.callback import Callback, RunStart
from fedtilt.simulation import Round

TASKS_SECONDS = 10.0  # between two lines on the tasks of a cluster


@contextmanager
def show_progress(console: Console, *, seeds: int, quiet: bool, verbose: bool) -> Iterator[Callback]:
    """Show the progress of a run on a console (standard error); Ctrl-C stops it after a round.

    Args:
        console: where to print
        seeds: the number of seeds
        quiet: print only notices
        verbose: print a line for every round, and which backend trains
    """
    display: type[_Notices] = _Notices if quiet else _LiveDisplay if console.is_terminal else _Lines
    with handle_interrupt(console) as stop_requested:
        yield display(console, seeds, verbose, stop_requested)


class _Notices(Callback):
    """Prints the messages for the user, even if quiet: a file is damaged, or the machine is another one."""

    def __init__(self, console: Console, seeds: int, verbose: bool, stop_requested: Callable[[], bool]) -> None:
        self._console, self._seeds, self._verbose = console, seeds, verbose
        self._stop_requested = stop_requested
        self._rounds = 0

    def on_start(self, run: RunStart) -> None:
        self._rounds = run.rounds

    def on_round(self, round: Round, metrics: Mapping[str, Summary] | None) -> None:
        self._show(round, metrics)
        if self._stop_requested():
            raise KeyboardInterrupt

    def on_notice(self, text: str) -> None:
        self._print(f"note: {text}")

    def _show(self, round: Round, metrics: Mapping[str, Summary] | None) -> None:
        pass

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


class _Lines(_Notices):
    """About ten lines for every seed, or one for every round; on a cluster, what runs where every ten seconds."""

    _backend = ""  # as it was printed
    _first: tuple[int, float] | None = None  # the first round of this process, and when it was done
    _tasks_shown = 0.0  # when

    def on_start(self, run: RunStart) -> None:
        super().on_start(run)
        self._first = None
        if self._seeds > 1:
            self._print(f"seed {run.seed}")

    def _show(self, round: Round, metrics: Mapping[str, Summary] | None) -> None:
        self._show_backend(round)
        now = time.monotonic()
        if self._first is None:  # what comes before it is no part of a round: workers start, and steps are compiled
            self._first = round.number, now
        first, since = self._first
        every = 1 if self._verbose else max(1, self._rounds // 10)
        if round.number % every == 0 or round.number == self._rounds:
            left = self._rounds - round.number
            known = left and round.number > first
            seconds = f", {(now - since) / (round.number - first) * left:.0f} s left" if known else ""
            self._print(_line(round, self._rounds, metrics) + seconds)

    def on_tasks(self, running: Mapping[str, TaskProgress], done: int, total: int) -> None:
        if time.monotonic() - self._tasks_shown >= TASKS_SECONDS or done == total:
            self._tasks_shown = time.monotonic()
            self._print(describe_tasks(running, done, total))

    def _show_backend(self, round: Round) -> None:
        line = f"backend: {round.backend.describe()}"
        if self._verbose and line != self._backend:
            self._backend = line
            self._print(line)


class _LiveDisplay(_Lines):
    """A bar and a table that change in place."""

    def on_start(self, run: RunStart) -> None:
        self._rounds = run.rounds
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("[dim]left"),
            TimeRemainingColumn(),
            console=self._console,
            expand=True,
        )
        self._task = self._bar.add_task(f"seed {run.seed}" if self._seeds > 1 else "training", total=run.rounds)
        group = Group(self._bar, progress_table(None))
        self._live = Live(group, console=self._console, refresh_per_second=8, transient=True)
        self._live.start()

    def on_end(self, error: BaseException | None) -> None:
        self._live.stop()

    def _show(self, round: Round, metrics: Mapping[str, Summary] | None) -> None:
        self._show_backend(round)
        self._bar.update(self._task, completed=round.number)
        if metrics:
            self._live.update(Group(self._bar, progress_table(metrics)))
        if self._verbose:
            self._print(_line(round, self._rounds, metrics))


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


def _line(r: Round, rounds: int, summaries: Mapping[str, Summary] | None) -> str:
    metrics = "  ".join(
        f"{name} {s.evaluated.mean:.1f} (±{s.evaluated.client_fairness:.1f})"
        for name, s in best_methods(summaries or {}, 6).items()
    )
    return f"round {r.number}/{rounds}, {r.seconds:.2f} s  {metrics}".rstrip()
