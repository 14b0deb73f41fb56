"""Train the settings of a search in parallel, as tasks of a Ray cluster; each writes its scores and checkpoints."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fedtilt.cluster.connection import connected, tensors_as_arrays
from fedtilt.cluster.tasks import Report, TaskProgress, check_shared, describe_tasks, run_tasks
from fedtilt.engine.settings import TrainSettings
from fedtilt.executors.devices import pick_device
from fedtilt.simulation import Round

_NOTICE_SECONDS = 30.0

Trial = tuple[Sequence[str], int]  # settings that are trained together, seed


class TrialTrainer(Protocol):
    """What trains a trial in a task."""

    @property
    def diverged(self) -> dict[str, int]:
        """The settings that diverged → the number of the stage."""
        ...

    def train_trial(self, trial: Trial, on_round: Callable[[Round], None], notice: Callable[[str], None]) -> None:
        """Train it, and write its scores into the folder of the search."""
        ...


def settings_in_task(settings: TrainSettings) -> TrainSettings:
    """The settings of a task, which trains in its own process on its own device."""
    timeout = TrainSettings.cluster_timeout  # the default: another has no effect without a cluster
    device = pick_device(settings.device).type
    return dataclasses.replace(settings, cluster=None, cluster_timeout=timeout, workers=None, device=device)


def train_trials_on_cluster(
    trainer: TrialTrainer, trials: Mapping[str, Trial], folder: Path, settings: TrainSettings, rounds: int,
    check_time: Callable[[], None], notice: Callable[[str], None],
) -> dict[str, int]:  # fmt: skip
    """Train trials on the cluster of the settings; the settings that diverged → the number of the stage.

    Args:
        trainer: trains a trial; every task has a copy
        trials: by name
        folder: of the search, which all nodes must share
        settings: those of the search
        rounds: of this stage
        check_time: called about every second; what it raises stops all tasks
        notice: called with messages, and with what runs where
    """
    shown = 0.0

    def on_progress(running: Mapping[str, TaskProgress], done: int, total: int) -> None:
        nonlocal shown
        check_time()
        if running and time.monotonic() - shown >= _NOTICE_SECONDS:
            shown = time.monotonic()
            notice(describe_tasks(running, done, total))

    with connected(settings.cluster or "local") as ray:
        check_shared(ray, folder)
        with tensors_as_arrays():
            reference = ray.put(trainer)
        tasks = {name: partial(_train_trial, [reference], trial, rounds) for name, trial in trials.items()}
        gpu = pick_device(settings.device).type == "cuda"
        diverged = run_tasks(ray, tasks, gpu=gpu, notice=notice, on_progress=on_progress)
    return {name: stage for of_task in diverged.values() for name, stage in of_task.items()}


def _train_trial(
    reference: Sequence[Any], trial: Trial, rounds: int, report: Report, notice: Callable[[str], None]
) -> dict[str, int]:
    """One task; the reference is in a list, which Ray passes as it is, so that tasks do not wait for the trainer."""
    import ray

    trainer: TrialTrainer = ray.get(reference[0])
    trainer.train_trial(trial, lambda r: report(r.number, rounds, ""), notice)
    return trainer.diverged
