"""The length of a run: it may go on beyond its end, to the same bits as a run that was planned longer.

The number of rounds changes nothing in the rounds before the end, unless the schedule of the learning rates depends on
it. Without `eval_every`, the interval between evaluations depends on it: it stays as the run was started with.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtilt.engine.settings import TrainSettings, default_eval_every
from fedtilt.errors import InputError
from fedtilt.files import read_json


def continued(folder: Path, settings: TrainSettings) -> TrainSettings:
    """The settings of a run that goes on in the folder of its seed: without `eval_every`, with the one it has."""
    path = folder / "fingerprint.json"
    if settings.eval_every is not None or not path.exists():
        return settings
    return dataclasses.replace(settings, eval_every=with_interval(read_json(path))["train"]["eval_every"])


def with_interval(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """A fingerprint with the interval between evaluations, which earlier versions left out if it was the default."""
    train = fingerprint["train"]
    return {
        **fingerprint,
        "train": {**train, "eval_every": train.get("eval_every") or default_eval_every(train["rounds"])},
    }


def without_rounds(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """A fingerprint without the number of rounds."""
    return {**fingerprint, "train": {key: value for key, value in fingerprint["train"].items() if key != "rounds"}}


def check_rounds(folder: Path, train: Mapping[str, Any], rounds: int, done: int, is_evaluated: bool) -> None:
    """Refuse another number of rounds where it changes rounds that are done, or where more are done.

    Args:
        folder: the folder, for the message
        train: the training settings of its fingerprint
        rounds: the number of rounds that are wanted
        done: the round of the last checkpoint
        is_evaluated: whether that round was evaluated
    """
    if rounds == train["rounds"]:
        return
    if train.get("schedule", {}).get("name") == "cosine":
        raise InputError(
            f"{folder} has schedule = 'cosine', in which every round depends on rounds = {train['rounds']}; "
            f"start a run with rounds = {rounds} in another folder"
        )
    if rounds < done or (rounds == done and not is_evaluated):
        what = "1 round" if done == 1 else f"{done} rounds"
        raise InputError(f"{folder} has {what}, and rounds = {rounds} is fewer; choose more than {done}")
