"""The predictions of a run on its test data, in the folder of one seed: predictions.safetensors, of its last round."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import torch

from fedtilt.errors import InputError
from fedtilt.evaluation.groups import Grouping
from fedtilt.evaluation.predictions import Predictions
from fedtilt.files import read_tensors, write_tensors

_FILE = "predictions.safetensors"
MAX_METHODS = 8  # with more, as in a search, a run does not store predictions
MAX_BYTES = 256 * 2**20  # of the probabilities of all methods


def is_small(methods: int, samples: int, classes: int) -> bool:
    """Whether a run stores its predictions: by the numbers of methods, test samples and classes.

    >>> is_small(3, 10_000, 10), is_small(16, 10_000, 10), is_small(3, 1_000_000, 1000)
    (True, False, False)
    """
    return methods <= MAX_METHODS and 4 * methods * samples * classes <= MAX_BYTES


def has_predictions(folder: Path, round: int) -> bool:
    """Whether there are intact predictions after this round."""
    try:
        return bool(read_predictions(folder, round))
    except InputError:
        return False


def write_predictions(folder: Path, round: int, predictions: Mapping[str, Predictions]) -> None:
    """Write the predictions of every method after a round, in place of those of another round."""
    groupings = next(iter(predictions.values())).groupings
    tensors = {f"method/{name}": p.outputs for name, p in predictions.items()}
    tensors |= {f"group/{name}": grouping.codes for name, grouping in groupings.items()}
    numbers = next(iter(predictions.values())).numbers
    tensors |= {} if numbers is None else {"numbers": numbers}
    about = {"round": round, "names": {name: grouping.names for name, grouping in groupings.items()}}
    # not as metadata of the file, which has no fixed order: the same run gives the same bytes
    tensors["about"] = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    write_tensors(folder / _FILE, tensors)


def read_predictions(folder: Path, round: int) -> dict[str, Predictions]:
    """The stored predictions after a round by method; empty if there are none of that round."""
    path = folder / _FILE
    if not path.exists():
        return {}
    tensors = read_tensors(path)
    try:
        about = json.loads(bytes(tensors["about"].tolist()))
        if about["round"] != round:
            return {}
        names = about["names"]
        groupings = {key: Grouping(key, tuple(values), tensors[f"group/{key}"]) for key, values in names.items()}
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error!r}); delete it, and run fedtilt metrics to write it") from error
    methods = {key.removeprefix("method/"): tensor for key, tensor in tensors.items() if key.startswith("method/")}
    numbers = tensors.get("numbers")
    return {name: Predictions(outputs=found, groupings=groupings, numbers=numbers) for name, found in methods.items()}


def read_prediction(folder: Path, round: int, method: str) -> Predictions:
    """The stored predictions of one method after a round, or an error that says how to compute them."""
    stored = read_predictions(folder, round)
    if method not in stored:
        raise InputError(
            f"{folder} has no predictions of method {method!r}; fedtilt metrics {shlex.quote(str(folder.parent))} "
            f"--method {shlex.quote(method)} computes them"
        )
    return stored[method]
