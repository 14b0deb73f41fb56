"""The progress of a run in a notebook: one output that changes in place."""

import sys
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.runs.callback import Callback, RunStart
from fedtilt.simulation import Round
from fedtilt.text_tables import html_table

_SECONDS = 0.2  # the least time between two updates
_METRICS = 3  # the columns of the table: the first metrics of each method


def with_notebook_progress(callbacks: Sequence[Callback], progress: bool) -> list[Callback]:
    """The callbacks, and in a notebook a display of the progress if it is wanted."""
    return [*callbacks, *([NotebookProgress()] if progress and in_notebook() else [])]


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookProgress(Callback):
    """A bar, the last metrics and the notices as HTML."""

    def __init__(self) -> None:
        self._display: Any = None
        self._notices: list[str] = []
        self._metrics = ""

    def on_start(self, run: RunStart) -> None:
        """Show an empty bar."""
        self._run, self._round = run, run.round
        self._started = self._updated = time.monotonic()
        self._show("", new=True)

    def on_round(self, round: Round, metrics: Mapping[str, RoundMetrics] | None) -> None:
        """Move the bar; the table changes after evaluated rounds."""
        self._round = round.number
        if metrics:
            self._metrics = _table(round.number, metrics)
        now = time.monotonic()
        if metrics or now - self._updated >= _SECONDS:
            self._updated = now
            per_round = (now - self._started) / (round.number - self._run.round)
            self._show(f", {per_round * (self._run.rounds - round.number):.0f} s left")

    def on_notice(self, text: str) -> None:
        """Show the message below the bar."""
        self._notices.append(text)
        if self._display is not None:
            self._show("")

    def on_end(self, error: BaseException | None) -> None:
        """Say how long it took, or what stopped it."""
        seconds = time.monotonic() - self._started
        self._show(f", {seconds:.1f} s" if error is None else f"; stopped after {seconds:.1f} s")
        self._display = None

    def _show(self, status: str, *, new: bool = False) -> None:
        from IPython.display import HTML, display

        run = self._run
        bar = f'<progress value="{self._round}" max="{run.rounds}" style="width:20em"></progress>'
        notices = "".join(f"<div>note: {escape(text)}</div>" for text in self._notices)
        text = f"seed {run.seed}, round {self._round}/{run.rounds}{status}"
        html = HTML(f"<div>{bar} {escape(text)}{self._metrics}{notices}</div>")
        if new:
            self._display = display(html, display_id=True)
        else:
            self._display.update(html)


def _table(round: int, metrics: Mapping[str, RoundMetrics]) -> str:
    named = {method: summary.evaluated.by_name() for method, summary in metrics.items()}
    columns = list(next(iter(named.values())))[:_METRICS]
    rows = [[method, *(values[name] for name in columns)] for method, values in named.items()]
    return html_table(f"after round {round}", ["method", *(name.replace("_", " ") for name in columns)], rows)
