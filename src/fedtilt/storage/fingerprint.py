"""The fingerprint of a run: methods, settings, data and model, which must stay the same when it is resumed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import first_difference, read_json
from fedtilt.storage.run_length import with_interval, without_rounds

# key of a fingerprint whose value is a digest → what has changed, and what to restore
_DIGESTED = {
    "samples": "other samples; restore the data as it was",
    "partition": "another division of the samples among the clients; restore the data, its seed and its settings",
    "sizes": "other numbers of samples per client; restore the data, its seed and its settings",
    "start": "another initial model; restore its code, weights and random seed",
    "constants": "another {part}, which the run does not train; restore the model's code and weights",
    "loss": "another loss function; restore its code",
}


def read_fingerprint(path: Path) -> dict[str, Any]:
    """A fingerprint of a run folder, with the keys that every fingerprint has."""
    fingerprint = read_json(path)
    try:
        rounds, methods = fingerprint["train"]["rounds"], dict(fingerprint["methods"])
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error!r}); restore it from a copy") from error
    if not isinstance(rounds, int) or not methods:
        raise InputError(f"{path} is damaged: it has no rounds or methods; restore it from a copy")
    return dict(fingerprint)


def earlier_version(folder: Path) -> InputError:
    """The error about a run whose methods an earlier version recorded with other keys."""
    return InputError(
        f"{folder} is a run of an earlier version, in which methods had other keys; fedtilt report and export read it, "
        "but to go on with it install that version, or start a new run in another folder (--out, or out= in Python)"
    )


def _has_earlier_methods(fingerprint: Mapping[str, Any]) -> bool:
    return any("tau" in method for method in fingerprint["methods"].values())


def check_unchanged(folder: Path, before: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> None:
    """Refuse a fingerprint that differs from the one of the folder in more than the number of rounds."""
    if _has_earlier_methods(before):
        raise earlier_version(folder)
    before = with_outliers_of(fingerprint, before)
    difference = first_difference(without_rounds(before), without_rounds(with_keys_of(before, fingerprint)))
    if difference:
        key, was, now = difference
        changed = f"was started with {key} = {was}, and now it is {now}; restore it"
        if digested := next((text for name, text in _DIGESTED.items() if f"{key}.".startswith(f"{name}.")), None):
            changed = f"was started with {digested.format(part=key.partition('.')[2])}"
        raise InputError(f"{folder} {changed}, or start a new run in another folder (--out, or out= in Python)")


def check_other_seeds(folder: Path, fingerprint: Mapping[str, Any]) -> None:
    """Refuse the folder of a seed beside seeds of another run: reports would mix them.

    The seeds of one run may differ in their number of rounds while they go on beyond their end, one by one.
    """
    compared = without_rounds if (folder / "fingerprint.json").exists() else dict
    for path in sorted(folder.parent.glob("seed-*/fingerprint.json")):
        if path.parent == folder:
            continue
        other = compared(with_interval(read_fingerprint(path)))
        if _has_earlier_methods(other):
            raise earlier_version(folder.parent)
        difference = first_difference(_without_seed(other), _without_seed(compared(with_keys_of(other, fingerprint))))
        if difference:
            key, was, now = difference
            raise InputError(
                f"{folder.parent} has {path.parent.name} of a run with {key} = {was}, and now it is {now}; "
                "choose another folder"
            )


def with_keys_of(before: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """A fingerprint as JSON values, without keys that an earlier version did not write."""
    return {key: value for key, value in json.loads(json.dumps(fingerprint)).items() if key in before}


def with_outliers_of(fingerprint: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of a folder; without outliers, what an earlier version has about them does not matter."""
    now, was = fingerprint.get("outliers", {}), before.get("outliers", {})
    return {**before, "outliers": now} if now.get("kind") == was.get("kind") == "none" else dict(before)


def _without_seed(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a fingerprint that the seeds of one run share; a seed may change samples, partition and model."""
    by_seed = ("samples", "partition", "sizes", "start", "constants")
    common = {key: value for key, value in fingerprint.items() if key not in by_seed}
    return common | {"train": {key: value for key, value in fingerprint["train"].items() if key != "seed"}}
