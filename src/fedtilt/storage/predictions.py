"""The predictions of a run on its test data, in the folder of one seed: predictions.safetensors, of its last round."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedtilt.errors import InputError
from fedtilt.evaluation.evaluator import Grouping
from fedtilt.evaluation.prediction_sets import ConformityScores, PredictionSets, bins_of
from fedtilt.evaluation.predictions import Predictions
from fedtilt.files import interpreting, read_json, read_tensors, write_tensors

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
    about: dict[str, Any] = {"round": round, "names": {name: grouping.names for name, grouping in groupings.items()}}
    for name, p in predictions.items():
        if p.scores is not None:
            tensors[f"validation/{name}"] = torch.cat(list(p.scores.validation)).short()
            tensors["validation_sizes"] = torch.tensor([len(bins) for bins in p.scores.validation])
            about["deviation"] = p.scores.deviation
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
        scores = {
            key.removeprefix("validation/"): ConformityScores(
                bins.long().split(tensors["validation_sizes"].tolist()), about["deviation"]
            )
            for key, bins in tensors.items()
            if key.startswith("validation/")
        }
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} is damaged ({error!r}); delete it, and run fedtilt metrics to write it") from error
    methods = {key.removeprefix("method/"): tensor for key, tensor in tensors.items() if key.startswith("method/")}
    numbers = tensors.get("numbers")
    return {
        name: Predictions(outputs=found, groupings=groupings, numbers=numbers, scores=scores.get(name))
        for name, found in methods.items()
    }


def declared_sets(folder: Path, names: Sequence[str], coverage: float = 0.9, bad_share: float = 0.0) -> PredictionSets:
    """Prediction sets from the counts of scores that the sites of a deployment declare, in declared.json.

    `bad_share` of the sites may declare anything.
    """
    path = folder / "declared.json"
    sites = read_json(path)["sites"] if path.exists() else {}
    with interpreting(path):
        validation, test = (
            [bins_of(sites.get(str(n), {}).get("scores", {}).get(split, {})) for n in range(len(names))]
            for split in ("validation", "test")
        )
    if not any(map(len, validation)):
        raise InputError(
            "no site declares scores of validation data; set clients.validation = 0.2 in the spec of the project, and "
            "declare-scores=true in the --node-config of the sites"
        )
    return PredictionSets(ConformityScores(validation), test, names, coverage, bad_share)


def read_prediction(folder: Path, round: int, method: str) -> Predictions:
    """The stored predictions of one method after a round, or an error that says how to compute them."""
    stored = read_predictions(folder, round)
    if method not in stored:
        raise InputError(
            f"{folder} has no predictions of method {method!r}; fedtilt metrics {shlex.quote(str(folder.parent))} "
            f"--method {shlex.quote(method)} computes them"
        )
    return stored[method]
