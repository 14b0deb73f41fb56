"""What a run calls while it trains: a progress display, a tracker, or your own code."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedtilt import checks
from fedtilt.cluster.tasks import TaskProgress
from fedtilt.errors import InputError
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.simulation import Round


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """What is known about one seed of a run, or about a search, before it trains."""

    seed: int  # of a search: the first
    round: int  # the last finished round; 0 for a new run, and for a search
    rounds: int
    settings: Mapping[str, Any]  # methods, training settings, data and model, as in fingerprint.json
    folder: Path | None  # of the run; None: nothing is written


class SearchProgress(NamedTuple):
    """Where a search is, after every round."""

    stage: int  # from 1
    stages: int
    settings: int  # that train together now
    round: int
    until: int  # the round that the stage ends with
    done: float  # share of the planned work


class Callback:
    """What a run or a search calls while it trains; override the methods that you need.

    They are called in the process of the run, between rounds, in the order of the callbacks. An error in one of them
    stops the run, which can be resumed.

        class GoodEnough(ft.Callback):
            def on_round(self, round, metrics):
                return metrics is not None and metrics["fedtilt"].evaluated.accuracy > 97

        ft.run(methods, federation, ft.models.mlp, callbacks=[GoodEnough()])
    """

    def on_start(self, run: RunStart) -> None:
        """Before the first round of a seed, and before a resumed run continues."""

    def on_round(self, round: Round, metrics: Mapping[str, RoundMetrics] | None) -> bool | None:
        """After every round, with the metrics by method; None if the round was not evaluated.

        If it returns True, the run ends: with this round or, if that was not evaluated, with the next one that is.
        """

    def on_search(self, progress: SearchProgress) -> None:
        """After every round of a search."""

    def on_scores(self, round: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """After every stage of a search, which ends with a round: setting → objective → value on validation data."""

    def on_notice(self, text: str) -> None:
        """A message for the user, such as a damaged checkpoint or a client whose update stands out."""

    def on_tasks(self, running: Mapping[str, TaskProgress], done: int, total: int) -> None:
        """About every second while seeds are trained on a cluster: what runs where, and how many are done."""

    def on_end(self, error: BaseException | None) -> None:
        """After the last round of a seed, or with the error that stopped it."""


class Callbacks(Callback):
    """Several callbacks as one, called in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        self._started: list[Callback] = []
        for name in ("on_search", "on_scores", "on_notice", "on_tasks"):
            setattr(self, name, partial(self._call_all, name))

    def _call_all(self, name: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, name)(*arguments)

    def on_round(self, round: Round, metrics: Mapping[str, RoundMetrics] | None) -> bool:
        """Call all; whether any of them ends the run."""
        replies = [checks.to_python(callback.on_round(round, metrics)) for callback in self._callbacks]
        for callback, reply in zip(self._callbacks, replies, strict=True):
            if not isinstance(reply, bool | None):
                name = type(callback).__name__
                raise InputError(f"on_round of {name} returned {reply!r:.60}; return True to end the run, or nothing")
        return any(replies)

    def on_start(self, run: RunStart) -> None:
        """Call all."""
        for callback in self._callbacks:
            callback.on_start(run)
            self._started.append(callback)

    def on_end(self, error: BaseException | None) -> None:
        """Call all that have started, even if one of them fails."""
        with ExitStack() as stack:
            while self._started:
                stack.callback(self._started.pop().on_end, error)


@contextmanager
def started(callback: Callback, run: RunStart) -> Iterator[None]:
    """Call `on_start` before the block and `on_end` after it; neither if no round is left to train."""
    if run.round >= run.rounds:
        yield
        return
    try:
        callback.on_start(run)
        yield
    except BaseException as error:
        callback.on_end(error)
        raise
    callback.on_end(None)
