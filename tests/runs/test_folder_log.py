"""A run that another process trains is logged from its folder: every evaluated round once, also after going back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedtilt as ft
from fedtilt.runs.callback import RunStart
from fedtilt.runs.trackers import FolderLog, Tracker

SETTINGS: dict[str, Any] = {"rounds": 2, "epochs": 1, "eval_every": 1, "workers": 0, "seed": 3}


class Recorded(Tracker):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.starts: list[RunStart] = []
        self.accuracies: dict[int, float] = {}
        self.ends: list[BaseException | None] = []

    def on_start(self, run: RunStart) -> None:
        self.starts.append(run)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        assert step not in self.accuracies
        self.accuracies[step] = values["fedtilt/accuracy"]

    def on_end(self, error: BaseException | None) -> None:
        self.ends.append(error)


def test_new_rounds_are_logged_once_and_in_the_same_log_after_a_resume(tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=4, max_train=20, seed=0)

    def train(rounds: int) -> dict[int, float]:
        method = ft.fedtilt(tau=0, lam=-2)
        result = ft.run([method], federation, ft.models.logistic, out=tmp_path, **SETTINGS | {"rounds": rounds})
        return {number: summary.evaluated.accuracy for number, summary in result["fedtilt"].history}

    first, second, back = Recorded(), Recorded(), Recorded()
    with FolderLog(tmp_path, 3, 2, [first]) as log:
        log.update([])  # nothing is written yet
        accuracies = train(2)
        log.update([1])  # the server has recorded the first round only
        log.update([1, 2])
        log.update([1, 2])
    assert first.accuracies == accuracies
    assert (first.starts[0].round, first.starts[0].settings["train"]["rounds"]) == (0, 2)
    assert first.ends == [None]

    log = FolderLog(tmp_path, 3, 3, [second])
    accuracies = train(3)
    log.update([1, 2, 3])
    with pytest.raises(KeyboardInterrupt), log:
        raise KeyboardInterrupt
    assert second.accuracies == {3: accuracies[3]}
    assert second.starts[0].round == 2
    assert isinstance(second.ends[0], KeyboardInterrupt)

    with FolderLog(tmp_path, 3, 3, [back], back_to=1) as log:
        log.update([1])  # rounds 2 and 3 are still in the folder, and are undone
        assert back.starts == []
        log.update([1, 2])
    assert (back.starts[0].round, list(back.accuracies)) == (1, [2])
