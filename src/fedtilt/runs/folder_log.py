"""Log the rounds of a run that another process trains, such as the server of a deployment, from its run folder."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from fedtilt.runs.callback import Callbacks, RunStart
from fedtilt.runs.trackers import Tracker, named_values
from fedtilt.storage.evaluations import Evaluations
from fedtilt.storage.fingerprint import read_fingerprint
from fedtilt.storage.provenance import seed_folder


class FolderLog(AbstractContextManager["FolderLog"]):
    """Sends the metrics of every round that is evaluated from now on to trackers; leaving the context ends their logs.

    Args:
        folder: the run folder
        seed: of the run
        rounds: how many it has
        trackers: where to log; empty: nowhere
        back_to: the round that the run goes back to; None: it goes on
    """

    def __init__(
        self, folder: Path, seed: int, rounds: int, trackers: Sequence[Tracker], back_to: int | None = None
    ) -> None:  # fmt: skip
        self._folder, self._seed, self._rounds, self._trackers = folder, seed, rounds, trackers
        self._callbacks = Callbacks(trackers)
        self._seed_folder = seed_folder(folder, seed)
        self._evaluations = Evaluations(self._seed_folder)
        before = [round for round in self._evaluations.read_lines().rounds if back_to is None or round <= back_to]
        self._last = self._first = max(before, default=0)

    def update(self, recorded: Collection[int]) -> None:
        """Log the rounds that have been evaluated since the last call, among those that the server has recorded."""
        if not self._trackers:
            return
        for round, lines in sorted(self._evaluations.read_lines().rounds.items()):
            if round <= self._last or round not in recorded:
                continue
            if self._last == self._first:
                settings = read_fingerprint(self._seed_folder / "fingerprint.json")
                self._callbacks.on_start(
                    RunStart(
                        seed=self._seed, round=self._first, rounds=self._rounds, settings=settings, folder=self._folder
                    )
                )
            self._last = round
            for tracker in self._trackers:
                tracker.log(round, named_values({method: line.summary for method, line in lines.items()}))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the logs that were started."""
        self._callbacks.on_end(error)
