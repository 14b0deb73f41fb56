"""Watch a run: a live display on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedtilt.cli.tables import leaders, so_far
from fedtilt.results import Summary
from fedtilt.simulate import Round

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

    if quiet:
        yield Watch(lambda _: None, lambda *_: None, notice)
    elif console.is_terminal:
        with _live(console, rounds, seeds, verbose, notice) as watch:
            yield watch
    else:
        yield _plain(console, rounds, seeds, verbose, notice)


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
    judged = "  ".join(
        f"{name} {s.judged.accuracy:.1f} (±{s.judged.client_fairness:.1f})"
        for name, s in leaders(summaries or {}, 6).items()
    )
    return f"round {r.number}/{rounds}, {r.seconds:.2f} s  {judged}".rstrip()
