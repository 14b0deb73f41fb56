"""The progress of a run: a live display on a terminal, some lines elsewhere."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import NamedTuple

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedtilt.cli.console import Console
from fedtilt.cli.tables import most_accurate, progress_table
from fedtilt.evaluation.summary import Summary
from fedtilt.runs.run import Notice, OnRound
from fedtilt.simulation import Round


class RunCallbacks(NamedTuple):
    """The functions that a run calls to show its progress."""

    on_seed: Callable[[int], None]
    on_round: OnRound
    notice: Notice


@contextmanager
def show_progress(console: Console, rounds: int, seeds: int, *, quiet: bool, verbose: bool) -> Iterator[RunCallbacks]:
    """Show the progress of a run on a console (standard error).

    Args:
        console: where to print
        rounds: the number of rounds
        seeds: the number of seeds
        quiet: print only notices
        verbose: print a line for every round, and which backend trains
    """

    def notice(text: str) -> None:  # printed even if quiet: a file is damaged, or the machine is another one
        console.print(f"note: {text}", highlight=False, soft_wrap=True, markup=False)

    with ExitStack() as stack:
        if quiet:
            callbacks = RunCallbacks(lambda _: None, lambda *_: None, notice)
        elif console.is_terminal:
            callbacks = stack.enter_context(_live_display(console, rounds, seeds, verbose, notice))
        else:
            callbacks = _print_lines(console, rounds, seeds, verbose, notice)
        stop_requested = stack.enter_context(_handle_interrupt(console))
        backends: set[str] = set()  # as they were printed

        def on_round(r: Round, summaries: Mapping[str, Summary] | None) -> None:
            if verbose and not quiet and (line := f"backend: {r.backend.describe()}") not in backends:
                backends.add(line)
                console.print(line, highlight=False, soft_wrap=True, markup=False)
            callbacks.on_round(r, summaries)
            if stop_requested():
                raise KeyboardInterrupt

        yield callbacks._replace(on_round=on_round)


@contextmanager
def _handle_interrupt(console: Console) -> Iterator[Callable[[], bool]]:
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


@contextmanager
def _live_display(console: Console, rounds: int, seeds: int, verbose: bool, notice: Notice) -> Iterator[RunCallbacks]:
    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("[dim]left"),
        TimeRemainingColumn(),
        console=console,
        expand=True,
    )
    task = bar.add_task("training", total=rounds)
    with Live(Group(bar, progress_table(None)), console=console, refresh_per_second=8, transient=True) as live:

        def on_seed(seed: int) -> None:
            bar.reset(task, total=rounds, description=f"seed {seed}" if seeds > 1 else "training")

        def on_round(r: Round, summaries: Mapping[str, Summary] | None) -> None:
            bar.update(task, completed=r.number)
            if summaries:
                live.update(Group(bar, progress_table(summaries)))
            if verbose:
                console.print(_line(r, rounds, summaries), highlight=False, markup=False)

        yield RunCallbacks(on_seed, on_round, notice)


def _print_lines(console: Console, rounds: int, seeds: int, verbose: bool, notice: Notice) -> RunCallbacks:
    start_time = time.monotonic()
    every = 1 if verbose else max(1, rounds // 10)
    first_round: int | None = None  # of this seed; a resumed run starts later than 1

    def on_seed(seed: int) -> None:
        nonlocal start_time, first_round
        start_time, first_round = time.monotonic(), None
        if seeds > 1:
            console.print(f"seed {seed}", highlight=False)

    def on_round(r: Round, summaries: Mapping[str, Summary] | None) -> None:
        nonlocal first_round
        first_round = r.number if first_round is None else first_round
        if r.number % every == 0 or r.number == rounds:
            seconds_per_round = (time.monotonic() - start_time) / (r.number - first_round + 1)
            remaining = f", {seconds_per_round * (rounds - r.number):.0f} s left" if r.number < rounds else ""
            console.print(_line(r, rounds, summaries) + remaining, highlight=False, soft_wrap=True, markup=False)

    return RunCallbacks(on_seed, on_round, notice)


def _line(r: Round, rounds: int, summaries: Mapping[str, Summary] | None) -> str:
    metrics = "  ".join(
        f"{name} {s.evaluated.accuracy:.1f} (±{s.evaluated.client_fairness:.1f})"
        for name, s in most_accurate(summaries or {}, 6).items()
    )
    return f"round {r.number}/{rounds}, {r.seconds:.2f} s  {metrics}".rstrip()
