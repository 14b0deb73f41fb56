"""Watch a run: a live display on a terminal, a line now and then elsewhere."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedtilt.cli.tables import leaders, so_far
from fedtilt.evaluation.results import Summary
from fedtilt.simulation import Round

Notice = Callable[[str], None]


class Watch(NamedTuple):
    """The callbacks of a run."""

    on_seed: Callable[[int], None]
    on_round: Callable[[Round, Mapping[str, Summary] | None], None]
    notice: Notice


@contextmanager
def watching(console: Console, rounds: int, seeds: int, *, quiet: bool, verbose: bool) -> Iterator[Watch]:
    """A display for the time of a run; it writes to the given console (standard error)."""

    def notice(text: str) -> None:  # a note is never swallowed: it tells of a damaged file or another machine
        console.print(f"note: {text}", highlight=False, soft_wrap=True, markup=False)

    with ExitStack() as stack:
        if quiet:
            watch = Watch(lambda _: None, lambda *_: None, notice)
        elif console.is_terminal:
            watch = stack.enter_context(_live(console, rounds, seeds, verbose, notice))
        else:
            watch = _plain(console, rounds, seeds, verbose, notice)
        asked = stack.enter_context(_asked_to_stop(console))

        def on_round(r: Round, summaries: Mapping[str, Summary] | None) -> None:
            watch.on_round(r, summaries)
            if asked():
                raise KeyboardInterrupt

        yield watch._replace(on_round=on_round)


@contextmanager
def _asked_to_stop(console: Console) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: the first lets the round end, so that nothing of it is lost, the second does not."""
    presses = 0

    def pressed(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt
        console.print("stopping after this round; Ctrl-C again stops at once", highlight=False)

    ours = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # not where it is ignored, or not the terminal's
    if ours:
        signal.signal(signal.SIGINT, pressed)
    try:
        yield lambda: presses > 0
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _live(console: Console, rounds: int, seeds: int, verbose: bool, notice: Notice) -> Iterator[Watch]:
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
    with Live(Group(bar, so_far(None)), console=console, refresh_per_second=8, transient=True) as live:

        def on_seed(seed: int) -> None:
            bar.reset(task, total=rounds, description=f"seed {seed}" if seeds > 1 else "training")

        def on_round(r: Round, summaries: Mapping[str, Summary] | None) -> None:
            bar.update(task, completed=r.number)
            if summaries:
                live.update(Group(bar, so_far(summaries)))
            if verbose:
                console.print(_line(r, rounds, summaries), highlight=False, markup=False)

        yield Watch(on_seed, on_round, notice)


def _plain(console: Console, rounds: int, seeds: int, verbose: bool, notice: Notice) -> Watch:
    begun = time.monotonic()
    every = 1 if verbose else max(1, rounds // 10)
    first: dict[str, int] = {}

    def on_seed(seed: int) -> None:
        nonlocal begun
        begun = time.monotonic()
        first.clear()
        if seeds > 1:
            console.print(f"seed {seed}", highlight=False)

    def on_round(r: Round, summaries: Mapping[str, Summary] | None) -> None:
        start = first.setdefault("round", r.number - 1)
        if r.number % every == 0 or r.number == rounds:
            pace = (time.monotonic() - begun) / max(1, r.number - start)
            left = f", {pace * (rounds - r.number):.0f} s left" if r.number < rounds else ""
            console.print(_line(r, rounds, summaries) + left, highlight=False, soft_wrap=True, markup=False)

    return Watch(on_seed, on_round, notice)


def _line(r: Round, rounds: int, summaries: Mapping[str, Summary] | None) -> str:
    evaluated = "  ".join(
        f"{name} {s.evaluated.accuracy:.1f} (±{s.evaluated.client_fairness:.1f})"
        for name, s in leaders(summaries or {}, 6).items()
    )
    return f"round {r.number}/{rounds}, {r.seconds:.2f} s  {evaluated}".rstrip()
